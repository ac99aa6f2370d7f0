//! The record for a CI server: each step is a test case, and so is the whole.

use std::time::Duration;

use anyhow::Result;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::event::{Event, Outcome, Stamped};
use super::steps::Steps;

pub(super) fn junit(events: &[Stamped]) -> Result<String> {
    let mut report = Report::new("playdead");
    let name = events.iter().find_map(|stamped| match &stamped.event {
        Event::Start { scenario, .. } => Some(scenario.as_str()),
        _ => None,
    });
    let name = name.unwrap_or("scenario");
    let mut suite = TestSuite::new(name);
    let steps = Steps::of(events);
    for stamped in events {
        match &stamped.event {
            Event::Start { seed, .. } => {
                suite.add_property(("seed", seed.to_string().as_str()));
            }
            Event::Begin { text, .. } => {
                suite.add_test_case(of_step(&steps, stamped, name, text));
            }
            Event::Finish { outcome, failed } => {
                suite.set_time(seconds(stamped.ms));
                report.set_time(seconds(stamped.ms));
                let mut case = TestCase::new("the whole scenario", status(*outcome, &failed.join("\n")));
                case.set_classname(name).set_time(seconds(stamped.ms));
                suite.add_test_case(case);
            }
            _ => {}
        }
    }
    report.add_test_suite(suite);
    Ok(report.to_string()?)
}

fn of_step(steps: &Steps, begin: &Stamped, class: &str, text: &str) -> TestCase {
    let id = begin.step.as_deref().unwrap_or_default();
    let ended = steps.ended(begin);
    let status = match ended.as_ref().map(|ended| ended.failed) {
        None => status(Outcome::Interrupted, "it has not ended"),
        Some(None) => TestCaseStatus::success(),
        Some(Some(why)) => status(Outcome::Unmet, why),
    };
    let mut case = TestCase::new(format!("{id} {text}"), status);
    case.set_classname(class).set_time(seconds(ended.map_or(0.0, |ended| ended.took_ms)));
    let seen: Vec<_> = steps.events(begin).iter().filter_map(|stamped| told(stamped)).collect();
    if !seen.is_empty() {
        case.set_system_out(seen.join("\n"));
    }
    case
}

/// What a reader of a test report wants to see of a step.
fn told(stamped: &Stamped) -> Option<String> {
    Some(match &stamped.event {
        Event::Expect { what, met, seen, .. } => format!("{what}: {}: {seen}", if *met { "so" } else { "not so" }),
        Event::Probe { from, text, .. } => format!("from {from}: {text}"),
        Event::Note { text } => format!("note: {text}"),
        _ => return None,
    })
}

fn status(outcome: Outcome, why: &str) -> TestCaseStatus {
    let kind = match outcome {
        Outcome::Passed => return TestCaseStatus::success(),
        Outcome::Unmet => NonSuccessKind::Failure,
        Outcome::Broken | Outcome::Interrupted => NonSuccessKind::Error,
    };
    let mut status = TestCaseStatus::non_success(kind);
    let first = why.lines().next().unwrap_or(outcome.text());
    status.set_message(first).set_type(outcome.text()).set_description(why);
    status
}

fn seconds(ms: f64) -> Duration {
    Duration::from_secs_f64((ms / 1e3).max(0.0))
}
