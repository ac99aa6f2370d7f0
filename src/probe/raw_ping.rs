//! ICMP and ICMPv6 echo from a plain raw socket, as monitors and C libraries do it.
//!
//! Neither connected nor with an error queue, the socket is told of no error about its packets (`raw_err`, `rawv6_err`);
//! but it gets a copy of every ICMP packet that comes in, errors included.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Instant;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{SockaddrStorage, recvfrom};
use socket2::{Socket, Type};

use super::echo::{Echo, behind_ipv4_header};
use super::socket::{errno_of, icmp, readable, without_port};
use super::trace::{Ended, Trace};
use super::{Options, Outcome, Probe, What, pace};

/// Sends echo requests until one is answered or draws an error, or the time is over.
pub(super) fn probe(target: SocketAddr, how: &Options) -> Result<Ended> {
    let mut trace = Trace::begin(target, Probe::RawPing);
    let socket = match icmp(target, Type::RAW) {
        Ok(socket) => socket,
        Err(errno @ (Errno::EACCES | Errno::EPERM)) => {
            let why = format!("{errno:?}: a raw socket needs CAP_NET_RAW");
            return Ok(trace.end(Outcome::Untried { why }));
        }
        Err(errno) => return Err(errno).context("cannot make a raw socket"),
    };
    let outcome = Pinger { socket, target, echo: Echo::to(target) }.exchange(&mut trace, how)?;
    Ok(trace.end(outcome))
}

struct Pinger {
    socket: Socket,
    target: SocketAddr,
    echo: Echo,
}

impl Pinger {
    fn exchange(&self, trace: &mut Trace, how: &Options) -> Result<Outcome> {
        let address = without_port(self.target);
        let send = |trace: &mut Trace, turn| {
            let sent = self.socket.send_to(&self.echo.request(turn), &address);
            Ok(sent.err().map(|error| trace.send_failed(errno_of(&error))))
        };
        pace::exchange(trace, how, send, |trace, until| self.answer(trace, until))
    }

    fn answer(&self, trace: &mut Trace, until: Instant) -> Result<Option<Outcome>> {
        let mut buffer = [0; 2048];
        while readable(&self.socket, until)? {
            match recvfrom::<SockaddrStorage>(self.socket.as_raw_fd(), &mut buffer) {
                Ok((bytes, from)) => {
                    let from = from.as_ref().and_then(address_of).context("a raw packet came from nowhere")?;
                    if let Some(outcome) = self.heard(trace, &buffer[..bytes], from) {
                        return Ok(Some(outcome));
                    }
                }
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) => return Ok(Some(trace.receive_failed(errno))),
            }
        }
        Ok(None)
    }

    /// Every raw socket hears every ICMP packet: what is about our requests counts.
    fn heard(&self, trace: &mut Trace, packet: &[u8], from: IpAddr) -> Option<Outcome> {
        let icmp = if self.echo.v6 { packet } else { behind_ipv4_header(packet) };
        if self.echo.is_any_reply(icmp) && self.echo.is_ours(icmp) && from == self.target.ip() {
            trace.note(What::Received { bytes: packet.len() });
            return Some(Outcome::Answered);
        }
        let (kind, code) = self.echo.error_about_ours(icmp)?;
        trace.note(What::IcmpError { kind, code, from });
        Some(Outcome::IcmpError { kind, code })
    }
}

fn address_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}
