//! `playdead renew`: extends a lease.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::cli::{PlaceArgs, RenewArgs};
use super::inforce::{InForce, faults_of};
use super::{out, shown, status};
use crate::encode::Builder;
use crate::kernel::nft::is_race;
use crate::rules::renewed;

pub(super) fn run(args: &PlaceArgs, renew: &RenewArgs, json: bool) -> Result<ExitCode> {
    let found = status::look(args)?;
    let meant = || faults_of(&found).filter(|(_, fault)| fault.name == renew.name);
    // Each time that a fault comes and goes is a lease, too, but its process's own.
    let is_ours = |fault: &InForce| fault.meta.lease.is_some() && fault.owner.is_none();
    if let Some((surveyed, fault)) = meant().find(|(_, fault)| !is_ours(fault)) {
        let until = if fault.owner.is_some() { "as long as the process that holds it" } else { "until it is healed" };
        bail!("{} in {} has no lease to extend: it lasts {until}", fault.name, surveyed.place.label);
    }
    let set = renewed(renew.lease);
    let mut places_renewed = Vec::new();
    for (surveyed, fault) in meant() {
        let mut batch = Builder::new(0);
        fault.families.iter().for_each(|family| batch.renew(*family, &fault.name.table(), &set));
        match surveyed.nft.commit(&batch.finalize()) {
            // Healed in this very moment.
            Err(error) if is_race(&error) => continue,
            other => other.with_context(|| format!("place {}", surveyed.place.label))?,
        }
        places_renewed.push(surveyed.place.label.clone());
    }
    if places_renewed.is_empty() {
        bail!("no fault is called {}: see playdead status", renew.name);
    }
    if json {
        let left = u64::try_from(renew.lease.as_millis()).unwrap_or(u64::MAX);
        let name = renew.name.to_string();
        let document = json!({ "format": shown::FORMAT, "name": name, "left_ms": left, "places": places_renewed });
        out::print_json(&document)?;
    } else {
        for place in places_renewed {
            out::print(&format!("renewed {} in {place}: for {} from now\n", renew.name, shown::time(renew.lease)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
