//! What a client must see of each kind of failure, by each probe; and whether what it saw is that.
//!
//! The table is [`allowed`]; what it rests on was measured on real failures (`docs/fidelity.md`).

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::observation::{Observation, Outcome, Probe, QueuedError};

/// What is expected of a peer: health, or one kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing is wrong.
    Alive,
    /// The machine lost its power.
    DeadHost,
    /// The process died, its machine lives.
    DeadProcess,
    /// The process is gone and its refusals are filtered.
    Hush,
    /// The process is stuck.
    HungProcess,
    /// A router refuses; with this code, or with any.
    Unreachable(Option<Code>),
    /// The machine came back without its connections.
    Rebooted,
}

/// The ICMP codes of `unreachable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Host unreachable; ICMPv6 address unreachable.
    Host,
    /// Network unreachable; ICMPv6 no route.
    Net,
    /// Port unreachable.
    Port,
    /// Protocol unreachable; ICMPv6 has a parameter problem instead.
    Protocol,
    /// Host prohibited; ICMPv6 administratively prohibited.
    HostProhibited,
    /// Network prohibited; ICMPv6 administratively prohibited.
    NetProhibited,
    /// Administratively prohibited.
    AdminProhibited,
}

const CODES: [(Code, &str); 7] = [
    (Code::Host, "host"),
    (Code::Net, "net"),
    (Code::Port, "port"),
    (Code::Protocol, "protocol"),
    (Code::HostProhibited, "host-prohibited"),
    (Code::NetProhibited, "net-prohibited"),
    (Code::AdminProhibited, "admin-prohibited"),
];

const KINDS: [(Expect, &str); 7] = [
    (Expect::Alive, "alive"),
    (Expect::DeadHost, "dead-host"),
    (Expect::DeadProcess, "dead-process"),
    (Expect::Hush, "hush"),
    (Expect::HungProcess, "hung-process"),
    (Expect::Unreachable(None), "unreachable"),
    (Expect::Rebooted, "rebooted"),
];

impl FromStr for Expect {
    type Err = String;

    /// A kind's name; `unreachable:CODE` for one code.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(code) = text.strip_prefix("unreachable:") {
            let found = CODES.iter().find(|(_, name)| *name == code);
            return found
                .map(|(code, _)| Self::Unreachable(Some(*code)))
                .ok_or_else(|| format!("no such code; there are {}", CODES.map(|(_, name)| name).join(", ")));
        }
        let found = KINDS.iter().find(|(_, name)| *name == text);
        found.map(|(kind, _)| *kind).ok_or_else(|| {
            format!(
                "one look cannot tell that; it can tell {}, unreachable:CODE",
                KINDS.map(|(_, name)| name).join(", ")
            )
        })
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Unreachable(Some(code)) = self {
            let name = CODES.iter().find(|(known, _)| known == code).map_or("", |(_, name)| name);
            return write!(f, "unreachable:{name}");
        }
        f.write_str(KINDS.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name))
    }
}

impl Serialize for Expect {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Code {
    /// The errno that the kernel makes of this code (`icmp_err_convert`, `icmpv6_err_convert`).
    pub fn errno(self, v6: bool) -> &'static str {
        match (self, v6) {
            (Self::Host, _) | (Self::HostProhibited | Self::AdminProhibited, false) => "EHOSTUNREACH",
            (Self::Net, _) | (Self::NetProhibited, false) => "ENETUNREACH",
            (Self::Port, _) => "ECONNREFUSED",
            (Self::Protocol, false) => "ENOPROTOOPT",
            (Self::Protocol, true) => "EPROTO",
            (Self::HostProhibited | Self::NetProhibited | Self::AdminProhibited, true) => "EACCES",
        }
    }

    /// ICMP or ICMPv6 type and code.
    pub fn icmp(self, v6: bool) -> (u8, u8) {
        match (self, v6) {
            (Self::Net, false) => (3, 0),
            (Self::Host, false) => (3, 1),
            (Self::Protocol, false) => (3, 2),
            (Self::Port, false) => (3, 3),
            (Self::NetProhibited, false) => (3, 9),
            (Self::HostProhibited, false) => (3, 10),
            (Self::AdminProhibited, false) => (3, 13),
            (Self::Net, true) => (1, 0),
            (Self::NetProhibited | Self::HostProhibited | Self::AdminProhibited, true) => (1, 1),
            (Self::Host, true) => (1, 3),
            (Self::Port, true) => (1, 4),
            (Self::Protocol, true) => (4, 1),
        }
    }

    /// Whether the kernel takes the error for a lasting one: a UDP socket hears of others only with `IP_RECVERR`.
    fn is_hard(self) -> bool {
        !matches!(self, Self::Host | Self::Net)
    }
}

/// The outcomes that this probe may have when the peer is what is expected.
pub fn allowed(expect: Expect, probe: Probe, v6: bool) -> Vec<Outcome> {
    match probe {
        Probe::Connect => new_connection(expect, v6),
        Probe::Idle => idle_connection(expect),
        Probe::Writing => writing_connection(expect),
        Probe::Udp => datagrams(expect, v6),
        Probe::UdpRecverr => datagrams_with_soft_errors(expect, v6),
        Probe::Ping => echo(expect, v6),
    }
}

fn new_connection(expect: Expect, v6: bool) -> Vec<Outcome> {
    match expect {
        Expect::Alive | Expect::Rebooted => vec![Outcome::Answered, Outcome::Connected, Outcome::EndOfFile],
        Expect::DeadHost => vec![Outcome::Silence, timed_out(), no_neighbour()],
        Expect::DeadProcess => vec![refused()],
        // The machine lives, so its neighbours do find it.
        Expect::Hush => vec![Outcome::Silence, timed_out()],
        Expect::HungProcess => vec![Outcome::Acknowledged],
        Expect::Unreachable(code) => errnos(code, v6),
    }
}

fn idle_connection(expect: Expect) -> Vec<Outcome> {
    match expect {
        Expect::DeadHost => vec![Outcome::Silence, timed_out(), no_neighbour()],
        Expect::DeadProcess => vec![Outcome::EndOfFile, reset()],
        Expect::Rebooted => vec![reset(), Outcome::Silence],
        Expect::Alive | Expect::Hush | Expect::HungProcess | Expect::Unreachable(_) => vec![Outcome::Silence],
    }
}

fn writing_connection(expect: Expect) -> Vec<Outcome> {
    match expect {
        Expect::Alive => vec![Outcome::Answered],
        Expect::DeadHost => vec![Outcome::Unacknowledged, timed_out(), no_neighbour()],
        Expect::DeadProcess => vec![Outcome::EndOfFile, reset(), broken_pipe()],
        Expect::Hush => vec![Outcome::Unacknowledged, timed_out()],
        Expect::HungProcess => vec![Outcome::Acknowledged],
        Expect::Rebooted => vec![reset(), broken_pipe()],
        // An ICMP error never closes an open connection.
        Expect::Unreachable(_) => vec![Outcome::Unacknowledged],
    }
}

fn datagrams(expect: Expect, v6: bool) -> Vec<Outcome> {
    match expect {
        Expect::Alive | Expect::Rebooted => vec![Outcome::Answered, refused(), Outcome::Silence],
        Expect::DeadHost | Expect::Hush => vec![Outcome::Silence],
        Expect::DeadProcess => vec![refused()],
        Expect::HungProcess => vec![Outcome::Silence, refused()],
        Expect::Unreachable(Some(code)) if code.is_hard() => errnos(Some(code), v6),
        Expect::Unreachable(code) => [vec![Outcome::Silence], errnos(code, v6)].concat(),
    }
}

fn datagrams_with_soft_errors(expect: Expect, v6: bool) -> Vec<Outcome> {
    match expect {
        Expect::DeadHost => vec![Outcome::Silence, no_neighbour()],
        Expect::Unreachable(code) => errnos(code, v6),
        other => datagrams(other, v6),
    }
}

fn echo(expect: Expect, v6: bool) -> Vec<Outcome> {
    match expect {
        Expect::DeadHost => vec![Outcome::Silence, no_neighbour()],
        // Answered if only some ports of the peer are refused.
        Expect::Unreachable(code) => [vec![Outcome::Answered], errnos(code, v6)].concat(),
        _ => vec![Outcome::Answered],
    }
}

/// The errnos of a code, or of every code.
fn errnos(code: Option<Code>, v6: bool) -> Vec<Outcome> {
    let codes = code.map_or_else(|| CODES.map(|(code, _)| code).to_vec(), |code| vec![code]);
    let mut names: Vec<_> = codes.iter().map(|code| code.errno(v6)).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(Outcome::errno).collect()
}

fn refused() -> Outcome {
    Outcome::errno("ECONNREFUSED")
}

fn reset() -> Outcome {
    Outcome::errno("ECONNRESET")
}

fn broken_pipe() -> Outcome {
    Outcome::errno("EPIPE")
}

fn timed_out() -> Outcome {
    Outcome::errno("ETIMEDOUT")
}

fn no_neighbour() -> Outcome {
    Outcome::errno("EHOSTUNREACH")
}

/// One observation, judged.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// The address that was looked at.
    pub target: SocketAddr,
    /// By which probe.
    pub probe: Probe,
    /// Whether what was seen is what had to be seen; nothing when the probe could not be made.
    pub agrees: Option<bool>,
    /// What was seen, in words.
    pub seen: String,
    /// What may be seen.
    pub allowed: Vec<String>,
    /// What to bear in mind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Whether a peer is what was expected of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// What was expected.
    pub expect: Expect,
    /// True when at least one probe could be made and all of those agree.
    pub met: bool,
    /// Every observation, judged, in the order given.
    pub checks: Vec<Check>,
}

impl Verdict {
    /// The probes that saw something else.
    pub fn differing(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.agrees == Some(false))
    }
}

/// Judges what was seen against what the kind promises.
pub fn judge(expect: Expect, seen: &[Observation]) -> Verdict {
    let checks: Vec<_> = seen.iter().map(|observation| check(expect, observation)).collect();
    let made = checks.iter().any(|check| check.agrees.is_some());
    let met = made && checks.iter().all(|check| check.agrees != Some(false));
    Verdict { expect, met, checks }
}

fn check(expect: Expect, seen: &Observation) -> Check {
    let allowed = allowed(expect, seen.probe, is_v6(seen.target));
    let agrees = match seen.outcome {
        Outcome::Untried { .. } => None,
        // An errno on a connection that was made is not the errno of an attempt.
        Outcome::Errno { .. } if seen.probe == Probe::Connect && seen.connected_ms().is_some() => Some(false),
        _ => Some(allowed.contains(&seen.outcome) && code_agrees(expect, seen)),
    };
    Check {
        target: seen.target,
        probe: seen.probe,
        agrees,
        seen: seen.summary(),
        allowed: allowed.iter().map(Outcome::to_string).collect(),
        note: note(expect, seen),
    }
}

/// Several codes share an errno; the error queue tells them apart.
fn code_agrees(expect: Expect, seen: &Observation) -> bool {
    let Expect::Unreachable(Some(code)) = expect else { return true };
    let wanted = code.icmp(is_v6(seen.target));
    let remote = |error: &&QueuedError| error.origin.starts_with("icmp");
    seen.errors.iter().filter(remote).all(|error| (error.kind, error.code) == wanted)
}

/// An IPv4 peer of an IPv6 socket is spoken to, and answers, in IPv4.
fn is_v6(target: SocketAddr) -> bool {
    matches!(target, SocketAddr::V6(address) if address.ip().to_ipv4_mapped().is_none())
}

fn note(expect: Expect, seen: &Observation) -> Option<String> {
    let text = match (expect, seen.probe, &seen.outcome) {
        (_, Probe::Udp | Probe::UdpRecverr | Probe::Ping, Outcome::Errno { errno })
            if matches!(errno.as_str(), "EPERM" | "ENOBUFS") =>
        {
            "dropped in the sender's own namespace: no failure of a peer looks so"
        }
        (
            Expect::Alive | Expect::Rebooted | Expect::HungProcess,
            Probe::Connect | Probe::Writing,
            Outcome::Acknowledged,
        ) => "a stuck process and one that does not answer this request look the same: ask what it answers (--request)",
        (Expect::Alive | Expect::Rebooted | Expect::HungProcess, Probe::Connect, Outcome::Connected) => {
            "nothing was asked: a stuck process looks the same"
        }
        (Expect::Alive | Expect::Rebooted, Probe::Udp | Probe::UdpRecverr, Outcome::Silence) => {
            "right only if something listens there for UDP and ignores what it does not understand"
        }
        (Expect::DeadHost, _, Outcome::Errno { errno }) if errno == "EHOSTUNREACH" && seen.took_ms < 500.0 => {
            "too early for a neighbour that does not answer: a router that refuses looks the same"
        }
        (Expect::DeadProcess, Probe::Idle, Outcome::Errno { .. }) => {
            "reset instead of closed: right if the process left data unread"
        }
        (Expect::Rebooted, Probe::Idle, Outcome::Silence) => {
            "a real reboot resets a connection only once something is sent on it"
        }
        _ => return None,
    };
    Some(text.to_owned())
}

#[cfg(test)]
#[path = "signature_tests.rs"]
mod tests;
