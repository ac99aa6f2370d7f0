//! What the kernel takes in a place, by transactions that it checks and does not do.

use anyhow::Result;

use super::super::{explain, facts};
use super::{Finding, State};
use crate::encode::Builder;
use crate::kernel::netns::NetNs;
use crate::kernel::nft::{Nft, Refused};
use crate::model::{BridgeReject, Kind, Vantage, verb};
use crate::rules::{Facility, Ruleset, Source, compile, facilities};

/// Whether this process may change rules there: an empty transaction. The error is the kernel's.
pub(super) fn may_write(nft: &Nft) -> Result<Option<Refused>> {
    nft.check(&Builder::new(0).finalize_dry())
}

/// A finding for each facility, and one for each kind with the very rules that it would write.
pub(super) fn look(ns: &NetNs, nft: &Nft) -> Result<Vec<Finding>> {
    let vantage = facts::vantage(ns, Some(nft))?;
    let mut findings = Vec::new();
    for facility in facilities() {
        findings.push(of_facility(&facility, refusal(nft, &facility.trial, &vantage)?));
    }
    findings.push(bridge_reject(facts::bridge_reject(nft, vantage.loopback)?));
    for verb in verb::ALL {
        let (kind, _) = explain::kind(verb);
        findings.push(of_kind(verb, refusal(nft, &rules(kind, &vantage), &vantage)?));
    }
    Ok(findings)
}

/// The lines of [`look`] where only root may look.
pub(super) fn unknown() -> Vec<Finding> {
    facilities()
        .iter()
        .map(|facility| facility.what)
        .chain(["reject, bridges"])
        .chain(verb::ALL)
        .map(Finding::unknown)
        .collect()
}

fn rules(kind: Kind, vantage: &Vantage) -> Ruleset {
    compile(&explain::example(kind), vantage)
}

fn refusal(nft: &Nft, rules: &Ruleset, vantage: &Vantage) -> Result<Option<Refused>> {
    let mut trial = Builder::new(vantage.loopback);
    trial.add(rules);
    nft.check(&trial.finalize_dry())
}

fn of_facility(facility: &Facility, refused: Option<Refused>) -> Finding {
    let Some(refused) = refused else { return Finding::ok(facility.what, "taken") };
    let finding = Finding::new(facility.what, State::Missing, format!("{:?}", refused.errno));
    let finding = finding.costs(format!("no {}", facility.serves));
    match facility.source {
        Source::Module(module) => finding.mend(format!("sudo modprobe {module}")),
        Source::Linux(version) => finding.mend(format!("boot Linux {version}")),
    }
}

fn bridge_reject(found: BridgeReject) -> Finding {
    let what = "reject, bridges";
    match found {
        BridgeReject::Bridge => Finding::ok(what, "taken"),
        BridgeReject::Ports => Finding::new(what, State::Limited, "at a bridge's ports only")
            .costs("a port that is plugged in after the fault refuses nothing")
            .mend("sudo modprobe nft_reject_bridge"),
        BridgeReject::Missing => Finding::new(what, State::Limited, "taken neither in the bridge nor at its ports")
            .costs("dead-process, unreachable, rebooted refuse nothing on a bridge")
            .mend("sudo modprobe -a nft_reject_bridge nft_reject_netdev"),
    }
}

fn of_kind(verb: &str, refused: Option<Refused>) -> Finding {
    match refused {
        None => Finding::ok(verb, "its rules are taken"),
        Some(refused) => Finding::new(verb, State::Missing, refused.to_string()),
    }
}
