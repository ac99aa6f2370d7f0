//! Looking in two phases: connections are opened, something happens, and then everything is looked at.

use std::io::{PipeReader, PipeWriter, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle, ScopedJoinHandle};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::open::{Opened, open};
use super::socket::wait;
use super::trace::Ended;
use super::{Observation, Options, Probe, ping, raw_ping, tcp, udp};
use crate::kernel::netns::NetNs;

/// Open connections under observation, and what is still to be probed.
///
/// Given up before [`finish`](Self::finish), its threads end by themselves.
#[must_use = "nothing is reported before `finish`"]
pub struct Watch<'a> {
    ns: &'a NetNs,
    targets: Vec<SocketAddr>,
    how: Options,
    zero: Option<Instant>,
    starter: PipeWriter,
    #[expect(dead_code, reason = "held open: a pipe that nobody reads any more would fail, or raise SIGPIPE")]
    gate: Arc<Gate>,
    watching: Vec<JoinHandle<Result<Ended>>>,
}

impl<'a> Watch<'a> {
    /// Opens, from inside `ns`, the connections that `how` wants open before the event, and watches them. One that
    /// cannot be opened is an observation. Errors: no entry into `ns`, or no sockets or threads to be had.
    pub fn open(ns: &'a NetNs, targets: &[SocketAddr], how: &Options) -> Result<Self> {
        let (reader, starter) = std::io::pipe().context("cannot make a pipe")?;
        let gate = Arc::new(Gate(reader));
        let jobs = jobs(targets, how, Probe::opens_before);
        let opened = in_parallel(ns, jobs, |(target, probe)| open(target, probe, how))?;
        let watching = opened.into_iter().map(|opened| watch(opened, &gate, how)).collect::<Result<_>>()?;
        Ok(Self { ns, targets: targets.to_vec(), how: how.clone(), zero: None, starter, gate, watching })
    }

    /// Marks time zero: what is going to happen to the peer begins now.
    pub fn event(&mut self) {
        self.zero = Some(Instant::now());
    }

    /// What happens to the peer has happened: makes every probe, sends on the open connection that is to send,
    /// watches for the timeout, and reports by target and probe. Without [`event`](Self::event) time zero is now.
    /// Errors are those of [`open`](Self::open).
    pub fn finish(mut self) -> Result<Vec<Observation>> {
        let zero = self.zero.unwrap_or_else(Instant::now);
        self.starter.write_all(b"!").context("cannot wake the watched connections")?;
        let how = &self.how;
        let jobs = jobs(&self.targets, how, |probe| !probe.opens_before());
        let mut ended = in_parallel(self.ns, jobs, |(target, probe)| match probe {
            Probe::Udp | Probe::UdpRecverr => udp::probe(target, probe, how),
            Probe::Ping => ping::probe(target, how),
            Probe::RawPing => raw_ping::probe(target, how),
            Probe::PollConnect => tcp::poll_probe(target, how),
            _ => tcp::probe(target, how),
        })?;
        for thread in self.watching {
            ended.push(thread.join().map_err(|_| anyhow!("a thread that watched a connection panicked"))??);
        }
        let mut observations: Vec<_> = ended.into_iter().map(|ended| ended.since(zero)).collect();
        let place = |target| self.targets.iter().position(|known| *known == target);
        observations.sort_by_key(|seen| (place(seen.target), seen.probe));
        Ok(observations)
    }
}

fn watch(opened: Opened, gate: &Arc<Gate>, how: &Options) -> Result<JoinHandle<Result<Ended>>> {
    let (gate, how) = (Arc::clone(gate), how.clone());
    let thread = thread::Builder::new().name("probe".into()).spawn(move || opened.watch(&gate, &how))?;
    Ok(thread)
}

/// Every target by every wanted probe. The same address twice is one.
fn jobs(targets: &[SocketAddr], how: &Options, wanted: impl Fn(Probe) -> bool) -> Vec<(SocketAddr, Probe)> {
    let mut jobs = Vec::new();
    for target in targets {
        for probe in how.probes.iter().copied().filter(|probe| wanted(*probe)) {
            if !jobs.contains(&(*target, probe)) {
                jobs.push((*target, probe));
            }
        }
    }
    jobs
}

/// Runs every job on a thread of its own; threads started inside a namespace are inside it too.
fn in_parallel<J: Send, T: Send>(ns: &NetNs, jobs: Vec<J>, run: impl Fn(J) -> Result<T> + Sync) -> Result<Vec<T>> {
    let run = &run;
    ns.run(|| {
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for job in jobs {
                threads.push(thread::Builder::new().name("probe".into()).spawn_scoped(scope, move || run(job))?);
            }
            threads.into_iter().map(join).collect()
        })
    })?
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a probe's thread panicked"))?
}

/// Keeps the threads of the open connections until [`Watch::finish`]: a byte in the pipe opens it, and the pipe's
/// end without a byte means that the watch was given up. The byte is never taken out, so all threads see it.
pub(super) struct Gate(PipeReader);

impl Gate {
    /// Whether there is nothing more to wait for: opened, or given up.
    pub(super) fn is_open(&self) -> Result<bool> {
        Ok(!self.flags()?.is_empty())
    }

    /// Waits for the gate; false when the watch was given up.
    pub(super) fn wait(&self) -> Result<bool> {
        wait(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], None)?;
        Ok(self.flags()?.contains(PollFlags::POLLIN))
    }

    fn flags(&self) -> Result<PollFlags> {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).context("cannot wait for the event")?;
        Ok(fds[0].revents().unwrap_or(PollFlags::empty()))
    }
}

impl AsFd for Gate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
