//! Puts a fault in force, in one place or in many at the same moment: in all of them, or nothing has changed.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};

use super::closing::Closed;
use super::inforce::{InForce, read};
use super::plan::{Planned, Plans};
use super::threads::at_most;
use super::transaction::{self, PATIENCE, is_met, own, undo};
use super::written::{Written, unchanged};
use crate::encode::{Builder, Finalized};
use crate::kernel::nft::{Nft, Refused, is_race};
use crate::model::{Kind, Name};

/// What was written.
pub(super) struct Together {
    pub(super) written: Vec<Written>,
    /// From the first to the last moment at which a kernel said that it was done.
    pub(super) spread: Duration,
    /// The last of them; `None` if there was nothing to write.
    pub(super) last: Option<Instant>,
}

/// So many places are prepared at once: a kernel that only checks a transaction waits for a grace period of RCU.
const PREPARED_AT_ONCE: usize = 32;
/// How long all is made anew behind the instant of several hosts: whoever told it does not listen for much longer.
const BEHIND_INSTANT: Duration = Duration::from_secs(1);
/// At most so long is waited before that, each time another while, so that two who meet do not meet again.
const PAUSE: Duration = Duration::from_millis(20);

/// Lets each kernel check its part, and only then commits all of them at once, by a thread for each processor. If one
/// fails after all, the others are undone. A plan without rules only takes away what is replaced.
///
/// Silence that replaces nothing is written before the moment, with shut gates; what is left for it is to open them,
/// a tenth of the work. Whoever is killed in between leaves what applies to no packet, is listed and can be healed.
/// One alone is checked by being committed.
///
/// # Errors
/// The first refusal; nothing has changed then.
pub(super) fn write(planned: Plans, replace: bool) -> Result<Together> {
    let alone = planned.len() == 1;
    let writer = Writer { planned: &planned, replace, elsewhere: &BTreeSet::new(), alone, stages: !alone };
    let done = patiently(PATIENCE, || writer.commit(writer.prepare()?))?;
    Ok(Together::of(planned, done))
}

/// The same, but shares of partitions with the names in `gone`, which is of another host's, go as well; and once all is
/// compiled and checked, `ready` is called before it is committed. Until then nothing is written: it may take long, and
/// who is killed meanwhile is to leave nothing.
///
/// # Errors
/// The first refusal, or that of `ready`; nothing has changed then.
pub(super) fn write_when(
    planned: Plans,
    replace: bool,
    gone: &BTreeSet<Name>,
    ready: impl FnOnce() -> Result<()>,
) -> Result<Together> {
    let writer = Writer { planned: &planned, replace, elsewhere: gone, alone: false, stages: false };
    let prepared = patiently(PATIENCE, || writer.prepare())?;
    if let Err(error) = ready() {
        return Err(writer.undo(&prepared, error));
    }
    let mut prepared = Some(prepared);
    let done = patiently(BEHIND_INSTANT, || writer.commit(prepared.take().map_or_else(|| writer.prepare(), Ok)?))?;
    Ok(Together::of(planned, done))
}

/// Tries it again as long as somebody else is faster.
fn patiently<T>(patience: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let until = Instant::now() + patience;
    loop {
        match attempt() {
            Err(error) if is_race(&error) && Instant::now() < until => {}
            other => return other,
        }
        thread::sleep(PAUSE.mul_f64(fastrand::f64()));
    }
}

/// Where, of an error of the kernel's.
fn in_place(planned: &Planned, error: Error) -> Error {
    let (place, name) = (&planned.place.label, &planned.fault.name);
    let is_race = is_race(&error);
    let why =
        if is_race { format!(": other processes change {name} faster than it can be written") } else { String::new() };
    error.context(format!("place {place}{why}"))
}

/// What is committed in a place.
struct Prepared {
    batch: Finalized,
    replaced: Vec<InForce>,
    /// The tables are there already, their gates shut.
    staged: bool,
    /// How long it took to make the transaction.
    took: Duration,
    committed: Option<Committed>,
}

#[derive(Clone, Copy)]
struct Committed {
    took: Duration,
    at: Instant,
}

impl Prepared {
    fn commit(&self, planned: &Planned, nft: &Nft) -> Result<Committed> {
        let start = Instant::now();
        let done = if self.staged { open(planned, nft, &self.batch) } else { nft.commit(&self.batch) };
        done.map_err(|error| in_place(planned, error))?;
        Ok(Committed { took: start.elapsed(), at: Instant::now() })
    }
}

impl Together {
    fn of(planned: Plans, done: Vec<Option<Prepared>>) -> Self {
        let (mut written, mut ends) = (Vec::new(), Vec::new());
        for ((planned, nft), done) in planned.into_iter().zip(done) {
            let Some(Prepared { replaced, took, committed: Some(committed), .. }) = done else { continue };
            let took = took + committed.took;
            written.push(Written { planned, nft, replaced, took, closed: Closed::default() });
            ends.push(committed.at);
        }
        let last = ends.iter().max().copied();
        let spread = last.zip(ends.iter().min()).map_or(Duration::ZERO, |(last, first)| last - *first);
        Self { written, spread, last }
    }
}

/// How it is tried, as often as it takes.
struct Writer<'a> {
    planned: &'a [(Planned, Arc<Nft>)],
    replace: bool,
    /// Partitions that have to make room on another host.
    elsewhere: &'a BTreeSet<Name>,
    /// There is one place only, and no moment to wait for.
    alone: bool,
    /// What can be is written before the moment, with shut gates.
    stages: bool,
}

impl Writer<'_> {
    /// What is to be committed in each place, checked by its kernel; `None` where there is nothing to write and nothing
    /// to take away.
    fn prepare(&self) -> Result<Vec<Option<Prepared>>> {
        let gone = self.partitions_met().map_err(|error| unchanged(error, "", std::iter::empty()))?;
        let gone = &gone;
        let prepare = self.planned.iter().map(|(planned, nft)| move || self.prepare_one(planned, nft, gone));
        match apart(at_most(PREPARED_AT_ONCE, prepare.collect())) {
            (prepared, None) => Ok(prepared),
            (prepared, Some(error)) => Err(self.undo(&prepared, error)),
        }
    }

    /// The partitions of which some share has to make room: half of one would be something that nobody has asked for, so
    /// their other shares go, too.
    fn partitions_met(&self) -> Result<BTreeSet<Name>> {
        let mut gone = self.elsewhere.clone();
        for (planned, nft) in self.planned.iter().filter(|_| self.replace && !self.alone) {
            let there = read(nft)?.into_iter();
            gone.extend(there.filter(|one| one.meta.is_share() && is_met(one, &planned.fault)).map(|one| one.name));
        }
        Ok(gone)
    }

    fn prepare_one(&self, planned: &Planned, nft: &Nft, gone: &BTreeSet<Name>) -> Result<Option<Prepared>> {
        let start = Instant::now();
        let (batch, replaced) = transaction::make(planned, nft, self.replace, gone)?;
        if planned.rules.tables.is_empty() && replaced.is_empty() {
            return Ok(None);
        }
        let took = start.elapsed();
        // Of other kinds more counts from the moment at which it is written.
        let staged =
            self.stages && replaced.is_empty() && planned.fault.kind == Kind::DeadHost && planned.rules.has_gates();
        let batch = match () {
            () if staged => stage(planned, nft).inspect_err(|_| drop(undo(planned, nft, &[]))),
            () if self.alone => Ok(batch.finalize()),
            () => checked(batch, nft),
        };
        let batch = batch.map_err(|error| in_place(planned, error))?;
        Ok(Some(Prepared { batch, replaced, staged, took, committed: None }))
    }

    fn commit(&self, mut prepared: Vec<Option<Prepared>>) -> Result<Vec<Option<Prepared>>> {
        let commit = self
            .planned
            .iter()
            .zip(&prepared)
            .map(|((planned, nft), one)| move || one.as_ref().map(|one| one.commit(planned, nft)).transpose());
        // More threads than processors only take them from each other.
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let (committed, failed) = apart(at_most(processors, commit.collect()));
        for (one, committed) in prepared.iter_mut().zip(committed) {
            if let Some(one) = one {
                one.committed = committed;
            }
        }
        match failed {
            None => Ok(prepared),
            Some(error) => Err(self.undo(&prepared, error)),
        }
    }

    /// Takes away what was staged and what was committed, for this reason.
    fn undo(&self, prepared: &[Option<Prepared>], error: Error) -> Error {
        let left = self.planned.iter().zip(prepared).filter_map(|((planned, nft), one)| {
            let there = one.as_ref().filter(|one| one.staged || one.committed.is_some())?;
            undo(planned, nft, &there.replaced).err()
        });
        let was_in_force = prepared.iter().flatten().any(|one| one.committed.is_some());
        unchanged(error, if was_in_force { " (what was written is undone)" } else { "" }, left)
    }
}

/// Writes it with shut gates, and gives what opens them. That the kernel takes it is the check.
fn stage(planned: &Planned, nft: &Nft) -> Result<Finalized> {
    let mut shut = Builder::new(planned.vantage.loopback);
    shut.add_shut(&planned.rules);
    nft.commit(&shut.finalize())?;
    opening(planned, nft)
}

/// What opens its gates, unless something else changes before: they are known by name only, and could be another's then.
fn opening(planned: &Planned, nft: &Nft) -> Result<Finalized> {
    let mut open = Builder::new(planned.vantage.loopback);
    open.only_in(nft.generation()?);
    open.open(&planned.rules);
    match own(planned, nft)? {
        Some(_) => Ok(open.finalize()),
        None => Err(Refused::gone(&planned.fault.name.table()).into()),
    }
}

fn open(planned: &Planned, nft: &Nft, opening_first: &Finalized) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut done = nft.commit(opening_first);
    while done.as_ref().is_err_and(is_race) && Instant::now() < until {
        done = nft.commit(&opening(planned, nft)?);
    }
    done
}

fn checked(batch: Builder, nft: &Nft) -> Result<Finalized> {
    match nft.check(&batch.clone().finalize_dry())? {
        Some(refused) => Err(refused.into_error()),
        None => Ok(batch.finalize()),
    }
}

/// What came of each, and the first error.
fn apart<T>(results: Vec<Result<Option<T>>>) -> (Vec<Option<T>>, Option<Error>) {
    let mut first = None;
    let fine = results.into_iter().map(|result| {
        result.unwrap_or_else(|error| {
            first.get_or_insert(error);
            None
        })
    });
    (fine.collect(), first)
}
