//! One dump of `sock_diag(7)`: the request, the reading of its parts, and the decoding of one socket.
//!
//! The crate `netlink-packet-sock-diag` would bring a second `netlink-packet-core`, and its `tcp_info` ends
//! before the window that this end advertises.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket};

use crate::encode::netlink::{HEADER, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, attributes, u16_at, u32_at};

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_SKV6ONLY: u16 = 11;
/// `struct inet_diag_req_v2` and `struct inet_diag_msg`, in bytes.
const REQUEST: usize = 56;
const MESSAGE: usize = 72;
/// A list that changed while it was read is asked for again, this often.
const ATTEMPTS: usize = 10;

/// One socket as the kernel reports it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) state: u8,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Bytes that wait to be read; of a listening socket, connections that wait for `accept`.
    pub(super) receive_queue: u32,
    /// Bytes that wait to be acknowledged; of a listening socket, its backlog.
    pub(super) send_queue: u32,
    pub(super) inode: u32,
    /// An IPv6 socket that takes no IPv4.
    pub(super) v6_only: bool,
    /// `struct tcp_info`, as long as this kernel makes it; empty for UDP and for half-open connections.
    pub(super) info: Vec<u8>,
}

/// The sockets of `protocol` in the calling thread's namespace whose state (a `TCP_*` number) has its bit in `states`.
pub(super) fn dump(protocol: u8, states: u32) -> Result<Vec<Entry>> {
    let mut entries = whole(AF_INET, protocol, states)?;
    entries.extend(whole(AF_INET6, protocol, states)?);
    Ok(entries)
}

fn whole(family: u8, protocol: u8, states: u32) -> Result<Vec<Entry>> {
    for _ in 0..ATTEMPTS {
        if let Some(entries) = attempt(family, protocol, states)? {
            return Ok(entries);
        }
    }
    bail!("the kernel's list of sockets changed during each of {ATTEMPTS} readings")
}

/// `None`: the list changed meanwhile, so that something may be missing in it.
fn attempt(family: u8, protocol: u8, states: u32) -> Result<Option<Vec<Entry>>> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)
        .context("cannot open a sock_diag socket")?;
    let kernel = NetlinkAddr::new(0, 0);
    sendto(socket.as_raw_fd(), &request(family, protocol, states), &kernel, MsgFlags::empty())
        .context("cannot ask the kernel for its sockets")?;
    let mut list = List { entries: Vec::new(), torn: false, done: false };
    let mut buffer = vec![0; 1 << 16];
    while !list.done {
        let length = receive(&socket, &mut buffer)?;
        list.read(&buffer[..length])?;
    }
    Ok((!list.torn).then_some(list.entries))
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<usize> {
    loop {
        match recv(socket.as_raw_fd(), buffer, MsgFlags::empty()) {
            Err(Errno::EINTR) => {}
            result => return result.context("cannot read the kernel's list of sockets"),
        }
    }
}

fn request(family: u8, protocol: u8, states: u32) -> Vec<u8> {
    let length = HEADER + REQUEST;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(u32::try_from(length).unwrap_or_default().to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, protocol, 1 << (INET_DIAG_INFO - 1), 0]);
    bytes.extend(states.to_ne_bytes());
    bytes.resize(length, 0);
    bytes
}

struct List {
    entries: Vec<Entry>,
    torn: bool,
    done: bool,
}

impl List {
    /// Takes up the messages of one datagram.
    fn read(&mut self, mut bytes: &[u8]) -> Result<()> {
        while let Some((length, kind, flags)) = header(bytes) {
            let message = bytes.get(HEADER..length).context("the kernel's list of sockets is cut off")?;
            self.torn |= flags & NLM_F_DUMP_INTR != 0;
            match kind {
                SOCK_DIAG_BY_FAMILY => self.entries.extend(entry(message)),
                NLMSG_DONE => self.done = true,
                NLMSG_ERROR => return Err(refusal(message)),
                _ => {}
            }
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(())
    }
}

/// The sockets in one datagram.
pub(super) fn read_datagram(datagram: &[u8]) -> Result<Vec<Entry>> {
    let mut list = List { entries: Vec::new(), torn: false, done: false };
    list.read(datagram)?;
    Ok(list.entries)
}

/// Length, type and flags of the netlink message that `bytes` starts with.
fn header(bytes: &[u8]) -> Option<(usize, u16, u16)> {
    let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
    Some((length.max(HEADER), u16_at(bytes, 4)?, u16_at(bytes, 6)?))
}

fn refusal(message: &[u8]) -> anyhow::Error {
    let errno = u32_at(message, 0).map_or(Errno::EINVAL, |code| Errno::from_raw(code.cast_signed().wrapping_neg()));
    // ENOENT: neither built in nor to be had as a module.
    anyhow::Error::new(errno).context("the kernel does not list its sockets (it needs tcp_diag and udp_diag)")
}

fn entry(message: &[u8]) -> Option<Entry> {
    let id = message.get(4..52)?;
    let (family, scope) = (message[0], u32_at(id, 36)?);
    let mut entry = Entry {
        state: message[1],
        local: address(family, &id[4..20], port(id, 0)?, scope),
        remote: address(family, &id[20..36], port(id, 2)?, scope),
        receive_queue: u32_at(message, 56)?,
        send_queue: u32_at(message, 60)?,
        inode: u32_at(message, 68)?,
        v6_only: false,
        info: Vec::new(),
    };
    for (kind, value) in attributes(message.get(MESSAGE..)?) {
        match kind {
            INET_DIAG_INFO => entry.info = value.to_vec(),
            INET_DIAG_SKV6ONLY => entry.v6_only = value.first() == Some(&1),
            _ => {}
        }
    }
    Some(entry)
}

/// IPv4 in IPv6 becomes IPv4. The interface a socket is bound to tells link-local addresses apart; elsewhere it says nothing.
fn address(family: u8, bytes: &[u8], port: u16, scope: u32) -> SocketAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(bytes);
    if family == AF_INET {
        return (Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]), port).into();
    }
    match Ipv6Addr::from(octets).to_canonical() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, port, 0, scope).into(),
        ip => (ip, port).into(),
    }
}

fn port(id: &[u8], at: usize) -> Option<u16> {
    u16_at(id, at).map(u16::from_be)
}
