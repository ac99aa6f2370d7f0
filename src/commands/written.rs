//! Faults that this process has put in force: what is told of them, what they meet, and their end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use ipnet::IpNet;
use serde_json::Value;

use super::inforce::{InForce, complete};
use super::plan::Planned;
use super::transaction::{own, undo};
use super::{closing, heal, shown};
use crate::kernel::nft::Nft;
use crate::model::{Fault, Lifetime, Target};

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
        document["replaced"] = self.replaced.iter().map(|before| before.name.to_string()).collect();
        document
    }

    /// What the user must know of it.
    pub(super) fn notes(&self) -> Vec<String> {
        let made_room = self.replaced.iter().filter_map(|before| made_room(before, &self.planned.fault));
        self.closed.warnings().iter().chain(&self.planned.notes).cloned().chain(made_room).collect()
    }
}

/// What else is healed, or goes on elsewhere, since that had to make room.
fn made_room(before: &InForce, fault: &Fault) -> Option<String> {
    let name = &before.name;
    if before.meta.is_share() {
        let stay = "those in namespaces that were not named stay";
        return (!fault.is_share()).then(|| format!("a share of {name} made room; {stay}: `playdead heal {name}`"));
    }
    let ended = |peers: &[Target], beyond: &str| {
        let (verb, peers) = (before.meta.kind.verb(), shown::peers(peers));
        Some(format!("{name} made room: {verb} {peers} has ended{beyond}"))
    };
    if !before.is_active() {
        return None;
    }
    // A machine on which a process is dead instead is the failure that was asked for.
    let is_covered = |peer: &Target| {
        let is_machine = peer.ports.is_none();
        fault.peers.iter().any(|new| new.covers(peer) || (is_machine && new.net.contains(&peer.net)))
    };
    let others: Vec<_> = before.peers.iter().filter(|peer| !is_covered(peer)).cloned().collect();
    let is_within = |end: &IpNet| fault.with.iter().any(|with| with.contains(end));
    match () {
        () if !others.is_empty() => ended(&others, ""),
        () if !fault.with.is_empty() && (before.with.is_empty() || !before.with.iter().all(is_within)) => {
            ended(&before.peers, " where it was not --with these")
        }
        () => None,
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
