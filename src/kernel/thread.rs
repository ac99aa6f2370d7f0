//! Threads, of which there may be no more: a limit of the user or of the control group, or no memory (`clone(2)`, EAGAIN).

use std::process::Command;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};

use super::privilege::{before_exec, reset_to_default};

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

/// What the command starts ends (`SIGTERM`) with the thread that starts it, even if that is killed (`PR_SET_PDEATHSIG`).
pub fn ends_with_this(command: &mut Command) -> &mut Command {
    let parent = getpid();
    before_exec(command, move || {
        // What this process does at SIGTERM is no end of the other, until it is the program.
        reset_to_default(Signal::SIGTERM)?;
        set_pdeathsig(Signal::SIGTERM)?;
        // It may have ended before it was asked for.
        if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
    })
}
