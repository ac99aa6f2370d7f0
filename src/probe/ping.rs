//! ICMP and ICMPv6 echo, as ping(8) does it.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::Result;
use nix::errno::Errno;
use socket2::{Socket, Type};

use super::echo::{Echo, behind_ipv4_header};
use super::socket::{Received, errno_of, icmp, readable, receive, send, without_port};
use super::trace::{Ended, Trace};
use super::{Options, Outcome, Probe, error_queue, pace};

/// Sends echo requests until one is answered or draws an error, or the time is over.
pub(super) fn probe(target: SocketAddr, how: &Options) -> Result<Ended> {
    let mut trace = Trace::begin(target, Probe::Ping);
    let pinger = match Pinger::open(target) {
        Ok(pinger) => pinger,
        Err(errno @ (Errno::EACCES | Errno::EPERM)) => {
            let why = format!("{errno:?}: a ping needs CAP_NET_RAW or a group in net.ipv4.ping_group_range");
            return Ok(trace.end(Outcome::Untried { why }));
        }
        Err(errno) => return Err(errno.into()),
    };
    error_queue::enable(&pinger.socket, target)?;
    let outcome = match pinger.connect(target) {
        Ok(()) => pinger.exchange(&mut trace, how)?,
        Err(errno) => trace.send_failed(errno),
    };
    Ok(trace.end(outcome))
}

struct Pinger {
    socket: Socket,
    raw: bool,
    echo: Echo,
}

impl Pinger {
    /// A ping socket, whose identifier the kernel chooses, or where our group may not have one, a raw socket.
    fn open(target: SocketAddr) -> Result<Self, Errno> {
        let (socket, raw) = match icmp(target, Type::DGRAM) {
            Ok(socket) => (socket, false),
            Err(_) => (icmp(target, Type::RAW)?, true),
        };
        Ok(Self { socket, raw, echo: Echo::to(target) })
    }

    /// Connected, the socket hears only the peer and the errors about packets to it.
    fn connect(&self, target: SocketAddr) -> Result<(), Errno> {
        self.socket.connect(&without_port(target)).map_err(|error| errno_of(&error))
    }

    fn exchange(&self, trace: &mut Trace, how: &Options) -> Result<Outcome> {
        let send = |trace: &mut Trace, turn| match send(&self.socket, &self.echo.request(turn)) {
            Ok(()) => Ok(None),
            Err(errno) => {
                trace.errors.extend(self.own_errors()?);
                Ok(Some(trace.send_failed(errno)))
            }
        };
        pace::exchange(trace, how, send, |trace, until| self.answer(trace, until))
    }

    fn answer(&self, trace: &mut Trace, until: Instant) -> Result<Option<Outcome>> {
        let mut buffer = [0; 2048];
        while readable(&self.socket, until)? {
            match receive(&self.socket, &mut buffer) {
                Received::Data(bytes) if self.is_reply(&buffer[..bytes]) => {
                    trace.received(&buffer[..bytes]);
                    trace.first_line = None;
                    return Ok(Some(Outcome::Answered));
                }
                Received::Failed(errno) => {
                    let errors = self.own_errors()?;
                    if !errors.is_empty() {
                        trace.errors.extend(errors);
                        return Ok(Some(trace.receive_failed(errno)));
                    }
                }
                Received::Data(_) | Received::EndOfFile | Received::Nothing => {}
            }
        }
        Ok(None)
    }

    /// A raw socket also hears of the errors of other programs that ping the same peer.
    fn own_errors(&self) -> Result<Vec<super::QueuedError>> {
        error_queue::drain(&self.socket, |packet| !self.raw || self.echo.is_ours(packet))
    }

    fn is_reply(&self, packet: &[u8]) -> bool {
        let icmp = if self.raw && !self.echo.v6 { behind_ipv4_header(packet) } else { packet };
        self.echo.is_any_reply(icmp) && (!self.raw || self.echo.is_ours(icmp))
    }
}
