//! What a client must see of each kind of failure, by each probe; and whether what it saw is that.
//!
//! The table is [`allowed`]; what it rests on was measured on real failures (`docs/fidelity.md`).

use std::net::SocketAddr;

use serde::Serialize;

pub use super::code::Code;
pub use super::expect::Expect;
use super::observation::{Observation, Outcome, Probe, QueuedError};

/// The outcomes that this probe may have when the peer is what is expected.
pub fn allowed(expect: Expect, probe: Probe, v6: bool) -> Vec<Outcome> {
    match probe {
        Probe::Connect => new_connection(expect, v6),
        Probe::PollConnect => polled_connection(expect, v6),
        Probe::Idle => idle_connection(expect),
        Probe::Writing => writing_connection(expect),
        Probe::UserTimeout => impatient_connection(expect, v6),
        Probe::Keepalive => kept_connection(expect),
        Probe::Udp => datagrams(expect, v6),
        Probe::UdpRecverr => datagrams_with_soft_errors(expect, v6),
        Probe::Ping => echo(expect, v6),
        Probe::RawPing => raw_echo(expect, v6),
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

/// A connection is all that it wants: no process has a part in that.
fn polled_connection(expect: Expect, v6: bool) -> Vec<Outcome> {
    match expect {
        Expect::Alive | Expect::Rebooted | Expect::HungProcess => vec![Outcome::Connected],
        _ => new_connection(expect, v6),
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

/// `TCP_USER_TIMEOUT` ends what stays unacknowledged; the error is that of the last ICMP error, if there was one
/// (`sk_err_soft`).
fn impatient_connection(expect: Expect, v6: bool) -> Vec<Outcome> {
    match expect {
        Expect::DeadHost => vec![timed_out(), no_neighbour()],
        Expect::Hush => vec![timed_out()],
        Expect::Unreachable(code) => errnos(code, v6),
        other => writing_connection(other),
    }
}

/// A keepalive asks about a byte before the window, so an ICMP error about it is not believed: the connection times out
/// even where a router refuses. An RST ends it at once.
fn kept_connection(expect: Expect) -> Vec<Outcome> {
    match expect {
        Expect::Alive | Expect::HungProcess => vec![Outcome::Silence],
        Expect::DeadHost => vec![timed_out(), no_neighbour()],
        Expect::DeadProcess => idle_connection(expect),
        // The kernel of the killed process still waits for its FIN to be acknowledged and acknowledges what it hears,
        // until it gives that up.
        Expect::Hush => vec![Outcome::Silence, timed_out()],
        Expect::Unreachable(_) => vec![timed_out()],
        Expect::Rebooted => vec![reset()],
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

/// The kernel reports nothing on a plain raw socket; the errors come in as packets.
fn raw_echo(expect: Expect, v6: bool) -> Vec<Outcome> {
    let packet = |(kind, code): &(u8, u8)| Outcome::IcmpError { kind: *kind, code: *code };
    match expect {
        // The host itself says that it found no neighbour.
        Expect::DeadHost => [vec![Outcome::Silence], Code::Host.icmp(v6).iter().map(packet).collect()].concat(),
        Expect::Unreachable(code) => {
            let codes = code.map_or_else(|| Code::ALL.to_vec(), |code| vec![code]);
            let errors = codes.iter().flat_map(|code| code.icmp(v6)).map(packet);
            std::iter::once(Outcome::Answered).chain(errors).collect()
        }
        _ => vec![Outcome::Answered],
    }
}

/// The errnos of a code, or of every code.
fn errnos(code: Option<Code>, v6: bool) -> Vec<Outcome> {
    let codes = code.map_or_else(|| Code::ALL.to_vec(), |code| vec![code]);
    let mut names: Vec<_> = codes.iter().flat_map(|code| code.errnos(v6)).copied().collect();
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
        _ => Some(allowed.contains(&seen.outcome) && code_agrees(expect, seen) && is_timely(expect, seen)),
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
    seen.errors.iter().filter(remote).all(|error| wanted.contains(&(error.kind, error.code)))
}

/// A router says at once that a host is unreachable, and again to each retransmission; the kernel says so of a neighbour
/// only when it has asked three times, one second apart. Somebody else's packet may have begun to ask before.
const ROUTER_MS: f64 = 200.0;
const NEIGHBOUR_MS: f64 = 1900.0;

/// Whether an outcome that two kinds share came when it comes of this kind.
fn is_timely(expect: Expect, seen: &Observation) -> bool {
    if !says_no_neighbour(seen) {
        return true;
    }
    match expect {
        // A timer of the connection ends it after a router's error.
        Expect::DeadHost if seen.probe.opens_before() => seen.took_ms >= NEIGHBOUR_MS,
        Expect::DeadHost => seen.took_ms >= ROUTER_MS,
        Expect::Unreachable(_) if !seen.probe.opens_before() => seen.took_ms < NEIGHBOUR_MS,
        _ => true,
    }
}

fn says_no_neighbour(seen: &Observation) -> bool {
    let packets = Code::Host.icmp(is_v6(seen.target));
    match &seen.outcome {
        Outcome::Errno { .. } => seen.outcome == no_neighbour(),
        Outcome::IcmpError { kind, code } => packets.contains(&(*kind, *code)),
        _ => false,
    }
}

/// An IPv4 peer of an IPv6 socket is spoken to, and answers, in IPv4.
fn is_v6(target: SocketAddr) -> bool {
    matches!(target, SocketAddr::V6(address) if address.ip().to_ipv4_mapped().is_none())
}

fn note(expect: Expect, seen: &Observation) -> Option<String> {
    if let Outcome::Untried { why } = &seen.outcome {
        return Some(why.clone());
    }
    caveat(expect, seen).map(str::to_owned)
}

fn caveat(expect: Expect, seen: &Observation) -> Option<&'static str> {
    Some(match (expect, seen.probe, &seen.outcome) {
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
            "right only if something listens there for UDP and ignores what it does not understand, \
             or if the peer had used up its ICMP errors (after a burst of six, one a second)"
        }
        (Expect::DeadProcess | Expect::Unreachable(_), Probe::Udp | Probe::UdpRecverr, Outcome::Silence) => {
            "a peer sends one ICMP error a second after a burst of six: look again, or with a longer --timeout"
        }
        (Expect::DeadProcess, Probe::Connect, Outcome::Errno { errno }) if errno == "ECONNRESET" => {
            "met the process while it was dying (`kill` does not wait for that): look a little later"
        }
        (Expect::DeadHost, _, _) if says_no_neighbour(seen) && !is_timely(expect, seen) => {
            "so early a router refuses; a neighbour that does not answer is given up after up to three seconds \
             (if somebody else had just asked for it: look again)"
        }
        (Expect::Unreachable(_), _, _) if says_no_neighbour(seen) && !is_timely(expect, seen) => {
            "so late a neighbour is given up that does not answer; a router refuses at once \
             (or had used up its ICMP errors: look again)"
        }
        (Expect::Hush, Probe::Keepalive, Outcome::Silence) => {
            "the kernel of a killed process acknowledges keepalives until it gives up its FIN"
        }
        (Expect::DeadProcess, Probe::Idle, Outcome::Errno { .. }) => {
            "reset instead of closed: right if the process had not accepted it, or left data unread"
        }
        (Expect::Rebooted, Probe::Idle, Outcome::Silence) => {
            "a real reboot resets a connection only once something is sent on it"
        }
        _ => return None,
    })
}

#[cfg(test)]
#[path = "signature_tests.rs"]
mod tests;
