//! Looks at a peer exactly as a client does: by sockets, from a namespace, with the monotonic clock.
//!
//! What is seen is a value, an [`Observation`]; an error is always playdead's own failure (no descriptor left,
//! a namespace that cannot be entered).

mod error_queue;
mod open;
mod ping;
mod socket;
mod tcp;
mod tcp_info;
mod trace;
mod udp;
mod watch;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;

use crate::kernel::netns::NetNs;
pub use crate::model::observation::{Observation, Outcome, Probe, QueuedError, Step, Tcp, What};
pub use watch::Watch;

/// How long to look, by which probes, and what to ask.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long each probe waits: for a connection, then again for the answer on it.
    pub timeout: Duration,
    /// The probes to make. [`Probe::Idle`] and [`Probe::Writing`] need connections opened before the event.
    pub probes: Vec<Probe>,
    /// What to send on a TCP connection.
    pub request: Request,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            probes: vec![Probe::Connect, Probe::Udp, Probe::UdpRecverr, Probe::Ping],
            request: Request::HealthOverHttp,
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

/// Looks at every target by every probe of `how`, all at once, from inside `ns`. Time zero is the beginning.
/// Errors: the namespace cannot be entered, or sockets or threads cannot be made.
pub fn look(ns: &NetNs, targets: &[SocketAddr], how: &Options) -> Result<Vec<Observation>> {
    let mut watch = Watch::open(ns, targets, how)?;
    watch.event();
    watch.finish()
}
