//! Connections to other hosts, while there is nothing else to undo.

use std::thread::JoinHandle;

use anyhow::{Context, Result};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

use crate::cluster::close_connections;
use crate::commands::hold;
use crate::kernel::machine;
use crate::kernel::thread::start;

/// While it lives, a signal ends this process as it would without, but its connections first: one to a host whose login
/// hangs would go on for as long as that does.
pub(in super::super) struct Logins {
    handle: Handle,
    ends: Option<JoinHandle<()>>,
}

impl Logins {
    /// From now on.
    pub(in super::super) fn begin() -> Result<Self> {
        // One that does not end this process without (of what a script has put into the background) does not with it.
        let caught = hold::ending().filter(|signal| !machine::ignores(*signal));
        let mut signals = Signals::new(caught).context("cannot catch signals")?;
        let handle = signals.handle();
        let end = |signal| {
            close_connections();
            let _ = emulate_default_handler(signal);
        };
        let ends = start(move || {
            signals.forever().for_each(end);
            // One that came just before the end.
            signals.pending().for_each(end);
        })?;
        Ok(Self { handle, ends: Some(ends) })
    }

    /// From now on there is more to undo, and signals are caught for that.
    pub(in super::super) fn give_way(self) -> Result<hold::Signals> {
        let caught = hold::Signals::catch();
        // Not before: no signal comes between.
        drop(self);
        caught
    }
}

impl Drop for Logins {
    /// Does not come back once a signal has come, and whoever waited for a host has learned only that its connection is
    /// gone.
    fn drop(&mut self) {
        self.handle.close();
        let _ = self.ends.take().map(JoinHandle::join);
    }
}
