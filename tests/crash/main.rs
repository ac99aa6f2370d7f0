//! playdead killed by SIGKILL at its system calls: what is there afterwards is the whole of what was meant, or nothing
//! of it; it is listed, and can be healed; and what a process holds is gone with it.
//!
//! A trial is a command. It is run again and again under `ptrace` and killed at the beginning of one system call, of
//! whichever of its threads: that call is not made any more. `PLAYDEAD_CRASH=all` (10 minutes) kills it at each in turn
//! until it ends by itself (`run` and `lab`, which take a second each time: at each that can change something outside, and
//! at the one behind it); `PLAYDEAD_CRASH=N` kills each command at N of them. Else it is killed at a few, mostly beside
//! calls that change something.

mod faults;
mod labs;
#[path = "../net/mod.rs"]
mod net;
mod places;
mod scenario;
mod sweep;
mod tracer;

use std::process::ExitCode;

use libtest_mimic::Arguments;

/// They mostly wait for processes to start.
const TRIALS_AT_ONCE: usize = 4;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(TRIALS_AT_ONCE);
    let trials = [labs::trials(), scenario::trials(), faults::trials()];
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit_code()
}
