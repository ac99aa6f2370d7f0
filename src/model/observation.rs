//! What a client saw of a peer: plain data, made by [`probe`](crate::probe), judged by [`signature`](super::signature).
//!
//! An unexpected observation is a value, never an error. Every time is in milliseconds.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

/// A way to look at a peer. Each is what some real client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probe {
    /// A new TCP connection, and a request on it.
    Connect,
    /// A connect that does not block, watched by `poll`: which events it raises, and `SO_ERROR`.
    PollConnect,
    /// A connection opened before the event, that never sends.
    Idle,
    /// A connection opened before the event, that sends after it.
    Writing,
    /// A connection opened before the event, with `TCP_USER_TIMEOUT`, that sends once after it.
    UserTimeout,
    /// A connection opened before the event, with `SO_KEEPALIVE`, that never sends.
    Keepalive,
    /// A connected UDP socket, as most programs use one.
    Udp,
    /// The same with `IP_RECVERR`: it also hears the errors that the kernel calls soft.
    UdpRecverr,
    /// ICMP or ICMPv6 echo as ping(8) does it: connected, with the error queue; from an ICMP datagram socket, or a
    /// raw one where `net.ipv4.ping_group_range` does not let us have that.
    Ping,
    /// The same from a plain raw socket, neither connected nor with an error queue: the kernel reports no error on it,
    /// but it hears ICMP errors as packets.
    RawPing,
}

impl Probe {
    /// Every probe, in the order in which they are reported.
    pub const ALL: [Self; 10] = [
        Self::Connect,
        Self::PollConnect,
        Self::Idle,
        Self::Writing,
        Self::UserTimeout,
        Self::Keepalive,
        Self::Udp,
        Self::UdpRecverr,
        Self::Ping,
        Self::RawPing,
    ];

    /// Those that are made unless others are asked for: each tells some kind from another, and all end in the
    /// timeout. The rest see the same through other calls, or wait for timers of the kernel.
    pub const USUAL: [Self; 6] = [Self::Connect, Self::Idle, Self::Writing, Self::Udp, Self::UdpRecverr, Self::Ping];

    /// Whether it looks at a connection that has to be open before the event.
    pub fn opens_before(self) -> bool {
        matches!(self, Self::Idle | Self::Writing | Self::UserTimeout | Self::Keepalive)
    }

    /// The name that users type and read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::PollConnect => "poll-connect",
            Self::Idle => "idle",
            Self::Writing => "writing",
            Self::UserTimeout => "user-timeout",
            Self::Keepalive => "keepalive",
            Self::Udp => "udp",
            Self::UdpRecverr => "udp-recverr",
            Self::Ping => "ping",
            Self::RawPing => "raw-ping",
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Probe {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|probe| probe.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|probe| probe.name()).collect();
            format!("no such probe; there are {}", names.join(", "))
        })
    }
}

/// How a probe ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// Something came back: bytes, a datagram, an echo reply.
    Answered,
    /// The connection stands, and nothing was asked on it.
    Connected,
    /// The peer's kernel acknowledged what was sent; its process never answered.
    Acknowledged,
    /// What was sent on a connection was never acknowledged.
    Unacknowledged,
    /// The peer closed the connection in order (FIN).
    EndOfFile,
    /// Nothing at all until the timeout.
    Silence,
    /// The kernel reported an error, here by its name.
    Errno {
        /// `ECONNREFUSED`, `ETIMEDOUT`, ...
        errno: String,
    },
    /// No errno, but an ICMP or ICMPv6 error as a packet, which only a raw socket sees.
    IcmpError {
        /// ICMP or ICMPv6 type.
        #[serde(rename = "type")]
        kind: u8,
        /// ICMP or ICMPv6 code.
        code: u8,
    },
    /// The probe could not be made; that says nothing of the peer after the event.
    Untried {
        /// The reason.
        why: String,
    },
}

impl Outcome {
    /// The outcome of a call that failed with the errno of this name.
    pub fn errno(name: &str) -> Self {
        Self::Errno { errno: name.to_owned() }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::IcmpError { kind, code } = self {
            return write!(f, "ICMP type {kind} code {code}");
        }
        f.write_str(match self {
            Self::Answered => "answered",
            Self::Connected => "connected",
            Self::Acknowledged => "acknowledged, no answer",
            Self::Unacknowledged => "not acknowledged",
            Self::EndOfFile => "end of file",
            Self::Silence => "silence",
            Self::IcmpError { .. } => "ICMP error",
            Self::Errno { errno } => errno,
            Self::Untried { .. } => "not tried",
        })
    }
}

/// Something that happened on the way to the outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum What {
    /// The connection was made.
    Connected,
    /// Something was sent, and the call succeeded.
    Sent,
    /// A sending call failed.
    SendFailed {
        /// Its name.
        errno: String,
    },
    /// Something was received.
    Received {
        /// How much, in bytes.
        bytes: usize,
    },
    /// The peer's FIN was read.
    EndOfFile,
    /// `poll` returned for the first time.
    Polled {
        /// The events it reported: `POLLOUT|POLLERR|POLLHUP`.
        events: String,
    },
    /// An ICMP error came as a packet.
    IcmpError {
        /// ICMP or ICMPv6 type.
        #[serde(rename = "type")]
        kind: u8,
        /// ICMP or ICMPv6 code.
        code: u8,
        /// Who sent it.
        from: IpAddr,
    },
    /// A receiving call failed.
    ReceiveFailed {
        /// Its name.
        errno: String,
    },
}

/// One [`What`] and its time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// Milliseconds since time zero; negative before it.
    pub at_ms: f64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// The kernel's own view of a connection at the end of the probe (`TCP_INFO`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tcp {
    /// `ESTABLISHED`, `CLOSE_WAIT`, ...
    pub state: &'static str,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Bytes written by the program and never sent.
    pub not_sent: u32,
    /// Segments sent again since the connection was made, SYNs included.
    pub retransmits: u32,
    /// Bytes that the peer's kernel acknowledged.
    pub bytes_acked: u64,
    /// Bytes received from the peer.
    pub bytes_received: u64,
}

/// An entry of a socket's error queue (`IP_RECVERR`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueuedError {
    /// Who made the error: `local`, `icmp`, `icmp6` or the number of another origin.
    pub origin: String,
    /// ICMP or ICMPv6 type.
    #[serde(rename = "type")]
    pub kind: u8,
    /// ICMP or ICMPv6 code.
    pub code: u8,
    /// The errno that the kernel made of it.
    pub errno: String,
    /// Who sent the ICMP error, if the kernel knows.
    pub from: Option<IpAddr>,
}

/// What one probe saw of one address of a peer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Observation {
    /// The address looked at; a ping ignores its port.
    pub target: SocketAddr,
    /// How it was looked at.
    pub probe: Probe,
    /// How that ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// When the probe began, in milliseconds since time zero (a connection opened before it: negative).
    pub started_ms: f64,
    /// From the beginning (of an open connection: from time zero) to the outcome; with silence, how long it was
    /// watched. Milliseconds.
    pub took_ms: f64,
    /// What happened, in order; of repeated sends and receives only the first.
    pub steps: Vec<Step>,
    /// How often the probe sent something.
    pub sent: u32,
    /// The first line of an answer on a TCP connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_line: Option<String>,
    /// The kernel's view of a TCP connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Tcp>,
    /// What stood in the error queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<QueuedError>,
}

impl Observation {
    /// When a connection was made, in milliseconds since time zero.
    pub fn connected_ms(&self) -> Option<f64> {
        self.steps.iter().find(|step| step.what == What::Connected).map(|step| step.at_ms)
    }

    /// The outcome in words; of a new connection also whether it was made.
    pub fn summary(&self) -> String {
        let made = self.probe == Probe::Connect && self.connected_ms().is_some();
        match &self.outcome {
            outcome if made && *outcome != Outcome::Connected => format!("connected, {outcome}"),
            outcome => outcome.to_string(),
        }
    }
}
