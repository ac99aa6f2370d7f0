//! Plays a plan: one step after the other, and everything put right at the end.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::ProgressBar;

use super::condition::Seen;
use super::faults::{Fault, Faults};
use super::guard::{Guard, Undo};
use super::shell::{Shell, last_line};
use super::stop::Stop;
use super::telemetry::Known;
use super::words;
use super::world::World;
use super::{Ready, capture, telemetry, text};
use crate::cluster;
use crate::commands::apply::{self, Written};
use crate::commands::{flap, heal, out, partition, shown, together};
use crate::record::{Event, FORMAT, Outcome, Record};
use crate::scenario::file::{Action, Condition, Names, Pick, Run, Verb};
use crate::scenario::plan::LIVE;
use crate::scenario::{Plan, Planned, Step};

/// How long others may take to let go of their faults before the scenario begins.
const LETTING_GO: Duration = Duration::from_secs(10);
/// How long something that is waited for may take, unless the file says.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a scenario ended.
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    /// What went wrong, a line each.
    pub(super) failed: Vec<String>,
    /// What could not be done, where that is the reason.
    pub(super) error: Option<anyhow::Error>,
}

/// Why a step is not as it should be.
pub(super) enum Failure {
    /// Something is not as expected.
    Unmet(String),
    /// What is waited for cannot come.
    Deadlock(String),
    /// A signal.
    Interrupted,
    /// Something could not be done.
    Error(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Error(error)
    }
}

/// Plays it. The error is for what cannot even begin.
pub(super) fn play(ready: &Ready, record: &Record, pcap: bool, json: bool) -> Result<Ended> {
    let faults = Faults::default();
    let at_once = faults.clone();
    let stop = Stop::on_signals(move || drop(at_once.close()))?;
    let mut guard = Guard::start()?;
    let (world, how) = (&ready.world, &ready.scenario.telemetry);
    record.add(None, begin(ready));
    std::fs::create_dir(&world.work).with_context(|| format!("cannot make {}", world.work.display()))?;
    guard.add(Undo::Remove { directory: world.work.clone() })?;
    put_right(world, record)?;
    let mut captures = if pcap { capture::start(world, record, &mut guard)? } else { Vec::new() };
    let watches = how.on && !world.members().is_empty();
    let known = if watches { Some(Known::first(world, how, record)?) } else { None };
    let logs = Logs::mark(world);
    record.zero();
    let over = Stop::default();
    let ended = thread::scope(|scope| {
        let watching = known.map(|known| scope.spawn(|| telemetry::watch(world, how, known, record, &over)));
        let mut player = Player::new(ready, record, faults, &stop, &mut guard, json);
        let result = player.steps(&ready.plan);
        let ended = player.end(result);
        over.tell();
        let watching = watching.map(|watching| watching.join().map_err(|_| anyhow!("the telemetry panicked"))?);
        ended.or_else_error(watching.unwrap_or(Ok(())))
    });
    record.add(None, Event::Finish { outcome: ended.outcome, failed: ended.failed.clone() });
    let ends = capture::end(&mut captures, &mut guard);
    drop(guard);
    logs.copy(record);
    Ok(ended.or_else_error(ends))
}

fn begin(ready: &Ready) -> Event {
    let plan = ready.plan.steps.iter().map(|step| (step.id.clone(), text::of(&step.step))).collect();
    Event::Start {
        format: FORMAT,
        scenario: ready.name.clone(),
        about: ready.scenario.about.trim().to_owned(),
        seed: ready.plan.seed,
        nodes: ready.world.names(),
        plan,
    }
}

/// What an earlier run, or anybody else, has left on the nodes.
fn put_right(world: &World, record: &Record) -> Result<()> {
    let note = |text: String| record.add(None, Event::Note { text });
    for seat in world.seats.iter().filter(|seat| seat.ns.is_some()) {
        let place = world.place(&seat.node.name)?;
        let healed = heal::heal_place(&place, &[], Instant::now() + LETTING_GO);
        let healed = healed.with_context(|| format!("node {}", seat.node.name))?;
        for name in healed {
            note(format!("before the start: healed {name} on {}", seat.node.name));
        }
    }
    for (node, verb) in world.ailing()? {
        world.deed(&node, verb)?.carry_out()?;
        note(format!("before the start: had to {} {node}", verb.name()));
    }
    Ok(())
}

/// What the nodes' logs say from now on.
struct Logs(Vec<(String, std::path::PathBuf, u64)>);

impl Logs {
    fn mark(world: &World) -> Self {
        let log = |seat: &cluster::Seat| {
            let path = seat.node.log.clone().filter(|path| path.is_file())?;
            let len = path.metadata().ok()?.len();
            Some((seat.node.name.clone(), path, len))
        };
        Self(world.seats.iter().filter_map(log).collect())
    }

    fn copy(&self, record: &Record) {
        for (node, path, from) in &self.0 {
            let text = std::fs::read(path).unwrap_or_default();
            // One that is shorter now was begun anew.
            let from = usize::try_from(*from).ok().filter(|from| *from <= text.len()).unwrap_or(0);
            record.file(&format!("logs/{node}.log"), &text[from..]);
        }
    }
}

impl Ended {
    fn or_else_error(mut self, other: Result<()>) -> Self {
        if let Err(error) = other
            && self.error.is_none()
        {
            self.outcome = Outcome::Broken;
            self.error = Some(error);
        }
        self
    }
}

pub(super) struct Player<'a> {
    pub(super) world: &'a World,
    pub(super) record: &'a Record,
    pub(super) faults: Faults,
    pub(super) stop: &'a Stop,
    /// How long a member may take to answer.
    pub(super) patience: Duration,
    /// The number of the step that plays.
    pub(super) step: String,
    /// What the faults that are gone have met.
    pub(super) lifted: Vec<(String, Option<[u64; 2]>)>,
    guard: &'a mut Guard,
    require_hits: bool,
    seed: u64,
    json: bool,
    bar: ProgressBar,
    live: BTreeMap<String, String>,
    failed: Vec<String>,
    background: Vec<(String, Shell, Run)>,
    /// How many outputs of this step there are.
    pub(super) outputs: u32,
}

impl<'a> Player<'a> {
    fn new(
        ready: &'a Ready,
        record: &'a Record,
        faults: Faults,
        stop: &'a Stop,
        guard: &'a mut Guard,
        json: bool,
    ) -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        Self {
            world: &ready.world,
            record,
            faults,
            stop,
            patience: ready.scenario.telemetry.patience.0,
            step: String::new(),
            lifted: Vec::new(),
            guard,
            require_hits: ready.scenario.require_hits,
            seed: ready.plan.seed,
            json,
            bar,
            live: BTreeMap::new(),
            failed: Vec::new(),
            background: Vec::new(),
            outputs: 0,
        }
    }

    fn steps(&mut self, plan: &Plan) -> Result<(), Failure> {
        let start = Instant::now();
        for planned in &plan.steps {
            let late = match planned.step.at {
                Some(at) => {
                    self.bar.set_message(format!("until {}", text::time(at)));
                    self.stop.sleep_until(start + at);
                    Some(start.elapsed().saturating_sub(at).as_secs_f64() * 1e3)
                }
                None => None,
            };
            if self.stop.is_told() {
                return Err(Failure::Interrupted);
            }
            self.one(planned, late, plan.steps.len())?;
        }
        Ok(())
    }

    /// Plays one step. An expectation that is not met is kept, and the scenario goes on.
    fn one(&mut self, planned: &Planned, late_ms: Option<f64>, of: usize) -> Result<(), Failure> {
        let start = Instant::now();
        self.step.clone_from(&planned.id);
        self.outputs = 0;
        let step = planned.filled(&self.live).map_err(|error| anyhow!("{}: {error}", planned.path))?;
        let what = text::of(&step);
        self.bar.set_message(format!("step {} of {of}: {what}", planned.id));
        self.record.add(Some(&planned.id), Event::Begin { text: what.clone(), late_ms });
        let result = self.act(&step);
        self.record_lifted();
        let failed = match &result {
            Ok(()) => None,
            Err(Failure::Unmet(why) | Failure::Deadlock(why)) => Some(why.clone()),
            Err(Failure::Interrupted) => Some("interrupted".to_owned()),
            Err(Failure::Error(error)) => Some(format!("{error:#}")),
        };
        let took = start.elapsed();
        let event = Event::End { took_ms: took.as_secs_f64() * 1e3, failed: failed.clone() };
        self.record.add(Some(&planned.id), event);
        self.show(&planned.id, &what, took, failed.as_deref())?;
        if let Some(why) = failed {
            self.failed.push(format!("step {} (line {}), {what}: {why}", planned.id, planned.line));
        }
        match result {
            Err(Failure::Unmet(_)) if matches!(step.action, Action::Expect(_) | Action::Probe(_)) => Ok(()),
            other => other,
        }
    }

    fn show(&self, id: &str, what: &str, took: Duration, failed: Option<&str>) -> Result<()> {
        if self.json {
            return Ok(());
        }
        let result = failed.map_or("ok".to_owned(), |why| format!("FAILED: {why}"));
        let line = format!("{id:>5}  {what}: {result} [{}]\n", text::time(took));
        self.bar.suspend(|| out::print(&line))
    }

    fn act(&mut self, step: &Step) -> Result<(), Failure> {
        match &step.action {
            Action::Fault(words) => Ok(self.fault(words, step.name.as_deref().unwrap_or(words))?),
            Action::Heal(names) => Ok(self.heal(names)?),
            Action::Do(verb, nodes) => self.do_to_all(&self.nodes(nodes)?, *verb),
            Action::Restart(how) => self.restart(how),
            Action::Run(run) => self.run(run),
            Action::Probe(words) => self.probe(words)?.into_result(),
            Action::Sleep(sleep) => self.sleep(sleep.least),
            Action::Wait(condition) => self.meet(step, condition, condition.within.unwrap_or(PATIENCE)),
            Action::Expect(condition) => self.meet(step, condition, condition.within.unwrap_or_default()),
            Action::Pick(pick) => Ok(self.pick(pick)?),
            Action::Partition(words) => Ok(self.partition(words)?),
            Action::Flap(words) => {
                let title = step.name.clone().unwrap_or_else(|| format!("flap {words}"));
                Ok(self.flap(words, title)?)
            }
            Action::Repeat(_) | Action::OneOf(_) => Err(anyhow!("a block in a plan").into()),
        }
    }

    fn sleep(&self, time: Duration) -> Result<(), Failure> {
        if self.stop.sleep_until(Instant::now() + time) { Ok(()) } else { Err(Failure::Interrupted) }
    }

    fn meet(&mut self, step: &Step, condition: &Condition, within: Duration) -> Result<(), Failure> {
        let what = step.name.clone().unwrap_or_else(|| text::condition(condition));
        let seen = self.look_for(condition, &what, within)?;
        if self.stop.is_told() { Err(Failure::Interrupted) } else { seen.into_result() }
    }

    /// The title is for the picture.
    fn fault(&mut self, words: &str, title: &str) -> Result<()> {
        let fault = words::Fault::parse(words, self.seed)?;
        let places = fault.places(self.world)?;
        let (kind, args, then) = fault.args(self.world)?;
        let (world, record, step) = (self.world, self.record, self.step.clone());
        let notes = self.faults.put(
            &step,
            |sockets| apply::plan_all(places, kind, &args, |place| sockets.of(place)),
            |planned| apply::put(planned, args.replace),
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
    fn flap(&mut self, words: &str, text: String) -> Result<()> {
        let flap = words::Flap::parse(words, self.seed)?;
        let (kind, rhythm, fault) = flap.meaning(self.world)?;
        let planned = flap::plan_all(flap.places(self.world)?, kind, &fault)?;
        let Some((first, _)) = planned.first() else { return Ok(()) };
        let name = first.fault.name.to_string();
        let (mut nodes, mut rules) = (Vec::new(), Vec::new());
        for (plan, _) in &planned {
            nodes.extend(self.world.owners(&plan.fault.peers));
            let file = rules_file(&self.step, &name, &plan.place.label);
            rules.push(self.record.file(&file, plan.rules.to_string().as_bytes()));
        }
        nodes.dedup();
        let faults = planned.iter().map(|(plan, _)| shown::document(&plan.place.label, &plan.fault)).collect();
        self.record.add(Some(&self.step), Event::Fault { name: name.clone(), text, nodes, rules, faults });
        let (record, step) = (self.record.clone(), self.step.clone());
        self.faults.flap(&self.step, planned, rhythm, move |beat| {
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            let (planned_ms, done_ms, down) = (ms(beat.edge.at), ms(beat.done), beat.edge.down);
            record.add(Some(&step), Event::Edge { name: name.clone(), down, planned_ms, done_ms });
        })
    }

    fn partition(&mut self, words: &str) -> Result<()> {
        let cut = words::Cut::parse(words, self.seed)?;
        let partition = partition::partition(&cut.args, &self.world.seats)?;
        let (world, record, step) = (self.world, self.record, &self.step);
        let (seats, name) = (world.reopened()?, cut.args.name.as_ref());
        let mut spread = Duration::ZERO;
        self.faults.put(
            step,
            |sockets| partition::plan(seats, &partition, name, cut.lifetime(), |place| sockets.of(place)),
            |planned| {
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

    fn heal(&mut self, names: &Names) -> Result<()> {
        for name in names.0.iter().filter(|name| !names.is_all() && !self.faults.has(name)) {
            self.note(&format!("no fault is called {name} now"));
        }
        self.faults.lift((!names.is_all()).then_some(&names.0))
    }

    /// What was lifted, by a step or by a signal, and what it met.
    fn record_lifted(&mut self) {
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

    /// At the same time, so that a quorum goes or comes back as a whole; every one is tried.
    fn do_to_all(&mut self, nodes: &[String], verb: Verb) -> Result<(), Failure> {
        let mut added = Vec::new();
        for node in nodes {
            let undo = verb.undone_by().map(|undo| self.world.deed(node, undo)).transpose()?;
            added.push(undo.map(|undo| self.guard.add(undo)).transpose()?);
        }
        let deeds = nodes.iter().map(|node| self.world.deed(node, verb)).collect::<Result<Vec<_>>>()?;
        let done: Vec<_> = thread::scope(|scope| {
            let doing: Vec<_> = deeds.iter().map(|deed| scope.spawn(|| deed.carry_out())).collect();
            doing.into_iter().map(|d| d.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))).collect()
        });
        let mut failed = Ok(());
        for (((node, deed), added), done) in nodes.iter().zip(&deeds).zip(added).zip(done) {
            match done {
                Ok(pid) => {
                    self.guard.undone(deed)?;
                    let (node, did) = (node.clone(), verb.name().to_owned());
                    self.record.add(Some(&self.step), Event::Node { node, did, pid });
                }
                Err(error) => {
                    added.map_or(Ok(()), |id| self.guard.done(id))?;
                    failed = Err(error.context(format!("cannot {} {node}", verb.name())).into());
                }
            }
        }
        failed
    }

    pub(super) fn do_to(&mut self, node: &str, verb: Verb) -> Result<(), Failure> {
        self.do_to_all(&[node.to_owned()], verb)
    }

    fn run(&mut self, run: &Run) -> Result<(), Failure> {
        let name = self.output_name();
        let mut shell = Shell::start(self.world, self.record, &run.command, run.node.as_deref(), &name)?;
        if run.background {
            self.guard.add(Undo::End { group: shell.group() })?;
            self.background.push((self.step.clone(), shell, run.clone()));
            return Ok(());
        }
        let code = self.wait_for(&mut shell, run.within.0)?;
        self.record.add(Some(&self.step), shell.event());
        judge(run, code, &shell.output()).map_err(Failure::Unmet)
    }

    /// Waits for the end of a command. `None`: it was killed.
    pub(super) fn wait_for(&mut self, shell: &mut Shell, within: Duration) -> Result<Option<u8>> {
        let id = self.guard.add(Undo::End { group: shell.group() })?;
        let code = shell.wait(self.stop, within);
        self.guard.done(id)?;
        code
    }

    fn pick(&mut self, pick: &Pick) -> Result<()> {
        let value = match (&pick.command, pick.of.0.as_slice()) {
            (Some(command), _) => self.printed(command, pick.node.as_deref())?,
            (None, [drawn]) => self.node(drawn)?,
            (None, _) => bail!("nothing was drawn"),
        };
        self.live.insert(pick.name.clone(), value.clone());
        self.record.add(Some(&self.step), Event::Picked { name: pick.name.clone(), value });
        Ok(())
    }

    fn printed(&mut self, command: &str, node: Option<&str>) -> Result<String> {
        let name = self.output_name();
        let mut shell = Shell::start(self.world, self.record, command, node, &name)?;
        let code = self.wait_for(&mut shell, PATIENCE)?;
        self.record.add(Some(&self.step), shell.event());
        let said = last_line(&shell.output());
        if code != Some(0) || said.is_empty() {
            bail!("the command gives no name; it said: {said:?}");
        }
        Ok(said)
    }

    /// The nodes that are meant, the live ones asked for.
    pub(super) fn nodes(&self, names: &Names) -> Result<Vec<String>> {
        self.world.meant(names).iter().map(|name| self.node(name)).collect()
    }

    fn node(&self, name: &str) -> Result<String> {
        if !LIVE.contains(&name) {
            return Ok(name.to_owned());
        }
        self.world.live(name, &cluster::look(&self.world.seats, &[], self.patience)?)
    }

    pub(super) fn note(&self, text: &str) {
        self.record.add(Some(&self.step), Event::Note { text: text.to_owned() });
        self.bar.suspend(|| out::note(text));
    }

    /// The file of the record for the next output of this step.
    pub(super) fn output_name(&mut self) -> String {
        self.outputs += 1;
        match self.outputs {
            1 => format!("output/{}.txt", self.step),
            more => format!("output/{}-{more}.txt", self.step),
        }
    }

    /// Heals, and puts everything right again, whatever came before.
    fn end(mut self, result: Result<(), Failure>) -> Ended {
        let mut errors = Vec::new();
        errors.extend(self.faults.close().err());
        self.record_lifted();
        let background = std::mem::take(&mut self.background);
        for (step, shell, run) in background {
            self.step = step;
            errors.extend(self.end_in_background(shell, &run).err());
        }
        errors.extend(self.undo().err());
        self.bar.finish_and_clear();
        let (outcome, error) = match result {
            Err(Failure::Interrupted) => {
                (Outcome::Interrupted, Some(anyhow!("interrupted by a signal; all is healed")))
            }
            Err(Failure::Error(error)) => (Outcome::Broken, Some(error)),
            Ok(()) | Err(Failure::Unmet(_) | Failure::Deadlock(_)) if self.failed.is_empty() => (Outcome::Passed, None),
            Ok(()) | Err(Failure::Unmet(_) | Failure::Deadlock(_)) => (Outcome::Unmet, None),
        };
        let ended = Ended { outcome, failed: self.failed, error };
        errors.into_iter().fold(ended, |ended, error| ended.or_else_error(Err(error)))
    }

    /// One that has ended by itself must have ended well.
    fn end_in_background(&mut self, mut shell: Shell, run: &Run) -> Result<()> {
        let ended = shell.ended()?;
        shell.end()?;
        self.guard.undone(&Undo::End { group: shell.group() })?;
        self.record.add(Some(&self.step), shell.event());
        let says = || run.output.as_ref().is_none_or(|wanted| shell.output().contains(wanted));
        let judged = match ended {
            Some(code) => judge(run, Some(code), &shell.output()),
            None if says() => Ok(()),
            None => judge(&Run { any_exit: true, ..run.clone() }, Some(0), &shell.output()),
        };
        if let Err(why) = judged {
            self.failed.push(format!("step {}, {}: {why}", self.step, run.command.trim()));
        }
        Ok(())
    }

    fn undo(&mut self) -> Result<()> {
        for (id, undo) in self.guard.left() {
            // Captures go on until the very end.
            if matches!(undo, Undo::End { .. }) {
                continue;
            }
            let undone = undo.carry_out();
            self.guard.done(id)?;
            match (undone, &undo) {
                (Ok(pid), Undo::Lab { node, verb }) => {
                    let node = node.rsplit('/').next().unwrap_or(node).to_owned();
                    self.record.add(None, Event::Node { node, did: verb.clone(), pid });
                }
                // What fails on a lab's node may be right already; whether it is, is looked at below.
                (Ok(_), _) | (Err(_), Undo::Lab { .. }) => {}
                (Err(error), _) => return Err(error.context("cannot put right what the scenario did")),
            }
        }
        let still = self.world.ailing()?.into_iter().map(|(node, verb)| format!("{} {node}", verb.name()));
        let still: Vec<_> = still.collect();
        if still.is_empty() { Ok(()) } else { Err(anyhow!("cannot put right all: still to do: {}", still.join(", "))) }
    }
}

impl Seen {
    fn into_result(self) -> Result<(), Failure> {
        if self.so { Ok(()) } else { Err(Failure::Unmet(self.what)) }
    }
}

fn in_force(world: &World, record: &Record, title: &str, fault: &Fault) -> Event {
    let mut nodes = Vec::new();
    let mut rules = Vec::new();
    for one in &fault.written {
        let (place, planned) = (&one.planned.place.label, &one.planned.fault);
        let owners = world.owners(&planned.peers);
        nodes.extend(if owners.is_empty() { vec![place.clone()] } else { owners });
        rules.push(rules_of(record, fault, one));
    }
    nodes.sort();
    nodes.dedup();
    let faults = fault.written.iter().map(apply::document).collect();
    Event::Fault { name: fault.name.clone(), text: title.to_owned(), nodes, rules, faults }
}

/// What a partition is to one node: those that it no longer hears.
fn deaf(world: &World, record: &Record, fault: &Fault, one: &Written) -> Event {
    let mut unheard: Vec<_> = one.planned.fault.peers.iter().filter_map(|peer| peer.label.clone()).collect();
    unheard.sort();
    unheard.dedup();
    let rules = vec![rules_of(record, fault, one)];
    let text = format!("hears nothing of {}", unheard.join(", "));
    let place = &one.planned.place;
    let nodes = vec![world.node_at(&place.ns).unwrap_or(&place.label).to_owned()];
    Event::Fault { name: fault.name.clone(), text, nodes, rules, faults: vec![apply::document(one)] }
}

fn rules_file(step: &str, name: &str, place: &str) -> String {
    format!("rules/{step}.{name}.{}.nft", place.replace(['/', ' '], "-"))
}

fn rules_of(record: &Record, fault: &Fault, one: &Written) -> String {
    let file = rules_file(&fault.step, &fault.name, &one.planned.place.label);
    record.file(&file, one.planned.rules.to_string().as_bytes())
}

/// Whether a command did what it had to.
fn judge(run: &Run, code: Option<u8>, output: &str) -> Result<(), String> {
    let Some(code) = code else {
        return Err(format!("not ended after {:?}; it said: {}", run.within.0, last_line(output)));
    };
    if code != run.exit && !run.any_exit {
        return Err(format!("exit code {code} instead of {}; it said: {}", run.exit, last_line(output)));
    }
    match &run.output {
        Some(wanted) if !output.contains(wanted) => {
            Err(format!("its output has no {wanted:?}; it said: {}", last_line(output)))
        }
        _ => Ok(()),
    }
}
