//! One module a verb: the only place where the layers meet.

pub mod lab;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Make a peer of a distributed system look dead, exactly.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Print one JSON document
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Lab(lab::LabArgs),
}

/// Parses the command line, does what it says and gives the exit code of the contract.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let Verb::Lab(args) = &cli.verb;
    lab::run(args, cli.json).unwrap_or_else(|error| {
        eprintln!("playdead: {error:#}");
        ExitCode::FAILURE
    })
}
