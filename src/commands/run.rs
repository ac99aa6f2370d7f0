//! `playdead run`: plays a scenario, heals before, after and in between, and leaves a record.

mod capture;
mod check;
mod command;
mod condition;
mod deeds;
mod faults;
mod guard;
mod injection;
mod logs;
mod player;
mod restart;
mod shell;
mod stop;
mod telemetry;
mod text;
mod undo;
mod words;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use super::cli::PlaceArgs;
use super::lab::lab_name;
use super::{Usage, nodes, out, place, shown};
use crate::kernel::file::read_text_once;
use crate::record::{Event, FORMAT, Outcome, Record, Stamped};
use crate::scenario::{self, Plan, Scenario};

pub(super) use guard::run as guard;
use player::Ended;
use world::World;

/// `run`
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// The scenario: a TOML file (docs/scenarios.md).
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Leave a record in this directory, which must be empty or not there yet.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Where the dice begin; the same seed gives the same plan [default: the file's, else random, and printed].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// The lab whose nodes are meant: all where the file has no [nodes], else those that are named there without a lab.
    #[arg(long, value_name = "NAME", value_parser = lab_name)]
    pub lab: Option<String>,
    /// Print the plan with its times and rules, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Leave the commands of the steps all rights of playdead itself: root's capabilities, and its user [default: as the
    /// user who called sudo, and without capabilities]. What is done to nodes (`commands`) always has them.
    #[arg(long)]
    pub privileged: bool,
    /// Capture what the nodes send and receive into the record, by tcpdump.
    #[arg(long, requires = "out")]
    pub pcap: bool,
}

/// A scenario that was read, planned and checked.
struct Ready {
    name: String,
    scenario: Scenario,
    plan: Plan,
    world: World,
}

pub(super) fn run(place: &PlaceArgs, args: &RunArgs, json: bool) -> Result<ExitCode> {
    if place::is_named(place) {
        return Err(Usage("a scenario's steps say where they happen: name no place beside it".into()).into());
    }
    let ready = prepare(place.nodes.as_deref(), args)?;
    let checked = check::check(&args.file, &ready.world, &ready.plan)?;
    if args.seed.or(ready.scenario.seed).is_none() {
        let seed = ready.plan.seed;
        out::note(&format!("seed {seed}: --seed {seed} makes the same plan again"));
    }
    if args.dry_run {
        check::print(&ready, &checked, json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.pcap {
        capture::check()?;
    }
    let record = Record::open(args.out.as_deref())?;
    let ended = player::play(&ready, &record, args.pcap, json)?;
    let written = record.finish();
    report(&ready, args.out.as_deref(), &ended, &record.events(), json)?;
    if let Some(error) = ended.error {
        return Err(error);
    }
    written?;
    Ok(match ended.outcome {
        Outcome::Passed => ExitCode::SUCCESS,
        Outcome::Unmet => ExitCode::from(3),
        Outcome::Broken | Outcome::Interrupted => ExitCode::FAILURE,
    })
}

fn prepare(file_of_nodes: Option<&Path>, args: &RunArgs) -> Result<Ready> {
    let (file, shown) = (&args.file, args.file.display());
    let text = read_text_once(file).map_err(|error| Usage(format!("{error:#}")))?;
    let wrong = |error| Usage(format!("{shown}:{error}"));
    let scenario = scenario::parse(&text).map_err(wrong)?;
    let seed = args.seed.or(scenario.seed).unwrap_or_else(|| super::random_seed().into());
    let plan = scenario::plan(&scenario, &text, seed).map_err(wrong)?;
    let world = World::open(&scenario, file_of_nodes, args).with_context(|| shown.to_string())?;
    let from = &scenario.telemetry.from;
    nodes::as_places(&world.seats, &from.get_ref().0)
        .map_err(|error| wrong(format!("{}: telemetry.from: {error:#}", scenario::line(&text, from))))?;
    if args.pcap && world.is_elsewhere() {
        return Err(Usage("--pcap captures on this machine only, and some nodes are on other hosts".into()).into());
    }
    let name = file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
    Ok(Ready { name, scenario, plan, world })
}

/// The result: a line with the verdict, or one document.
fn report(ready: &Ready, out: Option<&Path>, ended: &Ended, events: &[Stamped], json: bool) -> Result<()> {
    let took = events.last().map_or(0.0, |last| last.ms);
    let (name, seed) = (&ready.name, ready.plan.seed);
    if json {
        return out::print_json(&json!({
            "format": shown::FORMAT,
            "scenario": name,
            "seed": seed,
            "outcome": ended.outcome,
            "failed": ended.failed,
            "took_ms": took,
            "record": out.map(|directory| json!({ "directory": directory, "format": FORMAT })),
            "steps": events.iter().filter_map(step).collect::<Vec<_>>(),
        }));
    }
    let record = out.map_or(String::new(), |directory| format!("; its record is in {}", directory.display()));
    for failed in &ended.failed {
        out::print(&format!("FAILED {failed}\n"))?;
    }
    out::print(&format!("{name}: {} [{:.1} s, seed {seed}]{record}\n", ended.outcome.text(), took / 1e3))
}

fn step(stamped: &Stamped) -> Option<serde_json::Value> {
    let Event::End { took_ms, failed } = &stamped.event else { return None };
    Some(json!({ "step": stamped.step, "ended_ms": stamped.ms, "took_ms": took_ms, "failed": failed }))
}
