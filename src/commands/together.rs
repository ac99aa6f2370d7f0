//! One fault in many namespaces at the same moment.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};

use super::apply::{Written, is_met, refused_in, take_back, transaction_beside};
use super::closing::Closed;
use super::inforce::{InForce, read};
use super::plan::Planned;
use crate::encode::{Builder, Finalized};
use crate::kernel::nft::{Nft, Refused};
use crate::model::{Kind, Name};

/// What was written.
pub(super) struct Together {
    pub(super) written: Vec<Written>,
    /// From the first to the last moment at which a kernel said that it was done.
    pub(super) spread: Duration,
    /// The last of them; `None` if there was nothing to write.
    pub(super) last: Option<Instant>,
}

/// Whoever was checked by its kernel and waits for the moment.
struct Ready {
    planned: Planned,
    nft: Arc<Nft>,
    prepared: Prepared,
}

struct Prepared {
    /// What is committed at the moment.
    batch: Finalized,
    replaced: Vec<InForce>,
    /// The tables are there already, their gates shut.
    staged: bool,
}

const UNCHANGED: &str = "nothing was changed";
/// So many places are prepared at once: a kernel that only checks a transaction waits for a grace period of RCU.
const PREPARED_AT_ONCE: usize = 32;
/// How often all is made anew because somebody else wrote the same names in between.
const TRIES: u32 = 20;
/// At most so long is waited before that, each time another while, so that two who meet do not meet again.
const PAUSE: Duration = Duration::from_millis(20);

/// Lets each kernel check its part, and only then commits all of them at once, by a thread for each processor. If one
/// fails after all, the others are undone. A plan without rules only takes away what is replaced.
///
/// Silence that replaces nothing is written before the moment, with shut gates; what is left for it is to open them,
/// a tenth of the work. Whoever is killed in between leaves what applies to no packet, is listed and can be healed.
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
    let mut gone = match partitions_met(&planned, replace) {
        Ok(gone) => gone,
        Err(error) => return Err((planned, error.context(UNCHANGED))),
    };
    gone.extend(elsewhere.iter().cloned());
    let mut failed = None;
    let prepared = in_each(&planned, PREPARED_AT_ONCE, |(planned, nft)| prepare(planned, nft, replace, &gone));
    let prepared: Vec<_> = prepared
        .into_iter()
        .map(|one| {
            one.unwrap_or_else(|error| {
                failed.get_or_insert(error);
                None
            })
        })
        .collect();
    if let Some(error) = failed.or_else(|| ready().err()) {
        let staged = planned.iter().zip(&prepared).filter(|(_, one)| one.as_ref().is_some_and(|one| one.staged));
        let error = staged.fold(error, |error, ((planned, nft), _)| unstage(planned, nft, error));
        return Err((planned, error.context(UNCHANGED)));
    }
    let ready = planned.into_iter().zip(prepared).filter_map(|((planned, nft), prepared)| {
        let prepared = prepared?;
        Some(Ready { planned, nft, prepared })
    });
    commit(ready.collect())
}

/// Does it for all, at most so many at once, beginning together.
fn in_each<T: Sync, R: Send>(all: &[T], at_once: usize, f: impl Fn(&T) -> Result<R> + Sync) -> Vec<Result<R>> {
    let threads = at_once.min(all.len());
    let (next, barrier) = (AtomicUsize::new(0), Barrier::new(threads));
    let results: Vec<_> = all.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                barrier.wait();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = all.get(number) else { break };
                    let result = f(one);
                    *results[number].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                }
            });
        }
    });
    let results = results.into_iter().map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner));
    results.map(|result| result.unwrap_or_else(|| Err(anyhow!("a thread panicked")))).collect()
}

/// The partitions of which some share has to make room: half of one would be something that nobody has asked for, so
/// their other shares go, too.
fn partitions_met(planned: &[(Planned, Arc<Nft>)], replace: bool) -> Result<BTreeSet<Name>> {
    let mut gone = BTreeSet::new();
    for (planned, nft) in planned.iter().filter(|_| replace) {
        let there = read(nft)?.into_iter();
        gone.extend(there.filter(|one| one.meta.is_share() && is_met(one, &planned.fault)).map(|one| one.name));
    }
    Ok(gone)
}

/// `None`: there is nothing to write and nothing to take away.
fn prepare(planned: &Planned, nft: &Nft, replace: bool, gone: &BTreeSet<Name>) -> Result<Option<Prepared>> {
    let (batch, replaced) = transaction_beside(planned, nft, replace, gone)?;
    if planned.rules.tables.is_empty() && replaced.is_empty() {
        return Ok(None);
    }
    // Of other kinds more counts from the moment at which it is written.
    if replaced.is_empty() && planned.fault.kind == Kind::DeadHost && planned.rules.has_gates() {
        return stage(planned, nft).map(Some);
    }
    match nft.check(&batch.clone().finalize_dry())? {
        Some(refused) => Err(refused_in(planned, refused)),
        None => Ok(Some(Prepared { batch: batch.finalize(), replaced, staged: false })),
    }
}

/// Writes it with shut gates. That the kernel takes it is the check.
fn stage(planned: &Planned, nft: &Nft) -> Result<Prepared> {
    let [mut shut, mut open] = [(); 2].map(|()| Builder::new(planned.vantage.loopback));
    shut.add_shut(&planned.rules);
    open.open(&planned.rules);
    nft.commit(&shut.finalize()).with_context(|| format!("place {}", planned.place.label))?;
    Ok(Prepared { batch: open.finalize(), replaced: Vec::new(), staged: true })
}

/// Takes away what was staged, for this reason. That somebody else was faster is as well.
fn unstage(planned: &Planned, nft: &Nft, error: Error) -> Error {
    let mut batch = Builder::new(planned.vantage.loopback);
    planned.rules.tables.iter().for_each(|table| batch.delete_table(table.family, &table.name));
    match nft.commit(&batch.finalize()) {
        Err(left) if !is_race(&left) => {
            error.context(format!("place {}: could not be undone: {left:#}", planned.place.label))
        }
        _ => error,
    }
}

fn commit(ready: Vec<Ready>) -> Result<Together, Failed> {
    // More threads than processors only take them from each other.
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let done = in_each(&ready, processors, commit_one);
    let (mut written, mut left, mut ends, mut failed) = (Vec::new(), Vec::new(), Vec::new(), None);
    for (one, done) in ready.into_iter().zip(done) {
        let Ready { planned, nft, prepared: Prepared { replaced, staged, .. } } = one;
        match done {
            Ok((took, end)) => {
                written.push(Written { planned, nft, replaced, took, closed: Closed::default() });
                ends.push(end);
            }
            Err(error) => {
                let error = if staged { unstage(&planned, &nft, error) } else { error };
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

fn commit_one(one: &Ready) -> Result<(Duration, Instant)> {
    let start = Instant::now();
    one.nft.commit(&one.prepared.batch)?;
    Ok((start.elapsed(), Instant::now()))
}
