//! What sockets a namespace has, read from the kernel by `sock_diag(7)`.

mod diag;

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;

use self::diag::Entry;
use super::forge::How;
use super::netns::NetNs;
use crate::encode::netlink::u32_at;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Kernel numbers of the states that are no [`State`]. An unconnected UDP socket counts as closed.
const CLOSED: u8 = 7;
const LISTEN: u8 = 10;
/// Where `struct tcp_info` has the shifts of both windows, the peer's window and one's own (Linux 5.4 and 6.2).
const WINDOW_SHIFTS: usize = 6;
const HEARD_WINDOW: usize = 228;
const SENT_WINDOW: usize = 232;

/// How far an open TCP connection is, as seen from the end that owns the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Both directions are open.
    Established,
    /// Half open: the last segment of the handshake has not come yet.
    SynReceived,
    /// This end has sent its FIN, which is not acknowledged yet.
    FinWait1,
    /// This end has sent its FIN, and the other acknowledged it.
    FinWait2,
    /// The other end has sent its FIN; this end still sends.
    CloseWait,
}

impl State {
    const ALL: [(Self, u8); 5] = [
        (Self::Established, 1),
        (Self::SynReceived, 3),
        (Self::FinWait1, 4),
        (Self::FinWait2, 5),
        (Self::CloseWait, 8),
    ];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().find(|(_, n)| *n == number).map(|(state, _)| *state)
    }
}

/// One end of a TCP connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Connection {
    /// The address of this end; IPv4 mapped into IPv6 is given as IPv4.
    pub local: SocketAddr,
    /// The address of the other end.
    pub remote: SocketAddr,
    /// The state of this end.
    pub state: State,
    /// Bytes that arrived and that the process has not read yet.
    pub unread: u32,
    /// Whether a process has it: false while it waits for `accept`, and after the process closed it.
    pub accepted: bool,
    /// By which a process's descriptor is known to be of it; 0 if no process has it.
    pub inode: u32,
    /// The window field (unscaled) of the segments that this end sends now; 0 where the kernel does not tell (before 6.2).
    pub sent_window: u16,
    /// The window field (unscaled) of the last segment that came from the other end; 0 where the kernel does not tell (before 5.4).
    pub heard_window: u16,
}

impl Connection {
    fn from_entry(entry: &Entry) -> Option<Self> {
        let state = State::from_number(entry.state)?;
        // The FIN takes a sequence number, and the kernel counts it as one byte until end of file was read.
        let fin = u32::from(state == State::CloseWait);
        let shifts = entry.info.get(WINDOW_SHIFTS).copied().unwrap_or_default();
        Some(Self {
            local: entry.local,
            remote: entry.remote,
            state,
            unread: entry.receive_queue.saturating_sub(fin),
            accepted: entry.inode != 0,
            inode: entry.inode,
            sent_window: window(&entry.info, SENT_WINDOW, shifts >> 4),
            heard_window: window(&entry.info, HEARD_WINDOW, shifts & 0xf),
        })
    }
}

fn window(info: &[u8], at: usize, shift: u8) -> u16 {
    let window = u32_at(info, at).unwrap_or(0) >> shift;
    u16::try_from(window).unwrap_or(u16::MAX)
}

/// What the kernel would send on this connection if its process got SIGKILL now; `None` if nothing, since the
/// process has already sent its FIN or closed it, or the connection is only half open.
///
/// Data that nobody will read makes the kernel reset instead of finish (RFC 2525, 2.17), and so does a connection
/// that nobody accepted. `SO_LINGER` with a time of 0 would reset too, but no other process can see that option.
pub fn as_killed(connection: &Connection) -> Option<How> {
    let lost = connection.unread > 0 || !connection.accepted;
    match connection.state {
        State::Established | State::CloseWait if lost => Some(How::Reset),
        State::Established | State::CloseWait => Some(How::Fin),
        State::FinWait1 | State::FinWait2 if connection.accepted && connection.unread > 0 => Some(How::Reset),
        State::FinWait1 | State::FinWait2 | State::SynReceived => None,
    }
}

/// The TCP connections in `ns`, one for each end that is there, that are open in at least one direction.
///
/// Fails if the namespace cannot be entered or the kernel does not list its sockets.
pub fn connections(ns: &NetNs) -> Result<Vec<Connection>> {
    let states = State::ALL.iter().fold(0, |bits, (_, number)| bits | 1 << number);
    let entries = ns.run(|| diag::dump(TCP, states))??;
    Ok(entries.iter().filter_map(Connection::from_entry).collect())
}

/// The connections in a datagram of the kernel's list of sockets.
///
/// # Errors
/// When it is cut off, or tells of an error.
#[doc(hidden)] // For the fuzzer, which has no kernel to ask.
pub fn read_datagram(datagram: &[u8]) -> Result<Vec<Connection>> {
    Ok(diag::read_datagram(datagram)?.iter().filter_map(Connection::from_entry).collect())
}

/// The addresses at which TCP listens in `ns`. A listener on `[::]` that takes IPv4 as well is given as both wildcards.
///
/// Fails if the namespace cannot be entered or the kernel does not list its sockets.
pub fn listeners(ns: &NetNs) -> Result<Vec<SocketAddr>> {
    bound(ns, TCP, LISTEN)
}

/// The addresses at which TCP listens in `ns`, as in [`listeners`], and how many more connections each takes before its
/// process accepts one: one more than its backlog (`sk_acceptq_is_full`).
///
/// Fails if the namespace cannot be entered or the kernel does not list its sockets.
pub fn accept_queues(ns: &NetNs) -> Result<Vec<(SocketAddr, u32)>> {
    let entries = ns.run(|| diag::dump(TCP, 1 << LISTEN))??;
    let left = |entry: &Entry| entry.send_queue.saturating_add(1).saturating_sub(entry.receive_queue);
    Ok(entries.iter().flat_map(|entry| at(entry).into_iter().map(move |at| (at, left(entry)))).collect())
}

/// The addresses to which unconnected UDP sockets in `ns` are bound, wildcards as in [`listeners`].
///
/// Fails if the namespace cannot be entered or the kernel does not list its sockets.
pub fn udp_receivers(ns: &NetNs) -> Result<Vec<SocketAddr>> {
    bound(ns, UDP, CLOSED)
}

fn bound(ns: &NetNs, protocol: u8, state: u8) -> Result<Vec<SocketAddr>> {
    let entries = ns.run(|| diag::dump(protocol, 1 << state))??;
    let mut addresses: Vec<_> = entries.iter().flat_map(at).collect();
    addresses.sort();
    addresses.dedup();
    Ok(addresses)
}

fn at(entry: &Entry) -> Vec<SocketAddr> {
    let both = entry.local.is_ipv6() && entry.local.ip().is_unspecified() && !entry.v6_only;
    let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, entry.local.port()));
    if both { vec![entry.local, v4] } else { vec![entry.local] }
}
