//! The verbs that break something: resolve and compile for every place, check with the kernel, then write.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::cli::{FaultArgs, PlaceArgs};
use super::inforce::{InForce, Tables, complete, outline};
use super::place::{self, Place};
use super::plan::{Planned, check_usage, plan};
use super::{closing, heal, hold, out, shown};
use crate::encode::Builder;
use crate::kernel::nft::{Nft, Refused};
use crate::kernel::owner;
use crate::model::{Fault, Kind, Lifetime, Name, meet};
use crate::rules::compile;

/// How long a transaction is made anew because somebody else changed the same in between.
const PATIENCE: Duration = Duration::from_secs(10);

/// A place in which it was written.
pub(super) struct Written {
    pub(super) planned: Planned,
    pub(super) nft: Arc<Nft>,
    /// What was there before and made room.
    pub(super) replaced: Vec<InForce>,
    pub(super) took: Duration,
    pub(super) closed: closing::Closed,
}

pub(super) fn run(
    args: &PlaceArgs,
    kind: Kind,
    typed: &FaultArgs,
    then: Option<&OsStr>,
    json: bool,
) -> Result<ExitCode> {
    check_usage(&typed.aim, kind)?;
    let command = hold::Command::new(&typed.aim.under)?;
    let places = place::resolve(args)?;
    if typed.aim.dry_run {
        return dry_run(places, kind, typed, json);
    }
    let planned = plan_all(places, kind, typed, socket)?;
    // From here on a signal must not end the process between a write and its undoing.
    let signals = hold::Signals::catch()?;
    let written = put(planned, typed.aim.replace)?;
    if let Err(error) = report(&written, json) {
        return Err(take_back(&written, error));
    }
    if let Some(then) = then {
        run_then(then)?;
    }
    let let_go = move || {
        // At one moment for all packets. What cannot be taken away now ends with its socket, chain by chain.
        for one in &written {
            let _ = one.delete();
        }
        let places = written.into_iter().map(|written| written.planned.place).collect::<Vec<_>>();
        for name in place::without_their_network(args, &places) {
            out::note(&format!(
                "container {name} has stopped or started anew: the fault ended with its former network"
            ));
        }
    };
    match (command, typed.lifetime.hold) {
        (Some(command), _) => command.run(signals, let_go),
        (None, true) => Ok(signals.wait(let_go)),
        (None, false) => Ok(ExitCode::SUCCESS),
    }
}

fn dry_run(places: Vec<Place>, kind: Kind, typed: &FaultArgs, json: bool) -> Result<ExitCode> {
    let mut documents = Vec::new();
    for place in places {
        // With privilege the kernel is asked what it can do; without, the usual is taken for granted.
        let nft = Nft::open(&place.ns)?;
        let may_read = outline(&nft).is_ok();
        let planned = plan(place, kind, typed, may_read.then_some(&nft))?;
        if !may_read && !planned.vantage.ports.is_empty() {
            out::note(
                "without rights the kernel was not asked what a bridge can refuse: the rules may differ with them",
            );
        }
        planned.notes.iter().for_each(|note| out::note(note));
        if json {
            documents.push(planned.document_with_rules());
        } else {
            out::print(&format!("# {} in {}\n{}", planned.fault.name, planned.place.label, planned.rules))?;
        }
    }
    if json {
        out::print_json(&json!({ "format": shown::FORMAT, "dry_run": documents }))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A socket of its own for each place: what is held goes with it.
pub(super) fn socket(place: &Place) -> Result<Arc<Nft>> {
    Nft::open(&place.ns).map(Arc::new)
}

/// What is to be written in each place, and by which socket: only the one that made a held fault can replace it.
pub(super) fn plan_all(
    places: Vec<Place>,
    kind: Kind,
    typed: &FaultArgs,
    mut socket: impl FnMut(&Place) -> Result<Arc<Nft>>,
) -> Result<Vec<(Planned, Arc<Nft>)>> {
    let planned = places.into_iter().map(|place| {
        let nft = socket(&place)?;
        Ok((plan(place, kind, typed, Some(&nft))?, nft))
    });
    planned.collect()
}

/// Puts it in force in all places, open connections included, or changes nothing.
pub(super) fn put(planned: Vec<(Planned, Arc<Nft>)>, replace: bool) -> Result<Vec<Written>> {
    let mut written = write(planned, replace)?;
    match end_connections(&mut written) {
        Ok(()) => Ok(written),
        Err(error) => Err(take_back(&written, error)),
    }
}

/// Writes all, or nothing: every transaction is checked by its kernel before the first is sent, and those that were
/// made are undone if one fails after all.
fn write(planned: Vec<(Planned, Arc<Nft>)>, replace: bool) -> Result<Vec<Written>> {
    if planned.len() > 1 {
        for (plan, nft) in &planned {
            let (batch, _) = transaction(plan, nft, replace)?;
            if let Some(refused) = nft.check(&batch.finalize_dry())?.filter(|refused| !refused.is_race()) {
                return Err(refused_in(plan, refused));
            }
        }
    }
    let mut written = Vec::new();
    for (plan, nft) in planned {
        match write_one(plan, nft, replace) {
            Ok(one) => written.push(one),
            Err(error) if written.is_empty() => return Err(error.context("nothing was changed")),
            Err(error) => return Err(take_back(&written, error)),
        }
    }
    Ok(written)
}

/// What follows the writing. Whoever is told that it failed must not be left with half of a fault.
pub(super) fn end_connections(written: &mut [Written]) -> Result<()> {
    for one in written.iter_mut() {
        let place = format!("place {}", one.planned.place.label);
        one.closed = closing::close(&one.planned.place.ns, &one.planned.fault).context(place)?;
    }
    Ok(())
}

/// Undoes what was written, and says so beside the error that is the reason.
pub(super) fn take_back(written: &[Written], error: anyhow::Error) -> anyhow::Error {
    let failed: Vec<_> = written.iter().filter_map(|one| undo(one).err()).collect();
    let failed: Vec<_> = failed.iter().map(|error| format!("; could not be undone: {error:#}")).collect();
    let ended: usize = written.iter().map(|one| one.closed.ended).sum();
    let ended = if ended > 0 { format!(", but for {ended} connections that were ended") } else { String::new() };
    error.context(format!("nothing was changed (what was written is undone{ended}){}", failed.concat()))
}

pub(super) fn refused_in(plan: &Planned, refused: Refused) -> anyhow::Error {
    refused.into_error().context(format!("place {}", plan.place.label))
}

fn write_one(plan: Planned, nft: Arc<Nft>, replace: bool) -> Result<Written> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let start = Instant::now();
        let (batch, replaced) = transaction(&plan, &nft, replace)?;
        match nft.commit(&batch.finalize()) {
            Ok(()) => {
                let (took, closed) = (start.elapsed(), closing::Closed::default());
                return Ok(Written { planned: plan, nft, replaced, took, closed });
            }
            Err(error) if error.downcast_ref::<Refused>().is_some_and(Refused::is_race) => {}
            Err(error) => return Err(error.context(format!("place {}", plan.place.label))),
        }
    }
    bail!("place {}: other processes change {} faster than it can be written", plan.place.label, plan.fault.name)
}

/// The transaction that puts the fault in force, and the faults that it takes away for it.
pub(super) fn transaction(plan: &Planned, nft: &Nft, replace: bool) -> Result<(Builder, Vec<InForce>)> {
    transaction_beside(plan, nft, replace, &BTreeSet::new())
}

/// The same, which also takes away the faults with these names.
pub(super) fn transaction_beside(
    plan: &Planned,
    nft: &Nft,
    replace: bool,
    gone: &BTreeSet<Name>,
) -> Result<(Builder, Vec<InForce>)> {
    let fault = &plan.fault;
    let mut batch = Builder::new(plan.vantage.loopback);
    if replace {
        // What it has to make room for may have come since it was read.
        batch.only_in(nft.generation()?);
    }
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
    for other in &there {
        other.families.iter().for_each(|family| batch.delete_table(*family, &other.name.table()));
    }
    batch.add(&plan.rules);
    Ok((batch, there))
}

/// Whether it has to make room.
pub(super) fn is_met(other: &InForce, fault: &Fault) -> bool {
    other.name == fault.name || meet(&other.peers, &fault.peers)
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

/// Takes back what was written to one place, and puts back what was there.
fn undo(written: &Written) -> Result<()> {
    let plan = &written.planned;
    let mut batch = Builder::new(plan.vantage.loopback);
    plan.rules.tables.iter().for_each(|table| batch.delete_table(table.family, &table.name));
    let before = written.replaced.iter().filter(|before| before.is_active());
    before.for_each(|before| batch.add(&compile(&before.fault(), &plan.vantage)));
    written.nft.commit(&batch.finalize()).with_context(|| format!("place {}", plan.place.label))
}

fn report(written: &[Written], json: bool) -> Result<()> {
    if json {
        let documents: Vec<_> = written.iter().map(document).collect();
        out::print_json(&json!({ "format": shown::FORMAT, "faults": documents }))?;
    }
    for one in written {
        if !json {
            out::print(&line(one))?;
        }
        one.notes().iter().for_each(|note| out::note(note));
    }
    Ok(())
}

/// What is printed of it as text.
pub(super) fn line(one: &Written) -> String {
    let (plan, fault) = (&one.planned, &one.planned.fault);
    let (peers, lifetime) = (shown::peers(&fault.peers), shown::lifetime(fault.lifetime));
    let (verb, place) = (fault.kind.verb(), &plan.place.label);
    let took = one.took.as_secs_f64() * 1e3;
    let (name, closed) = (&fault.name, &one.closed);
    format!("{verb} {peers}: in {place}, {lifetime}, as {name}{closed} [{took:.1} ms]\n")
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
    fn delete(&self) -> Result<()> {
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
        let there = Tables::read(&self.nft)?.outline();
        Ok(there.into_iter().find(|there| there.name == self.planned.fault.name))
    }

    /// What the user must know of it.
    pub(super) fn notes(&self) -> Vec<String> {
        self.closed.warnings().iter().chain(&self.planned.notes).cloned().collect()
    }
}

/// As `--json` prints it.
pub(super) fn document(one: &Written) -> serde_json::Value {
    let mut document = shown::document(&one.planned.place.label, &one.planned.fault);
    let lease = match one.planned.fault.lifetime {
        Lifetime::Lease(lease) => u64::try_from(lease.as_millis()).ok(),
        Lifetime::Open | Lifetime::Held => None,
    };
    document["lease_ms"] = lease.into();
    document["held"] = (one.planned.fault.lifetime == Lifetime::Held).into();
    document["took_ms"] = (one.took.as_secs_f64() * 1e3).into();
    document["connections_ended"] = one.closed.ended.into();
    document
}

pub(super) fn run_then(then: &OsStr) -> Result<()> {
    let status = Command::new("sh").arg("-c").arg(then).status().context("cannot run sh for --then")?;
    if !status.success() {
        bail!("the filter is armed, but the command of --then failed ({status}): heal, or stop the process yourself");
    }
    Ok(())
}
