//! The transaction that puts a fault in force in one place, and the one that takes it back.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ipnet::IpNet;

use super::inforce::{InForce, Tables, complete};
use super::plan::Planned;
use crate::encode::Builder;
use crate::kernel::nft::{Nft, is_race};
use crate::kernel::owner;
use crate::model::{Fault, Lifetime, Name, meet};
use crate::rules::compile;

/// How long a transaction is made anew because somebody else changes the same in between.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The one that puts the fault in force, and the faults that it takes away for it: with `replace` those that it meets,
/// and shares of the partitions in `gone`.
pub(super) fn make(plan: &Planned, nft: &Nft, replace: bool, gone: &BTreeSet<Name>) -> Result<(Builder, Vec<InForce>)> {
    let fault = &plan.fault;
    let mut batch = Builder::new(plan.vantage.loopback);
    let generation = nft.generation()?;
    let tables = Tables::read(nft)?;
    if tables.is_foreign(&fault.name) {
        let table = fault.name.table();
        bail!("a table {table} that is not playdead's is in {}: use another --name", plan.place.label);
    }
    let mut there = tables.outline();
    there.retain(|other| replace || other.name == fault.name);
    let mut there = complete(nft, there)?;
    there.retain(|other| is_met(other, fault) || (gone.contains(&other.name) && other.meta.is_share()));
    for other in &there {
        check_replaceable(plan, nft, other, replace)?;
    }
    if replace || !there.is_empty() {
        // What it makes room for may have come, or have become another's, since it was read.
        batch.only_in(generation);
    }
    for other in &there {
        other.families.iter().for_each(|family| batch.delete_table(*family, &other.name.table()));
    }
    batch.add(&plan.rules);
    Ok((batch, there))
}

/// Whether it has to make room: it has the same name, or is about some of the same packets.
pub(super) fn is_met(other: &InForce, fault: &Fault) -> bool {
    let apart = |one: &IpNet| fault.with.iter().all(|with| !with.contains(one) && !one.contains(with));
    let same_ends = other.with.is_empty() || fault.with.is_empty() || !other.with.iter().all(apart);
    other.name == fault.name || (other.meta.proto.meets(fault.proto) && same_ends && meet(&other.peers, &fault.peers))
}

/// The same fault again is not an error, and does not double: it starts anew. But one that was to stay must not end
/// because somebody else wanted the same for a while.
fn check_replaceable(plan: &Planned, nft: &Nft, other: &InForce, replace: bool) -> Result<()> {
    let (name, place) = (&other.name, &plan.place.label);
    if let Some(portid) = other.owner
        && portid != nft.port()?
    {
        let holder =
            owner::holder(&plan.place.ns, portid)?.map_or("another process".into(), |pid| format!("process {pid}"));
        bail!("{name} in {place} is held by {holder}: heal it first (playdead heal {name})");
    }
    if replace || !other.is_active() {
        return Ok(());
    }
    if other.meta.digest != plan.fault.digest() {
        bail!("a different fault is called {name} in {place}: use --replace, another --name, or heal it first");
    }
    let ends = match (other.meta.lease, plan.fault.lifetime) {
        (Some(_), Lifetime::Lease(_)) | (None, Lifetime::Open) => return Ok(()),
        // It is our own, or we should not be here.
        (None, Lifetime::Held) if other.owner.is_some() => return Ok(()),
        (Some(_), _) => "has a lease",
        (None, _) => "lasts until it is healed",
    };
    bail!("{name} is in force in {place} and {ends}: use --replace to give it another lifetime, or another --name")
}

/// What is there of the fault as it was written by this plan; nothing once somebody else has taken it away, or has put
/// another one of that name in its place.
pub(super) fn own(plan: &Planned, nft: &Nft) -> Result<Option<InForce>> {
    let is_own = |there: &InForce| there.name == plan.fault.name && there.meta.since == plan.fault.since;
    Ok(Tables::read(nft)?.outline().into_iter().find(is_own))
}

/// Takes back what was written, and puts back what was there. What is another's by now stays.
pub(super) fn undo(plan: &Planned, nft: &Nft, replaced: &[InForce]) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut batch = Builder::new(plan.vantage.loopback);
        batch.only_in(nft.generation()?);
        let Some(there) = own(plan, nft)? else { return Ok(()) };
        there.families.iter().for_each(|family| batch.delete_table(*family, &there.name.table()));
        let before = replaced.iter().filter(|before| before.is_active());
        before.for_each(|before| batch.add(&compile(&before.fault(), &plan.vantage)));
        match nft.commit(&batch.finalize()) {
            Err(error) if is_race(&error) && Instant::now() < until => {}
            done => return done.with_context(|| format!("place {}", plan.place.label)),
        }
    }
}
