//! The text of `playdead probe`: an aligned table, and the verdict below it.

use std::collections::BTreeMap;
use std::fmt::Write;

use comfy_table::CellAlignment;

use super::probe::Report;
use super::table;
use crate::model::observation::{Observation, Outcome, Probe, QueuedError, What};
use crate::model::signature::Verdict;

/// Everything that is printed.
pub(super) fn render(report: &Report) -> String {
    let mut text = table(&report.observations);
    if let Some(ran) = &report.command {
        let _ = writeln!(text, "the command ended after {} with {}", time(ran.ended_ms), ran.exit_code);
    }
    if let Some(verdict) = &report.verdict {
        text.push_str(&verdict_text(verdict));
    }
    text
}

/// One line a peer, without the details.
pub(super) fn brief(observations: &[Observation]) -> String {
    let mut text = String::new();
    for same in observations.chunk_by(|a, b| a.target == b.target) {
        let cells: Vec<_> =
            same.iter().map(|s| format!("\t{}: {} {}", s.probe, s.summary(), time(s.took_ms))).collect();
        let _ = writeln!(text, "{}{}", same[0].target, cells.concat());
    }
    text
}

pub(super) fn table(observations: &[Observation]) -> String {
    let mut table = table::new(["PEER", "PROBE", "OUTCOME", "TIME", "DETAIL"]);
    for seen in observations {
        table.add_row([
            seen.target.to_string(),
            seen.probe.to_string(),
            seen.summary(),
            time(seen.took_ms),
            detail(seen),
        ]);
    }
    if let Some(times) = table.column_mut(3) {
        times.set_cell_alignment(CellAlignment::Right);
    }
    table::text(&table)
}

/// Two decimals below ten milliseconds, one below a second, seconds above.
fn time(ms: f64) -> String {
    match ms.abs() {
        ms_abs if ms_abs < 10.0 => format!("{ms:.2} ms"),
        ms_abs if ms_abs < 1000.0 => format!("{ms:.1} ms"),
        _ => format!("{:.2} s", ms / 1e3),
    }
}

fn detail(seen: &Observation) -> String {
    let mut parts = Vec::new();
    if seen.probe == Probe::Connect
        && let Some(at) = seen.connected_ms()
    {
        parts.push(format!("connected in {}", time(at - seen.started_ms)));
    }
    parts.extend(seen.first_line.iter().map(|line| format!("{line:?}")));
    if seen.sent > 1 {
        parts.push(format!("sent {}", seen.sent));
    }
    parts.extend(write_failure(seen));
    parts.extend(seen.steps.iter().filter_map(|step| packet_level(&step.what)));
    if let Some(tcp) = &seen.tcp {
        parts.push(tcp.state.to_owned());
        parts.extend((tcp.unacked > 0).then(|| format!("{} unacknowledged", tcp.unacked)));
        parts.extend((tcp.retransmits > 0).then(|| format!("{} retransmits", tcp.retransmits)));
    }
    parts.extend(errors(&seen.errors));
    if let Outcome::Untried { why } = &seen.outcome {
        parts.push(why.clone());
    }
    parts.join(", ")
}

/// What only some probes see.
fn packet_level(what: &What) -> Option<String> {
    match what {
        What::Polled { events } => Some(events.clone()),
        What::IcmpError { from, .. } => Some(format!("from {from}")),
        _ => None,
    }
}

fn write_failure(seen: &Observation) -> Option<String> {
    let open = seen.probe == Probe::Writing;
    seen.steps.iter().filter(|_| open).find_map(|step| match &step.what {
        What::SendFailed { errno } => Some(format!("then {errno} at {}", time(step.at_ms))),
        _ => None,
    })
}

/// Each error once: one that never came back may stand there for every packet sent.
fn errors(errors: &[QueuedError]) -> Vec<String> {
    let mut texts: Vec<_> = errors.iter().map(queued).collect();
    texts.dedup();
    texts
}

fn queued(error: &QueuedError) -> String {
    let from = error.from.map(|from| format!(" from {from}")).unwrap_or_default();
    format!("{} type {} code {}{from}", error.origin, error.kind, error.code)
}

pub(super) fn verdict_text(verdict: &Verdict) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}: {}", verdict.expect, if verdict.met { "as expected" } else { "NOT as expected" });
    for check in verdict.differing() {
        let (allowed, seen) = (check.allowed.join("\" or \""), &check.seen);
        let _ = writeln!(text, "  {} {}: saw \"{seen}\" instead of \"{allowed}\"", check.target, check.probe);
    }
    for other in &verdict.also_fits {
        let tells: Vec<_> = other.told_by.iter().map(|probe| probe.name()).collect();
        let tells = if tells.is_empty() { String::new() } else { format!(" (told by {})", tells.join(", ")) };
        let fits = if verdict.met { "the same is seen of" } else { "what was seen fits" };
        let _ = writeln!(text, "  note: {fits} {}{tells}", other.expect);
    }
    for (note, probes) in notes(verdict) {
        let _ = writeln!(text, "  note on {}: {note}", probes.join(", "));
    }
    text
}

/// Each note once, with the probes that it is about.
fn notes(verdict: &Verdict) -> BTreeMap<&str, Vec<&'static str>> {
    let mut notes = BTreeMap::<_, Vec<_>>::new();
    for check in &verdict.checks {
        if let Some(note) = &check.note {
            let probes = notes.entry(note.as_str()).or_default();
            if !probes.contains(&check.probe.name()) {
                probes.push(check.probe.name());
            }
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_are_read_at_a_glance() {
        assert_eq!(time(0.123), "0.12 ms");
        assert_eq!(time(-250.44), "-250.4 ms");
        assert_eq!(time(15_254.0), "15.25 s");
    }
}
