//! Whether something is so, asked until it is or the time is over.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::player::Player;
use super::shell::last_line;
use super::telemetry;
use super::words::Look;
use super::world::World;
use crate::cluster::{self, Snapshot, View};
use crate::commands::probe::Report;
use crate::commands::{peers, shown};
use crate::model::observation::Observation;
use crate::record::Event;
use crate::scenario::Condition;
use crate::scenario::file::{ClusterTest, CommandTest, Names, Test};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a command may take that is run once.
const LONGEST: Duration = Duration::from_secs(60);

/// The answer to a look, and what was seen.
pub(super) struct Seen {
    pub(super) so: bool,
    pub(super) what: String,
}

impl Player<'_> {
    /// Looks until it is so or its time is over. What was seen last is in the record.
    pub(super) fn look_for(&mut self, condition: &Condition, what: &str, within: Duration) -> Result<Seen> {
        let start = Instant::now();
        let mut steady = Steady::default();
        let seen = loop {
            let left = if within.is_zero() { LONGEST } else { within.saturating_sub(start.elapsed()) };
            let seen = self.look_once(&condition.test, &mut steady, left)?;
            if seen.so || start.elapsed() >= within || !self.stop.sleep_until(Instant::now() + PAUSE) {
                break seen;
            }
        };
        let took_ms = start.elapsed().as_secs_f64() * 1e3;
        let event = Event::Expect { what: what.to_owned(), met: seen.so, seen: seen.what.clone(), took_ms };
        self.record.add(Some(&self.step), event);
        Ok(seen)
    }

    fn look_once(&mut self, test: &Test, steady: &mut Steady, left: Duration) -> Result<Seen> {
        match test {
            Test::Cluster(test) => {
                let from: Vec<_> = test.from.iter().cloned().collect();
                let seen = self.look(&from)?;
                let mut unmet = unmet(self.world, test, &seen);
                unmet.extend(test.steady.and_then(|wanted| steady.unmet(&seen, wanted)));
                let what = if unmet.is_empty() { summary(&seen, steady) } else { unmet.join("; ") };
                Ok(Seen { so: unmet.is_empty(), what })
            }
            Test::Probe(words) => self.probe(words),
            Test::Command(test) => self.try_command(test, left),
            Test::Hits { fault, at_least, at_most } => self.count(fault, *at_least, *at_most),
        }
    }

    /// Looks as a client does; without `--expect` whatever is seen is so.
    pub(super) fn probe(&mut self, words: &str) -> Result<Seen> {
        let look = Look::parse(words)?;
        let (place, peers) = look.from(self.world)?;
        let (label, options) = (place.label.clone(), look.args.options());
        let looked = self.stop.unless_told(move || {
            let targets = peers::socket_addresses(&place, &peers)?;
            let start = Instant::now();
            crate::probe::look(&place.ns, &targets, &options).map(|seen| (seen, start.elapsed()))
        });
        let (seen, took) = looked?.context("interrupted")??;
        let report = Report::of(&look.args, None, seen);
        let so = report.verdict.as_ref().is_none_or(|verdict| verdict.met);
        let what = format!("{}: {}", shown::typed(&look.args.peers), in_short(&report.observations));
        let mut report = serde_json::to_value(report)?;
        report["took_ms"] = (took.as_secs_f64() * 1e3).into();
        let event = Event::Probe { from: label, text: what.clone(), report };
        self.record.add(Some(&self.step), event);
        Ok(Seen { so, what })
    }

    fn try_command(&mut self, test: &CommandTest, within: Duration) -> Result<Seen> {
        // One file for all of its looks: the last.
        self.outputs = 0;
        let mut shell = self.start(&test.command, test.node.as_deref())?;
        let code = self.wait_for(&mut shell, within)?;
        shell.keep(self.record);
        let output = shell.output();
        let says = test.output.as_ref().is_none_or(|wanted| output.contains(wanted));
        let Some(code) = code else {
            return Ok(Seen { so: false, what: format!("not ended after {:.1} s", within.as_secs_f64()) });
        };
        let said = last_line(&output);
        let what =
            if said.is_empty() { format!("exit code {code}") } else { format!("exit code {code}, it said: {said}") };
        Ok(Seen { so: code == test.exit && says, what })
    }

    fn count(&mut self, fault: &str, at_least: u64, at_most: Option<u64>) -> Result<Seen> {
        let in_force = self.faults.packets(fault)?;
        let packets =
            in_force.or_else(|| self.lifted.iter().rfind(|(name, _)| name == fault).and_then(|(_, met)| *met));
        let Some([to, from]) = packets else { bail!("no fault is or was called {fault}") };
        let met = to + from;
        let so = met >= at_least && at_most.is_none_or(|most| met <= most);
        Ok(Seen { so, what: format!("{to} packets to the peer and {from} from it") })
    }
}

/// `connect silence, ping answered`; each once, whatever the address.
fn in_short(seen: &[Observation]) -> String {
    let mut said: Vec<String> = Vec::new();
    for observation in seen {
        let one = format!("{} {}", observation.probe, observation.summary());
        if !said.contains(&one) {
            said.push(one);
        }
    }
    said.join(", ")
}

/// What of it is not so.
pub(super) fn unmet(world: &World, test: &ClusterTest, seen: &Snapshot) -> Vec<String> {
    let from = test.from.as_deref();
    let view = |name: &str| seen.view(name, from);
    let mut unmet = Vec::new();
    let mut each = |names: &Option<Names>, so: &dyn Fn(&View) -> bool, otherwise: &str| {
        for name in names.iter().flat_map(|names| world.meant(names)) {
            match view(&name) {
                None => unmet.push(format!("{name} cannot be asked from there")),
                Some(view) if so(view) => {}
                Some(view) => {
                    let why = telemetry::why(view).map(|why| format!(" ({why})")).unwrap_or_default();
                    unmet.push(format!("{name} {otherwise}{why}"));
                }
            }
        }
    };
    let able = |view: &View| view.able.as_ref().is_some_and(cluster::Able::is_enough);
    each(&test.quorum, &View::has_quorum, "has no quorum");
    each(&test.no_quorum, &|view| !view.has_quorum(), "has a quorum");
    each(&test.live, &View::is_live, "does not answer");
    each(&test.not_live, &|view| !view.is_live(), "answers");
    each(&test.able, &able, "does not reach enough others");
    each(&test.not_able, &|view| !able(view), "reaches enough others");
    unmet.extend(wrong_leader(world, test, seen));
    unmet
}

fn wrong_leader(world: &World, test: &ClusterTest, seen: &Snapshot) -> Option<String> {
    if test.leader.is_none() && test.not_leader.is_none() {
        return None;
    }
    let Some(leader) = seen.leader() else { return Some("nobody leads".into()) };
    let among = |names: &Names| world.meant(names).iter().any(|name| name == leader);
    let wrong = test.leader.as_ref().is_some_and(|names| !among(names)) || test.not_leader.as_ref().is_some_and(among);
    wrong.then(|| format!("{leader} leads"))
}

/// For how long the cluster has been whole under the same leader.
#[derive(Default)]
struct Steady {
    begun: Option<Instant>,
    since: Option<(Instant, Option<String>, Option<u64>)>,
}

impl Steady {
    fn unmet(&mut self, seen: &Snapshot, wanted: Duration) -> Option<String> {
        self.begun.get_or_insert_with(Instant::now);
        let (leader, term) = (seen.leader().map(str::to_owned), seen.term());
        // Checks that name no leader are steady without one.
        if !seen.is_whole() {
            self.since = None;
            let sick: Vec<_> = seen.views.iter().filter(|view| !view.has_quorum()).map(|view| &*view.node).collect();
            return Some(format!("no quorum through {}", sick.join(", ")));
        }
        match &self.since {
            Some((since, known, known_term)) if *known == leader && *known_term == term => {
                let lasted = since.elapsed();
                (lasted < wanted).then(|| format!("steady for {:.2} s only", lasted.as_secs_f64()))
            }
            _ => {
                self.since = Some((Instant::now(), leader, term));
                Some("not steady yet".into())
            }
        }
    }
}

fn summary(seen: &Snapshot, steady: &Steady) -> String {
    let leader = seen.leader().map_or("nobody leads".into(), |leader| format!("{leader} leads"));
    let term = seen.term().map_or(String::new(), |term| format!(" in term {term}"));
    let since = steady
        .begun
        .zip(steady.since.as_ref())
        .map(|(begun, (since, ..))| format!(", steady {:.2} s after this step began", (*since - begun).as_secs_f64()));
    let quorum = match seen.with_quorum().as_slice() {
        [] => "no quorum through any".to_owned(),
        through => format!("quorum through {}", through.join(", ")),
    };
    format!("{quorum}; {leader}{term}{}", since.unwrap_or_default())
}
