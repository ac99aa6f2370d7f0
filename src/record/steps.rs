//! The events of a record by the step that they belong to.

use std::collections::HashMap;

use super::event::{Event, Stamped};

/// The events of each step, in their order. A plan may have a hundred thousand steps: looked for one by one in all events
/// they would take hours.
pub(super) struct Steps<'a>(HashMap<&'a str, Vec<&'a Stamped>>);

/// How a step has ended.
pub(super) struct Ended<'a> {
    /// When, in milliseconds since the start.
    pub(super) ms: f64,
    /// In milliseconds.
    pub(super) took_ms: f64,
    /// What went wrong.
    pub(super) failed: Option<&'a str>,
}

impl<'a> Steps<'a> {
    pub(super) fn of(events: &'a [Stamped]) -> Self {
        let mut steps = HashMap::<_, Vec<_>>::new();
        for stamped in events {
            steps.entry(number(stamped)).or_default().push(stamped);
        }
        Self(steps)
    }

    /// The events of the step that begins so.
    pub(super) fn events(&self, begin: &Stamped) -> &[&'a Stamped] {
        self.0.get(number(begin)).map_or(&[], Vec::as_slice)
    }

    /// How the step has ended that begins so; `None`: not yet.
    pub(super) fn ended(&self, begin: &Stamped) -> Option<Ended<'a>> {
        self.events(begin).iter().find_map(|other| match &other.event {
            Event::End { took_ms, failed } => {
                Some(Ended { ms: other.ms, took_ms: *took_ms, failed: failed.as_deref() })
            }
            _ => None,
        })
    }
}

/// That of the step; empty for the whole.
fn number(stamped: &Stamped) -> &str {
    stamped.step.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::{junit, summary, timeline};
    use super::*;

    #[test]
    fn many_steps_are_drawn_in_no_time() {
        let of_step = |number: u32| {
            let begin = Event::Begin { text: "sleep".into(), late_ms: None };
            [begin, Event::End { took_ms: 0.0, failed: None }].map(|event| Stamped {
                ms: number.into(),
                wall: "2026-11-30T00:00:00.000000Z".into(),
                step: Some(format!("1.{number}.1")),
                event,
            })
        };
        let events: Vec<_> = (0..20_000).flat_map(of_step).collect();
        let start = Instant::now();
        let drawn = [summary::summary(&events), junit::junit(&events).unwrap(), timeline::svg(&events)];
        assert!(drawn.iter().all(|drawn| drawn.contains("1.19999.1")));
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}
