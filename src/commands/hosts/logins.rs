//! Connections to other hosts, while there is nothing else to undo.

use std::thread::JoinHandle;

use anyhow::{Context, Result};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

use crate::cluster::close_connections;
use crate::commands::hold::ending;
use crate::kernel::thread::start;

/// While it lives, a signal ends this process as it would without, but its connections first: one to a host whose login
/// hangs would go on for as long as that does.
pub(in super::super) struct Logins {
    handle: Handle,
    ends: Option<JoinHandle<()>>,
}

impl Logins {
    /// From now on. Whatever else catches signals has to be there before this is dropped.
    pub(in super::super) fn begin() -> Result<Self> {
        let mut signals = Signals::new(ending()).context("cannot catch signals")?;
        let handle = signals.handle();
        let ends = start(move || {
            for signal in &mut signals {
                close_connections();
                let _ = emulate_default_handler(signal);
            }
        })?;
        Ok(Self { handle, ends: Some(ends) })
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
