//! `playdead heal`: takes faults away, and says so only when the kernel shows them gone.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::cli::{HealArgs, PlaceArgs};
use super::inforce::{InForce, is_closed, outline};
use super::place::{self, Place};
use super::{out, shown};
use crate::encode::Builder;
use crate::kernel::nft::{Nft, is_race};
use crate::kernel::owner;
use crate::model::Name;

/// A process may have 1024 files open, usually, and each place is one as well.
const OPEN_AT_ONCE: usize = 256;
/// How often the kernel is asked whether a held fault is gone.
const PAUSE: Duration = Duration::from_millis(5);

pub(super) fn run(args: &PlaceArgs, heal: &HealArgs, json: bool) -> Result<ExitCode> {
    let named = place::is_named(args);
    let places = if named { place::resolve(args)? } else { place::everywhere()? };
    let start = Instant::now();
    let (mut healed, mut failed) = (Vec::new(), Vec::new());
    // Closing one waits until its kernel has put away what was deleted there (a grace period of RCU, some 10 ms). Closed at
    // the end, all wait for the same.
    let mut sockets = Vec::new();
    for place in &places {
        let gone = Nft::open(&place.ns).and_then(|nft| {
            let gone = heal_by(&nft, place, &heal.names, start + heal.wait);
            if sockets.len() == OPEN_AT_ONCE {
                sockets.clear();
            }
            sockets.push(nft);
            gone
        });
        match gone {
            Ok(gone) => healed.extend(gone.into_iter().map(|name| (place.label.clone(), name))),
            // A namespace of somebody else that nobody named: whatever is in it is not ours to heal.
            Err(error) if !named && place.label != "here" && is_closed(&error) => {}
            Err(error) => failed.push(error.context(format!("place {}", place.label))),
        }
    }
    if failed.is_empty() || !healed.is_empty() {
        report(&heal.names, &healed, json)?;
    }
    // Teardown goes on after an error; all of them are told.
    match failed.len() {
        0 => Ok(ExitCode::SUCCESS),
        1 => Err(failed.remove(0)),
        _ => bail!("{}", failed.iter().map(|error| format!("{error:#}")).collect::<Vec<_>>().join("; ")),
    }
}

fn report(names: &[Name], healed: &[(String, Name)], json: bool) -> Result<()> {
    if json {
        let faults: Vec<_> =
            healed.iter().map(|(place, name)| json!({ "place": place, "name": name.to_string() })).collect();
        return out::print_json(&json!({ "format": shown::FORMAT, "healed": faults }));
    }
    if healed.is_empty() {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        let called =
            if names.is_empty() { String::new() } else { format!(": no fault is called {}", names.join(" or ")) };
        return out::print(&format!("nothing to heal{called}\n"));
    }
    let lines: Vec<_> = healed.iter().map(|(place, name)| format!("healed {name} in {place}\n")).collect();
    out::print(&lines.concat())
}

/// Heals until the kernel shows none left, and gives the names of those that were there.
pub(super) fn heal_place(place: &Place, names: &[Name], deadline: Instant) -> Result<Vec<Name>> {
    heal_by(&Nft::open(&place.ns)?, place, names, deadline)
}

fn heal_by(nft: &Nft, place: &Place, names: &[Name], deadline: Instant) -> Result<Vec<Name>> {
    let mut healed = Vec::new();
    let mut asked = Vec::new();
    loop {
        let mut faults = outline(nft)?;
        faults.retain(|fault| names.is_empty() || names.contains(&fault.name));
        if faults.is_empty() {
            return Ok(healed);
        }
        let mut waiting = false;
        for fault in &faults {
            if !healed.contains(&fault.name) {
                healed.push(fault.name.clone());
            }
            match fault.owner {
                None => delete(nft, fault)?,
                Some(owner) if asked.contains(&owner) => waiting = true,
                Some(owner) => {
                    if ask(place, fault, owner)? {
                        asked.push(owner);
                    }
                    waiting = true;
                }
            }
        }
        if Instant::now() > deadline {
            let name = &faults[0].name;
            if asked.is_empty() {
                bail!(
                    "{name} is still in force: the process that holds it is not visible from here; end it where it is"
                );
            }
            bail!("{name} is still in force: the process that holds it does not let go; end it by hand");
        }
        if waiting {
            sleep(PAUSE);
        }
    }
}

/// Deletes the tables of a fault, their rules first. That somebody else was faster is success: the next look will tell.
///
/// Rules go at one moment for all packets. But a chain that goes in the same transaction keeps its rules until it is
/// unhooked, one chain after the other (`nf_tables_commit_chain_prepare` passes by inactive chains): for up to
/// milliseconds a SYN would pass in whose answer is still dropped on its way back.
pub(super) fn delete(nft: &Nft, fault: &InForce) -> Result<()> {
    for take in [Builder::flush_table, Builder::delete_table] {
        let mut batch = Builder::new(0);
        fault.families.iter().for_each(|family| take(&mut batch, *family, &fault.name.table()));
        match nft.commit(&batch.finalize()) {
            Err(error) if is_race(&error) => return Ok(()),
            other => other.with_context(|| format!("cannot heal {}", fault.name))?,
        }
    }
    Ok(())
}

/// Only the owner of a table can delete it, so the process is asked to let go. Gives whether it could be asked: it may
/// just be ending, or live in a process namespace that is not visible from here.
fn ask(place: &Place, fault: &InForce, owner: u32) -> Result<bool> {
    let Some(pid) = owner::holder(&place.ns, owner)? else { return Ok(false) };
    if pid == process::id() {
        return Ok(true);
    }
    let program = owner::program(pid).unwrap_or_default();
    if !is_playdead(&program) {
        let (name, program) = (&fault.name, program.display());
        bail!(
            "{name} is held by process {pid} ({program}), which is not playdead: end it, or have it let go, yourself"
        );
    }
    let pid = i32::try_from(pid).map_err(|_| anyhow!("{pid} is not a process id"))?;
    match kill(Pid::from_raw(pid), Signal::SIGTERM) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(true),
        Err(errno) => Err(errno).with_context(|| format!("cannot ask process {pid}, which holds it, to let go")),
    }
}

/// Whoever embeds the library has signals of its own. A running playdead whose file was replaced is `(deleted)`.
fn is_playdead(program: &Path) -> bool {
    let name = program.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.trim_end_matches(" (deleted)") == env!("CARGO_PKG_NAME") || process_file().is_some_and(|own| own == program)
}

fn process_file() -> Option<PathBuf> {
    owner::program(process::id())
}
