//! Puts right what a runner that was killed can no longer put right.
//!
//! Faults go with the runner's sockets, but a process that it paused stays paused. So the runner starts a helper and
//! tells it, over a pipe, what there is to undo and what is undone. When the pipe ends, so has the runner, and the
//! helper undoes what is left.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::undo::{Last, Undo, carry_out_all};
use crate::cluster::Ssh;
use crate::commands::out;

/// A program, to be given with its arguments, that waits for its [`Go`] with nothing done: so the helper can know of it
/// first. Should the runner end before, the pipe does, and the program never begins.
pub(super) fn gated() -> Command {
    let mut gate = Command::new("sh");
    gate.args(["-c", "read -r go && exec \"$@\" </dev/null", "sh"]).stdin(Stdio::piped()).process_group(0);
    gate
}

/// `sh -c` of a command that ends with the runner: one of this machine waits for its [`Go`]; one on another host, with this
/// in its environment there, ends with its standard input, which is the runner's to close.
pub(super) fn shell(command: &str, on: Option<(&Ssh, &BTreeMap<String, String>)>) -> Command {
    if let Some((ssh, env)) = on {
        let mut shell = ssh.supervised(command, env);
        shell.stdin(Stdio::piped()).process_group(0);
        return shell;
    }
    let mut shell = gated();
    shell.args(["sh", "-c", command]);
    shell
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
    pub(super) fn tell(&mut self) {
        if let Some(mut pipe) = self.0.take() {
            let _ = pipe.write_all(b"\n");
        }
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
pub(in super::super) fn run() -> ExitCode {
    let mut left: Vec<(u32, Undo)> = Vec::new();
    for line in BufReader::new(std::io::stdin()).split(b'\n').map_while(Result::ok) {
        match serde_json::from_slice(&line) {
            Ok(Message::Add(id, undo)) => left.push((id, undo)),
            Ok(Message::Done(id)) => left.retain(|(other, _)| *other != id),
            // A runner that was killed in the middle of a line has not done yet what it tells.
            Err(_) => {}
        }
    }
    let (ends, left): (Vec<_>, Vec<_>) = left.into_iter().rev().partition(|(_, undo)| matches!(undo, Undo::End { .. }));
    for (_, _, undone) in [ends, left].into_iter().flat_map(|left| carry_out_all(left, &Last)) {
        if let Err(error) = undone {
            out::error(&format!("after the end of a scenario: {error:#}"));
        }
    }
    ExitCode::SUCCESS
}
