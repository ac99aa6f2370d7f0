//! The matrix: every failure is made for real in one set of namespaces, and by playdead in others, from every place
//! where its rules can be written. The client must not be able to tell them apart: by outcome, by time, by packet.
//!
//! A trial is a failure and where the peer sits. `PLAYDEAD_FIDELITY=all` runs all of them, else those that are quick.

mod cell;
mod compare;
mod draw;
mod etcd;
mod failures;
mod known;
mod log;
mod mutation;
#[path = "../net/mod.rs"]
mod net;
mod pace;
mod peer;
mod places;
mod probes;
mod record;
mod report;
mod row;
mod wire;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// What is to be done: `all` runs all, nothing what is quick, `real` compares each real failure with itself, and
/// `table` and `json` tell what the last run found.
const SCOPE: &str = "PLAYDEAD_FIDELITY";
/// Rows at once: they mostly wait for the kernel's timers, each in up to five sets of namespaces.
const ROWS_AT_ONCE: usize = 4;

fn main() -> ExitCode {
    if std::env::var_os(peer::ROLE).is_some() {
        peer::run();
    }
    let scope = std::env::var(SCOPE).unwrap_or_default();
    if let Some(document) = report::print(&scope) {
        return document;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(ROWS_AT_ONCE);
    libtest_mimic::run(&arguments, trials(scope == "all")).exit_code()
}

fn trials(all: bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    // What takes the longest begins first.
    let mut failures: Vec<_> = failures::ALL.iter().collect();
    failures.sort_by_key(|failure| std::cmp::Reverse(failure.timeout));
    for failure in failures {
        for location in failure.locations {
            let name = failure.row(*location);
            let trial = Trial::test(name, move || row::check(failure, *location).map_err(Into::into));
            trials.push(trial.with_ignored_flag(!all && !failure.fast));
        }
    }
    let named = || {
        let cells: Vec<_> = cell::Cell::all().map(|cell| cell.name()).collect();
        known::check(&cells).map_err(Into::into)
    };
    trials.push(Trial::test("named-differences-are-about-cells", named));
    for mutation in mutation::ALL {
        let name = format!("mutation-{}", mutation.name);
        trials.push(Trial::test(name, || mutation.check().map_err(Into::into)));
    }
    trials
}
