//! One module a verb: the only place where the layers meet.

mod apply;
pub mod cli;
mod closing;
mod doctor;
mod explain;
mod facts;
mod flap;
mod generate;
mod heal;
mod hold;
mod hosts;
mod inforce;
pub mod lab;
mod lockout;
mod nodes;
mod out;
mod partition;
mod peers;
mod place;
mod plan;
pub mod probe;
mod probe_text;
mod quorum;
mod renew;
mod run;
mod share;
mod shown;
mod status;
mod table;
mod threads;
mod together;
mod transaction;
pub mod verify;
mod verify_text;
mod written;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use clap::error::ErrorKind;

use cli::{AimArgs, Cli, FaultArgs, PlaceArgs, Verb};

use crate::kernel::{Missing, privilege};
use crate::model::Kind;

/// What was typed makes no sense: the exit code is 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Whether an error is of that kind, whatever was said beside it.
fn is_of<E: std::error::Error + 'static>(error: &anyhow::Error) -> bool {
    error.chain().any(<dyn std::error::Error>::is::<E>)
}

/// Why sudo is no help.
const BOUND: &str = " (this process may get no rights that it does not have, by sudo neither: in the COMMAND of another \
                     playdead, give that one --privileged)";

/// Parses the command line, does what it says and gives the exit code of the contract.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error),
    };
    if has_empty_command(std::env::args_os()) {
        out::error("nothing is behind `--`: is a variable empty? write a COMMAND, or leave `--` out");
        return ExitCode::from(2);
    }
    let done = dispatch(cli);
    crate::cluster::close_connections();
    done.unwrap_or_else(|error| {
        let bound = is_of::<Missing>(&error) && privilege::is_bound();
        out::error(&format!("{error:#}{}", if bound { BOUND } else { "" }));
        match () {
            () if is_of::<Usage>(&error) => ExitCode::from(2),
            () if is_of::<Missing>(&error) => ExitCode::from(4),
            () => ExitCode::FAILURE,
        }
    })
}

/// Clap takes `--` with nothing behind it for no `--` at all, and a fault that was to last as long as `$CMD` would stay.
fn has_empty_command(words: impl ExactSizeIterator<Item = OsString>) -> bool {
    let last = words.len().checked_sub(1);
    words.enumerate().find(|(_, word)| word == "--").is_some_and(|(index, _)| Some(index) == last)
}

/// Help goes to standard output as clap prints it; an error is one line, as all of ours are.
fn wrong_usage(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        let printed = error.print().and_then(|()| std::io::stdout().flush());
        return match out::written(printed) {
            Ok(_) => ExitCode::from(if error.use_stderr() { 2 } else { 0 }),
            Err(error) => {
                out::error(&format!("{error:#}"));
                ExitCode::FAILURE
            }
        };
    }
    out::error(&format!("{} (see playdead --help)", one_line(error)));
    ExitCode::from(2)
}

/// What clap has to say, without what it says about the usage.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let said: Vec<_> =
        lines.take_while(|line| !["Usage:", "For more", "tip:"].iter().any(|end| line.starts_with(end))).collect();
    said.join(" ").trim_start_matches("error: ").to_owned()
}

fn dispatch(mut cli: Cli) -> Result<ExitCode> {
    cli.place = nodes::places(&cli)?;
    let cli = &cli;
    let (place, json) = (&cli.place, cli.json);
    if let Some(code) = hosts::elsewhere(cli)? {
        return Ok(code);
    }
    match &cli.verb {
        Verb::Flap(args) => flap::run(place, args, json),
        Verb::Partition(args) => partition::run(place, args, json),
        Verb::Heal(args) => heal::run(place, args, json),
        Verb::Renew(args) => renew::run(place, args, json),
        Verb::Status(args) => status::run(place, args, json),
        Verb::Probe(args) => run_probe(place, args, json),
        Verb::Verify(args) => verify::run(place, args, json),
        Verb::Quorum(args) => quorum::run(place, args, json),
        Verb::Lab(args) => lab::run(args, json),
        Verb::Explain(args) => explain::run(args, json),
        Verb::Doctor => doctor::run(place, json),
        Verb::Generate(args) => generate::run(args),
        Verb::Run(args) => run::run(place, args, json),
        Verb::Guard => Ok(run::guard()),
        Verb::Share => share::run(place),
        Verb::Look => quorum::look_for_another_host(),
        Verb::DeadHost(_)
        | Verb::DeadProcess(_)
        | Verb::Hush(_)
        | Verb::HungProcess(_)
        | Verb::Unreachable(_)
        | Verb::Lossy(_)
        | Verb::Rebooted(_) => {
            let (kind, args, then) = broken(&cli.verb).ok_or_else(|| Usage("not a kind of fault".into()))?;
            let aim = AimArgs { peers: nodes::peers_of_file(place, &args.aim.peers)?, ..args.aim.clone() };
            let args = FaultArgs { aim, ..args.clone() };
            apply::run(place, kind, &args, then, json)
        }
    }
}

/// What a verb breaks, if it is one of those: the kind, its arguments, and what is run once it is in force.
fn broken(verb: &Verb) -> Option<(Kind, &FaultArgs, Option<&OsStr>)> {
    Some(match verb {
        Verb::DeadHost(args) => (Kind::DeadHost, args, None),
        Verb::DeadProcess(args) => (args.death.kind(), &args.fault, None),
        Verb::Hush(args) => (Kind::Hush, &args.fault, args.then.as_deref()),
        Verb::HungProcess(args) => (Kind::HungProcess(args.hang.backlog), &args.fault, None),
        Verb::Unreachable(args) => (args.error.kind(), &args.fault, None),
        Verb::Lossy(args) => {
            let seed = args.seed.unwrap_or_else(random_seed);
            (args.loss.kind(seed.into()), &args.fault, None)
        }
        Verb::Rebooted(args) => (Kind::Rebooted, args, None),
        _ => return None,
    })
}

/// Any number will do: it is printed, so that the run can be repeated.
fn random_seed() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    #[expect(clippy::cast_possible_truncation, reason = "any 32 bits of it")]
    let seed = RandomState::new().hash_one(std::process::id()) as u32;
    seed
}

fn run_probe(args: &PlaceArgs, how: &probe::ProbeArgs, json: bool) -> Result<ExitCode> {
    let places = place::resolve(args)?;
    let [place] = places.as_slice() else {
        return Err(Usage("probe looks from one place: name one".into()).into());
    };
    let targets = peers::socket_addresses(place, &nodes::peers_of_file(args, &how.peers)?)?;
    probe::run(how, &place.ns, &targets, json)
}

/// Whether to draw for a person.
fn on_terminal() -> bool {
    std::io::stdout().is_terminal()
}
