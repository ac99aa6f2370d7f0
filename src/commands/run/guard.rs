//! Puts right what a runner that was killed can no longer put right.
//!
//! Faults go with the runner's sockets, but a process that it paused stays paused. So the runner starts a helper and
//! tells it, over a pipe, what there is to undo and what is undone. When the pipe ends, so has the runner, and the
//! helper undoes what is left.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::cluster::Ssh;
use crate::commands::out;
use crate::lab;

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
    Lab { node: String, verb: String },
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
            Self::Lab { node, verb } => on_lab(node, verb),
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

/// A program, to be given with its arguments, that waits for its [`Go`] with nothing done: so the helper can know of it
/// first. Should the runner end before, the pipe does, and the program never begins.
pub(super) fn gated() -> Command {
    let mut gate = Command::new("sh");
    gate.args(["-c", "read -r go && exec \"$@\" </dev/null", "sh"]).stdin(Stdio::piped()).process_group(0);
    gate
}

/// The pipe by which a gated program is told to begin.
#[derive(Debug)]
pub(super) struct Go(Option<ChildStdin>);

impl Go {
    /// Of a program that was made by [`gated`].
    pub(super) fn of(child: &mut Child) -> Self {
        Self(child.stdin.take())
    }

    /// Of a program that does not wait.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// That it has been killed meanwhile is seen when it is waited for.
    fn tell(&mut self) {
        if let Some(mut pipe) = self.0.take() {
            let _ = pipe.write_all(b"\n");
        }
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
    let mut undone: Vec<Undone> = thread::scope(|scope| {
        let nodes = of_nodes.into_values();
        let nodes: Vec<_> =
            nodes.map(|left| scope.spawn(move || left.into_iter().map(one).collect::<Vec<_>>())).collect();
        nodes.into_iter().flat_map(|node| node.join().unwrap_or_default()).collect()
    });
    undone.extend(rest.into_iter().map(one));
    undone
}

fn on_lab(node: &str, verb: &str) -> Result<Option<u32>> {
    let node = lab::node(None, node)?;
    match verb {
        "kill" => lab::kill(&node).map(Some),
        "stop" => lab::stop(&node).map(Some),
        "start" => lab::start(&node).map(Some),
        "pause" => lab::pause(&node).map(Some),
        "resume" => lab::resume(&node).map(Some),
        "unplug" => lab::unplug(&node).map(|()| None),
        "plug" => lab::plug(&node).map(|()| None),
        _ => bail!("a lab's node cannot be told to {verb}"),
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum Message {
    Add(u32, Undo),
    Done(u32),
}

/// The runner's side of the pipe.
#[derive(Debug)]
pub(super) struct Guard {
    child: Child,
    pipe: Option<ChildStdin>,
    /// What is to be undone, the last first to be undone.
    left: Vec<(u32, Undo)>,
    next: u32,
}

impl Guard {
    /// Starts the helper. It has a process group of its own, so that what a terminal sends does not end it.
    pub(super) fn start() -> Result<Self> {
        let program = std::env::current_exe().context("cannot find playdead itself")?;
        let mut helper = Command::new(program);
        helper.arg("guard").process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = helper.spawn().context("cannot start playdead's own helper")?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe, left: Vec::new(), next: 0 })
    }

    /// This will have to be undone. To be said before it is done, or a crash in between would leave it.
    pub(super) fn add(&mut self, undo: Undo) -> Result<u32> {
        self.next += 1;
        self.send(&Message::Add(self.next, undo.clone()))?;
        self.left.push((self.next, undo));
        Ok(self.next)
    }

    /// The program, which is a process group, has to end when the runner does, and may begin.
    pub(super) fn begin(&mut self, group: u32, go: &mut Go) -> Result<()> {
        self.add(Undo::End { group })?;
        go.tell();
        Ok(())
    }

    /// That is no longer needed.
    pub(super) fn done(&mut self, id: u32) -> Result<()> {
        self.left.retain(|(left, _)| *left != id);
        self.send(&Message::Done(id))
    }

    /// The same, by what it is.
    pub(super) fn undone(&mut self, undo: &Undo) -> Result<()> {
        let ids: Vec<_> = self.left.iter().filter(|(_, left)| left == undo).map(|(id, _)| *id).collect();
        ids.into_iter().try_for_each(|id| self.done(id))
    }

    /// What is to be undone, the last first.
    pub(super) fn left(&self) -> Vec<(u32, Undo)> {
        self.left.iter().rev().cloned().collect()
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        let line = serde_json::to_string(message)? + "\n";
        let pipe = self.pipe.as_mut().context("playdead's own helper is gone")?;
        pipe.write_all(line.as_bytes()).context("playdead's own helper is gone")
    }
}

impl Drop for Guard {
    /// The helper undoes what is left, and ends.
    fn drop(&mut self) {
        self.pipe = None;
        let _ = self.child.wait();
    }
}

/// The helper: listens until the runner is gone.
pub(in super::super) fn run() -> Result<ExitCode> {
    let mut left: Vec<(u32, Undo)> = Vec::new();
    for line in BufReader::new(std::io::stdin()).lines() {
        match serde_json::from_str(&line?)? {
            Message::Add(id, undo) => left.push((id, undo)),
            Message::Done(id) => left.retain(|(other, _)| *other != id),
        }
    }
    let (ends, left): (Vec<_>, Vec<_>) = left.into_iter().rev().partition(|(_, undo)| matches!(undo, Undo::End { .. }));
    for (_, _, undone) in [ends, left].into_iter().flat_map(|left| carry_out_all(left, &|| false)) {
        if let Err(error) = undone {
            out::error(&format!("after the end of a scenario: {error:#}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
