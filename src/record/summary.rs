//! The record for a CI page: a verdict and a table, in Markdown.

use std::fmt::Write;

use super::event::{Event, Outcome, Stamped, State};
use super::steps::Steps;

/// The scenario as a page: what happened, what failed, and the times that matter.
pub(super) fn summary(events: &[Stamped]) -> String {
    let mut text = String::new();
    if let Some(Event::Start { scenario, about, seed, .. }) = events.first().map(|first| &first.event) {
        let _ = writeln!(text, "# {}: {}\n", cell(scenario), verdict(events));
        if !about.is_empty() {
            let _ = writeln!(text, "{}\n", about.trim());
        }
        let _ = writeln!(text, "Seed {seed}, {:.1} s.", events.last().map_or(0.0, |last| last.ms) / 1e3);
    }
    let failed = finish(events).map_or(&[][..], |(_, failed)| failed);
    for (index, failed) in failed.iter().enumerate() {
        text.push_str(if index == 0 { "\n" } else { "" });
        let _ = writeln!(text, "- **{}**", cell(failed));
    }
    text.push_str("\n| step | at | took | what | result |\n| ---: | ---: | ---: | --- | --- |\n");
    let steps = Steps::of(events);
    for begin in events {
        if let Event::Begin { text: what, .. } = &begin.event {
            let (took, result) = result(steps.events(begin));
            let (id, at) = (begin.step.as_deref().unwrap_or_default(), begin.ms / 1e3);
            let _ = writeln!(text, "| {id} | {at:.2} s | {took} | {} | {} |", cell(what), cell(&result));
        }
    }
    faults(events, &mut text);
    leaders(events, &mut text);
    unavailable(events, &mut text);
    text
}

/// How it ended, and what went wrong.
pub(super) fn finish(events: &[Stamped]) -> Option<(Outcome, &[String])> {
    events.iter().find_map(|stamped| match &stamped.event {
        Event::Finish { outcome, failed } => Some((*outcome, failed.as_slice())),
        _ => None,
    })
}

/// The same in words.
pub(super) fn verdict(events: &[Stamped]) -> &'static str {
    finish(events).map_or("has not ended", |(outcome, _)| outcome.text())
}

/// How long a step took, and what came of it.
fn result(of_step: &[&Stamped]) -> (String, String) {
    let mut took = String::new();
    let mut told = Vec::new();
    for stamped in of_step {
        match &stamped.event {
            Event::End { took_ms, failed } => {
                took = format!("{:.2} s", took_ms / 1e3);
                told.extend(failed.iter().map(|why| format!("FAILED: {why}")));
            }
            Event::Expect { met: true, seen, took_ms, .. } => {
                told.push(format!("{seen}, after {:.2} s", took_ms / 1e3));
            }
            Event::Probe { text, .. } => told.push(text.clone()),
            Event::Picked { name, value } => told.push(format!("{name} is {value}")),
            Event::Command { exit: Some(0), said, .. } if !said.is_empty() => told.push(said.clone()),
            Event::Command { exit: Some(code), .. } => told.push(format!("exit code {code}")),
            Event::Note { text } => told.push(format!("note: {text}")),
            _ => {}
        }
    }
    (took, told.join("; "))
}

/// When a fault that is in force from then on has ended, in milliseconds since the start: it was healed, its lease was
/// over, or it has come for the last time. `None`: not by the last event.
pub(super) fn ends(events: &[Stamped], begin: &Stamped) -> Option<f64> {
    let Event::Fault { name, faults, .. } = &begin.event else { return None };
    let told = events.iter().filter(|other| other.ms >= begin.ms).find_map(|other| match &other.event {
        Event::Healed { name: ended, .. } | Event::Over { name: ended } if ended == name => Some(other.ms),
        _ => None,
    });
    // In no place longer than its lease.
    let leases: Option<Vec<_>> = faults.iter().map(|fault| fault["lease_ms"].as_f64()).collect();
    let lease = leases.and_then(|leases| leases.into_iter().reduce(f64::max)).map(|lease| begin.ms + lease);
    let last = events.last().map_or(0.0, |last| last.ms);
    [told, lease].into_iter().flatten().reduce(f64::min).filter(|end| *end <= last)
}

fn faults(events: &[Stamped], text: &mut String) {
    let mut rows = String::new();
    // A fault that is in many places has an event for each, of one step, and is counted once, in all of them.
    let mut counted = None;
    for stamped in events {
        if let Event::Fault { name, text: what, nodes, .. } = &stamped.event {
            let met = events.iter().find_map(|other| match &other.event {
                Event::Healed { name: healed, packets } if healed == name && other.ms >= stamped.ms => *packets,
                _ => None,
            });
            let met = met.map_or("?".into(), |[to, from]| format!("{to} to it, {from} from it"));
            let lasted = ends(events, stamped)
                .map_or("to the end".into(), |until| format!("{:.2} s", (until - stamped.ms) / 1e3));
            let this = Some((&stamped.step, name));
            let met = if counted == this { "(the same)".into() } else { met };
            counted = this;
            let (name, nodes, what) = (cell(name), cell(&nodes.join(", ")), cell(what));
            let _ = writeln!(rows, "| {name} | {nodes} | {what} | {:.2} s | {lasted} | {met} |", stamped.ms / 1e3);
        }
    }
    if !rows.is_empty() {
        let _ = write!(
            text,
            "\n## Faults\n\n| name | nodes | fault | from | lasted | packets met, in all places |\n| --- | --- | --- | ---: | ---: | --- |\n{rows}"
        );
    }
}

fn leaders(events: &[Stamped], text: &mut String) {
    let mut rows = String::new();
    for stamped in events {
        if let Event::Leader { leader, term, asked_ms } = &stamped.event {
            let term = term.map_or(String::new(), |term| term.to_string());
            let leader = leader.as_deref().unwrap_or("nobody");
            let _ = writeln!(rows, "| {:.2} s | {} | {term} |", asked_ms / 1e3, cell(leader));
        }
    }
    if !rows.is_empty() {
        let _ = write!(text, "\n## Leaders\n\n| since | leader | term |\n| ---: | --- | ---: |\n{rows}");
    }
}

/// For how long the cluster did not answer, seen from each place through each member.
fn unavailable(events: &[Stamped], text: &mut String) {
    let mut rows = String::new();
    for (node, from) in views(events) {
        let spans = spans(events, node, from);
        let [silent, live, quorum] = [State::Silent, State::Live, State::Quorum].map(|wanted| {
            spans
                .iter()
                .filter(|(_, _, state)| *state == wanted)
                .map(|(from, to, _)| to - from)
                .fold(0.0, |sum, one| sum + one)
                / 1e3
        });
        let _ = writeln!(
            rows,
            "| {} | {} | {quorum:.1} s | {live:.1} s | {silent:.1} s |",
            cell(node),
            cell(from.unwrap_or("itself"))
        );
    }
    if !rows.is_empty() {
        let _ = write!(
            text,
            "\n## Members\n\n| member | seen from | with quorum | serves, no quorum | silent |\n\
             | --- | --- | ---: | ---: | ---: |\n{rows}"
        );
    }
}

/// Every member, and from where it was seen; each once.
pub(super) fn views(events: &[Stamped]) -> Vec<(&str, Option<&str>)> {
    let mut views = Vec::new();
    for stamped in events {
        if let Event::Member { node, from, .. } = &stamped.event
            && !views.contains(&(node.as_str(), from.as_deref()))
        {
            views.push((node.as_str(), from.as_deref()));
        }
    }
    views
}

/// From when to when a member was in which state, in milliseconds.
pub(super) type Spans = Vec<(f64, f64, State)>;

/// How a member did, seen from a place.
pub(super) fn spans(events: &[Stamped], member: &str, place: Option<&str>) -> Spans {
    let end = events.last().map_or(0.0, |last| last.ms);
    let changes: Vec<_> = events
        .iter()
        .filter_map(|stamped| match &stamped.event {
            Event::Member { node, from, state, asked_ms, .. } if node == member && from.as_deref() == place => {
                Some((*asked_ms, *state))
            }
            _ => None,
        })
        .collect();
    let ends = changes.iter().skip(1).map(|(ms, _)| *ms).chain([end]);
    changes.iter().zip(ends).map(|((from, state), to)| (*from, to, *state)).collect()
}

/// A text that stays in its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: f64, step: &str, event: Event) -> Stamped {
        Stamped { ms, wall: String::new(), step: Some(step.into()), event }
    }

    fn fault(node: &str) -> Event {
        let (text, nodes) = ("cut".into(), vec![node.into()]);
        Event::Fault { name: "x".into(), text, nodes, rules: Vec::new(), faults: Vec::new() }
    }

    fn healed(to: u64) -> Event {
        Event::Healed { name: "x".into(), packets: Some([to, 0]) }
    }

    #[test]
    fn a_fault_lasts_no_longer_than_its_lease_or_its_last_edge() {
        let mut leased = fault("a");
        if let Event::Fault { faults, .. } = &mut leased {
            faults.push(serde_json::json!({ "lease_ms": 2000 }));
        }
        let over = Event::Over { name: "x".into() };
        for (begin, then, expected) in [(leased, healed(0), Some(2000.0)), (fault("a"), over, Some(1000.0))] {
            let events = [at(0.0, "1", begin), at(1000.0, "2", Event::Note { text: "x".into() })];
            assert_eq!(ends(&events, &events[0]), None);
            let ms = if matches!(then, Event::Over { .. }) { 1000.0 } else { 9000.0 };
            let events = [events.to_vec(), vec![at(ms, "3", then)]].concat();
            assert_eq!(ends(&events, &events[0]), expected);
        }
    }

    #[test]
    fn a_fault_in_many_places_is_counted_once_and_one_that_comes_again_each_time() {
        let text = summary(&[
            at(0.0, "1.1.1", fault("a")),
            at(0.0, "1.1.1", fault("b")),
            at(1.0, "1.1.2", healed(5)),
            at(2.0, "1.2.1", fault("a")),
            at(3.0, "1.2.2", healed(7)),
        ]);
        let met: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("| x |")?.rsplit(" | ").next()).collect();
        assert_eq!(met, ["5 to it, 0 from it |", "(the same) |", "7 to it, 0 from it |"]);
    }
}
