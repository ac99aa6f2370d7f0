//! `playdead partition`: groups of nodes no longer hear each other.
//!
//! Each direction is cut where it is received: the receiver's namespace drops what comes from the other, so that
//! nobody who sends notices anything else than with a broken line in between.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{ArgGroup, Args};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::cli::{CommandArgs, LifetimeArgs, PlaceArgs};
use super::inforce::readable;
use super::nodes::{self, ClusterArgs};
use super::place::{self, Place};
use super::plan::{Planned, Plans, now};
use super::together::{self, Together};
use super::written::{Written, take_back};
use super::{Usage, apply, facts, hold, hosts, lockout, out, random_seed, shown};
use crate::cluster::{self, Node, PATIENCE, Seat};
use crate::kernel::nft::Nft;
use crate::model::{Direction, Fault, Kind, Lifetime, Name, Partition, Proto, Split, Target};
use crate::rules::{Ruleset, compile};

/// `partition`
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("how").args(["groups", "isolate", "split"]).required(true))]
pub struct PartitionArgs {
    /// Names of nodes that go on hearing each other, separated by commas; two groups or more.
    #[arg(value_name = "NODE,NODE...")]
    pub groups: Vec<String>,
    /// Cut this member off from the others: a node's name, `leader` or `a-follower`, asked of the live cluster.
    #[arg(long, value_name = "NODE")]
    pub isolate: Option<String>,
    /// Split the members so.
    #[arg(long, value_enum, value_name = "HOW")]
    pub split: Option<Split>,
    /// Which members --split and `a-follower` choose; the same seed chooses the same ones [default: random, and
    /// printed].
    #[arg(long, value_name = "N", conflicts_with = "groups")]
    pub seed: Option<u64>,
    /// The earlier group (with --isolate: the node) hears nothing of the later ones, but what it says still arrives.
    #[arg(long)]
    pub one_way: bool,
    /// Which nodes.
    #[command(flatten)]
    pub nodes: ClusterArgs,
    /// What the partition is called [default: made of the groups].
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,
    /// Replace the faults of that name, and any that breaks the same nodes, in the same transactions; of a partition
    /// that it meets anywhere, all.
    #[arg(long)]
    pub replace: bool,
    /// Print who would hear whom, and each node's rules as `nft -f` text, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Do it even if it cuts the SSH connection that this runs by.
    #[arg(long)]
    pub allow_lockout: bool,
    /// How long it lasts.
    #[command(flatten)]
    pub lifetime: LifetimeArgs,
    /// What it lasts for.
    #[command(flatten)]
    pub under: CommandArgs,
}

impl PartitionArgs {
    /// Those that are named; where the members are split, or asked who leads, all of them.
    fn needs(&self, node: &Node) -> bool {
        let mut named = self.groups.iter().flat_map(|group| group.split(',')).chain(self.isolate.as_deref());
        named.any(|name| name == node.name) || (self.groups.is_empty() && node.check.is_some())
    }
}

pub(super) fn run(place: &PlaceArgs, typed: &PartitionArgs, json: bool) -> Result<ExitCode> {
    if place::is_named(place) {
        return Err(Usage("a partition is made in the places of its nodes: name no other".into()).into());
    }
    let by_chance = typed.split.is_some() || typed.isolate.as_deref() == Some("a-follower");
    let drawn = (by_chance && typed.seed.is_none()).then(|| random_seed().into());
    let tell_seed = || {
        if let Some(seed) = drawn {
            out::note(&format!("seed {seed}: --seed {seed} chooses the same again"));
        }
    };
    let typed = &PartitionArgs { seed: typed.seed.or(drawn), ..typed.clone() };
    let command = hold::Command::new(&typed.under)?;
    let all = nodes::of(place, &typed.nodes)?;
    if all.iter().any(|node| node.ssh().is_some()) {
        tell_seed();
        return hosts::partition(typed, &all, json);
    }
    let (seats, missing) = cluster::open_needed(&all, |node| typed.needs(node))?;
    for error in missing {
        out::note(&format!("left out: {error:#}"));
    }
    let partition = partition(typed, &seats)?;
    let lifetime = typed.lifetime.lasting(!typed.under.command.is_empty());
    let planned = plan(seats, &partition, typed.name.as_ref(), lifetime, apply::socket)?;
    tell_seed();
    if typed.dry_run {
        return dry_run(&partition, &planned, json);
    }
    lockout::check_all(&planned, typed.allow_lockout)?;
    let signals = hold::Signals::catch()?;
    let done = together::write(planned, typed.replace)?;
    if let Err(error) = report(&partition, &done, json) {
        return Err(take_back(&done.written, error));
    }
    hold::as_long_as(command, typed.lifetime.hold, signals, move || drop(done))
}

/// What is meant, the live cluster asked where it has to be, and drawn by the seed.
pub(super) fn partition(typed: &PartitionArgs, seats: &[Seat]) -> Result<Partition> {
    let all: Vec<_> = seats.iter().map(|seat| seat.node.clone()).collect();
    let names = cluster::names(&all);
    let members = || cluster::members(&all).map_err(Usage);
    let seed = typed.seed.unwrap_or_default();
    let made = match (&typed.isolate, typed.split) {
        (Some(node), _) => {
            let node = choose(node, seats, seed)?;
            cluster::by_name(&all, &node).map_err(Usage)?;
            Partition::isolate(&names, &members()?, &node, typed.one_way)
        }
        (None, Some(how)) => Partition::split(&names, &members()?, how, seed, typed.one_way),
        (None, None) => {
            let groups = typed.groups.iter().map(|group| group.split(',').map(str::to_owned).collect::<Vec<_>>());
            Partition::new(&names, &groups.collect::<Vec<_>>(), typed.one_way)
        }
    };
    made.map_err(|error| Usage(error).into())
}

/// The member that is meant by what it is now.
fn choose(node: &str, seats: &[Seat], seed: u64) -> Result<String> {
    if !["leader", "a-follower"].contains(&node) {
        return Ok(node.to_owned());
    }
    let now = cluster::look(seats, &[], PATIENCE)?;
    let leader = now.leader().context("no member with a quorum names a leader now: see playdead quorum")?;
    if node == "leader" {
        return Ok(leader.to_owned());
    }
    let followers: Vec<_> = now.with_quorum().into_iter().filter(|member| *member != leader).collect();
    let chosen = fastrand::Rng::with_seed(seed).choice(followers);
    Ok(chosen.context("no member follows the leader now: see playdead quorum")?.to_owned())
}

/// What is to be written on each node: its fault, with those whom it no longer hears as peers. Nodes that hear
/// everybody have no rules, but lose those of the same name if these are to be replaced.
pub(super) fn plan(
    mut seats: Vec<Seat>,
    partition: &Partition,
    name: Option<&Name>,
    lifetime: Lifetime,
    mut socket: impl FnMut(&Place) -> Result<Arc<Nft>>,
) -> Result<Plans> {
    let addresses: HashMap<_, _> =
        seats.iter().map(|seat| (seat.node.name.clone(), seat.node.addresses.clone())).collect();
    let deaf: HashMap<_, _> = partition.deaf().into_iter().collect();
    let namespaces = seats.iter().filter_map(|seat| Some((seat.node.name.as_str(), seat.ns.as_ref()?)));
    let namespaces = namespaces.map(|(name, ns)| Ok((name, ns.id()?))).collect::<Result<Vec<_>>>()?;
    apart(partition, namespaces)?;
    let (mut planned, mut places) = (Vec::new(), HashSet::new());
    // Of the nodes in one namespace the first counts, which is to be one that does not hear all.
    seats.sort_by_key(|seat| !deaf.contains_key(seat.node.name.as_str()));
    for seat in seats {
        let unheard = deaf.get(seat.node.name.as_str()).cloned().unwrap_or_default();
        if unheard.is_empty() && seat.ns.is_none() {
            continue;
        }
        seat.ns()?;
        let Seat { node, ns: Some(ns) } = seat else { continue };
        if !places.insert(ns.id()?) {
            continue;
        }
        let label = node.place.map_or(node.name, |place| place.to_string());
        let peers = unheard.iter().flat_map(|name| targets(name, &addresses[*name])).collect();
        let place = Place { label, ns };
        let nft = socket(&place)?;
        planned.push((plan_one(place, peers, lifetime, &nft)?, nft));
    }
    let name = name_of(name, partition, planned.iter().map(|(plan, _)| &plan.fault));
    for (plan, _) in &mut planned {
        plan.fault.name = name.clone();
        if !plan.fault.peers.is_empty() {
            plan.rules = compile(&plan.fault, &plan.vantage);
        }
    }
    Ok(planned)
}

/// Nodes in one namespace reach each other over its loopback device, and whatever is written there is about both. So they
/// can only be on the same side, and hear the same others. Each is given by its name and by what tells its namespace from
/// others.
pub(super) fn apart<'a, Id: Eq + Hash>(
    partition: &Partition,
    nodes: impl IntoIterator<Item = (&'a str, Id)>,
) -> Result<()> {
    let cuts = partition.cuts();
    let unheard =
        |name: &str| -> BTreeSet<&str> { cuts.iter().filter(|(_, to)| *to == name).map(|(from, _)| *from).collect() };
    let mut known = HashMap::new();
    for (name, namespace) in nodes {
        if !cuts.iter().any(|(from, to)| [*from, *to].contains(&name)) {
            continue;
        }
        let other = *known.entry(namespace).or_insert(name);
        let are_parted = cuts.contains(&(name, other)) || cuts.contains(&(other, name));
        if are_parted || unheard(name) != unheard(other) {
            return Err(Usage(format!("{other} and {name} are in one network namespace: nothing can part them")).into());
        }
    }
    Ok(())
}

pub(super) fn targets(name: &str, addresses: &[std::net::IpAddr]) -> Vec<Target> {
    let target =
        |address: &std::net::IpAddr| Target { net: IpNet::from(*address), ports: None, label: Some(name.to_owned()) };
    addresses.iter().map(target).collect()
}

/// No rules yet; none at all without peers.
pub(super) fn plan_one(place: Place, peers: Vec<Target>, lifetime: Lifetime, nft: &Nft) -> Result<Planned> {
    let vantage = facts::vantage(&place.ns, readable(nft)).with_context(|| format!("place {}", place.label))?;
    let (fault, rules) = (share(peers, lifetime), Ruleset { tables: Vec::new() });
    Ok(Planned { place, fault, vantage, rules, notes: Vec::new() })
}

/// A node's share: it hears nothing of these.
pub(super) fn share(mut peers: Vec<Target>, lifetime: Lifetime) -> Fault {
    peers.sort();
    Fault {
        // Until the digests of all are known.
        name: Name::of_partition("", 0),
        kind: Kind::DeadHost,
        peers,
        with: Vec::new(),
        direction: Direction::From,
        proto: Proto::All,
        lifetime,
        since: now(),
    }
}

/// The name that was given, else one made of the groups and of all shares.
pub(super) fn name_of<'a>(
    given: Option<&Name>,
    partition: &Partition,
    shares: impl Iterator<Item = &'a Fault>,
) -> Name {
    let digest = shares.fold(0u32, |digest, share| digest.rotate_left(5) ^ share.digest());
    given.cloned().unwrap_or_else(|| Name::of_partition(&partition.shown_groups(), digest))
}

fn dry_run(partition: &Partition, planned: &[(Planned, Arc<Nft>)], json: bool) -> Result<ExitCode> {
    let planned = planned.iter().map(|(plan, _)| plan).filter(|plan| !plan.rules.tables.is_empty());
    if json {
        let mut document = document(partition);
        document["dry_run"] = planned.map(Planned::document_with_rules).collect();
        out::print_json(&document)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rules: String = planned.map(Planned::text).collect();
    out::print(&(shown::comment(&partition.to_string()) + &rules))?;
    Ok(ExitCode::SUCCESS)
}

/// The fields are listed in `docs/json.md`.
pub(super) fn document(partition: &Partition) -> Value {
    let cuts: Vec<_> = partition.cuts().into_iter().map(|(from, to)| json!({ "from": from, "to": to })).collect();
    json!({ "format": shown::FORMAT, "nodes": partition.nodes(), "groups": partition.groups(), "cuts": cuts })
}

fn report(partition: &Partition, done: &Together, json: bool) -> Result<()> {
    let spread_ms = done.spread.as_secs_f64() * 1e3;
    let fault = done.written.first().map(|one| &one.planned.fault);
    if json {
        let mut document = document(partition);
        document["name"] = fault.map(|fault| fault.name.to_string()).into();
        let in_force = done.written.iter().filter(|one| !one.planned.rules.tables.is_empty());
        document["faults"] = in_force.map(Written::document).collect();
        document["spread_ms"] = spread_ms.into();
        return out::print_json(&document);
    }
    let groups = partition.shown_groups();
    let namespaces = match done.written.len() {
        1 => "1 namespace".to_owned(),
        more => format!("{more} namespaces"),
    };
    let told = fault.map(|fault| format!("{}, as {}", shown::lifetime(fault.lifetime), fault.name)).unwrap_or_default();
    out::print(&format!("{partition}partition {groups}: {told}, in {namespaces} [all within {spread_ms:.2} ms]\n"))
}
