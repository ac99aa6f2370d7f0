//! One fault in many namespaces at the same moment.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow};

use super::apply::{Written, is_met, refused_in, take_back, transaction_beside};
use super::closing::Closed;
use super::inforce::{InForce, read};
use super::plan::Planned;
use crate::encode::Finalized;
use crate::kernel::nft::{Nft, Refused};
use crate::model::Name;

/// What was written.
pub(super) struct Together {
    pub(super) written: Vec<Written>,
    /// From the first to the last moment at which a kernel said that it was done.
    pub(super) spread: Duration,
    /// The last of them; `None` if there was nothing to write.
    pub(super) last: Option<Instant>,
}

struct Ready {
    planned: Planned,
    nft: Arc<Nft>,
    batch: Finalized,
    replaced: Vec<InForce>,
}

/// How often all is made anew because somebody else wrote the same names in between.
const TRIES: u32 = 20;
/// At most so long is waited before that, each time another while, so that two who meet do not meet again.
const PAUSE: Duration = Duration::from_millis(20);

/// Compiles all, lets each kernel check its part, and only then commits all of them at once, each by a thread of its
/// own. If one fails after all, the others are undone. A plan without rules only takes away what is replaced.
///
/// # Errors
/// The first refusal; nothing has changed then.
pub(super) fn write(planned: Vec<(Planned, Arc<Nft>)>, replace: bool) -> Result<Together> {
    write_when(planned, replace, &BTreeSet::new(), || Ok(()))
}

/// The same, but shares of partitions with the names in `gone`, which is of another host's, go as well; and once all is
/// compiled and checked, `ready` is called before it is committed; again where it has to be
/// made anew.
///
/// # Errors
/// The first refusal, or that of `ready`; nothing has changed then.
pub(super) fn write_when(
    mut planned: Vec<(Planned, Arc<Nft>)>,
    replace: bool,
    gone: &BTreeSet<Name>,
    mut ready: impl FnMut() -> Result<()>,
) -> Result<Together> {
    for _ in 1..TRIES {
        match write_once(planned, replace, gone, &mut ready) {
            Err((again, error)) if is_race(&error) => planned = again,
            other => return other.map_err(|(_, error)| error),
        }
        thread::sleep(PAUSE.mul_f64(fastrand::f64()));
    }
    write_once(planned, replace, gone, &mut ready).map_err(|(_, error)| error)
}

fn is_race(error: &Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<Refused>().is_some_and(Refused::is_race))
}

/// What was not written, to be tried again, and why.
type Failed = (Vec<(Planned, Arc<Nft>)>, Error);

fn write_once(
    planned: Vec<(Planned, Arc<Nft>)>,
    replace: bool,
    elsewhere: &BTreeSet<Name>,
    ready: &mut impl FnMut() -> Result<()>,
) -> Result<Together, Failed> {
    let batches = partitions_met(&planned, replace).and_then(|mut gone| {
        gone.extend(elsewhere.iter().cloned());
        planned.iter().map(|(planned, nft)| prepare(planned, nft, replace, &gone)).collect::<Result<Vec<_>>>()
    });
    let batches = match batches.and_then(|batches| ready().map(|()| batches)) {
        Ok(batches) => batches,
        Err(error) => return Err((planned, error.context("nothing was changed"))),
    };
    let ready = planned.into_iter().zip(batches).filter_map(|((planned, nft), batch)| {
        let (batch, replaced) = batch?;
        Some(Ready { planned, nft, batch, replaced })
    });
    commit(ready.collect())
}

/// The partitions of which some share has to make room: half of one would be something that nobody has asked for, so
/// their other shares go, too.
fn partitions_met(planned: &[(Planned, Arc<Nft>)], replace: bool) -> Result<BTreeSet<Name>> {
    let mut gone = BTreeSet::new();
    for (planned, nft) in planned.iter().filter(|_| replace) {
        let there = read(nft)?.into_iter();
        gone.extend(there.filter(|one| one.is_share() && is_met(one, &planned.fault)).map(|one| one.name));
    }
    Ok(gone)
}

/// `None`: there is nothing to write and nothing to take away.
fn prepare(
    planned: &Planned,
    nft: &Nft,
    replace: bool,
    gone: &BTreeSet<Name>,
) -> Result<Option<(Finalized, Vec<InForce>)>> {
    let (batch, replaced) = transaction_beside(planned, nft, replace, gone)?;
    if planned.rules.tables.is_empty() && replaced.is_empty() {
        return Ok(None);
    }
    match nft.check(&batch.clone().finalize_dry())? {
        Some(refused) => Err(refused_in(planned, refused)),
        None => Ok(Some((batch.finalize(), replaced))),
    }
}

fn commit(ready: Vec<Ready>) -> Result<Together, Failed> {
    let barrier = Barrier::new(ready.len());
    let done: Vec<_> = thread::scope(|scope| {
        let threads = ready.iter().map(|one| scope.spawn(|| commit_one(one, &barrier)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))).collect()
    });
    let (mut written, mut left, mut ends, mut failed) = (Vec::new(), Vec::new(), Vec::new(), None);
    for (one, done) in ready.into_iter().zip(done) {
        let Ready { planned, nft, replaced, .. } = one;
        match done {
            Ok((took, end)) => {
                written.push(Written { planned, nft, replaced, took, closed: Closed::default() });
                ends.push(end);
            }
            Err(error) => {
                failed = failed.or(Some(error.context(format!("place {}", planned.place.label))));
                left.push((planned, nft));
            }
        }
    }
    if let Some(error) = failed {
        let error = take_back(&written, error);
        left.extend(written.into_iter().map(|one| (one.planned, one.nft)));
        return Err((left, error));
    }
    let last = ends.iter().max().copied();
    let spread = last.zip(ends.iter().min()).map_or(Duration::ZERO, |(last, first)| last - *first);
    Ok(Together { written, spread, last })
}

fn commit_one(one: &Ready, barrier: &Barrier) -> Result<(Duration, Instant)> {
    barrier.wait();
    let start = Instant::now();
    one.nft.commit(&one.batch)?;
    Ok((start.elapsed(), Instant::now()))
}
