//! Faults that this process has put in force: what is told of them, what they meet, and their end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use serde_json::Value;

use super::inforce::{InForce, complete};
use super::plan::Planned;
use super::transaction::{own, undo};
use super::{closing, heal, shown};
use crate::kernel::nft::Nft;
use crate::model::Lifetime;

/// A place in which it was written.
pub(super) struct Written {
    pub(super) planned: Planned,
    pub(super) nft: Arc<Nft>,
    /// What was there before and made room.
    pub(super) replaced: Vec<InForce>,
    /// To make the transaction and to commit it.
    pub(super) took: Duration,
    pub(super) closed: closing::Closed,
}

impl Written {
    /// Takes it away and gives the packets that it met, to its peers and from them; `None` if somebody else has
    /// taken it away before.
    pub(super) fn lift(&self) -> Result<Option<[u64; 2]>> {
        let Some(there) = self.in_force()? else { return Ok(None) };
        heal::delete(&self.nft, &there).with_context(|| format!("place {}", self.planned.place.label))?;
        Ok(Some([there.to.packets, there.from.packets]))
    }

    /// Takes it away, if nobody else has.
    pub(super) fn delete(&self) -> Result<()> {
        self.outline()?.map_or(Ok(()), |there| heal::delete(&self.nft, &there))
    }

    /// The packets that it has met so far.
    pub(super) fn packets(&self) -> Result<Option<[u64; 2]>> {
        Ok(self.in_force()?.map(|there| [there.to.packets, there.from.packets]))
    }

    fn in_force(&self) -> Result<Option<InForce>> {
        let there = self.outline()?;
        Ok(complete(&self.nft, there.into_iter().collect())?.pop())
    }

    fn outline(&self) -> Result<Option<InForce>> {
        own(&self.planned, &self.nft)
    }

    /// What is printed of it as text.
    pub(super) fn line(&self) -> String {
        let (fault, place, closed) = (&self.planned.fault, &self.planned.place.label, &self.closed);
        let (peers, lifetime) = (shown::peers(&fault.peers), shown::lifetime(fault.lifetime));
        let (verb, name, took) = (fault.kind.verb(), &fault.name, self.took.as_secs_f64() * 1e3);
        format!("{verb} {peers}: in {place}, {lifetime}, as {name}{closed} [{took:.1} ms]\n")
    }

    /// As `--json` prints it.
    pub(super) fn document(&self) -> Value {
        let fault = &self.planned.fault;
        let mut document = shown::document(&self.planned.place.label, fault);
        let lease = match fault.lifetime {
            Lifetime::Lease(lease) => u64::try_from(lease.as_millis()).ok(),
            Lifetime::Open | Lifetime::Held => None,
        };
        document["lease_ms"] = lease.into();
        document["held"] = (fault.lifetime == Lifetime::Held).into();
        document["took_ms"] = (self.took.as_secs_f64() * 1e3).into();
        document["connections_ended"] = self.closed.ended.into();
        document
    }

    /// What the user must know of it.
    pub(super) fn notes(&self) -> Vec<String> {
        let shares = self.replaced.iter().filter(|before| before.meta.is_share() && !self.planned.fault.is_share());
        let parts = shares.map(|share| {
            let name = &share.name;
            format!("a share of {name} made room; those in namespaces that were not named stay: `playdead heal {name}`")
        });
        self.closed.warnings().iter().chain(&self.planned.notes).cloned().chain(parts).collect()
    }
}

/// Undoes what was written, and says so beside the error that is the reason.
pub(super) fn take_back(written: &[Written], error: Error) -> Error {
    let left = written.iter().filter_map(|one| undo(&one.planned, &one.nft, &one.replaced).err());
    let ended: usize = written.iter().map(|one| one.closed.ended).sum();
    let ended = if ended > 0 { format!(", but for {ended} connections that were ended") } else { String::new() };
    unchanged(error, &format!(" (what was written is undone{ended})"), left)
}

/// Says beside the error, which is the reason, that nothing was changed, and what could not be undone.
pub(super) fn unchanged(error: Error, how: &str, left: impl Iterator<Item = Error>) -> Error {
    let left: Vec<_> = left.map(|error| format!("; could not be undone: {error:#}")).collect();
    error.context(format!("nothing was changed{how}{}", left.concat()))
}
