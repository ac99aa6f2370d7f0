//! The matrix: every failure is made for real in one set of namespaces, and by playdead in others, from every place
//! where its rules can be written. The client must not be able to tell them apart: by outcome, by time, by packet.
//!
//! A trial is a failure and where the peer sits. `PLAYDEAD_FIDELITY=all` runs all of them, else those that are quick.

mod cell;
mod compare;
mod failures;
mod known;
mod log;
#[path = "../net/mod.rs"]
mod net;
mod peer;
mod places;
mod probes;
mod record;
mod row;
mod wire;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// What is to be run, `all` or nothing.
const SCOPE: &str = "PLAYDEAD_FIDELITY";
/// Rows at once: they mostly wait for the kernel's timers, each in up to five sets of namespaces.
const ROWS_AT_ONCE: usize = 3;

fn main() -> ExitCode {
    if std::env::var_os(peer::ROLE).is_some() {
        peer::run();
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(ROWS_AT_ONCE);
    let all = std::env::var(SCOPE).is_ok_and(|scope| scope == "all");
    libtest_mimic::run(&arguments, trials(all)).exit_code()
}

fn trials(all: bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    for failure in failures::ALL {
        for location in failure.locations {
            let name = format!("{}/{}", failure.name, location.name());
            let trial = Trial::test(name, move || row::check(failure, *location).map_err(Into::into));
            trials.push(trial.with_ignored_flag(!all && !failure.fast));
        }
    }
    trials
}
