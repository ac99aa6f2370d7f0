//! What a client must see of each kind of failure, by each probe.
//!
//! The table is [`allowed`], by which [`judge`] judges; what it rests on was measured on real failures
//! (`docs/fidelity.md`).

pub use super::code::Code;
pub use super::expect::Expect;
use super::observation::{Outcome, Probe};
pub use super::verdict::{Alternative, Check, Verdict, judge};

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

pub(super) fn no_neighbour() -> Outcome {
    Outcome::errno("EHOSTUNREACH")
}

#[cfg(test)]
#[path = "signature_tests.rs"]
mod tests;
