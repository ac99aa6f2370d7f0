//! `playdead status`: what is in force, read from the kernel.

use std::fmt::Write;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::cli::{PlaceArgs, StatusArgs};
use super::inforce::{Hits, InForce, Surveyed, faults_of, survey};
use super::{out, place, shown, table};
use crate::kernel::owner;

pub(super) fn run(args: &PlaceArgs, status: &StatusArgs, json: bool) -> Result<ExitCode> {
    loop {
        let found = look(args)?;
        let read = out::look([json, status.watch], || document(&found), || text(&found))?;
        if !read || !status.watch {
            return Ok(ExitCode::SUCCESS);
        }
        sleep(Duration::from_secs(1));
    }
}

/// What is in force in the given places, or wherever one can look.
pub(super) fn look(args: &PlaceArgs) -> Result<Vec<Surveyed>> {
    if place::is_named(args) { survey(place::resolve(args)?, false) } else { survey(place::everywhere()?, true) }
}

fn document(found: &[Surveyed]) -> Value {
    let shown = |(surveyed, fault): (&Surveyed, &InForce)| {
        shown::in_force(&surveyed.place.label, fault, holder(surveyed, fault))
    };
    json!({ "format": shown::FORMAT, "faults": faults_of(found).map(shown).collect::<Vec<_>>() })
}

fn holder(surveyed: &Surveyed, fault: &InForce) -> Option<u32> {
    owner::holder(&surveyed.place.ns, fault.owner?).ok().flatten()
}

fn text(found: &[Surveyed]) -> String {
    let header = ["PLACE", "NAME", "KIND", "PEERS", "SINCE", "ENDS", "HIT TO PEER", "HIT FROM PEER"];
    let mut table = table::new(header);
    table.add_rows(faults_of(found).map(|(surveyed, fault)| row(surveyed, fault)));
    if table.is_empty() {
        return "nothing is in force\n".into();
    }
    table::text(&table) + &notes(found).concat()
}

/// Below the table, a line each.
fn notes(found: &[Surveyed]) -> Vec<String> {
    let of = |(surveyed, fault): (&Surveyed, &InForce)| {
        let (place, name) = (surveyed.place.label.clone(), fault.name.clone());
        fault.notes().into_iter().map(move |note| format!("{name} in {place}: {note}\n"))
    };
    faults_of(found).flat_map(of).collect()
}

fn row(surveyed: &Surveyed, fault: &InForce) -> [String; 8] {
    let mut kind = fault.meta.kind.to_string().replace(':', " ");
    if fault.meta.direction != crate::model::Direction::Both {
        let _ = write!(kind, ", only {} the peer", fault.meta.direction.name());
    }
    if fault.meta.proto != crate::model::Proto::All {
        let _ = write!(kind, ", only {}", fault.meta.proto.name());
    }
    let mut peers = shown::peers(&fault.peers);
    if !fault.with.is_empty() {
        let with: Vec<_> = fault.with.iter().map(ToString::to_string).collect();
        let _ = write!(peers, " with {}", with.join(", "));
    }
    [
        surveyed.place.label.clone(),
        fault.name.to_string(),
        kind,
        peers,
        shown::since(&fault.meta.since),
        ends(surveyed, fault),
        hits(fault.to),
        hits(fault.from),
    ]
}

fn ends(surveyed: &Surveyed, fault: &InForce) -> String {
    // A fault that flaps keeps its tables while its peer is healthy.
    let away = if fault.is_active() { "" } else { ", away just now" };
    match (fault.owner, fault.left) {
        (Some(_), _) => match holder(surveyed, fault) {
            Some(pid) => format!("with process {pid}{away}"),
            None => format!("with a process that is not visible here{away}"),
        },
        (None, Some(left)) if left.is_zero() => "expired".into(),
        (None, Some(left)) => format!("in {}", shown::time(left)),
        (None, None) => "when healed".into(),
    }
}

fn hits(hits: Hits) -> String {
    format!("{} packets, {} bytes", hits.packets, hits.bytes)
}
