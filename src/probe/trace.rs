//! What a probe writes down while it runs: instants of the monotonic clock, turned into milliseconds at the end,
//! since time zero is not known yet when a connection is opened before the event.

use std::net::SocketAddr;
use std::time::Instant;

use nix::errno::Errno;

use super::socket::name_of;
use super::{Observation, Outcome, Probe, QueuedError, Step, Tcp, What};

#[derive(Debug)]
pub(super) struct Trace {
    pub(super) target: SocketAddr,
    pub(super) probe: Probe,
    pub(super) started: Instant,
    pub(super) steps: Vec<(Instant, What)>,
    pub(super) sent: u32,
    pub(super) received: usize,
    pub(super) first_line: Option<String>,
    pub(super) tcp: Option<Tcp>,
    pub(super) errors: Vec<QueuedError>,
}

impl Trace {
    pub(super) fn begin(target: SocketAddr, probe: Probe) -> Self {
        Self {
            target,
            probe,
            started: Instant::now(),
            steps: Vec::new(),
            sent: 0,
            received: 0,
            first_line: None,
            tcp: None,
            errors: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, what: What) {
        self.steps.push((Instant::now(), what));
    }

    pub(super) fn sent(&mut self) {
        if self.sent == 0 {
            self.note(What::Sent);
        }
        self.sent += 1;
    }

    pub(super) fn received(&mut self, data: &[u8]) {
        if self.received == 0 {
            self.note(What::Received { bytes: data.len() });
            self.first_line = first_line(data);
        }
        self.received += data.len();
    }

    pub(super) fn send_failed(&mut self, errno: Errno) -> Outcome {
        self.note(What::SendFailed { errno: name_of(errno) });
        Outcome::Errno { errno: name_of(errno) }
    }

    pub(super) fn receive_failed(&mut self, errno: Errno) -> Outcome {
        self.note(What::ReceiveFailed { errno: name_of(errno) });
        Outcome::Errno { errno: name_of(errno) }
    }

    /// The outcome is known now.
    pub(super) fn end(self, outcome: Outcome) -> Ended {
        Ended { trace: self, outcome, decided: Instant::now() }
    }

    /// The outcome was known at the last step already; the rest was only watched.
    pub(super) fn end_at_last_step(self, outcome: Outcome) -> Ended {
        let decided = self.steps.last().map_or_else(Instant::now, |(at, _)| *at);
        Ended { trace: self, outcome, decided }
    }
}

/// A finished trace, before it is known when time zero was.
#[derive(Debug)]
pub(super) struct Ended {
    trace: Trace,
    outcome: Outcome,
    decided: Instant,
}

impl Ended {
    pub(super) fn since(self, zero: Instant) -> Observation {
        let Trace { target, probe, started, steps, sent, first_line, tcp, errors, .. } = self.trace;
        let from = if probe.opens_before() { zero } else { started };
        Observation {
            target,
            probe,
            outcome: self.outcome,
            started_ms: ms_between(zero, started),
            took_ms: ms_between(from, self.decided),
            steps: steps.into_iter().map(|(at, what)| Step { at_ms: ms_between(zero, at), what }).collect(),
            sent,
            first_line,
            tcp,
            errors,
        }
    }
}

/// Signed milliseconds, to the microsecond.
fn ms_between(from: Instant, to: Instant) -> f64 {
    let ms = match to.checked_duration_since(from) {
        Some(after) => after.as_secs_f64() * 1e3,
        None => -(from - to).as_secs_f64() * 1e3,
    };
    (ms * 1e3).round() / 1e3
}

/// The first line, if it is text: enough to tell `200 OK` from `503 Service Unavailable`.
fn first_line(data: &[u8]) -> Option<String> {
    let line = data.split(|byte| matches!(byte, b'\r' | b'\n')).next()?;
    let text = std::str::from_utf8(line).ok()?;
    let printable = !text.is_empty() && !text.chars().any(char::is_control);
    printable.then(|| text.chars().take(80).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_before_the_event_are_negative() {
        let early = Instant::now();
        let late = early + Duration::from_micros(2500);
        assert!((ms_between(late, early) + 2.5).abs() < 1e-9);
        assert!((ms_between(early, late) - 2.5).abs() < 1e-9);
    }

    #[test]
    fn only_text_is_kept_of_an_answer() {
        assert_eq!(first_line(b"HTTP/1.0 200 OK\r\nA: b\r\n").as_deref(), Some("HTTP/1.0 200 OK"));
        assert_eq!(first_line(b"\x00\x01\xff"), None);
        assert_eq!(first_line(b"\r\n"), None);
    }
}
