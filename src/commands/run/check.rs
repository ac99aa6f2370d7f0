//! Checks a plan before anything starts, and prints it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::json;

use super::words::{Cut, Elsewhere, Fault, Flap, Look};
use super::world::World;
use super::{Ready, text};
use crate::cluster::Seat;
use crate::commands::inforce::readable;
use crate::commands::plan::{self, plan};
use crate::commands::{Usage, apply, flap, hosts, is_of, out, partition, peers, shown};
use crate::kernel::Missing;
use crate::kernel::nft::Nft;
use crate::model::Host;
use crate::scenario::file::{Action, ClusterTest, Condition, Names, Ready as ReadyCheck, Test, Verb};
use crate::scenario::plan::LIVE;
use crate::scenario::{Plan, Planned};

/// What a step would write: the place, the fault's name, and the rules.
pub(super) struct Rules {
    place: String,
    name: String,
    text: String,
}

impl Rules {
    fn of(plan: &plan::Planned) -> Self {
        let (place, name) = (plan.place.label.clone(), plan.fault.name.to_string());
        Self { place, name, text: plan.rules.to_string() }
    }
}

/// Of each step, what it would write; `None` where only the live cluster can tell.
pub(super) type Checked = Vec<Option<Writes>>;

/// What a step would write.
#[derive(Default)]
pub(super) struct Writes {
    /// Who would hear whom, of a partition.
    matrix: String,
    rules: Vec<Rules>,
}

/// Reads every word of every step and compiles every fault. Nothing is written.
pub(super) fn check(file: &Path, world: &World, plan: &Plan) -> Result<Checked> {
    let mut checker = Checker { world, seed: plan.seed, names: BTreeSet::new(), live: BTreeMap::new() };
    let check = |planned: &Planned| {
        checker.step(planned).map_err(|error| {
            let at = format!("{}:{}: {}.{}", file.display(), planned.line, planned.path, key(&planned.step.action));
            if is_of::<Missing>(&error) || is_of::<hosts::NotAll>(&error) {
                return error.context(at);
            }
            Usage(format!("{at}: {error:#}")).into()
        })
    };
    plan.steps.iter().map(check).collect()
}

struct Checker<'a> {
    world: &'a World,
    seed: u64,
    /// The faults that there are by then.
    names: BTreeSet<String>,
    /// Somebody, for whoever the live cluster will name.
    live: BTreeMap<String, String>,
}

impl Checker<'_> {
    fn step(&mut self, planned: &Planned) -> Result<Option<Writes>> {
        let step = planned.filled(&self.live).map_err(Usage)?;
        let mut rules = Some(Writes::default());
        match &step.action {
            Action::Fault(words) => rules = self.fault(words, planned)?,
            Action::Heal(names) if names.is_all() => {}
            Action::Heal(names) => names.0.iter().try_for_each(|name| self.fault_is_known(name))?,
            Action::Do(verb, nodes) => self.deeds(nodes, *verb)?,
            Action::Restart(how) => {
                self.deeds(&how.nodes, Verb::Start)?;
                match how.ready {
                    ReadyCheck::Able => self.peer_ports()?,
                    ReadyCheck::Live => self.client_ports(&how.nodes)?,
                    ReadyCheck::Quorum | ReadyCheck::Command(_) => {}
                }
            }
            Action::Run(run) => self.shell(run.node.as_deref())?,
            Action::Probe(words) => self.look(words, false)?,
            Action::Wait(condition) | Action::Expect(condition) => self.condition(condition)?,
            Action::Pick(pick) => {
                self.shell(pick.node.as_deref())?;
                self.pick(&pick.name, &pick.of)?;
            }
            Action::Partition(words) => rules = self.partition(words, planned)?,
            Action::Flap(words) => rules = self.flap(words, planned)?,
            Action::Sleep(_) | Action::Repeat(_) | Action::OneOf(_) => {}
        }
        Ok(rules)
    }

    fn fault(&mut self, words: &str, planned: &Planned) -> Result<Option<Writes>> {
        let fault = Fault::parse(words, self.seed)?;
        if let Some(Elsewhere { nodes, part, .. }) = fault.elsewhere(self.world)? {
            let ready = if fault.is_live() { Vec::new() } else { hosts::rehearse(&nodes, &part)? };
            let (_, args, _) = fault.args(self.world)?;
            self.names.extend(args.aim.name.iter().map(ToString::to_string));
            let writes = self.rehearsed(&ready, String::new());
            return Ok((!fault.is_live() && is_fixed(planned)).then_some(writes));
        }
        let places = fault.places(self.world)?;
        let (kind, args, _) = fault.args(self.world)?;
        self.names.extend(args.aim.name.iter().map(ToString::to_string));
        if fault.is_live() {
            return Ok(None);
        }
        let mut rules = Vec::new();
        for place in places {
            let nft = Nft::open(&place.ns)?;
            let planned = plan(place, kind, &args, readable(&nft))?;
            self.names.insert(planned.fault.name.to_string());
            rules.push(Rules::of(&planned));
        }
        // What depends on somebody that is not known yet was only tried.
        Ok(is_fixed(planned).then_some(Writes { rules, ..Writes::default() }))
    }

    fn rehearsed(&mut self, ready: &[hosts::Ready], matrix: String) -> Writes {
        self.names.extend(ready.iter().map(|one| one.name().to_owned()));
        let rules = ready.iter().filter(|one| one.has_rules()).map(|one| {
            let (place, name, text) = (one.node().to_owned(), one.name().to_owned(), one.rules.clone());
            Rules { place, name, text }
        });
        Writes { matrix, rules: rules.collect() }
    }

    fn flap(&mut self, words: &str, planned: &Planned) -> Result<Option<Writes>> {
        let flap = Flap::parse(words, self.seed)?;
        let (kind, _, mut fault) = flap.meaning(self.world)?;
        self.names.extend(fault.aim.name.iter().map(ToString::to_string));
        fault.aim.dry_run = true;
        let places = flap.places(self.world)?;
        if fault.aim.peers.iter().any(|peer| matches!(peer.host, Host::Etcd { .. })) {
            return Ok(None);
        }
        let plans = flap::plan_all(places, kind, &fault)?;
        let rules: Vec<_> = plans.iter().map(|(plan, _)| Rules::of(plan)).collect();
        self.names.extend(rules.iter().map(|rules| rules.name.clone()));
        Ok(is_fixed(planned).then_some(Writes { rules, ..Writes::default() }))
    }

    fn partition(&mut self, words: &str, planned: &Planned) -> Result<Option<Writes>> {
        let cut = Cut::parse(words, self.seed)?;
        self.names.extend(cut.args.name.iter().map(ToString::to_string));
        let lease = self.world.is_elsewhere().then(|| hosts::lease(cut.lifetime())).transpose()?;
        if cut.is_live() {
            return Ok(None);
        }
        let partition = partition::partition(&cut.args, &self.world.seats)?;
        if let Some(lease) = lease {
            let (ready, _) = hosts::rehearse_cut(&cut.args, &partition, &self.world.nodes(), lease)?;
            let writes = self.rehearsed(&ready, partition.to_string());
            return Ok(is_fixed(planned).then_some(writes));
        }
        let (seats, name) = (self.world.reopened()?, cut.args.name.as_ref());
        let plans = partition::plan(seats, &partition, name, cut.lifetime(), apply::socket)?;
        let plans = plans.iter().map(|(plan, _)| plan).filter(|plan| !plan.rules.tables.is_empty());
        let writes = Writes { matrix: partition.to_string(), rules: plans.map(Rules::of).collect() };
        self.names.extend(writes.rules.iter().map(|rules| rules.name.clone()));
        Ok(is_fixed(planned).then_some(writes))
    }

    fn fault_is_known(&self, name: &str) -> Result<()> {
        if self.names.contains(name) {
            return Ok(());
        }
        let known: Vec<_> = self.names.iter().map(String::as_str).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        bail!(Usage(format!("no step before this one makes a fault called {name:?}; they make: {known}")))
    }

    fn deeds(&self, nodes: &Names, verb: Verb) -> Result<()> {
        self.world.check_names(nodes)?;
        for node in self.world.meant(nodes) {
            // Any member will do in the place of whoever leads.
            let members = self.world.members();
            let node = if LIVE.contains(&node.as_str()) { members.first().unwrap_or(&node) } else { &node };
            self.world.deed(node, verb)?;
            verb.undone_by().map(|undo| self.world.deed(node, undo)).transpose()?;
        }
        Ok(())
    }

    fn peer_ports(&self) -> Result<()> {
        let members = self.world.seats.iter().filter(|seat| seat.node.check.is_some());
        match members.clone().find(|seat| seat.node.peer_port.is_none()) {
            Some(seat) => bail!(Usage(format!("{} has no peer-port, so nobody can tell who is able", seat.node.name))),
            None => Ok(()),
        }
    }

    fn client_ports(&self, names: &Names) -> Result<()> {
        let meant = self.world.meant(names);
        let cannot = |seat: &&Seat| seat.node.check.is_some() && seat.node.client_port.is_none();
        match self.world.seats.iter().filter(cannot).find(|seat| meant.contains(&seat.node.name)) {
            Some(seat) => {
                bail!(Usage(format!("{} has no client-port, so nobody can tell if it is live", seat.node.name)))
            }
            None => Ok(()),
        }
    }

    fn node(&self, name: Option<&str>) -> Result<()> {
        name.map_or(Ok(()), |name| self.world.place(name).map(drop))
    }

    /// Commands are run on other hosts, too.
    fn shell(&self, name: Option<&str>) -> Result<()> {
        if name.is_some_and(|name| self.world.ssh(name).is_some()) { Ok(()) } else { self.node(name) }
    }

    fn look(&self, words: &str, must_expect: bool) -> Result<()> {
        let look = Look::parse(words)?;
        let (place, peers) = look.from(self.world)?;
        if must_expect && look.args.expect.is_none() {
            bail!(Usage("say what is expected: --expect KIND or --expect alive".into()));
        }
        let fixed: Vec<_> = peers.into_iter().filter(|peer| !matches!(peer.host, Host::Etcd { .. })).collect();
        peers::socket_addresses(&place, &fixed).map(drop)
    }

    fn condition(&self, condition: &Condition) -> Result<()> {
        match &condition.test {
            Test::Cluster(test) => self.cluster(test),
            Test::Probe(words) => self.look(words, true),
            Test::Command(test) => self.shell(test.node.as_deref()),
            Test::Hits { fault, .. } => self.fault_is_known(fault),
        }
    }

    fn cluster(&self, test: &ClusterTest) -> Result<()> {
        let members = self.world.members();
        if members.is_empty() {
            bail!(Usage("none of the nodes is a member of a cluster: give them a check".into()));
        }
        let lists = [
            &test.quorum,
            &test.no_quorum,
            &test.able,
            &test.not_able,
            &test.live,
            &test.not_live,
            &test.leader,
            &test.not_leader,
        ];
        for name in lists.into_iter().flatten().flat_map(|names| self.world.meant(names)) {
            if !members.contains(&name) {
                bail!(Usage(format!("{name:?} is no member of the cluster: those are {}", members.join(", "))));
            }
        }
        [&test.live, &test.not_live].into_iter().flatten().try_for_each(|names| self.client_ports(names))?;
        if test.able.is_some() || test.not_able.is_some() {
            self.peer_ports()?;
            if test.from.is_some() {
                bail!(Usage("who is able is asked from each member's own place: leave out from".into()));
            }
        }
        self.node(test.from.as_deref())
    }

    fn pick(&mut self, name: &str, of: &Names) -> Result<()> {
        let members = self.world.members();
        let Some(drawn) = of.0.first() else {
            // What a command will print is tried with the name of somebody.
            let names = if members.is_empty() { self.world.names() } else { members };
            self.stand_in(name, &names);
            return Ok(());
        };
        if LIVE.contains(&drawn.as_str()) {
            if members.is_empty() {
                bail!(Usage(format!("none of the nodes is a member of a cluster, so there is no {drawn}")));
            }
            self.stand_in(name, &members);
        } else {
            self.live.insert(name.to_owned(), drawn.clone());
        }
        Ok(())
    }

    /// Somebody else for each name, so that a partition of them is one.
    fn stand_in(&mut self, name: &str, among: &[String]) {
        let next = self.live.keys().filter(|known| *known != name).count() % among.len().max(1);
        self.live.extend(among.get(next).map(|one| (name.to_owned(), one.clone())));
    }
}

/// Whether nothing in a step waits for the live cluster.
fn is_fixed(planned: &Planned) -> bool {
    planned.filled(&BTreeMap::new()).is_ok()
}

/// The field of a step that says what it does.
fn key(action: &Action) -> &'static str {
    match action {
        Action::Fault(_) => "fault",
        Action::Flap(_) => "flap",
        Action::Partition(_) => "partition",
        Action::Heal(_) => "heal",
        Action::Do(verb, _) => verb.name(),
        Action::Restart(_) => "restart",
        Action::Run(_) => "run",
        Action::Probe(_) => "probe",
        Action::Sleep(_) => "sleep",
        Action::Wait(_) => "wait",
        Action::Expect(_) => "expect",
        Action::Repeat(_) => "repeat",
        Action::Pick(_) => "pick",
        Action::OneOf(_) => "one-of",
    }
}

/// The plan with its times and rules.
pub(super) fn print(ready: &Ready, checked: &Checked, json: bool) -> Result<()> {
    let steps = ready.plan.steps.iter().zip(checked);
    if json {
        let steps: Vec<_> = steps.map(|(planned, rules)| document(planned, rules.as_ref())).collect();
        let (name, seed) = (&ready.name, ready.plan.seed);
        return out::print_json(&json!({
            "format": shown::FORMAT, "scenario": name, "seed": seed, "nodes": ready.world.names(), "plan": steps,
        }));
    }
    let mut page = format!("# {}, seed {}; nodes: {}\n", ready.name, ready.plan.seed, ready.world.names().join(", "));
    for (planned, rules) in steps {
        let since = if planned.step.at.is_some() { "at" } else { "from" };
        let (id, earliest, what) = (&planned.id, text::time(planned.earliest), text::of(&planned.step));
        let _ = writeln!(page, "{since:>4} {earliest:>8}  {id:<7} {what}");
        match rules {
            None => page.push_str("# its rules are known only when it happens\n"),
            Some(writes) => {
                page.push_str(&shown::comment(&writes.matrix));
                writes.rules.iter().for_each(|one| page.push_str(&shown::rules(&one.name, &one.place, &one.text)));
            }
        }
    }
    out::print(&page)
}

fn document(planned: &Planned, writes: Option<&Writes>) -> serde_json::Value {
    let rules = writes.map(|writes| {
        let one = |rules: &Rules| json!({ "place": rules.place, "name": rules.name, "rules": rules.text });
        writes.rules.iter().map(one).collect::<Vec<_>>()
    });
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).ok();
    json!({
        "step": planned.id,
        "line": planned.line,
        "at_ms": planned.step.at.and_then(ms),
        "earliest_ms": ms(planned.earliest),
        "text": text::of(&planned.step),
        "rules": rules,
    })
}
