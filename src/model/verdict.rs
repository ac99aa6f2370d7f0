//! Whether what a client saw is what it must see, and what else it may be.

use std::fmt::Write;
use std::net::SocketAddr;

use serde::Serialize;

use super::code::Code;
use super::expect::Expect;
use super::observation::{Observation, Outcome, Probe, QueuedError};
use super::signature::{allowed, no_neighbour};

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

/// Something else that a peer may be, as far as was looked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alternative {
    /// What it may be.
    pub expect: Expect,
    /// The probes that would tell it from what was expected, by names; none: no probe does.
    pub told_by: Vec<Probe>,
}

/// Whether a peer is what was expected of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// What was expected.
    pub expect: Expect,
    /// True when at least one probe could be made and all of those agree.
    pub met: bool,
    /// What else would have been met by the same observations, which therefore cannot tell it apart.
    pub also_fits: Vec<Alternative>,
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
    let checks = checked(expect, seen);
    let others = expect.others().into_iter().filter(|other| met(&checked(*other, seen)));
    let also_fits = others.map(|other| Alternative { expect: other, told_by: told_by(expect, other, seen) }).collect();
    Verdict { expect, met: met(&checks), also_fits, checks }
}

fn checked(expect: Expect, seen: &[Observation]) -> Vec<Check> {
    seen.iter().map(|observation| check(expect, observation)).collect()
}

fn met(checks: &[Check]) -> bool {
    let made = checks.iter().any(|check| check.agrees.is_some());
    made && checks.iter().all(|check| check.agrees != Some(false))
}

/// The probes that were not made and by which the two have no outcome in common.
fn told_by(one: Expect, other: Expect, seen: &[Observation]) -> Vec<Probe> {
    let v6 = seen.first().is_some_and(|observation| is_v6(observation.target));
    let made = |probe: Probe| seen.iter().any(|observation| observation.probe == probe);
    let apart = |probe: Probe| {
        let theirs = allowed(other, probe, v6);
        allowed(one, probe, v6).iter().all(|outcome| !theirs.contains(outcome))
    };
    Probe::ALL.into_iter().filter(|probe| !made(*probe) && apart(*probe)).collect()
}

fn check(expect: Expect, seen: &Observation) -> Check {
    let allowed = allowed(expect, seen.probe, is_v6(seen.target));
    let agrees = match seen.outcome {
        Outcome::Untried { .. } => None,
        // An errno on a connection that was made is not the errno of an attempt.
        Outcome::Errno { .. } if seen.probe == Probe::Connect && seen.connected_ms().is_some() => Some(false),
        _ => Some(allowed.contains(&seen.outcome) && errors_agree(expect, seen) && is_timely(expect, seen)),
    };
    Check {
        target: seen.target,
        probe: seen.probe,
        agrees,
        seen: described(expect, seen),
        allowed: allowed.iter().map(Outcome::to_string).collect(),
        note: note(expect, seen),
    }
}

/// What was seen, with that in it which differs.
fn described(expect: Expect, seen: &Observation) -> String {
    let mut text = seen.summary();
    if !is_timely(expect, seen) {
        let _ = write!(text, " after {:.1} ms", seen.took_ms);
    }
    for error in seen.errors.iter().filter(|error| !error_agrees(expect, seen, error)).take(1) {
        let from = error.from.map_or(String::new(), |from| format!(" from {from}"));
        let _ = write!(text, ", {} type {} code {}{from}", error.origin, error.kind, error.code);
    }
    text
}

/// Several codes share an errno, and a router may refuse as a machine without the process does: the error queue tells
/// them apart.
fn errors_agree(expect: Expect, seen: &Observation) -> bool {
    seen.errors.iter().all(|error| error_agrees(expect, seen, error))
}

fn error_agrees(expect: Expect, seen: &Observation, error: &QueuedError) -> bool {
    let remote = error.origin.starts_with("icmp");
    match expect {
        Expect::Unreachable(Some(code)) if remote => code.icmp(is_v6(seen.target)).contains(&(error.kind, error.code)),
        Expect::DeadProcess if remote => {
            error.from.is_none_or(|from| from.to_canonical() == seen.target.ip().to_canonical())
        }
        _ => true,
    }
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
        (Expect::DeadProcess, _, _) if !errors_agree(expect, seen) => {
            "the ICMP error does not come from the peer: a router that refuses does that"
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
