//! ICMP and ICMPv6 echo.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

use anyhow::Result;
use etherparse::{IcmpEchoHeader, Icmpv4Header, Icmpv4Type};
use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use super::socket::{Received, errno_of, readable, receive, send};
use super::trace::{Ended, Trace};
use super::{Options, Outcome, Probe, error_queue};

/// Requests in the time of the timeout.
const REQUESTS: u32 = 4;
const PAYLOAD: &[u8] = b"playdead";

static NEXT_ID: AtomicU16 = AtomicU16::new(0);

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
    v6: bool,
    id: u16,
}

impl Pinger {
    /// A raw socket, or without the right to one a ping socket, whose identifier the kernel chooses.
    fn open(target: SocketAddr) -> Result<Self, Errno> {
        let v6 = target.is_ipv6();
        let protocol = if v6 { Protocol::ICMPV6 } else { Protocol::ICMPV4 };
        let socket = |kind| Socket::new(Domain::for_address(target), kind, Some(protocol));
        let (socket, raw) = match socket(Type::RAW) {
            Ok(socket) => (socket, true),
            Err(_) => (socket(Type::DGRAM).map_err(|error| errno_of(&error))?, false),
        };
        socket.set_nonblocking(true).map_err(|error| errno_of(&error))?;
        Ok(Self { socket, raw, v6, id: own_id() })
    }

    /// Connected, the socket hears only the peer and the errors about packets to it.
    fn connect(&self, target: SocketAddr) -> Result<(), Errno> {
        let mut address = target;
        // A raw IPv6 socket takes the port for a protocol number and refuses any but its own.
        address.set_port(0);
        self.socket.connect(&address.into()).map_err(|error| errno_of(&error))
    }

    fn exchange(&self, trace: &mut Trace, how: &Options) -> Result<Outcome> {
        let start = Instant::now();
        for turn in 1..=REQUESTS {
            if let Err(errno) = send(&self.socket, &self.request(turn)) {
                trace.errors.extend(self.own_errors()?);
                return Ok(trace.send_failed(errno));
            }
            trace.sent();
            let until = start + how.timeout * turn / REQUESTS;
            if let Some(outcome) = self.answer(trace, until)? {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Silence)
    }

    /// The kernel fills in the checksum for ICMPv6 and for ping sockets, and for these the identifier.
    fn request(&self, turn: u32) -> Vec<u8> {
        let echo = IcmpEchoHeader { id: self.id, seq: u16::try_from(turn).unwrap_or(u16::MAX) };
        let mut packet = if self.v6 {
            let mut header = vec![icmp6::ECHO_REQUEST, 0, 0, 0];
            header.extend(echo.to_bytes());
            header
        } else {
            Icmpv4Header::with_checksum(Icmpv4Type::EchoRequest(echo), PAYLOAD).to_bytes().to_vec()
        };
        packet.extend(PAYLOAD);
        packet
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
        error_queue::drain(&self.socket, |packet| !self.raw || has_id(packet, self.id))
    }

    fn is_reply(&self, packet: &[u8]) -> bool {
        let icmp = if self.raw && !self.v6 { behind_ipv4_header(packet) } else { packet };
        let reply = if self.v6 { icmp6::ECHO_REPLY } else { 0 };
        icmp.first() == Some(&reply) && (!self.raw || has_id(icmp, self.id))
    }
}

/// ICMPv6 types of RFC 4443.
mod icmp6 {
    pub(super) const ECHO_REQUEST: u8 = 128;
    pub(super) const ECHO_REPLY: u8 = 129;
}

/// Different in every probe of this process, and most likely in other processes.
fn own_id() -> u16 {
    let [.., high, low] = std::process::id().to_be_bytes();
    NEXT_ID.fetch_add(1, Ordering::Relaxed).wrapping_add(u16::from_be_bytes([high, low]))
}

fn behind_ipv4_header(packet: &[u8]) -> &[u8] {
    let length = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    packet.get(length..).unwrap_or_default()
}

fn has_id(icmp: &[u8], id: u16) -> bool {
    icmp.get(4..6) == Some(&id.to_be_bytes())
}
