//! What is done to a node or to this machine, by the runner or by whoever comes after it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::guard::{self, Go};
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

/// Who does it, and has a say in the commands that are run for it.
pub(super) trait Doer: Sync {
    /// Whether a command that has not ended yet is given up.
    fn gives_up(&self) -> bool {
        false
    }

    /// Lets a command begin.
    fn begin(&self, _group: u32, go: &mut Go) -> Result<()> {
        go.tell();
        Ok(())
    }

    /// A command has ended.
    fn ended(&self, _group: u32) -> Result<()> {
        Ok(())
    }
}

/// One behind whom nobody comes, and who gives up nothing.
pub(super) struct Last;

impl Doer for Last {}

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

    /// Does it. Gives the process that it was done to, if there is one.
    pub(super) fn carry_out(&self, by: &dyn Doer) -> Result<Option<u32>> {
        match self {
            Self::Lab { node, verb } => on_lab(node, *verb),
            Self::Shell { command, env, on } => {
                let mut shell = guard::shell(command, on.as_ref().map(|ssh| (ssh, env)));
                // Standard output is the result's.
                shell.envs(env).stdout(std::io::stderr());
                let status = in_time(&mut shell, on.is_none(), command, by)?;
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
fn in_time(shell: &mut Command, waits: bool, command: &str, by: &dyn Doer) -> Result<ExitStatus> {
    let mut child = shell.spawn().context("cannot run sh")?;
    let group = child.id();
    let mut go = if waits { Go::of(&mut child) } else { Go::none() };
    let ended = by.begin(group, &mut go).and_then(|()| wait(&mut child, command, by));
    if ended.is_err() {
        // It has not been waited for, so the group is still its own.
        let _ = killpg(Pid::from_raw(group.cast_signed()), Signal::SIGKILL);
        let _ = child.wait();
    }
    by.ended(group)?;
    ended
}

fn wait(child: &mut Child, command: &str, by: &dyn Doer) -> Result<ExitStatus> {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let gives_up = by.gives_up();
        if gives_up || Instant::now() >= until {
            let why = if gives_up { "at a signal".into() } else { format!("in {} s", LIMIT.as_secs()) };
            return Err(NotEnded(format!("`{command}` did not end {why} and was killed")).into());
        }
        thread::sleep(POLL);
    }
}

/// What came of one thing that was undone.
pub(super) type Undone = (u32, Undo, Result<Option<u32>>);

/// Undoes all: for each node in the order that is given, for all nodes at the same time, and behind them the rest.
pub(super) fn carry_out_all(left: Vec<(u32, Undo)>, by: &dyn Doer) -> Vec<Undone> {
    let (mut of_nodes, mut rest) = (BTreeMap::<String, Vec<_>>::new(), Vec::new());
    for (id, undo) in left {
        match undo.node().map(str::to_owned) {
            Some(node) => of_nodes.entry(node).or_default().push((id, undo)),
            None => rest.push((id, undo)),
        }
    }
    let one = |(id, undo): (u32, Undo)| {
        let done = undo.carry_out(by);
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
