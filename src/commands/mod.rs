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
mod inforce;
pub mod lab;
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
mod shown;
mod status;
mod together;
pub mod verify;
mod verify_text;

use std::fmt;
use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use clap::error::ErrorKind;

use cli::{Cli, PlaceArgs, Verb};

use crate::kernel::Missing;
use crate::model::{Kind, Loss, LossScope};

/// What was typed makes no sense: the exit code is 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Parses the command line, does what it says and gives the exit code of the contract.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error),
    };
    dispatch(&cli).unwrap_or_else(|error| {
        out::error(&format!("{error:#}"));
        let is = |code: fn(&(dyn std::error::Error + 'static)) -> bool| error.chain().any(code);
        match () {
            () if is(<dyn std::error::Error>::is::<Usage>) => ExitCode::from(2),
            () if is(<dyn std::error::Error>::is::<Missing>) => ExitCode::from(4),
            () => ExitCode::FAILURE,
        }
    })
}

/// Help goes to standard output as clap prints it; an error is one line, as all of ours are.
fn wrong_usage(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        let _ = error.print();
        return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
    }
    let text = error.to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let said: Vec<_> = lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more")).collect();
    out::error(&format!("{} (see playdead --help)", said.join(" ").trim_start_matches("error: ")));
    ExitCode::from(2)
}

fn dispatch(cli: &Cli) -> Result<ExitCode> {
    let (place, json) = (&cli.place, cli.json);
    match &cli.verb {
        Verb::DeadHost(args) => apply::run(place, Kind::DeadHost, args, None, json),
        Verb::DeadProcess(args) => apply::run(place, Kind::DeadProcess(args.open_connections), &args.fault, None, json),
        Verb::Hush(args) => apply::run(place, Kind::Hush, &args.fault, args.then.as_deref(), json),
        Verb::HungProcess(args) => apply::run(place, Kind::HungProcess(args.backlog), &args.fault, None, json),
        Verb::Unreachable(args) => apply::run(place, Kind::Unreachable(args.code), &args.fault, None, json),
        Verb::Lossy(args) => apply::run(place, Kind::Lossy(loss(args)), &args.fault, None, json),
        Verb::Rebooted(args) => apply::run(place, Kind::Rebooted, args, None, json),
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
    }
}

fn loss(args: &cli::LossyArgs) -> Loss {
    let scope = if args.per_connection {
        let seed = args.seed.unwrap_or_else(random_seed);
        out::note(&format!("seed {seed}: --seed {seed} loses the same connections again"));
        LossScope::Connection { seed }
    } else {
        LossScope::Packet
    };
    Loss { per_myriad: args.percent, scope }
}

/// Any number will do: it is printed, so that the run can be repeated.
fn random_seed() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    #[expect(clippy::cast_possible_truncation, reason = "any 32 bits of it")]
    let seed = RandomState::new().hash_one(std::process::id()) as u32;
    seed
}

fn run_probe(place: &PlaceArgs, args: &probe::ProbeArgs, json: bool) -> Result<ExitCode> {
    let places = place::resolve(place)?;
    let [place] = places.as_slice() else {
        return Err(Usage("probe looks from one place: name one".into()).into());
    };
    let targets = peers::socket_addresses(place, &args.peers)?;
    probe::run(args, &place.ns, &targets, json)
}

/// Whether to draw for a person.
fn on_terminal() -> bool {
    std::io::stdout().is_terminal()
}
