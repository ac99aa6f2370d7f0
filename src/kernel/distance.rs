//! How many routers are between a namespace and other hosts: told by the time to live of their answers to a ping.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use anyhow::Result;
use etherparse::{IcmpEchoHeader, Icmpv4Header, Icmpv4Type};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use super::netns::NetNs;

/// What systems send with.
const INITIAL: [u8; 3] = [64, 128, 255];

/// The hosts that answered one echo request each within `patience`, with the number of routers in between. Without the
/// right to ping (`CAP_NET_RAW`) nobody answers.
///
/// # Errors
/// When the namespace cannot be entered, or the sockets cannot be waited for.
pub fn hops(ns: &NetNs, hosts: &[IpAddr], patience: Duration) -> Result<HashMap<IpAddr, u8>> {
    let families: Vec<bool> = [false, true].into_iter().filter(|v6| hosts.iter().any(|h| h.is_ipv6() == *v6)).collect();
    let pingers = ns.run(|| families.iter().filter_map(|v6| Pinger::open(*v6).ok()).collect::<Vec<_>>())?;
    let until = Instant::now() + patience;
    let mut open: Vec<IpAddr> = Vec::new();
    for pinger in &pingers {
        let of_family = hosts.iter().filter(|host| host.is_ipv6() == pinger.v6);
        open.extend(of_family.filter(|host| pinger.ask(**host).is_ok()));
    }
    let mut found = HashMap::new();
    while !open.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        let mut fds: Vec<_> = pingers.iter().map(|one| PollFd::new(one.socket.as_fd(), PollFlags::POLLIN)).collect();
        if left.is_zero() || poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX))? == 0 {
            break;
        }
        for (host, ttl) in pingers.iter().flat_map(Pinger::hear) {
            open.retain(|waiting| *waiting != host);
            found.insert(host, hops_of(ttl));
        }
    }
    Ok(found)
}

fn hops_of(ttl: u8) -> u8 {
    INITIAL.into_iter().find(|initial| ttl <= *initial).unwrap_or(u8::MAX) - ttl
}

struct Pinger {
    socket: Socket,
    v6: bool,
}

impl Pinger {
    fn open(v6: bool) -> io::Result<Self> {
        let (domain, protocol) = if v6 { (Domain::IPV6, Protocol::ICMPV6) } else { (Domain::IPV4, Protocol::ICMPV4) };
        let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        socket.set_nonblocking(true)?;
        if v6 {
            setsockopt(&socket, sockopt::Ipv6RecvHopLimit, &true)?;
        }
        Ok(Self { socket, v6 })
    }

    fn ask(&self, host: IpAddr) -> io::Result<usize> {
        let echo = IcmpEchoHeader { id: id(), seq: 1 };
        let packet = if self.v6 {
            // The kernel fills in the checksum.
            [&[ECHO_REQUEST_V6, 0, 0, 0], &echo.to_bytes()[..]].concat()
        } else {
            Icmpv4Header::with_checksum(Icmpv4Type::EchoRequest(echo), &[]).to_bytes().to_vec()
        };
        self.socket.send_to(&packet, &SocketAddr::new(host, 0).into())
    }

    /// The answers that have come; a raw socket hears those to others too.
    fn hear(&self) -> Vec<(IpAddr, u8)> {
        std::iter::from_fn(|| self.packet().ok()).flatten().collect()
    }

    /// The next packet: `None` if it is no answer to us; an error if none has come.
    fn packet(&self) -> nix::Result<Option<(IpAddr, u8)>> {
        let mut buffer = [0; 128];
        let mut control = nix::cmsg_space!(i32);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let fd = self.socket.as_raw_fd();
        let heard = recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut control), MsgFlags::empty())?;
        let (from, bytes) = (heard.address.as_ref().and_then(address), heard.bytes);
        let hop_limit = heard.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::Ipv6HopLimit(limit) => u8::try_from(limit).ok(),
            _ => None,
        });
        Ok(self.answer(&buffer[..bytes], hop_limit).and_then(|ttl| Some((from?, ttl))))
    }

    /// The time to live of an answer to us. IPv4 gives the packet with its header.
    fn answer(&self, packet: &[u8], hop_limit: Option<u8>) -> Option<u8> {
        let (ttl, icmp) = if self.v6 {
            (hop_limit?, packet)
        } else {
            (*packet.get(8)?, packet.get(usize::from(packet[0] & 0xf) * 4..)?)
        };
        let reply = if self.v6 { ECHO_REPLY_V6 } else { 0 };
        (icmp.first() == Some(&reply) && icmp.get(4..6) == Some(&id().to_be_bytes())).then_some(ttl)
    }
}

/// RFC 4443.
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;

fn id() -> u16 {
    let [.., high, low] = std::process::id().to_be_bytes();
    u16::from_be_bytes([high, low])
}

fn address(from: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = from.as_sockaddr_in().map(|from| IpAddr::V4(from.ip()));
    v4.or_else(|| from.as_sockaddr_in6().map(|from| IpAddr::V6(from.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_are_what_is_missing_to_the_next_value_that_systems_send_with() {
        assert_eq!([64, 63, 120, 128, 250, 255].map(hops_of), [0, 1, 8, 0, 5, 0]);
    }

    #[test]
    fn this_host_is_no_router_away() {
        let hosts: [IpAddr; 2] = ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        let found = hops(&NetNs::current().unwrap(), &hosts, Duration::from_secs(2)).unwrap();
        assert_eq!(found, hosts.map(|host| (host, 0)).into());
    }
}
