//! What happens on several hosts at one instant, told from here.
//!
//! Each host gets its part before anything starts, and compiles and checks it; then all are told one instant, each by its
//! own clock. Every part has a lease: what cuts this host off from another cannot be healed from here.

mod done;
mod elsewhere;
mod logins;
mod standing;
mod talk;

use std::collections::HashSet;
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow, bail};
use serde_json::Value;

use super::partition::{self, PartitionArgs};
use super::share::{Part, Share};
use super::threads::at_once;
use super::{Usage, is_of, out, shown};
use crate::cluster::{self, Node, Seat};
use crate::kernel::{Missing, timer};
use crate::model::{Fault, Lifetime, Partition};
pub(super) use done::Done;
pub(super) use elsewhere::{pass_to, run as elsewhere, without_place};
pub(super) use logins::Logins;
pub(super) use standing::Standing;
use talk::{Came, Talk};

/// Between telling the instant and the instant, besides three times the slowest answer.
const AHEAD: Duration = Duration::from_millis(300);
/// How long after the instant a host that is not cut off may take to tell.
const HEARING: Duration = Duration::from_secs(2);

/// Some nodes cannot take part, and why is told already.
#[derive(Debug)]
pub(super) struct NotAll(String);

impl fmt::Display for NotAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotAll {}

/// A partition between nodes of which some are on other hosts.
pub(super) fn partition(typed: &PartitionArgs, nodes: &[Node], json: bool) -> Result<ExitCode> {
    let lease = lease(typed.lifetime.lasting(!typed.under.command.is_empty()))?;
    let logins = Logins::begin()?;
    let partition = partition::partition(typed, &seats(nodes, typed.isolate.is_some())?)?;
    let (mut ready, name) = rehearse_cut(typed, &partition, nodes, lease)?;
    if typed.dry_run {
        return dry_run(&partition, &ready, json).map(|()| ExitCode::SUCCESS);
    }
    // Whoever ends this process before has changed nothing.
    let mut signals = logins.give_way()?;
    let done = commit(&mut ready, lease, || signals.have_ended())?;
    let (groups, lifetime) = (partition.shown_groups(), shown::lifetime(Lifetime::Lease(lease)));
    let result = if json {
        let mut document = partition::document(&partition);
        document["name"] = name.into();
        done.add_to(&mut document);
        out::json(&document)
    } else {
        let (count, accuracy) = (done.count(), done.accuracy());
        format!("{partition}partition {groups}: {lifetime}, as {name}, on {count} nodes [{accuracy}]\n")
    };
    tell(&mut ready, &done, &result)?;
    if !json {
        done.notes().iter().for_each(|note| out::note(note));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the result, or takes back what it is about: what nobody was told of nobody would heal.
fn tell(ready: &mut [Ready], done: &Done, result: &str) -> Result<()> {
    out::print(result).map_err(|error| heal(ready.iter_mut().zip(done.heard()), &format!("{error:#}"), &done.ends))
}

/// Has every node compile and check its share of a partition. Gives the name of it all.
pub(super) fn rehearse_cut(
    typed: &PartitionArgs,
    partition: &Partition,
    nodes: &[Node],
    lease: Duration,
) -> Result<(Vec<Ready>, String)> {
    let mut talks = open(&involved(nodes, partition, typed.replace)?)?;
    cluster::drop_shared(talks.iter_mut().map(|talk| &mut talk.addresses).collect());
    partition::apart(partition, talks.iter().map(|talk| (talk.node.name.as_str(), &talk.namespace)))?;
    let deaf: HashSet<_> = partition.deaf().into_iter().map(|(node, _)| node).collect();
    // Of the nodes in one namespace the first counts, which is to be one that does not hear all.
    talks.sort_by_key(|talk| !deaf.contains(talk.node.name.as_str()));
    let talks = without_doubles(talks);
    let (parts, name) = parts(typed, partition, nodes, &talks, lease)?;
    Ok((prepare(talks, &parts)?, name))
}

/// The same of one fault that all of them have.
pub(super) fn rehearse(nodes: &[Node], part: &Part) -> Result<Vec<Ready>> {
    let talks = without_doubles(open(nodes)?);
    let parts = vec![part.clone(); talks.len()];
    prepare(talks, &parts)
}

/// The nodes as far as a partition without a live cluster needs them: by name.
fn seats(nodes: &[Node], live: bool) -> Result<Vec<Seat>> {
    if live {
        return cluster::open(nodes);
    }
    Ok(nodes.iter().map(|node| Seat { node: node.clone(), ns: None }).collect())
}

/// Without one, whoever is cut off from here would stay so.
pub(super) fn lease(lifetime: Lifetime) -> Result<Duration> {
    match lifetime {
        Lifetime::Lease(lease) => Ok(lease),
        Lifetime::Open | Lifetime::Held => Err(Usage(
            "nodes on other hosts need a lease, which their kernels end even if they can no longer be reached: \
             --for D"
                .into(),
        )
        .into()),
    }
}

/// The nodes that have a part. Of those that are only not heard any more the addresses do.
fn involved(nodes: &[Node], partition: &Partition, replace: bool) -> Result<Vec<Node>> {
    let deaf: Vec<_> = partition.deaf().into_iter().map(|(node, _)| node).collect();
    let cut: Vec<_> = partition.cuts().into_iter().map(|(from, _)| from).collect();
    let mut involved = Vec::new();
    for node in nodes {
        let name = node.name.as_str();
        let unknown = cut.contains(&name) && node.addresses.is_empty();
        if deaf.contains(&name) || unknown || (replace && node.place.is_some()) {
            if node.place.is_none() {
                bail!(Usage(format!("the node {name} has no place: give its netns, pid, container, node or ssh")));
            }
            involved.push(node.clone());
        }
    }
    Ok(involved)
}

/// What each is told to do, and the name of it all.
fn parts(
    typed: &PartitionArgs,
    partition: &Partition,
    nodes: &[Node],
    talks: &[Talk],
    lease: Duration,
) -> Result<(Vec<Part>, String)> {
    let addresses = |name: &str| {
        let given = nodes.iter().find(|node| node.name == name).map(|node| node.addresses.clone()).unwrap_or_default();
        let talk = talks.iter().find(|talk| talk.node.name == name).map(|talk| talk.addresses.clone());
        if given.is_empty() { talk.unwrap_or_default() } else { given }
    };
    let deaf = partition.deaf();
    let unheard = |name: &str| deaf.iter().find(|(node, _)| *node == name).map(|(_, unheard)| unheard.clone());
    let mut shares = Vec::new();
    for talk in talks {
        let unheard = unheard(&talk.node.name).unwrap_or_default();
        if let Some(nowhere) = unheard.iter().find(|name| addresses(name).is_empty()) {
            bail!("the node {nowhere} has no address: give its addresses");
        }
        let peers = unheard.iter().flat_map(|name| partition::targets(name, &addresses(name))).collect();
        shares.push(partition::share(peers, Lifetime::Lease(lease)));
    }
    let name = partition::name_of(typed.name.as_ref(), partition, shares.iter()).to_string();
    let gone = if typed.replace { partitions_met(talks, &shares) } else { Vec::new() };
    let part = |share| Part { gone: gone.clone(), ..part(share, &name, lease, typed.replace) };
    Ok((shares.iter().map(part).collect(), name))
}

/// The partitions in force of which some host's share has to make room for its new one.
fn partitions_met(talks: &[Talk], shares: &[Fault]) -> Vec<String> {
    let met = talks.iter().zip(shares).flat_map(|(talk, new)| {
        let is_met = |old: &&Share| new.peers.iter().any(|peer| old.peers.contains(&peer.net.addr()));
        talk.shares.iter().filter(is_met).map(|old| old.name.clone())
    });
    met.collect()
}

fn part(share: &Fault, name: &str, lease: Duration, replace: bool) -> Part {
    let mut words: Vec<String> = Vec::new();
    if share.peers.is_empty() {
        words.extend(["heal".into(), name.into()]);
    } else {
        words.push("dead-host".into());
        words.extend(share.peers.iter().map(|peer| peer.net.addr().to_string()));
        let lease = format!("{}ms", lease.as_millis());
        words.extend(["--direction", "from", "--name", name, "--for", &lease].map(str::to_owned));
        words.extend(replace.then(|| "--replace".to_owned()));
    }
    let names = share.peers.iter().filter_map(|peer| Some((peer.net.addr(), peer.label.clone()?))).collect();
    Part { words, names, gone: Vec::new() }
}

/// Logs in to all at the same time. Every one that cannot take part is named, and nothing changes anywhere.
fn open(nodes: &[Node]) -> Result<Vec<Talk>> {
    let opened = at_once(nodes.iter().map(|node| || Talk::open(node)).collect());
    all(nodes.iter().map(|node| node.name.clone()).zip(opened).collect())
}

/// Each namespace once.
fn without_doubles(mut talks: Vec<Talk>) -> Vec<Talk> {
    let mut seen = HashSet::new();
    talks.retain(|talk| seen.insert(talk.namespace.clone()));
    talks
}

/// A node that has compiled and checked its part.
pub(super) struct Ready {
    talk: Talk,
    /// What it would write, as `nft -f` text; empty where something is only taken away.
    pub(super) rules: String,
    /// The fault, as the document of a dry run has it.
    pub(super) document: Value,
}

impl Ready {
    /// The node.
    pub(super) fn node(&self) -> &str {
        &self.talk.node.name
    }

    /// Whether it writes something, and does not only take away what is replaced.
    pub(super) fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Whom it is about, by name or else by address; each once.
    pub(super) fn peers(&self) -> Vec<String> {
        let peers = self.document["peers"].as_array().into_iter().flatten();
        let mut named: Vec<_> =
            peers.filter_map(|peer| peer["name"].as_str().or(peer["peer"].as_str())).map(str::to_owned).collect();
        named.sort();
        named.dedup();
        named
    }

    /// What the fault is called.
    pub(super) fn name(&self) -> &str {
        self.document["name"].as_str().unwrap_or_default()
    }
}

fn prepare(talks: Vec<Talk>, parts: &[Part]) -> Result<Vec<Ready>> {
    let names: Vec<_> = talks.iter().map(|talk| talk.node.name.clone()).collect();
    let preparing = talks.into_iter().zip(parts).map(|(mut talk, part)| {
        move || {
            let (rules, document) = talk.prepare(part)?;
            Ok(Ready { talk, rules, document })
        }
    });
    all(names.into_iter().zip(at_once(preparing.collect())).collect())
}

/// All of them, or a line for each that failed and one error for all.
fn all<T>(results: Vec<(String, Result<T>)>) -> Result<Vec<T>> {
    let (count, mut fine, mut failed) = (results.len(), Vec::new(), Vec::new());
    for (name, result) in results {
        match result {
            Ok(one) => fine.push(one),
            Err(error) => failed.push((name, error)),
        }
    }
    if failed.is_empty() {
        return Ok(fine);
    }
    for (name, error) in &failed {
        out::error(&format!("{name}: {error:#}"));
    }
    let names: Vec<_> = failed.iter().map(|(name, _)| name.as_str()).collect();
    let text = format!("nothing was changed: {} of {count} nodes cannot take part: {}", failed.len(), names.join(", "));
    if failed.iter().any(|(_, error)| is_of::<Missing>(error)) {
        return Err(Missing(text).into());
    }
    if failed.iter().all(|(_, error)| is_of::<Usage>(error)) {
        return Err(Usage(text).into());
    }
    Err(NotAll(text).into())
}

/// Tells all of them the instant and hears what came of it. If one fails, or it is interrupted, the others are healed.
pub(super) fn commit(ready: &mut [Ready], lease: Duration, mut is_interrupted: impl FnMut() -> bool) -> Result<Done> {
    if is_interrupted() {
        bail!("interrupted: nothing was changed");
    }
    let slowest = ready.iter().map(|one| one.talk.round_trip).max().unwrap_or_default();
    let ahead = AHEAD + 3 * slowest;
    let at = timer::now()? + ahead;
    let ends = lease_end(ahead + lease);
    let told: Vec<_> = ready.iter_mut().map(|one| one.talk.commit(at)).collect();
    let until = Instant::now() + ahead + HEARING + 3 * slowest;
    let mut outcomes = Vec::new();
    for (one, told) in ready.iter_mut().zip(told) {
        outcomes.push(match told {
            Ok(()) => one.talk.outcome(at, until),
            Err(error) => Came::Failed(error),
        });
    }
    let failed = outcomes.iter().zip(ready.iter()).find_map(|(came, one)| match came {
        Came::Failed(error) => Some(format!("{}: {error:#}", one.talk.node.name)),
        Came::Committed(_) | Came::Silence => None,
    });
    let why = failed.or_else(|| is_interrupted().then(|| "interrupted".to_owned()));
    match why {
        Some(why) => {
            let heard = ready.iter_mut().zip(&outcomes).filter_map(|(one, came)| match came {
                Came::Failed(_) => None,
                Came::Committed(_) => Some((one, true)),
                Came::Silence => Some((one, false)),
            });
            Err(heal(heard, &why, &ends))
        }
        None => Ok(Done::of(ready, outcomes, ends)),
    }
}

/// Takes back what was committed on those that were heard of, and says so beside the reason.
fn heal<'a>(committed: impl Iterator<Item = (&'a mut Ready, bool)>, why: &str, ends: &str) -> Error {
    let (mut healed, mut left) = (Vec::new(), Vec::new());
    for (one, is_heard) in committed {
        let is_healed = is_heard && one.talk.heal().is_ok();
        if is_healed { &mut healed } else { &mut left }.push(one.talk.node.name.as_str());
    }
    let list = |what: &str, names: &[&str]| {
        if names.is_empty() { String::new() } else { format!("; {what} {}", names.join(", ")) }
    };
    let silent = format!("not heard of, its lease ends by itself at {ends} on");
    anyhow!("{why}{}{}", list("healed on", &healed), list(&silent, &left))
}

/// By this host's clock, which is what its user sees.
fn lease_end(after: Duration) -> String {
    let end = jiff::Timestamp::now() + after;
    jiff::Timestamp::from_second(end.as_second() + 1).unwrap_or(end).to_string()
}

fn dry_run(partition: &Partition, ready: &[Ready], json: bool) -> Result<()> {
    if json {
        let mut document = partition::document(partition);
        document["dry_run"] = dry_documents(ready);
        return out::print_json(&document);
    }
    out::print(&(shown::comment(&partition.to_string()) + &dry_rules(ready)))
}

/// Of those that have some: who only loses what is replaced has none.
fn dry_documents(ready: &[Ready]) -> Value {
    let document = |one: &Ready| {
        let mut document = one.document.clone();
        document["rules"] = one.rules.clone().into();
        document
    };
    ready.iter().filter(|one| one.has_rules()).map(document).collect()
}

fn dry_rules(ready: &[Ready]) -> String {
    ready.iter().filter(|one| one.has_rules()).map(|one| shown::rules(one.name(), one.node(), &one.rules)).collect()
}
