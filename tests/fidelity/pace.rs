//! How slow this machine is. On one whose processors are emulated a command takes seconds to start, and two real failures
//! are farther apart than elsewhere.

use std::env;
use std::time::Duration;

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
