//! The sockets of one ending: raw ones that send in anybody's name, and a capture of what both ends answer.

use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use super::Ending;
use super::segment::{self, Heard};

/// Bytes kept of a captured packet: the longest IPv4 and TCP headers.
const SNAP: u16 = 120;
/// Bytes of memory for captured packets: each small one takes about 1 KiB, and is seen up to four times.
const CAPTURE: usize = 32 << 20;
/// More ports than this are not told apart in the filter, whose jumps reach 255 instructions.
const PORTS: usize = 120;
/// Every protocol, outgoing packets included (`ETH_P_ALL`).
const EVERYTHING: u16 = 3;

/// Sends segments in the name of either end and hears what the other answers.
pub(super) struct Wire {
    tap: Socket,
    v4: Option<Socket>,
    v6: Option<Socket>,
}

impl Wire {
    /// Opens the sockets in the calling thread's namespace. The capture is open before anything is sent.
    pub(super) fn open(endings: &[Ending], mark: u32) -> Result<Self> {
        let any = |v4: bool| endings.iter().any(|ending| ending.client.ip().to_canonical().is_ipv4() == v4);
        let raw =
            |domain| raw(domain, mark).context("cannot open a raw socket (CAP_NET_RAW and CAP_NET_ADMIN: use sudo)");
        Ok(Self {
            tap: tap(endings).context("cannot capture packets (CAP_NET_RAW and CAP_NET_ADMIN: use sudo)")?,
            v4: any(true).then(|| raw(Domain::IPV4)).transpose()?,
            v6: any(false).then(|| raw(Domain::IPV6)).transpose()?,
        })
    }

    /// Sends one packet. What the network refuses counts as lost: a later one tries again.
    pub(super) fn send(&self, packet: &[u8], mut to: SocketAddr) -> Result<()> {
        let Some(socket) = (if to.is_ipv4() { &self.v4 } else { &self.v6 }) else { return Ok(()) };
        // A raw IPv6 socket takes the port for a protocol number.
        to.set_port(0);
        match socket.send_to(packet, &to.into()) {
            Err(error) if !lost(&error) => Err(error).with_context(|| format!("cannot send a forged segment to {to}")),
            _ => Ok(()),
        }
    }

    /// Waits until something was captured, at most for `time`.
    pub(super) fn wait(&self, time: Duration) -> Result<()> {
        // Rounded up: a wait that ends too early would spin.
        let timeout = PollTimeout::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.tap.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno).context("cannot wait for captured packets"),
        }
    }

    /// The next captured TCP segment, if there is one by now.
    pub(super) fn hear(&self) -> Result<Option<Heard>> {
        let mut bytes = [0; SNAP as usize];
        loop {
            match (&self.tap).read(&mut bytes) {
                Ok(length) => {
                    if let Some(heard) = segment::parse(&bytes[..length]) {
                        return Ok(Some(heard));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error).context("cannot read captured packets"),
            }
        }
    }
}

fn raw(domain: Domain, mark: u32) -> io::Result<Socket> {
    // This protocol number stands for "the caller writes the IP header", and such a socket receives nothing.
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
    socket.set_mark(mark)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// All interfaces, both directions, without link headers.
fn tap(endings: &[Ending]) -> io::Result<Socket> {
    let all = Protocol::from(i32::from(EVERYTHING.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(all))?;
    socket.set_nonblocking(true)?;
    let mut ports: Vec<_> = endings.iter().map(|ending| ending.peer.port()).collect();
    ports.sort_unstable();
    ports.dedup();
    socket.attach_filter(&filter(&ports))?;
    // More than net.core.rmem_max takes CAP_NET_ADMIN in the first user namespace; what overruns less is asked again.
    if setsockopt(&socket, RcvBufForce, &CAPTURE).is_err() {
        setsockopt(&socket, RcvBuf, &CAPTURE)?;
    }
    Ok(socket)
}

/// TCP over IPv4 or IPv6 (no extension headers: Linux sends none with TCP) to or from one of the ports.
fn filter(ports: &[u16]) -> Vec<SockFilter> {
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_HALF_BEHIND_HEADER: u16 = 0x48;
    const LOAD_INDEX: u16 = 0x01;
    const LOAD_HEADER_LENGTH: u16 = 0xb1;
    const SHIFT_RIGHT: u16 = 0x74;
    const JUMP: u16 = 0x05;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const SOURCE: u32 = 0;
    const DESTINATION: u32 = 2;

    let ports = if ports.len() > PORTS { &[] } else { ports };
    let count = u8::try_from(ports.len()).unwrap_or_default();
    // Behind the ports: what becomes of all others, drop, accept.
    let others = if count == 0 { u32::from(SNAP) } else { 0 };
    let step = |code, value| SockFilter::new(code, 0, 0, value);
    let length = 2 * (count + 1);
    let mut program = vec![
        step(LOAD_BYTE, 0),
        step(SHIFT_RIGHT, 4),
        SockFilter::new(JUMP_EQUAL, 4, 0, 6),
        step(LOAD_BYTE, 9),
        SockFilter::new(JUMP_EQUAL, 0, 6 + length, 6),
        step(LOAD_HEADER_LENGTH, 0),
        step(JUMP, 3),
        step(LOAD_BYTE, 6),
        SockFilter::new(JUMP_EQUAL, 0, 2 + length, 6),
        step(LOAD_INDEX, 40),
    ];
    for (half, before_accept) in [(DESTINATION, count + 3), (SOURCE, 2)] {
        program.push(step(LOAD_HALF_BEHIND_HEADER, half));
        let to_accept = (before_accept..before_accept + count).rev();
        program.extend(
            ports.iter().zip(to_accept).map(|(port, jump)| SockFilter::new(JUMP_EQUAL, jump, 0, u32::from(*port))),
        );
    }
    program.extend([step(RETURN, others), step(RETURN, 0), step(RETURN, u32::from(SNAP))]);
    program
}

/// Full queues, unresolved neighbours, missing routes and filters: the packet is lost, as it may be anywhere on its way.
fn lost(error: &io::Error) -> bool {
    use Errno::{EACCES, EAGAIN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ENOBUFS, EPERM};
    let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
    [EACCES, EAGAIN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ENOBUFS, EPERM].contains(&errno)
}
