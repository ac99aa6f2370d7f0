//! The end of a scenario that somebody asks for by a signal.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::commands::hold::Signals;

/// How often is looked whether something is done.
const POLL: Duration = Duration::from_millis(1);

/// Whether the scenario is to end.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// From now on a signal asks for the end instead of being the end; `at_once` is done as soon as it comes.
    pub(super) fn on_signals(at_once: impl FnOnce() + Send + 'static) -> Result<Self> {
        let signals = Signals::catch()?;
        let stop = Self::default();
        let told = stop.clone();
        thread::spawn(move || {
            signals.wait(move || {
                told.tell();
                at_once();
            })
        });
        Ok(stop)
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the end.
    pub(super) fn tell(&self) {
        *self.lock() = true;
        self.0.1.notify_all();
    }

    /// Whether it was asked for.
    pub(super) fn is_told(&self) -> bool {
        *self.lock()
    }

    /// Does something that cannot be stopped, by a thread of its own. When the end is asked for first, that thread is
    /// left to end with the process: nothing.
    pub(super) fn unless_told<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<T>> {
        let working = thread::spawn(work);
        while !working.is_finished() {
            if !self.sleep_until(Instant::now() + POLL) {
                return Ok(None);
            }
        }
        working.join().map(Some).map_err(|_| anyhow!("a thread panicked"))
    }

    /// Sleeps; false when the end was asked for meanwhile.
    pub(super) fn sleep_until(&self, until: Instant) -> bool {
        let mut told = self.lock();
        while !*told {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            told = self.0.1.wait_timeout(told, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        !*told
    }
}
