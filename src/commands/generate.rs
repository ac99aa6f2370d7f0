//! `playdead generate`: man pages and completions, from the definitions of the help.

use std::io;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;

use super::cli::{Cli, Generate, GenerateArgs};

pub(super) fn run(args: &GenerateArgs) -> Result<ExitCode> {
    let mut command = Cli::command();
    match &args.what {
        Generate::Man { dir: None } => clap_mangen::Man::new(command).render(&mut io::stdout())?,
        Generate::Man { dir: Some(dir) } => {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
            clap_mangen::generate_to(command, dir).with_context(|| format!("cannot write to {}", dir.display()))?;
        }
        Generate::Completions { shell } => {
            clap_complete::generate(*shell, &mut command, "playdead", &mut io::stdout());
        }
    }
    Ok(ExitCode::SUCCESS)
}
