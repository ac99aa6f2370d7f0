//! How slow this machine is. On one whose processors are emulated a command takes seconds to start, and two real failures
//! are farther apart than elsewhere.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// As long as this one sleeps.
const NAP: Duration = Duration::from_millis(5);

/// How late a thread woke at most that only sleeps, while something ran: what is as late proves nothing.
pub(crate) fn stall_during<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut latest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let asleep = Instant::now();
                thread::sleep(NAP);
                latest = latest.max(asleep.elapsed().saturating_sub(NAP));
            }
            latest
        });
        let done = run();
        is_over.store(true, Ordering::Relaxed);
        (done, watch.join().unwrap())
    })
}

/// Whether a machine that stood still so long can have made the difference: half of what times may be apart.
pub(crate) fn is_stalled(stall: Duration) -> bool {
    stall.as_secs_f64() * 1e3 > bound_ms() / 2.0
}

/// `PLAYDEAD_FIDELITY_MS`: two times are the same within so many milliseconds.
const BOUND: &str = "PLAYDEAD_FIDELITY_MS";
const USUAL_MS: u32 = 50;

/// Within how many milliseconds two times are the same.
pub(crate) fn bound_ms() -> f64 {
    f64::from(bound())
}

/// How much longer than elsewhere the event may take, in whole seconds: timers that must not fire before it is over,
/// and all that is watched, are longer by that.
pub(crate) fn longer() -> Duration {
    Duration::from_secs(((bound() - USUAL_MS) / 150).into())
}

/// Whether another bound than the usual one was given.
pub(crate) fn is_slow() -> bool {
    bound() > USUAL_MS
}

fn bound() -> u32 {
    let given = env::var(BOUND).map(|text| text.parse().unwrap_or_else(|_| panic!("{BOUND} is a number: {text}")));
    given.map_or(USUAL_MS, |ms: u32| ms.max(USUAL_MS))
}
