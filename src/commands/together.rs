//! One fault in many namespaces at the same moment.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::apply::{Written, refused_in, take_back, transaction};
use super::closing::Closed;
use super::plan::Planned;
use crate::encode::Finalized;
use crate::kernel::nft::Nft;

use super::inforce::InForce;

/// What was written.
pub(super) struct Together {
    pub(super) written: Vec<Written>,
    /// From the first to the last moment at which a kernel said that it was done.
    pub(super) spread: Duration,
}

struct Ready {
    planned: Planned,
    nft: Arc<Nft>,
    batch: Finalized,
    replaced: Vec<InForce>,
}

/// Compiles all, lets each kernel check its part, and only then commits all of them at once, each by a thread of its
/// own. If one fails after all, the others are undone. A plan without rules only takes away what is replaced.
///
/// # Errors
/// The first refusal; nothing has changed then.
pub(super) fn write(planned: Vec<(Planned, Arc<Nft>)>, replace: bool) -> Result<Together> {
    let mut ready = Vec::new();
    for (planned, nft) in planned {
        let (batch, replaced) = transaction(&planned, &nft, replace)?;
        if planned.rules.tables.is_empty() && replaced.is_empty() {
            continue;
        }
        let (trial, _) = transaction(&planned, &nft, replace)?;
        if let Some(refused) = nft.check(&trial.finalize_dry())? {
            return Err(refused_in(&planned, refused).context("nothing was changed"));
        }
        ready.push(Ready { planned, nft, batch: batch.finalize(), replaced });
    }
    commit(ready)
}

fn commit(ready: Vec<Ready>) -> Result<Together> {
    let barrier = Barrier::new(ready.len());
    let done: Vec<_> = thread::scope(|scope| {
        let threads = ready.iter().map(|one| scope.spawn(|| commit_one(one, &barrier)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))).collect()
    });
    let (mut written, mut ends, mut failed) = (Vec::new(), Vec::new(), None);
    for (one, done) in ready.into_iter().zip(done) {
        match done {
            Ok((took, end)) => {
                let Ready { planned, nft, replaced, .. } = one;
                written.push(Written { planned, nft, replaced, took, closed: Closed::default() });
                ends.push(end);
            }
            Err(error) => failed = failed.or(Some(error.context(format!("place {}", one.planned.place.label)))),
        }
    }
    if let Some(error) = failed {
        return Err(take_back(&written, error));
    }
    let spread = ends.iter().max().zip(ends.iter().min()).map_or(Duration::ZERO, |(last, first)| *last - *first);
    Ok(Together { written, spread })
}

fn commit_one(one: &Ready, barrier: &Barrier) -> Result<(Duration, Instant)> {
    barrier.wait();
    let start = Instant::now();
    one.nft.commit(&one.batch)?;
    Ok((start.elapsed(), Instant::now()))
}
