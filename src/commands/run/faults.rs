//! The faults of a scenario. This process holds them, so that they end with it however it ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow, bail};

use crate::commands::flap;
use crate::commands::hosts::Standing;
use crate::commands::inforce::sum;
use crate::commands::place::Place;
use crate::commands::plan::Plans;
use crate::commands::written::Written;
use crate::kernel::nft::Nft;
use crate::kernel::thread::start;
use crate::kernel::timer::{self, Timer};
use crate::model::Rhythm;
use crate::record::{Event, Record};

/// One fault, in all of its places.
pub(super) struct Fault {
    pub(super) name: String,
    pub(super) step: String,
    pub(super) written: Vec<Written>,
    /// What it met in places where another has replaced it.
    met: Option<[u64; 2]>,
}

/// What a fault met: packets to its peers and from them.
pub(super) struct Lifted {
    pub(super) name: String,
    pub(super) step: String,
    pub(super) packets: Option<[u64; 2]>,
}

/// A fault that comes and goes, by a thread of its own. It has sockets of its own, too: answers of the kernel to two
/// threads would mix.
struct Flap {
    name: String,
    step: String,
    end: timer::Stop,
    beating: JoinHandle<Result<flap::Record>>,
}

impl Flap {
    /// Ends it: the tables go with its sockets.
    fn end(self) -> Result<Lifted> {
        drop(self.end);
        let record = self.beating.join().map_err(|_| anyhow!("the thread of the edges panicked"))??;
        Ok(Lifted { name: self.name, step: self.step, packets: Some(record.packets()) })
    }
}

/// The faults that are in force.
#[derive(Clone, Default)]
pub(super) struct Faults(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    faults: Vec<Fault>,
    flaps: Vec<Flap>,
    /// Those that are on other hosts, with leases.
    standing: Vec<Standing>,
    /// What was lifted and is not recorded yet: a signal lifts at once, and the player records afterwards.
    lifted: Vec<Lifted>,
    /// What is in the record, and the player has not heard of.
    recorded: Vec<Lifted>,
    /// After a signal no more are made.
    closed: bool,
    sockets: Sockets,
}

/// One socket a namespace for all of the scenario's faults: they are its own, and so one can replace another.
#[derive(Default)]
pub(super) struct Sockets(HashMap<(u64, u64), Arc<Nft>>);

impl Sockets {
    pub(super) fn of(&mut self, place: &Place) -> Result<Arc<Nft>> {
        let id = place.ns.id()?;
        if let Some(nft) = self.0.get(&id) {
            return Ok(Arc::clone(nft));
        }
        let nft = Arc::new(Nft::open(&place.ns)?);
        self.0.insert(id, Arc::clone(&nft));
        Ok(nft)
    }
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Puts in force what `plan` makes, by `write`, and gives what `look` makes of it, which comes into the record behind
    /// the end of what was replaced.
    pub(super) fn put<T>(
        &self,
        record: &Record,
        step: &str,
        plan: impl FnOnce(&mut Sockets) -> Result<Plans>,
        write: impl FnOnce(Plans) -> Result<Vec<Written>>,
        look: impl FnOnce(&Fault) -> T,
    ) -> Result<T> {
        // Looking names up may take a while, and a signal must not wait for it.
        let mut sockets = std::mem::take(&mut self.lock().sockets);
        let planned = plan(&mut sockets);
        let mut inner = self.lock();
        inner.sockets = sockets;
        if inner.closed {
            bail!("interrupted");
        }
        let mut written = write(planned?)?;
        inner.make_room(written.iter())?;
        inner.record(record, Some(step));
        // Where a partition has only taken another away there is nothing to be lifted.
        written.retain(|one| !one.planned.rules.tables.is_empty());
        let name = written.first().map_or_else(String::new, |one| one.planned.fault.name.to_string());
        let fault = Fault { name, step: step.to_owned(), written, met: None };
        let looked = look(&fault);
        inner.faults.push(fault);
        Ok(looked)
    }

    /// Lets a fault come and go from now on, once `write` has made it: then `made` is told, then each edge, and the end
    /// if it has come for the last time.
    pub(super) fn flap(
        &self,
        step: &str,
        rhythm: Rhythm,
        write: impl FnOnce() -> Result<Vec<flap::Flapping>>,
        made: impl FnOnce(),
        told: impl Fn(Option<flap::Beat>) + Send + Sync + 'static,
    ) -> Result<()> {
        let mut inner = self.lock();
        if inner.closed {
            bail!("interrupted");
        }
        let flapping = write()?;
        inner.make_room(flapping.iter().map(|one| &one.written))?;
        let name = flapping.first().map_or_else(String::new, |one| one.written.planned.fault.name.to_string());
        let (timer, end) = Timer::new()?;
        made();
        let beating = start(move || {
            let record = flap::beat(&rhythm, &flapping, &timer, &|beat| told(Some(beat)))?;
            if record.is_whole {
                told(None);
            }
            Ok(record)
        })?;
        inner.flaps.push(Flap { name, step: step.to_owned(), end, beating });
        Ok(())
    }

    /// Puts one in force on other hosts. `make` is told whether a signal has come meanwhile.
    pub(super) fn stand(&self, make: impl FnOnce(&dyn Fn() -> bool) -> Result<Standing>) -> Result<()> {
        let standing = make(&|| self.lock().closed)?;
        let mut inner = self.lock();
        if inner.closed {
            drop(inner);
            standing.lift()?;
            bail!("interrupted");
        }
        for gone in standing.make_room(&mut inner.standing) {
            inner.lifted.push(Lifted { packets: gone.met, name: gone.name, step: gone.step });
        }
        inner.standing.push(standing);
        Ok(())
    }

    /// Whether a fault of that name is in force.
    pub(super) fn has(&self, name: &str) -> bool {
        let inner = self.lock();
        inner.standing.iter().any(|standing| standing.name == name)
            || inner.faults.iter().any(|fault| fault.name == name)
            || inner.flaps.iter().any(|flap| flap.name == name)
    }

    /// Takes faults away; `None`: all. Every one is tried.
    pub(super) fn lift(&self, names: Option<&[String]>) -> Result<()> {
        self.lock().lift(names)
    }

    /// The packets that a fault in force has met so far.
    pub(super) fn packets(&self, name: &str) -> Result<Option<[u64; 2]>> {
        let mut inner = self.lock();
        if let Some(standing) = inner.standing.iter_mut().find(|standing| standing.name == name) {
            return standing.packets();
        }
        let Some(fault) = inner.faults.iter().find(|fault| fault.name == name) else { return Ok(None) };
        fault.count(Written::packets)
    }

    /// At once, and nothing new from now on.
    pub(super) fn close(&self) -> Result<()> {
        let mut inner = self.lock();
        inner.closed = true;
        inner.lift(None)
    }

    /// Puts what was lifted into the record; gives all that the player has not heard of.
    pub(super) fn record(&self, record: &Record, step: Option<&str>) -> Vec<Lifted> {
        let mut inner = self.lock();
        inner.record(record, step);
        std::mem::take(&mut inner.recorded)
    }
}

impl Fault {
    fn count(&self, one: impl Fn(&Written) -> Result<Option<[u64; 2]>>) -> Result<Option<[u64; 2]>> {
        let counts = self.written.iter().map(one);
        counts.chain([Ok(self.met)]).try_fold(None, |all, count| Ok(sum(all, count?)))
    }
}

impl Inner {
    fn record(&mut self, record: &Record, step: Option<&str>) {
        for fault in self.lifted.drain(..) {
            record.add(step, Event::Healed { name: fault.name.clone(), packets: fault.packets });
            self.recorded.push(fault);
        }
    }

    /// Those that `new` has replaced are no longer ours to lift, and what they met is known from then.
    fn make_room<'a>(&mut self, new: impl Iterator<Item = &'a Written>) -> Result<()> {
        for one in new {
            let place = one.planned.place.ns.id()?;
            for replaced in &one.replaced {
                let name = replaced.name.to_string();
                let Some(fault) = self.faults.iter_mut().find(|fault| fault.name == name) else { continue };
                fault.met = sum(fault.met, Some([replaced.to.packets, replaced.from.packets]));
                fault.written.retain(|old| old.planned.place.ns.id().is_ok_and(|id| id != place));
            }
        }
        let gone = self.faults.extract_if(.., |fault| fault.written.is_empty());
        self.lifted.extend(gone.map(|fault| Lifted { name: fault.name, step: fault.step, packets: fault.met }));
        Ok(())
    }

    fn lift(&mut self, names: Option<&[String]>) -> Result<()> {
        let is_meant = |name: &String| names.is_none_or(|names| names.contains(name));
        let mut failed = Ok(());
        for flap in self.flaps.extract_if(.., |flap| is_meant(&flap.name)) {
            match flap.end() {
                Ok(lifted) => self.lifted.push(lifted),
                Err(error) => failed = Err(error),
            }
        }
        let standing = self.standing.extract_if(.., |standing| is_meant(&standing.name));
        let standing = standing.map(|one| (one.name.clone(), one.step.clone(), one.lift()));
        let faults = self.faults.extract_if(.., |fault| is_meant(&fault.name));
        let faults =
            faults.map(|fault| (fault.count(Written::lift), fault)).map(|(met, one)| (one.name, one.step, met));
        for (name, step, packets) in standing.chain(faults) {
            let packets = packets.unwrap_or_else(|error| {
                failed = Err(error);
                None
            });
            self.lifted.push(Lifted { name, step, packets });
        }
        failed
    }
}
