//! The verbs that break something: resolve and compile for every place, check with the kernel, then write.

use std::ffi::OsStr;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::cli::{FaultArgs, PlaceArgs};
use super::inforce::readable;
use super::place::{self, Place};
use super::plan::{Plans, check_usage, plan};
use super::written::{Written, take_back};
use super::{closing, hold, out, shown, together};
use crate::kernel::nft::Nft;
use crate::model::Kind;

pub(super) fn run(
    args: &PlaceArgs,
    kind: Kind,
    typed: &FaultArgs,
    then: Option<&OsStr>,
    json: bool,
) -> Result<ExitCode> {
    check_usage(&typed.aim, kind)?;
    let command = hold::Command::new(&typed.aim.under)?;
    let places = place::resolve(args)?;
    if typed.aim.dry_run {
        return dry_run(places, kind, typed, json);
    }
    let planned = plan_all(places, kind, typed, socket)?;
    // From here on a signal must not end the process between a write and its undoing.
    let signals = hold::Signals::catch()?;
    let written = put(planned, typed.aim.replace)?;
    if let Err(error) = report(&written, json) {
        return Err(take_back(&written, error));
    }
    if let Some(then) = then {
        run_then(then)?;
    }
    let let_go = move || {
        // At one moment for all packets. What cannot be taken away now ends with its socket, chain by chain.
        for one in &written {
            let _ = one.delete();
        }
        let places = written.into_iter().map(|written| written.planned.place).collect::<Vec<_>>();
        for name in place::without_their_network(args, &places) {
            out::note(&format!(
                "container {name} has stopped or started anew: the fault ended with its former network"
            ));
        }
    };
    hold::as_long_as(command, typed.lifetime.hold, signals, let_go)
}

fn dry_run(places: Vec<Place>, kind: Kind, typed: &FaultArgs, json: bool) -> Result<ExitCode> {
    let mut documents = Vec::new();
    for place in places {
        let nft = Nft::open(&place.ns)?;
        let asked = readable(&nft);
        let planned = plan(place, kind, typed, asked)?;
        if asked.is_none() && !planned.vantage.ports.is_empty() {
            out::note(
                "without rights the kernel was not asked what a bridge can refuse: the rules may differ with them",
            );
        }
        planned.notes.iter().for_each(|note| out::note(note));
        if json {
            documents.push(planned.document_with_rules());
        } else {
            out::print(&planned.text())?;
        }
    }
    if json {
        out::print_json(&json!({ "format": shown::FORMAT, "dry_run": documents }))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A socket of its own for each place: what is held goes with it.
pub(super) fn socket(place: &Place) -> Result<Arc<Nft>> {
    Nft::open(&place.ns).map(Arc::new)
}

/// What is to be written in each place, and by which socket: only the one that made a held fault can replace it.
pub(super) fn plan_all(
    places: Vec<Place>,
    kind: Kind,
    typed: &FaultArgs,
    mut socket: impl FnMut(&Place) -> Result<Arc<Nft>>,
) -> Result<Plans> {
    let planned = places.into_iter().map(|place| {
        let nft = socket(&place)?;
        Ok((plan(place, kind, typed, Some(&nft))?, nft))
    });
    planned.collect()
}

/// Puts it in force in all places, open connections included, or changes nothing.
pub(super) fn put(planned: Plans, replace: bool) -> Result<Vec<Written>> {
    let mut written = together::write(planned, replace)?.written;
    match end_connections(&mut written) {
        Ok(()) => Ok(written),
        Err(error) => Err(take_back(&written, error)),
    }
}

/// What follows the writing. Whoever is told that it failed must not be left with half of a fault.
pub(super) fn end_connections(written: &mut [Written]) -> Result<()> {
    for one in written.iter_mut() {
        let place = format!("place {}", one.planned.place.label);
        one.closed = closing::close(&one.planned.place.ns, &one.planned.fault).context(place)?;
    }
    Ok(())
}

fn report(written: &[Written], json: bool) -> Result<()> {
    if json {
        let documents: Vec<_> = written.iter().map(Written::document).collect();
        out::print_json(&json!({ "format": shown::FORMAT, "faults": documents }))?;
    }
    for one in written {
        if !json {
            out::print(&one.line())?;
        }
        one.notes().iter().for_each(|note| out::note(note));
    }
    Ok(())
}

pub(super) fn run_then(then: &OsStr) -> Result<()> {
    let status = Command::new("sh").arg("-c").arg(then).status().context("cannot run sh for --then")?;
    if !status.success() {
        bail!("the filter is armed, but the command of --then failed ({status}): heal, or stop the process yourself");
    }
    Ok(())
}
