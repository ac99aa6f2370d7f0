//! Commands of a scenario, on a node or where playdead runs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::guard::{self, Go, Guard};
use super::stop::Stop;
use super::world::World;
use crate::cluster;
use crate::commands::hold::code_of;
use crate::kernel::file::reopen;
use crate::record::{Event, Record, plain};

const POLL: Duration = Duration::from_millis(5);
/// How long a command in the background may take to end when it is asked to.
const LEAVING: Duration = Duration::from_secs(2);
/// As much of an output as is looked at.
const MOST_OUTPUT: usize = 1 << 20;

/// A command that runs, with all that it has started: a process group.
#[derive(Debug)]
pub(super) struct Shell {
    command: String,
    node: Option<String>,
    child: Child,
    go: Go,
    output: File,
    file: String,
    started: Instant,
    /// As a shell gives it, once it has ended by itself.
    code: Option<u8>,
}

impl Shell {
    /// `sh -c`, which on this machine waits until the guard lets it begin; `name` is that of the file of the record for
    /// its output.
    pub(super) fn start(world: &World, command: &str, node: Option<&str>, name: &str) -> Result<Self> {
        let (writes, output) = unnamed(world).context("cannot make a file for its output")?;
        let there = node.and_then(|node| cluster::seat(&world.seats, node).ok()).map(|seat| &seat.node);
        let there = there.and_then(|node| Some((node.ssh()?, world.env_of(node))));
        let mut shell = guard::shell(command, there.as_ref().map(|(ssh, env)| (*ssh, env)));
        if there.is_none() {
            world.privilege.apply(&mut shell);
        }
        shell.stdout(writes.try_clone()?).stderr(writes);
        shell.envs(&world.env).env("PLAYDEAD_WORK", &world.work);
        let child = match node {
            Some(node) if there.is_none() => world.place(node)?.ns.run_with_etc(|| shell.spawn())?,
            _ => shell.spawn(),
        };
        let is_here = there.is_none();
        let mut child = child.context("cannot run sh")?;
        let go = if is_here { Go::of(&mut child) } else { Go::none() };
        let (command, node, file) = (command.to_owned(), node.map(str::to_owned), name.to_owned());
        Ok(Self { command, node, child, go, output, file, started: Instant::now(), code: None })
    }

    /// Its process group.
    pub(super) fn group(&self) -> u32 {
        self.child.id()
    }

    /// Lets it begin, once the guard knows how to end it.
    pub(super) fn begin(&mut self, guard: &mut Guard) -> Result<()> {
        guard.begin(self.child.id(), &mut self.go)
    }

    /// Whether it has ended, and with which code.
    pub(super) fn ended(&mut self) -> Result<Option<u8>> {
        if self.code.is_none() {
            self.code = self.child.try_wait()?.map(code_of);
        }
        Ok(self.code)
    }

    /// Waits for its end. After that time, or when the scenario is to end, it is killed: `None`.
    pub(super) fn wait(&mut self, stop: &Stop, within: Duration) -> Result<Option<u8>> {
        let until = self.started + within;
        while self.ended()?.is_none() {
            if Instant::now() >= until || !stop.sleep_until(Instant::now() + POLL) {
                self.kill();
                return Ok(None);
            }
        }
        Ok(self.code)
    }

    /// Asks it to end, waits a little, and kills it.
    pub(super) fn end(&mut self) -> Result<()> {
        self.signal(Signal::SIGTERM);
        let until = Instant::now() + LEAVING;
        while self.child.try_wait()?.is_none() && Instant::now() < until {
            std::thread::sleep(POLL);
        }
        self.kill();
        Ok(())
    }

    /// With all that it has started and that has not left its group.
    fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
    }

    fn signal(&self, signal: Signal) {
        let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), signal);
    }

    /// What it has written so far.
    pub(super) fn output(&self) -> String {
        so_far(&self.output)
    }

    /// Its output so far as the record's file. A record that cannot be written is no failure of the command.
    pub(super) fn keep(&self, record: &Record) {
        record.copy(&self.file, &self.output, 0);
    }

    /// Its end as an event, with its output as a file.
    pub(super) fn event(&self, record: &Record) -> Event {
        self.keep(record);
        Event::Command {
            command: self.command.clone(),
            node: self.node.clone(),
            exit: self.code,
            took_ms: self.started.elapsed().as_secs_f64() * 1e3,
            said: last_line(&self.output()),
            output: self.file.clone(),
        }
    }
}

/// A file that is gone with the last who has it open, to write to and to read from. It is not the record's: where that
/// has no room left, the command must not notice.
fn unnamed(world: &World) -> std::io::Result<(File, File)> {
    let path = world.work.join(".output");
    let writes = File::options().append(true).create_new(true).open(&path)?;
    // By its descriptor: the directory may be the user's whose command this is.
    let reads = reopen(&writes);
    std::fs::remove_file(&path)?;
    Ok((writes, reads?))
}

/// What a program has written into a file so far.
pub(super) fn so_far(output: &File) -> String {
    let mut bytes = vec![0; MOST_OUTPUT];
    let read = output.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// The last line that says something, as far as anyone reads.
pub(super) fn last_line(output: &str) -> String {
    let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    plain(last.trim()).chars().take(200).collect()
}
