//! Looks at a peer exactly as a client does: by sockets, from a namespace, with the monotonic clock.
//!
//! What is seen is a value, an [`Observation`]; an error is always playdead's own failure (no descriptor left,
//! a namespace that cannot be entered).

mod echo;
mod error_queue;
mod open;
mod pace;
mod ping;
mod raw_ping;
mod socket;
mod tcp;
mod tcp_info;
mod trace;
mod udp;
mod watch;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use socket2::{Protocol, Type};

use crate::kernel::netns::NetNs;
pub use crate::model::observation::{Observation, Outcome, Probe, QueuedError, Step, Tcp, What};
pub use watch::Watch;

/// How long to look, by which probes, and what to ask.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long each probe waits: for a connection, then again for the answer on it.
    pub timeout: Duration,
    /// The probes to make. Those that [open before](Probe::opens_before) need a [`Watch`] and an event.
    pub probes: Vec<Probe>,
    /// What to send on a TCP connection.
    pub request: Request,
    /// `TCP_USER_TIMEOUT` of [`Probe::UserTimeout`].
    pub user_timeout: Duration,
    /// Of [`Probe::Keepalive`].
    pub keepalive: Keepalive,
}

/// When the kernel asks an idle connection whether its peer is there (tcp(7)); it counts in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// `TCP_KEEPIDLE`: the first question comes so many seconds after the last thing heard.
    pub idle: u16,
    /// `TCP_KEEPINTVL`: seconds from one question to the next.
    pub interval: u16,
    /// `TCP_KEEPCNT`: so many questions without an answer end the connection.
    pub count: u8,
}

impl Keepalive {
    /// How long after the last thing heard the connection ends.
    pub fn patience(self) -> Duration {
        let seconds = u64::from(self.idle) + u64::from(self.interval) * u64::from(self.count);
        Duration::from_secs(seconds)
    }
}

/// How late the kernel's timers may fire before it counts as not at all.
const TIMER_SLACK: Duration = Duration::from_millis(500);

impl Options {
    /// How long an open connection is watched after the event: for the timeout, but at least until the kernel must
    /// have given it up.
    fn watched(&self, probe: Probe) -> Duration {
        match probe {
            // The kernel looks at it when a retransmission is due, and counts from the first of them.
            Probe::UserTimeout => self.timeout.max(self.user_timeout * 2 + TIMER_SLACK),
            Probe::Keepalive => self.timeout.max(self.keepalive.patience() + TIMER_SLACK),
            _ => self.timeout,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            probes: vec![Probe::Connect, Probe::Udp, Probe::UdpRecverr, Probe::Ping],
            request: Request::HealthOverHttp,
            user_timeout: Duration::from_secs(1),
            keepalive: Keepalive { idle: 1, interval: 1, count: 1 },
        }
    }
}

/// What is sent on a TCP connection to see whether a process answers, not only its kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// `GET /health`.
    HealthOverHttp,
    /// These bytes.
    Bytes(Vec<u8>),
    /// Nothing: a new connection is only made.
    Nothing,
}

impl Request {
    /// The request of a new connection, which is used once.
    fn once(&self) -> &[u8] {
        match self {
            Self::HealthOverHttp => b"GET /health HTTP/1.0\r\n\r\n",
            Self::Bytes(bytes) => bytes,
            Self::Nothing => b"",
        }
    }

    /// The request of an open connection, on which many follow one another: HTTP/1.0 would end it.
    fn repeated(&self) -> &[u8] {
        match self {
            Self::HealthOverHttp => b"GET /health HTTP/1.1\r\nHost: peer\r\n\r\n",
            Self::Bytes(bytes) => bytes,
            Self::Nothing => b"\0",
        }
    }
}

/// The address that packets to `target` leave `ns` with; none: there is no route, or it refuses. Nothing is sent.
/// Errors: the namespace cannot be entered, no sockets.
pub fn source_address(ns: &NetNs, target: SocketAddr) -> Result<Option<IpAddr>> {
    ns.run(|| {
        let socket = socket::make(target, Type::DGRAM, Some(Protocol::UDP))?;
        if socket.connect(&target.into()).is_err() {
            return Ok(None);
        }
        Ok(socket.local_addr()?.as_socket().map(|address| address.ip()))
    })?
}

/// Looks at every target by every probe of `how`, all at once, from inside `ns`. Time zero is the beginning.
/// Errors: the namespace cannot be entered, or sockets or threads cannot be made.
pub fn look(ns: &NetNs, targets: &[SocketAddr], how: &Options) -> Result<Vec<Observation>> {
    let mut watch = Watch::open(ns, targets, how)?;
    watch.event();
    watch.finish()
}
