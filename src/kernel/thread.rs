//! Threads, of which there may be no more: a limit of the user or of the control group, or no memory (`clone(2)`, EAGAIN).

use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use anyhow::{Context, Result};

const NO_MORE: &str = "cannot make a thread";

/// Does it by a thread of its own.
///
/// # Errors
/// When there may be no more threads; it is not done then.
pub fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    Builder::new().spawn(work).context(NO_MORE)
}

/// The same by a thread that ends with `scope`.
///
/// # Errors
/// As [`start`].
pub fn start_in<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    Builder::new().spawn_scoped(scope, work).context(NO_MORE)
}
