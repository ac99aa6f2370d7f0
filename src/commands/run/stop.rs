//! The end of a scenario that somebody asks for by a signal.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::commands::hold::Signals;
use crate::kernel::thread::start;

/// How often is looked whether something is done.
const POLL: Duration = Duration::from_millis(1);

/// Signals that come so soon after the first are the same one: timeout(1) sends each to the process and to its group.
const SAME: Duration = Duration::from_secs(1);

/// Whether the scenario is to end.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop(Arc<(Mutex<Told>, Condvar)>);

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    #[default]
    Nothing,
    /// To end, and to put everything right before.
    End,
    /// To wait no longer for what is put right.
    GiveUp,
}

impl Stop {
    /// From now on a signal asks for the end instead of being the end; `at_once` is done as soon as it comes. A second
    /// one asks to give up what still is to be put right.
    pub(super) fn on_signals(at_once: impl FnOnce() + Send + 'static) -> Result<Self> {
        let signals = Signals::catch()?;
        let stop = Self::default();
        let told = stop.clone();
        start(move || {
            let (mut first, mut at_once) = (None, Some(at_once));
            signals.each(|| match first {
                None => {
                    first = Some(Instant::now());
                    told.tell();
                    // Where there may be no more threads the player does the same as soon as it can.
                    let _ = at_once.take().map(start);
                }
                Some(first) if Instant::now() > first + SAME => told.set(Told::GiveUp),
                Some(_) => {}
            });
        })?;
        Ok(stop)
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the end.
    pub(super) fn tell(&self) {
        self.set(Told::End);
    }

    fn set(&self, what: Told) {
        *self.lock() = what;
        self.0.1.notify_all();
    }

    /// Whether it was asked for.
    pub(super) fn is_told(&self) -> bool {
        *self.lock() >= Told::End
    }

    /// Whether it was asked for once more.
    pub(super) fn is_told_again(&self) -> bool {
        *self.lock() == Told::GiveUp
    }

    /// Does something that cannot be stopped, by a thread of its own. When the end is asked for first, that thread is
    /// left to end with the process: nothing.
    pub(super) fn unless_told<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<T>> {
        let working = start(work)?;
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
        while *told == Told::Nothing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            told = self.0.1.wait_timeout(told, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *told == Told::Nothing
    }
}
