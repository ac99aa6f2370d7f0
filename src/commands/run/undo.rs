//! What is done to a node or to this machine, by the runner or by whoever comes after it.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::cluster::Ssh;
use crate::commands::threads::at_once;
use crate::lab;
use crate::scenario::file::Verb;

/// How long a command may take that does something to a node.
const LIMIT: Duration = Duration::from_secs(30);
/// How often is looked whether it has ended.
const POLL: Duration = Duration::from_millis(5);

/// A command has not ended in its time: what it was to do may be done or not.
#[derive(Debug)]
pub(super) struct NotEnded(String);

impl fmt::Display for NotEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotEnded {}

/// Something that can be done without the runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Undo {
    /// A verb of the lab.
    Lab { node: String, verb: Verb },
    /// A command for `sh -c`, with this in its environment, here or on another host.
    Shell { command: String, env: BTreeMap<String, String>, on: Option<Ssh> },
    /// A directory of ours goes.
    Remove { directory: PathBuf },
    /// A command in the background ends, with all that it has started.
    End { group: u32 },
}

impl Undo {
    /// The node that it is done to.
    pub(super) fn node(&self) -> Option<&str> {
        match self {
            Self::Lab { node, .. } => Some(node.rsplit('/').next().unwrap_or(node)),
            Self::Shell { env, .. } => env.get("PLAYDEAD_NODE").map(String::as_str),
            Self::Remove { .. } | Self::End { .. } => None,
        }
    }

    /// Does it, unless told to give up meanwhile. Gives the process that it was done to, if there is one.
    pub(super) fn carry_out(&self, give_up: &dyn Fn() -> bool) -> Result<Option<u32>> {
        match self {
            Self::Lab { node, verb } => on_lab(node, *verb),
            Self::Shell { command, env, on } => {
                // Standard output is the result's.
                let mut shell = on.as_ref().map_or_else(|| Command::new("sh"), |ssh| ssh.shell(command, env));
                if on.is_none() {
                    shell.args(["-c", command]).envs(env);
                }
                shell.stdin(Stdio::null()).stdout(std::io::stderr());
                let status = in_time(&mut shell, command, give_up)?;
                if !status.success() {
                    bail!("`{command}` failed ({status})");
                }
                Ok(None)
            }
            Self::Remove { directory } => match std::fs::remove_dir_all(directory) {
                // The runner ended before it could make it.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                removed => removed.map(|()| None).with_context(|| format!("cannot remove {}", directory.display())),
            },
            Self::End { group } => {
                let _ = killpg(Pid::from_raw(group.cast_signed()), Signal::SIGKILL);
                Ok(None)
            }
        }
    }
}

/// Runs it; whatever it has started and that has not left its group is killed when its time is over.
fn in_time(shell: &mut Command, command: &str, give_up: &dyn Fn() -> bool) -> Result<ExitStatus> {
    let mut child = shell.process_group(0).spawn().context("cannot run sh")?;
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= until || give_up() {
            // It has not been waited for, so the group is still its own.
            let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            let _ = child.wait();
            let why = if give_up() { "at a signal".into() } else { format!("in {} s", LIMIT.as_secs()) };
            return Err(NotEnded(format!("`{command}` did not end {why} and was killed")).into());
        }
        thread::sleep(POLL);
    }
}

/// What came of one thing that was undone.
pub(super) type Undone = (u32, Undo, Result<Option<u32>>);

/// Undoes all: for each node in the order that is given, for all nodes at the same time, and behind them the rest.
pub(super) fn carry_out_all(left: Vec<(u32, Undo)>, give_up: &(dyn Fn() -> bool + Sync)) -> Vec<Undone> {
    let (mut of_nodes, mut rest) = (BTreeMap::<String, Vec<_>>::new(), Vec::new());
    for (id, undo) in left {
        match undo.node().map(str::to_owned) {
            Some(node) => of_nodes.entry(node).or_default().push((id, undo)),
            None => rest.push((id, undo)),
        }
    }
    let one = |(id, undo): (u32, Undo)| {
        let done = undo.carry_out(give_up);
        (id, undo, done)
    };
    let of_node = |left: Vec<_>| move || Ok(left.into_iter().map(one).collect::<Vec<_>>());
    let of_nodes = at_once(of_nodes.into_values().map(of_node).collect());
    of_nodes.into_iter().flatten().flatten().chain(rest.into_iter().map(one)).collect()
}

fn on_lab(node: &str, verb: Verb) -> Result<Option<u32>> {
    let node = lab::node(None, node)?;
    match verb {
        Verb::Kill => lab::kill(&node).map(Some),
        Verb::Stop => lab::stop(&node).map(Some),
        Verb::Start => lab::start(&node).map(Some),
        Verb::Pause => lab::pause(&node).map(Some),
        Verb::Resume => lab::resume(&node).map(Some),
        Verb::Unplug => lab::unplug(&node).map(|()| None),
        Verb::Plug => lab::plug(&node).map(|()| None),
    }
}
