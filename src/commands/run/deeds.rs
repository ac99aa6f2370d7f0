//! What is done to the processes and cables of nodes, and put right.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::guard::{Go, Guard};
use super::player::{Failure, Player};
use super::undo::{Doer, Last, NotEnded, Undo, carry_out_all};
use super::world::World;
use crate::cluster::ANSWER;
use crate::commands::threads::at_once;
use crate::commands::{heal, hosts};
use crate::record::{Event, Record};
use crate::scenario::file::Verb;

/// How long others may take to let go of their faults before the scenario begins.
const LETTING_GO: Duration = Duration::from_secs(10);

/// The runner: what it has begun ends with it, so that nothing runs on beside the helper's undoing of it.
struct Runner<'a> {
    guard: Mutex<&'a mut Guard>,
    gives_up: &'a (dyn Fn() -> bool + Sync),
}

impl Runner<'_> {
    fn tell(&self, tell: impl FnOnce(&mut Guard) -> Result<()>) -> Result<()> {
        tell(&mut self.guard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Doer for Runner<'_> {
    fn gives_up(&self) -> bool {
        (self.gives_up)()
    }

    fn begin(&self, group: u32, go: &mut Go) -> Result<()> {
        self.tell(|guard| guard.begin(group, go))
    }

    fn ended(&self, group: u32) -> Result<()> {
        self.tell(|guard| guard.undone(&Undo::End { group }))
    }
}

impl Player<'_> {
    /// At the same time, so that a quorum goes or comes back as a whole; every one is tried.
    pub(super) fn do_to_all(&mut self, nodes: &[String], verb: Verb) -> Result<(), Failure> {
        let mut added = Vec::new();
        for node in nodes {
            let undo = verb.undone_by().map(|undo| self.world.deed(node, undo)).transpose()?;
            added.push(undo.map(|undo| self.guard.add(undo)).transpose()?);
        }
        let deeds = nodes.iter().map(|node| self.world.deed(node, verb)).collect::<Result<Vec<_>>>()?;
        let by = Runner { guard: Mutex::new(self.guard), gives_up: &|| self.stop.is_told() };
        let done = at_once(deeds.iter().map(|deed| || deed.carry_out(&by)).collect());
        let mut failed = Ok(());
        for (((node, deed), added), done) in nodes.iter().zip(&deeds).zip(added).zip(done) {
            match done {
                Ok(pid) => {
                    self.guard.undone(deed)?;
                    let (node, did) = (node.clone(), verb.name().to_owned());
                    self.record.add(Some(&self.step), Event::Node { node, did, pid });
                }
                Err(error) => {
                    // One that did not end may have done it.
                    added.filter(|_| !error.is::<NotEnded>()).map_or(Ok(()), |id| self.guard.done(id))?;
                    failed = Err(error.context(format!("cannot {} {node}", verb.name())).into());
                }
            }
        }
        failed
    }

    pub(super) fn undo(&mut self) -> Result<()> {
        // Captures go on until the very end.
        let left = self.guard.left().into_iter().filter(|(_, undo)| !matches!(undo, Undo::End { .. })).collect();
        let mut failed = Vec::new();
        let by = Runner { guard: Mutex::new(self.guard), gives_up: &|| self.stop.is_told_again() };
        for (id, undo, undone) in carry_out_all(left, &by) {
            self.guard.done(id)?;
            match (undone, &undo) {
                (Ok(pid), Undo::Lab { node, verb }) => {
                    let node = node.rsplit('/').next().unwrap_or(node).to_owned();
                    self.record.add(None, Event::Node { node, did: verb.name().to_owned(), pid });
                }
                // What fails on a lab's node may be right already; whether it is, is looked at below.
                (Ok(_), _) | (Err(_), Undo::Lab { .. }) => {}
                (Err(error), _) => {
                    let node = undo.node().map(|node| format!("node {node}: ")).unwrap_or_default();
                    failed.push(format!("{node}{error:#}"));
                }
            }
        }
        let still = self.world.ailing()?.into_iter().map(|(node, verb)| format!("{} {node}", verb.name()));
        let still: Vec<_> = still.collect();
        if !still.is_empty() {
            failed.push(format!("still to do: {}", still.join(", ")));
        }
        if failed.is_empty() { Ok(()) } else { Err(anyhow!("not restored: {}", failed.join("; "))) }
    }
}

/// What an earlier run, or anybody else, has left on the nodes.
pub(super) fn put_right(world: &World, record: &Record) -> Result<()> {
    let note = |text: String| record.add(None, Event::Note { text });
    for seat in world.seats.iter().filter(|seat| seat.ns.is_some()) {
        let place = world.place(&seat.node.name)?;
        let healed = heal::heal_place(&place, &[], Instant::now() + LETTING_GO);
        let healed = healed.with_context(|| format!("node {}", seat.node.name))?;
        for name in healed {
            note(format!("before the start: healed {name} on {}", seat.node.name));
        }
    }
    for seat in world.seats.iter().filter(|seat| seat.node.ssh().is_some()) {
        let document = hosts::pass_to(&seat.node, &["heal", "--json"], Some(ANSWER + LETTING_GO))?.document()?;
        let healed = document.as_ref().and_then(|document| document["healed"].as_array());
        for name in healed.into_iter().flatten().filter_map(|healed| healed["name"].as_str()) {
            note(format!("before the start: healed {name} on {}", seat.node.name));
        }
    }
    for (node, verb) in world.ailing()? {
        world.deed(&node, verb)?.carry_out(&Last)?;
        note(format!("before the start: had to {} {node}", verb.name()));
    }
    Ok(())
}
