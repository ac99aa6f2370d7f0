//! A check that is somebody's own command.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::ask::{Quorum, Target, silence};
use crate::kernel::reason;

/// How often is looked whether it has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs it by `sh -c`, in the namespace of the calling thread. Whatever it has started is killed when the time is over.
pub(super) fn ask(target: Target, command: &str, until: Instant) -> Quorum {
    let started = Instant::now();
    let port = target.client_port.map_or_else(String::new, |port| port.to_string());
    let address = target.addresses.first().map_or_else(String::new, ToString::to_string);
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.env("PLAYDEAD_NODE", target.name).env("PLAYDEAD_ADDRESS", address).env("PLAYDEAD_PORT", port);
    let mut child = match shell.spawn() {
        Ok(child) => child,
        Err(error) => return Quorum::Unknown(format!("cannot run sh: {}", reason(&error))),
    };
    match wait(&mut child, until) {
        Some(status) if status.success() => Quorum::Yes,
        Some(status) => Quorum::No(format!("the check ended with {status}")),
        None => Quorum::No(format!("the check gave {}", silence(started.elapsed()))),
    }
}

/// Its end; nothing if it had to be killed, with the process group that it leads.
pub(super) fn wait(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= until {
            // It has not been waited for, so the group is still its own.
            let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}
