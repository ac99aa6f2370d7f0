//! Processes inside a network namespace, found by looking at every process of the machine.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::kernel::netns::NetNs;

const POLL: Duration = Duration::from_millis(5);
/// How long a killed process may take to end: one that waits for a disk ends once that has answered.
pub(super) const DYING: Duration = Duration::from_secs(30);

/// A process whose network namespace is a certain one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    /// Its id.
    pub(super) pid: u32,
    ns: (u64, u64),
}

impl Process {
    /// The process of that id, as long as it is in the namespace.
    ///
    /// # Errors
    /// When the namespace cannot be looked at.
    pub(super) fn new(pid: u32, ns: &NetNs) -> Result<Self> {
        Ok(Self { pid, ns: ns.id()? })
    }

    /// The processes in the namespace that `/proc` shows, without the calling one.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub(super) fn all_in(ns: &NetNs) -> Result<Vec<Self>> {
        let ns = ns.id()?;
        let entries = fs::read_dir("/proc").context("cannot read /proc")?;
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let all = pids.map(|pid| Self { pid, ns });
        Ok(all.filter(|process| process.pid != std::process::id() && process.is_alive()).collect())
    }

    /// Whether it still runs (or is stopped) in that namespace. A zombie has left its namespaces already, and
    /// another process that was given the same id since is in another one.
    pub(super) fn is_alive(&self) -> bool {
        self.namespace() == Some(self.ns)
    }

    /// Its network namespace; none once it has left all of its namespaces.
    fn namespace(&self) -> Option<(u64, u64)> {
        let meta = fs::metadata(format!("/proc/{}/ns/net", self.pid)).ok()?;
        Some((meta.dev(), meta.ino()))
    }

    /// Its state and the number of its threads; none once it has been waited for.
    fn state(&self) -> Option<(char, u32)> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        // The name before the state is in parentheses and may hold any character. The threads come 17 fields later.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        Some((fields.next()?.chars().next()?, fields.nth(16)?.parse().ok()?))
    }

    /// Whether all that it had is closed: the kernel closes a process's sockets after it has left its namespaces, with the
    /// last of its threads, and before it is a zombie of one.
    fn has_ended(&self) -> bool {
        match self.namespace() {
            // One that runs in another namespace was given the same id since.
            Some(ns) => ns != self.ns,
            None => self.state().is_none_or(|(state, threads)| matches!(state, 'Z' | 'X') && threads <= 1),
        }
    }

    /// Whether it is stopped by a signal.
    pub(super) fn is_stopped(&self) -> bool {
        self.state().is_some_and(|(state, _)| state == 'T')
    }

    /// The words of its command line; none once it has ended.
    pub(super) fn command_line(&self) -> Vec<String> {
        let text = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words = text.strip_suffix(b"\0").unwrap_or(&text).split(|byte| *byte == 0);
        words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    /// Whether something in its namespace listens on that TCP port. Read from the kernel's table, so that no
    /// rule in the namespace can get in the way.
    pub(super) fn listens(&self, port: u16) -> bool {
        ["tcp", "tcp6"].iter().any(|table| {
            let table = fs::read_to_string(format!("/proc/{}/net/{table}", self.pid)).unwrap_or_default();
            table.lines().any(|line| is_listener(line, port))
        })
    }

    /// Sends a signal; it has ended: nothing happens.
    ///
    /// # Errors
    /// When the rights are missing.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid.cast_signed()), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(errno).with_context(|| format!("cannot send {signal} to process {}", self.pid)),
        }
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// When it has not after `patience`.
    pub(super) fn wait_for_end(&self, patience: Duration) -> Result<()> {
        let ended = wait_until(patience, || self.has_ended());
        ensure!(ended, "process {} has not ended after {} s", self.pid, patience.as_secs());
        Ok(())
    }

    /// Waits until it is stopped, or no longer is.
    ///
    /// # Errors
    /// When it is not after `patience`, or has ended.
    pub(super) fn wait_for_stop(&self, stopped: bool, patience: Duration) -> Result<()> {
        let so = wait_until(patience, || self.is_stopped() == stopped || !self.is_alive());
        ensure!(so && self.is_alive(), "process {} did not {}", self.pid, if stopped { "stop" } else { "go on" });
        Ok(())
    }
}

/// Columns: number, local address and port, remote ones, state; `0A` is `TCP_LISTEN`.
fn is_listener(line: &str, port: u16) -> bool {
    let columns: Vec<_> = line.split_whitespace().collect();
    matches!(columns.as_slice(), [_, local, _, "0A", ..] if local.ends_with(&format!(":{port:04X}")))
}

/// Looks every few milliseconds; false when it never was so.
pub(super) fn wait_until(patience: Duration, mut so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if so() {
            return true;
        }
        if start.elapsed() > patience {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

/// Kills everything in the namespace, also what is forked meanwhile, and waits until all of it has ended: a process whose
/// first thread has left its namespaces may still be making a file with another.
///
/// # Errors
/// When something cannot be killed, or has not ended after [`DYING`].
pub(super) fn kill_all(ns: &NetNs) -> Result<()> {
    let mut last = Ok(());
    let mut killed: Vec<Process> = Vec::new();
    let empty = wait_until(DYING, || match Process::all_in(ns) {
        Ok(all) => {
            last = all.iter().try_for_each(|process| process.signal(Signal::SIGKILL));
            killed.retain(|process| !all.contains(process) && !process.has_ended());
            killed.extend(all);
            killed.is_empty()
        }
        Err(error) => {
            last = Err(error);
            false
        }
    });
    last?;
    ensure!(empty, "a killed process has not ended after {} s", DYING.as_secs());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_told_from_a_connection_and_from_another_port() {
        let listener =
            "   0: 00000000000000000000000000000000:094C 00000000000000000000000000000000:0000 0A 00000000:0";
        assert!(is_listener(listener, 2380));
        assert!(!is_listener(listener, 2379));
        assert!(!is_listener(&listener.replace(" 0A ", " 01 "), 2380));
        assert!(!is_listener("  sl  local_address rem_address   st tx_queue", 2380));
    }
}
