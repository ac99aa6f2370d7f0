//! What was seen, and what of it cannot be.

use std::fmt;
use std::time::{Duration, Instant};

use crate::flow::{Flow, Sent};
use crate::tcp::{Event, Outcome};
use crate::timeline::State::{DeadHost, DeadProcess, Healthy};
use crate::timeline::{State, Timeline};

#[derive(Default)]
pub(crate) struct Tally {
    took: Duration,
    sent: usize,
    pub(crate) answered: usize,
    pub(crate) refused: usize,
    silent: usize,
    events: usize,
    bystander: usize,
    lost: usize,
    /// One for each that was in a wrong state.
    pub(crate) wrong: Vec<String>,
    /// Packets that no fault took, but for which there was no room.
    pub(crate) dropped: u64,
}

impl Tally {
    /// Of a run that took so long.
    pub(crate) fn over(took: Duration) -> Self {
        Self { took, ..Self::default() }
    }

    /// Datagrams a second to the peer.
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
    pub(crate) fn rate(&self) -> f64 {
        self.sent as f64 / self.took.as_secs_f64()
    }

    /// A datagram is heard only by a healthy peer, refused only by one whose process is dead, and vanishes only on its way
    /// to a dead one. A dead process may be silent, too, since ICMP errors are limited. The answer is judged by the time at
    /// which it was sent: it comes from a healthy peer only, and vanishes only if the peer has died since it heard.
    pub(crate) fn judge_flows(&mut self, flows: &[Flow], timeline: &Timeline) {
        for flow in flows {
            self.judge_flow(flow, timeline);
        }
    }

    fn judge_flow(&mut self, flow: &Flow, timeline: &Timeline) {
        self.judge_errors(flow);
        self.sent += flow.sent.len();
        for (number, sent) in flow.sent.iter().enumerate() {
            let (answered, refused) = (flow.answered.of(number), flow.refused.of(number));
            let heard = flow.heard.of(number);
            let silent = answered.is_none() && refused.is_none();
            self.answered += usize::from(answered.is_some());
            self.refused += usize::from(refused.is_some());
            self.silent += usize::from(silent);
            let may_be = |states: &[State]| timeline.states(sent.0, sent.1).any(|state| states.contains(&state));
            let answer_may =
                |be: fn(State) -> bool| heard.is_some_and(|answer| may_follow(timeline, *sent, *answer, be));
            let wrong = [
                (heard.is_some() && !may_be(&[Healthy]), "heard by the peer"),
                (refused.is_some() && !may_be(&[DeadProcess]), "refused"),
                (silent && heard.is_none() && !may_be(&[DeadHost, DeadProcess]), "lost"),
                (silent && heard.is_some() && !answer_may(|state| state != Healthy), "heard and its answer lost"),
                (answered.is_some() && !answer_may(|state| state == Healthy), "answered"),
            ];
            for (_, what) in wrong.iter().filter(|(wrong, _)| *wrong) {
                let heard =
                    heard.map(|answer| format!(" (answered after {:?})", answer.0 - sent.0)).unwrap_or_default();
                self.blame(&format!("datagram {number} was {what}{heard}"), *sent, timeline);
            }
        }
    }

    /// Each is answered.
    pub(crate) fn judge_bystander_flows(&mut self, flows: &[Flow], timeline: &Timeline) {
        for flow in flows {
            self.judge_bystander(flow, timeline);
        }
    }

    fn judge_bystander(&mut self, flow: &Flow, timeline: &Timeline) {
        self.judge_errors(flow);
        self.bystander += flow.sent.len();
        for (number, sent) in flow.sent.iter().enumerate() {
            if flow.answered.of(number).is_none() || flow.refused.of(number).is_some() {
                self.lost += 1;
                self.blame(&format!("datagram {number} of a bystander was lost or refused"), *sent, timeline);
            }
        }
    }

    fn judge_errors(&mut self, flow: &Flow) {
        self.wrong.extend(flow.errors.iter().map(|error| format!("a sender was told: {error}")));
    }

    /// Something came of it that a state has, which may have been in force.
    pub(crate) fn judge_events(&mut self, events: &[Event], timeline: &Timeline) {
        self.events += events.len();
        for Event { what, from, to, outcome } in events {
            let states: Vec<_> = timeline.states(*from, *to).collect();
            // Open connections end one after the other until the command returns; until then each is silent.
            let ends = *what == "request" && states[0] != DeadProcess && states.contains(&DeadProcess);
            let is_ending = ends && *outcome == Outcome::Silence;
            if !is_ending && !states.iter().any(|state| outcome.may_be(*state)) {
                self.blame(&format!("a {what} ended with {outcome:?}"), (*from, *to), timeline);
            }
        }
    }

    /// Each was answered.
    pub(crate) fn judge_bystander_events(&mut self, events: &[Event], timeline: &Timeline) {
        self.bystander += events.len();
        for event in events.iter().filter(|event| event.outcome != Outcome::Answered) {
            self.lost += 1;
            let what = format!("a {} of a bystander ended with {:?}", event.what, event.outcome);
            self.blame(&what, (event.from, event.to), timeline);
        }
    }

    fn blame(&mut self, what: &str, (from, to): (Instant, Instant), timeline: &Timeline) {
        let states: Vec<_> = timeline.states(from, to).collect();
        let (place, took) = (timeline.place(from), to - from);
        self.wrong.push(format!("{what}: {place}, took {took:?}, and in force may have been {states:?}"));
    }
}

/// Whether, after a healthy state in which a datagram may have passed, such a state may have been in force when its answer
/// was sent.
fn may_follow(timeline: &Timeline, sent: Sent, answer: Sent, be: impl Fn(State) -> bool) -> bool {
    let passed = timeline.span(sent.0, sent.1).find(|number| timeline.state(*number) == Healthy);
    let mut then = timeline.span(answer.0, answer.1);
    passed.is_some_and(|passed| then.any(|number| number >= passed && be(timeline.state(number))))
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, answered, refused, silent, events, bystander, lost, .. } = self;
        let (rate, wrong, took) = (self.rate(), self.wrong.len() - lost, self.took.as_secs());
        write!(f, "{sent} datagrams at {rate:.0}/s ({answered} answered, {refused} refused, {silent} silent) and ")?;
        write!(f, "{events} connects and requests: {wrong} in a wrong state, bystander {lost} of {bystander} lost ")?;
        write!(f, "[{took} s]")
    }
}
