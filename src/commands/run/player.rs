//! Plays a plan: one step after the other, and everything put right at the end.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use indicatif::ProgressBar;

use super::condition::Seen;
use super::deeds::put_right;
use super::faults::Faults;
use super::guard::Guard;
use super::logs::Logs;
use super::shell::Shell;
use super::stop::Stop;
use super::telemetry::Known;
use super::undo::Undo;
use super::world::World;
use super::{Ready, capture, telemetry, text};
use crate::cluster::Snapshot;
use crate::commands::out;
use crate::kernel::thread::start_in;
use crate::record::{Event, FORMAT, Outcome, Record, plain};
use crate::scenario::file::{Action, Condition, Names, Run};
use crate::scenario::plan::LIVE;
use crate::scenario::{Plan, Planned, Step};

/// How long something that is waited for may take, unless the file says.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

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
    make_work(world, &mut guard)?;
    put_right(world, record)?;
    let mut captures = if pcap { capture::start(world, record, &mut guard)? } else { Vec::new() };
    let watches = how.on && !world.members().is_empty();
    let known = if watches { Some(Known::first(world, how, record, &stop)?) } else { None };
    let logs = Logs::mark(world);
    record.zero();
    let over = Stop::default();
    let ended = thread::scope(|scope| -> Result<Ended> {
        let watch = |known| start_in(scope, || telemetry::watch(world, how, known, record, [&over, &stop]));
        let watching = known.map(watch).transpose()?;
        let mut player = Player::new(ready, record, faults, &stop, &mut guard, json);
        let result = player.steps(&ready.plan);
        let ended = player.end(result);
        over.tell();
        let watching = watching.map(|watching| watching.join().map_err(|_| anyhow!("the telemetry panicked"))?);
        Ok(ended.or_else_error(watching.unwrap_or(Ok(()))))
    })?;
    record.add(None, Event::Finish { outcome: ended.outcome, failed: ended.failed.clone() });
    let ends = capture::end(&mut captures, &mut guard);
    drop(guard);
    logs.copy(record);
    Ok(ended.or_else_error(ends))
}

/// One that is there already is somebody else's.
fn make_work(world: &World, guard: &mut Guard) -> Result<()> {
    let made = guard.add(Undo::Remove { directory: world.work.clone() })?;
    if let Err(error) = world.make_work() {
        guard.done(made)?;
        return Err(error).with_context(|| format!("cannot make {}", world.work.display()));
    }
    Ok(())
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
    pub(super) guard: &'a mut Guard,
    pub(super) require_hits: bool,
    pub(super) seed: u64,
    json: bool,
    bar: ProgressBar,
    pub(super) live: BTreeMap<String, String>,
    pub(super) failed: Vec<String>,
    pub(super) background: Vec<(String, Shell, Run)>,
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
        self.bar.set_message(plain(&format!("step {} of {of}: {what}", planned.id)));
        self.record.add(Some(&planned.id), Event::Begin { text: what.clone(), late_ms });
        let result = self.act(&step);
        // Whatever it saw, it saw of what was healed at the signal.
        let result = if self.stop.is_told() { Err(Failure::Interrupted) } else { result };
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
            Err(Failure::Unmet(_)) if is_expectation(&step.action) => Ok(()),
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

    /// The nodes that are meant, the live ones asked for.
    pub(super) fn nodes(&self, names: &Names) -> Result<Vec<String>> {
        self.world.meant(names).iter().map(|name| self.node(name)).collect()
    }

    pub(super) fn node(&self, name: &str) -> Result<String> {
        if !LIVE.contains(&name) {
            return Ok(name.to_owned());
        }
        self.world.live(name, &self.look(&[])?)
    }

    /// What the members answer, each in its own place, and from these nodes.
    pub(super) fn look(&self, from: &[String]) -> Result<Snapshot> {
        self.world.look(from, self.patience, self.stop)?.context("interrupted")
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
        let left: Vec<_> = errors.iter().map(|error| format!("{error:#}")).collect();
        let (outcome, error) = match result {
            Err(Failure::Interrupted) => {
                let then = if left.is_empty() { "all is healed".to_owned() } else { left.join("; ") };
                (Outcome::Interrupted, Some(anyhow!("interrupted by a signal; {then}")))
            }
            Err(Failure::Error(error)) => {
                // Beside the reason, which is told last.
                for left in &left {
                    out::error(left);
                }
                (Outcome::Broken, Some(error))
            }
            Ok(()) | Err(Failure::Unmet(_) | Failure::Deadlock(_)) if self.failed.is_empty() => (Outcome::Passed, None),
            Ok(()) | Err(Failure::Unmet(_) | Failure::Deadlock(_)) => (Outcome::Unmet, None),
        };
        self.failed.extend(left);
        let ended = Ended { outcome, failed: self.failed, error };
        errors.into_iter().fold(ended, |ended, error| ended.or_else_error(Err(error)))
    }
}

/// Whether a step says how something must be, and does nothing that later steps build upon.
fn is_expectation(action: &Action) -> bool {
    matches!(action, Action::Expect(_) | Action::Probe(_)) || matches!(action, Action::Restart(how) if how.deadlock)
}

impl Seen {
    fn into_result(self) -> Result<(), Failure> {
        if self.so { Ok(()) } else { Err(Failure::Unmet(self.what)) }
    }
}
