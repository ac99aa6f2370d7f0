//! Captures on the nodes, by tcpdump: the witness that is nobody's but the kernel's.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::guard::{Go, Guard, gated};
use super::shell::{last_line, so_far};
use super::undo::Undo;
use super::world::World;
use crate::kernel::Missing;
use crate::kernel::machine::Rights;
use crate::record::Record;

/// How long tcpdump may take until it listens.
const STARTING: Duration = Duration::from_secs(10);

/// Whether there can be any.
pub(super) fn check() -> Result<()> {
    match Command::new("tcpdump").arg("--version").output() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Missing("--pcap needs tcpdump: install the package tcpdump".into()).into())
        }
        Err(error) => Err(error).context("cannot run tcpdump"),
    }
}

/// Starts a capture on every node that has a place. Each ends with the scenario.
pub(super) fn start(world: &World, record: &Record, guard: &mut Guard) -> Result<Vec<Child>> {
    let nodes = world.seats.iter().filter(|seat| seat.ns.is_some()).map(|seat| seat.node.name.as_str());
    nodes.map(|node| one(world, record, guard, node).with_context(|| format!("capture on {node}"))).collect()
}

/// Ends the captures in order.
pub(super) fn end(captures: &mut [Child], guard: &mut Guard) -> Result<()> {
    for capture in captures.iter() {
        let _ = kill(Pid::from_raw(capture.id().cast_signed()), Signal::SIGINT);
    }
    for capture in captures {
        capture.wait()?;
        guard.undone(&Undo::End { group: capture.id() })?;
    }
    Ok(())
}

fn one(world: &World, record: &Record, guard: &mut Guard, node: &str) -> Result<Child> {
    let file = record.create(&format!("pcap/{node}.pcap"))?.context("a capture needs --out")?;
    let said = record.create(&format!("pcap/{node}.log"))?.context("a capture needs --out")?;
    let mut tcpdump = gated();
    // Written and read at once, so that a crash loses nothing.
    tcpdump.args(["tcpdump", "-i", "any", "-n", "-U", "--immediate-mode", "-s", "256", "-w", "-"]);
    if !Rights::read()?.first_user_namespace {
        // There may be no other user there to become. (Elsewhere tcpdump 4.99.4 of Ubuntu 24.04 dies of it.)
        tcpdump.args(["-Z", "root"]);
    }
    // Whether it listens is read from what it says.
    tcpdump.env("LC_ALL", "C").stdout(file).stderr(said.try_clone()?);
    let mut child = world.place(node)?.ns.run(|| tcpdump.spawn())??;
    let mut go = Go::of(&mut child);
    guard.begin(child.id(), &mut go)?;
    let until = Instant::now() + STARTING;
    while !so_far(&said).contains("listening on") {
        if child.try_wait()?.is_some() || Instant::now() > until {
            bail!("tcpdump does not listen; it said: {}", last_line(&so_far(&said)));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(child)
}
