//! When which state may have been in force.

use std::ops::RangeInclusive;
use std::time::Instant;

/// What the peer looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Healthy,
    DeadHost,
    DeadProcess,
}

/// A change of state: it happens at some moment between the call of a command and its return.
struct Edge {
    called: Instant,
    returned: Instant,
    into: State,
}

/// All changes from health at the beginning, in order. `Instant` is `CLOCK_MONOTONIC` (`clock_gettime(2)`).
#[derive(Default)]
pub(crate) struct Timeline {
    edges: Vec<Edge>,
}

impl Timeline {
    /// Runs what changes the state.
    pub(crate) fn change(&mut self, into: State, by: impl FnOnce()) {
        let called = Instant::now();
        by();
        self.edges.push(Edge { called, returned: Instant::now(), into });
    }

    /// The states that may have been in force at some moment of this time, by their numbers. A state is in force from the
    /// return of the command that made it until the next one is called, and may be from its call until the return of the
    /// next.
    pub(crate) fn span(&self, from: Instant, to: Instant) -> RangeInclusive<usize> {
        let ended = self.edges.partition_point(|edge| edge.returned < from);
        let begun = self.edges.partition_point(|edge| edge.called <= to);
        ended..=begun
    }

    pub(crate) fn state(&self, number: usize) -> State {
        number.checked_sub(1).map_or(State::Healthy, |index| self.edges[index].into)
    }

    /// The states of a span themselves.
    pub(crate) fn states(&self, from: Instant, to: Instant) -> impl Iterator<Item = State> {
        self.span(from, to).map(|number| self.state(number))
    }

    /// How long after the call and the return of the last command before it this was; for messages.
    pub(crate) fn place(&self, time: Instant) -> String {
        let index = self.edges.partition_point(|edge| edge.called <= time);
        let Some(edge) = index.checked_sub(1).map(|index| &self.edges[index]) else { return "before all".into() };
        let to_return = match time.checked_duration_since(edge.returned) {
            Some(after) => format!("{after:?} after its return"),
            None => format!("{:?} before its return", edge.returned - time),
        };
        format!("{:?} after the call of edge {index} into {:?}, {to_return}", time - edge.called, edge.into)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::State::{DeadHost, DeadProcess, Healthy};
    use super::{Edge, Timeline};

    #[test]
    fn a_state_may_be_in_force_from_the_call_that_makes_it_to_the_return_of_the_next() {
        let start = std::time::Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let edge = |called, returned, into| Edge { called: at(called), returned: at(returned), into };
        let edges = vec![edge(10, 20, DeadHost), edge(30, 40, DeadProcess), edge(50, 60, Healthy)];
        let timeline = Timeline { edges };
        let states = |from, to| timeline.states(at(from), at(to)).collect::<Vec<_>>();
        assert_eq!(states(0, 9), [Healthy]);
        assert_eq!(states(9, 10), [Healthy, DeadHost]);
        assert_eq!(states(20, 21), [Healthy, DeadHost]);
        assert_eq!(states(21, 29), [DeadHost]);
        assert_eq!(states(35, 36), [DeadHost, DeadProcess]);
        assert_eq!(states(21, 45), [DeadHost, DeadProcess]);
        assert_eq!(states(41, 49), [DeadProcess]);
        assert_eq!(states(61, 99), [Healthy]);
    }
}
