//! A check that is somebody's own command.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::ask::{Quorum, Target, silence};
use super::child::wait;
use crate::kernel::reason;

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
