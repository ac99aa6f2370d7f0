//! Which calls a command is killed at, one after the other, and what came of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nix::libc;

use crate::tracer::{End, Run, kill_at};

/// `all`: at every call. A number: at so many.
const SCOPE: &str = "PLAYDEAD_CRASH";

/// Calls that change nothing but the process itself: between two of them the world stays as it is.
const INWARD: [i64; 46] = [
    libc::SYS_close,
    libc::SYS_clone3,
    libc::SYS_setns,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_timerfd_settime,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_openat,
    libc::SYS_getdents64,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_readlinkat,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_prlimit64,
    libc::SYS_prctl,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_geteuid,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_getsockname,
    libc::SYS_setsockopt,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_clock_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_exit,
];

/// Something that is killed, and looked at afterwards.
pub(crate) trait Subject {
    /// Makes everything as it is to be before the command, and gives the command.
    fn prepare(&mut self) -> Vec<OsString>;

    /// How long the command is let run where it does not end by itself.
    fn rest(&self) -> Option<Duration> {
        None
    }

    /// Looks at what there is after the kill, and puts it right. Gives in a word what it was.
    ///
    /// # Errors
    /// What should not be.
    fn look(&mut self, run: &Run) -> Result<&'static str, String>;

    /// What was measured meanwhile.
    fn measured(&self) -> String {
        String::new()
    }

    /// At so many calls it is killed in short.
    fn few(&self) -> usize {
        10
    }

    /// Whether no test has the time for each call.
    fn is_slow(&self) -> bool {
        false
    }
}

/// The sweep over one command as a trial.
pub(crate) fn trial<S: Subject>(name: &'static str, make: impl FnOnce() -> S + Send + 'static) -> Trial {
    Trial::test(name, move || sweep(name, &mut make()))
}

fn sweep(name: &str, subject: &mut impl Subject) -> Result<(), Failed> {
    let undisturbed = run(subject, usize::MAX);
    let mut found = Found::default();
    found.add(0, &undisturbed, subject);
    let all = undisturbed.calls.len();
    let scope = std::env::var(SCOPE).unwrap_or_default();
    let is_all = scope == "all";
    let chosen = match (is_all, subject.is_slow()) {
        // The threads of two runs do not begin their calls in the same order, nor all as many.
        (true, false) => (1..=4 * all).collect(),
        (true, true) => beside_changes(&undisturbed.calls),
        (false, _) => few(&undisturbed.calls, scope.parse().unwrap_or(subject.few())),
    };
    let mut killed = 0;
    for at in chosen {
        let run = run(subject, at);
        let has_ended = !matches!(run.end, End::Killed(_));
        found.add(at, &run, subject);
        if has_ended && is_all && !subject.is_slow() {
            break;
        }
        killed += usize::from(!has_ended);
    }
    let left: Vec<_> = found.left.iter().map(|(what, count)| format!("{count} {what}")).collect();
    let (left, wrong, measured) = (left.join(", "), found.wrong.len(), subject.measured());
    eprintln!("{name}: killed at {killed} of some {all} system calls: {left}; {wrong} wrong{measured}");
    if wrong == 0 { Ok(()) } else { Err(format!("{wrong} of {killed} kills").into()) }
}

fn run(subject: &mut impl Subject, at: usize) -> Run {
    let command = subject.prepare();
    kill_at(&command, at, subject.rest())
}

#[derive(Default)]
struct Found {
    left: BTreeMap<&'static str, usize>,
    wrong: Vec<String>,
}

impl Found {
    fn add(&mut self, at: usize, run: &Run, subject: &mut impl Subject) {
        match subject.look(run) {
            Ok(left) => *self.left.entry(left).or_default() += usize::from(matches!(run.end, End::Killed(_))),
            Err(wrong) => {
                let wrong = format!("at call {at}, {:?}: {wrong}", run.end);
                eprintln!("WRONG {wrong}");
                self.wrong.push(wrong);
            }
        }
    }
}

/// Before each call that can change something, and right behind it.
fn beside_changes(calls: &[i64]) -> Vec<usize> {
    let changes = (1..=calls.len()).filter(|at| !INWARD.contains(&calls[at - 1]));
    let mut beside: Vec<_> = changes.flat_map(|at| [at, at + 1]).collect();
    beside.dedup();
    beside
}

/// Evenly chosen: one in four of all calls, the others beside changes.
fn few(calls: &[i64], number: usize) -> Vec<usize> {
    let beside = beside_changes(calls);
    let evenly = |from: usize, of: usize| (0..of).map(move |index| (2 * index + 1) * from / (2 * of));
    let any = evenly(calls.len(), number / 4).map(|index| index + 1);
    let mut few: Vec<_> = evenly(beside.len(), number - number / 4).map(|index| beside[index]).chain(any).collect();
    few.sort_unstable();
    few.dedup();
    few
}
