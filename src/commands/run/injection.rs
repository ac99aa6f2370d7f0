//! Steps that put faults in force and take them away.

use std::time::Duration;

use anyhow::Result;

use super::faults::Fault;
use super::player::Player;
use super::words::{self, Elsewhere};
use super::world::World;
use crate::commands::apply;
use crate::commands::hosts::{self, Standing};
use crate::commands::plan::Planned;
use crate::commands::written::Written;
use crate::commands::{flap, lockout, partition, shown, together};
use crate::record::{Event, Record};
use crate::scenario::file::Names;

impl Player<'_> {
    /// The title is for the picture.
    pub(super) fn fault(&mut self, words: &str, title: &str) -> Result<()> {
        let fault = words::Fault::parse(words, self.seed)?;
        if let Some(Elsewhere { nodes, part, lease }) = fault.elsewhere(self.world)? {
            let ready = hosts::rehearse(&nodes, &part)?;
            let name = ready.first().map(|one| one.name().to_owned()).unwrap_or_default();
            return self.stand(name, ready, lease, |_| title.to_owned(), false).map(drop);
        }
        let places = fault.places(self.world)?;
        let (kind, args, then) = fault.args(self.world)?;
        let (world, record, step) = (self.world, self.record, self.step.clone());
        let notes = self.faults.put(
            record,
            &step,
            |sockets| apply::plan_all(places, kind, &args, |place| sockets.of(place)),
            |planned| apply::put(planned, args.aim.replace),
            |fault| {
                record.add(Some(&step), in_force(world, record, title, fault));
                fault.written.iter().flat_map(Written::notes).collect::<Vec<_>>()
            },
        )?;
        for note in notes {
            self.note(&note);
        }
        then.map_or(Ok(()), apply::run_then)
    }

    /// It comes and goes until it is healed or its time is over, while the scenario goes on.
    pub(super) fn flap(&mut self, words: &str, text: String) -> Result<()> {
        let flap = words::Flap::parse(words, self.seed)?;
        let (kind, rhythm, fault) = flap.meaning(self.world)?;
        let planned = flap::plan_all(flap.places(self.world)?, kind, &fault)?;
        let Some((first, _)) = planned.first() else { return Ok(()) };
        let name = first.fault.name.to_string();
        // Before its rules have been changed to those of a gate that is shut.
        let plans = planned.iter().map(|(plan, _)| plan);
        let nodes = broken(self.world, plans.clone());
        let rules = plans.map(|plan| rules_of(self.record, &self.step, plan)).collect();
        let faults = planned.iter().map(|(plan, _)| shown::document(&plan.place.label, &plan.fault)).collect();
        let made = Event::Fault { name: name.clone(), text, nodes, rules, faults };
        let (record, step) = (self.record.clone(), self.step.clone());
        let told = move |beat: Option<flap::Beat>| {
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            let event = match beat {
                Some(beat) => {
                    let (planned_ms, done_ms, down) = (ms(beat.edge.at), ms(beat.done), beat.edge.down);
                    Event::Edge { name: name.clone(), down, planned_ms, done_ms }
                }
                None => Event::Over { name: name.clone() },
            };
            record.add(Some(&step), event);
        };
        let made = || self.record.add(Some(&self.step), made);
        self.faults.flap(&self.step, rhythm, || flap::prepare(planned, fault.aim.replace), made, told)
    }

    pub(super) fn partition(&mut self, words: &str) -> Result<()> {
        let cut = words::Cut::parse(words, self.seed)?;
        let partition = partition::partition(&cut.args, &self.world.seats)?;
        if self.world.is_elsewhere() {
            let lease = hosts::lease(cut.lifetime())?;
            let (ready, name) = hosts::rehearse_cut(&cut.args, &partition, &self.world.nodes(), lease)?;
            let unheard = |one: &hosts::Ready| format!("hears nothing of {}", one.peers().join(", "));
            let accuracy = self.stand(name, ready, lease, unheard, true)?;
            let text = format!("partition {}, {accuracy}", partition.shown_groups());
            self.record.add(Some(&self.step), Event::Note { text });
            return Ok(());
        }
        let (world, record, step) = (self.world, self.record, &self.step);
        let (seats, name) = (world.reopened()?, cut.args.name.as_ref());
        let mut spread = Duration::ZERO;
        self.faults.put(
            record,
            step,
            |sockets| partition::plan(seats, &partition, name, cut.lifetime(), |place| sockets.of(place)),
            |planned| {
                lockout::check_all(&planned, cut.args.allow_lockout)?;
                let done = together::write(planned, cut.args.replace)?;
                spread = done.spread;
                Ok(done.written)
            },
            |fault| {
                let one = |one: &Written| record.add(Some(step), deaf(world, record, fault, one));
                fault.written.iter().for_each(one);
            },
        )?;
        let (groups, spread) = (partition.shown_groups(), spread.as_secs_f64() * 1e3);
        record.add(Some(step), Event::Note { text: format!("partition {groups}, all within {spread:.2} ms") });
        Ok(())
    }

    /// Puts what other hosts have compiled in force, and tells the record; it is the node itself that seems broken, or
    /// else its peers. Gives how exact the instant was.
    fn stand(
        &mut self,
        name: String,
        mut ready: Vec<hosts::Ready>,
        lease: Duration,
        text: impl Fn(&hosts::Ready) -> String,
        own: bool,
    ) -> Result<String> {
        let (record, step) = (self.record, self.step.clone());
        let (mut accuracy, mut notes) = (String::new(), Vec::new());
        self.faults.stand(|is_interrupted| {
            let done = hosts::commit(&mut ready, lease, is_interrupted)?;
            for one in ready.iter().filter(|one| one.has_rules()) {
                let rules = vec![record.file(&rules_file(&step, &name, one.node()), one.rules.as_bytes())];
                let broken = if own { vec![one.node().to_owned()] } else { one.peers() };
                let mut document = one.document.clone();
                document["lease_ms"] = u64::try_from(lease.as_millis()).ok().into();
                let (text, faults) = (text(one), vec![document]);
                let event = Event::Fault { name: name.clone(), text, nodes: broken, rules, faults };
                record.add(Some(&step), event);
            }
            (accuracy, notes) = (done.accuracy(), done.notes());
            Ok(Standing::new(name, &step, ready, &done))
        })?;
        for note in notes {
            self.note(&note);
        }
        Ok(accuracy)
    }

    pub(super) fn heal(&mut self, names: &Names) -> Result<()> {
        for name in names.0.iter().filter(|name| !names.is_all() && !self.faults.has(name)) {
            self.note(&format!("no fault is called {name} now"));
        }
        self.faults.lift((!names.is_all()).then_some(&names.0))
    }

    /// What was lifted, by a step or by a signal, and what it met.
    pub(super) fn record_lifted(&mut self) {
        for fault in self.faults.record(self.record, Some(&self.step)) {
            let text = match fault.packets {
                Some([0, 0]) => format!("{} met no packet", fault.name),
                None => format!("{} was taken away by somebody else: what it met is not known", fault.name),
                Some(_) => String::new(),
            };
            if !text.is_empty() {
                self.note(&text);
                if self.require_hits {
                    self.failed.push(format!("step {}: {text}", fault.step));
                }
            }
            self.lifted.push((fault.name, fault.packets));
        }
    }
}

fn in_force(world: &World, record: &Record, title: &str, fault: &Fault) -> Event {
    let plans = fault.written.iter().map(|one| &one.planned);
    let nodes = broken(world, plans.clone());
    let rules = plans.map(|plan| rules_of(record, &fault.step, plan)).collect();
    let faults = fault.written.iter().map(Written::document).collect();
    Event::Fault { name: fault.name.clone(), text: title.to_owned(), nodes, rules, faults }
}

/// The nodes that seem broken, or else the places where the rules are.
fn broken<'a>(world: &World, plans: impl Iterator<Item = &'a Planned>) -> Vec<String> {
    let of_one = |plan: &Planned| {
        let owners = world.owners(&plan.fault.peers);
        if owners.is_empty() { vec![plan.place.label.clone()] } else { owners }
    };
    let mut nodes: Vec<_> = plans.flat_map(of_one).collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

/// What a partition is to one node: those that it no longer hears.
fn deaf(world: &World, record: &Record, fault: &Fault, one: &Written) -> Event {
    let mut unheard: Vec<_> = one.planned.fault.peers.iter().filter_map(|peer| peer.label.clone()).collect();
    unheard.sort();
    unheard.dedup();
    let rules = vec![rules_of(record, &fault.step, &one.planned)];
    let text = format!("hears nothing of {}", unheard.join(", "));
    let place = &one.planned.place;
    let nodes = vec![world.node_at(&place.ns).unwrap_or(&place.label).to_owned()];
    Event::Fault { name: fault.name.clone(), text, nodes, rules, faults: vec![one.document()] }
}

fn rules_file(step: &str, name: &str, place: &str) -> String {
    format!("rules/{step}.{name}.{}.nft", place.replace(['/', ' '], "-"))
}

fn rules_of(record: &Record, step: &str, plan: &Planned) -> String {
    let file = rules_file(step, &plan.fault.name.to_string(), &plan.place.label);
    record.file(&file, plan.rules.to_string().as_bytes())
}
