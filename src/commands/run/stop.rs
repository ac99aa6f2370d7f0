//! The end of a scenario that somebody asks for by a signal.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use anyhow::Result;

use crate::commands::hold::Signals;

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

    /// Asks for the end.
    pub(super) fn tell(&self) {
        *self.0.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Whether it was asked for.
    pub(super) fn is_told(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Sleeps; false when the end was asked for meanwhile.
    pub(super) fn sleep_until(&self, until: Instant) -> bool {
        let mut told = self.0.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while !*told {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            told = self.0.1.wait_timeout(told, left).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        !*told
    }
}
