//! `playdead flap`: a fault that comes and goes.
//!
//! Its tables are there all the time, and owned by this process, so that they end with it. What comes and goes is the
//! gate of a lease: filled, the fault is in force, and empty it is not. That is the smallest transaction there is;
//! no chain is hooked or unhooked at an edge. Should this process be stopped while the fault is in force, the kernel
//! lets the lease run out a second after the fault should have gone.

mod record;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::{ArgGroup, Args};
use serde_json::json;

use super::cli::{AimArgs, DeathArgs, ErrorArgs, FaultArgs, HangArgs, LifetimeArgs, LossArgs, PlaceArgs, duration};
use super::inforce::{read, readable};
use super::place::{self, Place};
use super::plan::{Planned, Plans, check_usage, plan};
use super::written::Written;
use super::{Usage, apply, closing, hold, nodes, out, random_seed, shown, together};
use crate::encode::{Builder, Finalized};
use crate::kernel::nft::Nft;
use crate::kernel::thread::{start, start_in};
use crate::kernel::timer::{self, Timer};
use crate::model::{Edge, Kind, Rhythm, verb};
use crate::rules::{GATE_SET, Table as RuleTable};
pub(super) use record::{Beat, Record};
use record::{SHOWN, ms, name_of};

/// How much longer than planned a fault may last when this process does not end it.
const MARGIN: Duration = Duration::from_secs(1);
/// From the last preparation to the first edge, so that the first is not late already.
const LEAD: Duration = Duration::from_millis(10);

/// `flap`
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("drawn").args(["jitter", "per_connection"]).multiple(true))]
pub struct FlapArgs {
    /// What comes and goes.
    #[arg(value_name = "KIND", value_parser = verb::ALL, requires_if(verb::LOSSY, "percent"))]
    pub kind: String,
    /// Whom it is about.
    #[command(flatten)]
    pub aim: AimArgs,
    /// How long it is healthy each time.
    #[arg(long, value_name = "D", value_parser = duration)]
    pub up: Duration,
    /// How long the fault is in force each time.
    #[arg(long, value_name = "D", value_parser = duration)]
    pub down: Duration,
    /// By how many percent these times vary (0 to 90).
    #[arg(long, value_name = "P", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=90))]
    pub jitter: u8,
    /// The same seed varies them, and chooses lossy's connections, in the same way [default: random, and printed].
    #[arg(long, value_name = "N", requires = "drawn")]
    pub seed: Option<u64>,
    /// How often the fault comes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub cycles: Option<u64>,
    /// When it is over.
    #[arg(long = "for", value_name = "D", value_parser = duration)]
    pub total: Option<Duration>,
    /// Of dead-process.
    #[command(flatten)]
    pub death: DeathArgs,
    /// Of hung-process.
    #[command(flatten)]
    pub hang: HangArgs,
    /// Of unreachable.
    #[command(flatten)]
    pub error: ErrorArgs,
    /// Of lossy.
    #[command(flatten)]
    pub loss: Option<LossArgs>,
}

impl FlapArgs {
    /// The kind, the rhythm, and the fault that comes and goes.
    pub(super) fn meaning(&self) -> Result<(Kind, Rhythm, FaultArgs)> {
        let rhythm = self.rhythm();
        let kind = self.kind(rhythm.seed)?;
        check_usage(&self.aim, kind)?;
        // Under a lease that outlasts each time.
        let lifetime = LifetimeArgs { lease: Some(rhythm.longest_down() + MARGIN), hold: false };
        let fault = FaultArgs { aim: self.aim.clone(), lifetime };
        Ok((kind, rhythm, fault))
    }

    /// What one kind takes means nothing to another.
    fn check_options(&self) -> Result<()> {
        let given = [
            (self.death.open_connections.is_some(), "--open-connections", verb::DEAD_PROCESS),
            (self.hang.backlog.is_some(), "--backlog", verb::HUNG_PROCESS),
            (self.error.code.is_some(), "--code", verb::UNREACHABLE),
            (self.loss.is_some(), "--percent", verb::LOSSY),
        ];
        match given.iter().find(|(is_given, _, kind)| *is_given && *kind != self.kind) {
            Some((_, option, kind)) => Err(Usage(format!("{option} is of {kind}, not of {}", self.kind)).into()),
            None => Ok(()),
        }
    }

    fn kind(&self, seed: u64) -> Result<Kind> {
        self.check_options()?;
        Ok(match self.kind.as_str() {
            verb::DEAD_HOST => Kind::DeadHost,
            verb::DEAD_PROCESS => self.death.kind(),
            verb::HUSH => Kind::Hush,
            verb::HUNG_PROCESS => Kind::HungProcess(self.hang.backlog),
            verb::UNREACHABLE => self.error.kind(),
            verb::LOSSY => self.loss.as_ref().context("lossy needs --percent")?.kind(seed),
            _ => Kind::Rebooted,
        })
    }

    fn rhythm(&self) -> Rhythm {
        let seed = self.seed.unwrap_or_else(|| random_seed().into());
        let Self { up, down, jitter, cycles, total, .. } = *self;
        Rhythm { up, down, jitter, seed, cycles, total }
    }
}

pub(super) fn run(args: &PlaceArgs, typed: &FlapArgs, json: bool) -> Result<ExitCode> {
    let (kind, rhythm, mut fault) = typed.meaning()?;
    fault.aim.peers = nodes::peers_of_file(args, &fault.aim.peers)?;
    let command = hold::Command::new(&typed.aim.under)?;
    let planned = plan_all(place::resolve(args)?, kind, &fault)?;
    if typed.jitter > 0 && typed.seed.is_none() {
        let seed = rhythm.seed;
        out::note(&format!("seed {seed}: --seed {seed} varies the times in the same way"));
    }
    if typed.aim.dry_run {
        return dry_run(&rhythm, &planned, json);
    }
    let signals = hold::Signals::catch()?;
    let flapping = prepare(planned, typed.aim.replace)?;
    announce(&rhythm, &flapping, json)?;
    let (timer, stop) = Timer::new()?;
    let closer = command.is_none().then(|| signals.closer());
    let beating = start(move || {
        let record = beat(&rhythm, &flapping, &timer, &|_| {});
        // With their sockets the tables go.
        drop(flapping);
        // Without a command nothing else would end the wait for a signal.
        closer.inspect(signal_hook::iterator::Handle::close);
        record
    })?;
    let (send, receive) = mpsc::channel();
    let let_go = move || {
        drop(stop);
        let _ = send.send(beating.join());
    };
    let code = match command {
        Some(command) => command.run(signals, let_go)?,
        None => signals.wait(let_go),
    };
    // A command that could not be started has said so.
    let Ok(record) = receive.recv() else { return Ok(code) };
    record.map_err(|_| anyhow!("the thread of the edges panicked"))??.report(&rhythm, json)?;
    Ok(code)
}

/// What is to be written in each place. Without privilege, for a dry run, the kernel is not asked what it can do.
pub(super) fn plan_all(places: Vec<Place>, kind: Kind, fault: &FaultArgs) -> Result<Plans> {
    let mut planned = Vec::new();
    for place in places {
        let nft = apply::socket(&place)?;
        let asked = if fault.aim.dry_run { readable(&nft) } else { Some(&*nft) };
        let mut plan = plan(place, kind, fault, asked)?;
        if fault.aim.name.is_none() {
            rename(&mut plan)?;
        }
        planned.push((plan, nft));
    }
    Ok(planned)
}

/// A name of its own: the same fault may be in force without coming and going.
fn rename(plan: &mut Planned) -> Result<()> {
    let table = plan.fault.name.table();
    plan.fault.name = format!("flap-{}", plan.fault.name).parse().map_err(Usage)?;
    for rules in plan.rules.tables.iter_mut().filter(|rules| rules.name == table) {
        rules.name = plan.fault.name.table();
    }
    Ok(())
}

/// A place in which the fault comes and goes.
pub(super) struct Flapping {
    pub(super) written: Written,
    down: Finalized,
    up: Finalized,
}

/// Writes the tables with their gates shut, and makes the transactions of both edges.
pub(super) fn prepare(mut planned: Plans, replace: bool) -> Result<Vec<Flapping>> {
    let mut edges = Vec::new();
    for (plan, _) in &mut planned {
        edges.push(batches(plan));
        for table in &mut plan.rules.tables {
            table.owner = true;
            table.sets.iter_mut().filter(|set| set.name == GATE_SET).for_each(|gate| gate.elements = [].into());
        }
    }
    let written = together::write(planned, replace)?.written;
    // The order is the same: a plan that has rules is never left out.
    ensure!(written.len() == edges.len(), "a place was left out");
    let flapping = |(written, (down, up))| Flapping { written, down, up };
    Ok(written.into_iter().zip(edges).map(flapping).collect())
}

/// What is counted from the moment of the failure starts anew each time: the gate, how long the acknowledgments of a
/// dead process's connections are taken in, and which connections are younger than a reboot.
fn batches(plan: &Planned) -> (Finalized, Finalized) {
    let [mut down, mut up] = [(); 2].map(|()| Builder::new(plan.vantage.loopback));
    let timed = |table: &RuleTable| table.sets.iter().filter(|set| set.timeout).cloned().collect::<Vec<_>>();
    for table in &plan.rules.tables {
        for set in timed(table) {
            down.renew(table.family, &table.name, &set);
        }
        up.empty(table.family, &table.name, GATE_SET);
    }
    (down.finalize(), up.finalize())
}

/// Every edge at its time, until the last or until stopped; each is told once it is done.
pub(super) fn beat(
    rhythm: &Rhythm,
    flapping: &[Flapping],
    timer: &Timer,
    told: &(dyn Fn(Beat) + Sync),
) -> Result<Record> {
    let start = timer::now()? + LEAD;
    let since = || timer::now().map(|now| now.saturating_sub(start));
    let fault = &flapping.first().context("no place")?.written.planned.fault;
    let (name, shown) = (fault.name.clone(), format!("{} {}", fault.kind.verb(), shown::peers(&fault.peers)));
    let (beats, hits, notes, closed) = (Vec::new(), Vec::new(), Vec::new(), closing::Closed::default());
    let mut record = Record { name, shown, start, beats, is_whole: true, closed, hits, notes };
    let (send, closing) = mpsc::channel();
    thread::scope(|scope| -> Result<()> {
        for edge in rhythm.edges() {
            if !timer.wait_until(start + edge.at)? {
                // Now, and not only with the tables: connections that are being closed may be waited for until then.
                record.is_whole = false;
                up(flapping)?;
                break;
            }
            let woke = since()?;
            for one in flapping {
                let batch = if edge.down { &one.down } else { &one.up };
                let Written { planned, nft, .. } = &one.written;
                nft.commit(batch).with_context(|| format!("place {}", planned.place.label))?;
            }
            let beat = Beat { edge, woke, done: since()? };
            record.beats.push(beat);
            told(beat);
            if edge.down && matches!(fault.kind, Kind::DeadProcess(_)) {
                for one in flapping {
                    let (planned, send) = (&one.written.planned, send.clone());
                    // Beside the edges: on a slow path it takes a round trip. Kept to be joined, it would keep its stack.
                    let close = move || send.send(closing::close(&planned.place.ns, &planned.fault));
                    let begun = start_in(scope, close).context("connections were left open");
                    record.notes.extend(begun.err().map(|error| format!("{error:#}")));
                }
            }
        }
        Ok(())
    })?;
    drop(send);
    for closed in closing {
        match closed {
            Ok(closed) => record.closed.add(&closed),
            Err(error) => record.notes.push(format!("{error:#}")),
        }
    }
    for Flapping { written: Written { planned, nft, .. }, .. } in flapping {
        let faults = read(nft)?.into_iter().filter(|fault| fault.name == record.name);
        record.hits.extend(faults.map(|fault| (planned.place.label.clone(), fault.to, fault.from)));
    }
    record.notes.extend(record.closed.warnings());
    Ok(record)
}

/// No fault is in force any more.
fn up(flapping: &[Flapping]) -> Result<()> {
    flapping.iter().try_for_each(|one| {
        let Written { planned, nft, .. } = &one.written;
        nft.commit(&one.up).with_context(|| format!("place {}", planned.place.label))
    })
}

fn announce(rhythm: &Rhythm, flapping: &[Flapping], json: bool) -> Result<()> {
    for Flapping { written: Written { planned, .. }, .. } in flapping {
        planned.notes.iter().for_each(|note| out::note(note));
        if !json {
            let (fault, place) = (&planned.fault, &planned.place.label);
            let (verb, peers, name) = (fault.kind.verb(), shown::peers(&fault.peers), &fault.name);
            let (down, up) = (shown::time(rhythm.down), shown::time(rhythm.up));
            let pid = std::process::id();
            out::print(&format!(
                "flap {verb} {peers}: in {place}, {down} down, {up} up, held by process {pid}, as {name}\n"
            ))?;
        }
    }
    Ok(())
}

fn dry_run(rhythm: &Rhythm, planned: &[(Planned, Arc<Nft>)], json: bool) -> Result<ExitCode> {
    planned.iter().flat_map(|(plan, _)| &plan.notes).for_each(|note| out::note(note));
    if json {
        let edge = |edge: Edge| json!({ "edge": name_of(edge), "planned_ms": ms(edge.at) });
        let documents = planned.iter().map(|(plan, _)| plan.document_with_rules());
        out::print_json(&json!({
            "format": shown::FORMAT,
            "edges": rhythm.edges().take(SHOWN).map(edge).collect::<Vec<_>>(),
            "dry_run": documents.collect::<Vec<_>>(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for edge in rhythm.edges().take(SHOWN) {
        let _ = writeln!(text, "# {} at {:.3} s", name_of(edge), edge.at.as_secs_f64());
    }
    text.extend(planned.iter().map(|(plan, _)| plan.text()));
    out::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
