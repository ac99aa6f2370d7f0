//! `playdead quorum`: who is live, who is able, and whether the cluster answers.

use std::collections::HashSet;
use std::fmt::Write;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::cli::{PlaceArgs, duration};
use super::hosts::Logins;
use super::nodes::{self, ClusterArgs};
use super::place::{self, Place};
use super::{Usage, out, shown, table};
use crate::cluster::{self, Able, From, Live, Quorum, Seat, Snapshot, View};
use crate::model::PeerSpec;

/// `quorum`
#[derive(Debug, Clone, clap::Args)]
pub struct QuorumArgs {
    /// Ask the members of this live cluster, from the named place or from here [default: the nodes of --nodes, or of
    /// the lab].
    #[arg(value_name = "etcd://HOST:PORT", conflicts_with_all = ["nodes-file", "lab", "from"])]
    pub cluster: Option<PeerSpec>,
    /// Which nodes.
    #[command(flatten)]
    pub nodes: ClusterArgs,
    /// Ask from this node, too [repeatable].
    #[arg(long, value_name = "NODE")]
    pub from: Vec<String>,
    /// How long a member may take to answer.
    #[arg(long, value_name = "D", default_value = "1s", value_parser = duration)]
    pub timeout: Duration,
    /// Wait so long until the cluster answers in every view, and exit with 3 if it does not.
    #[arg(long, value_name = "D", value_parser = duration, conflicts_with = "watch")]
    pub wait: Option<Duration>,
    /// Print it again every second, until interrupted.
    #[arg(long)]
    pub watch: bool,
}

pub(super) fn run(place: &PlaceArgs, args: &QuorumArgs, json: bool) -> Result<ExitCode> {
    let all = match &args.cluster {
        Some(spec) => nodes::of_live(place, spec)?,
        None => nodes::of(place, &args.nodes)?,
    };
    cluster::members(&all).map_err(Usage)?;
    let _logins = all.iter().any(|node| node.ssh().is_some()).then(Logins::begin).transpose()?;
    let seats = cluster::open(&all)?;
    let places = if args.cluster.is_some() || place::is_named(place) { place::resolve(place)? } else { Vec::new() };
    let from = from(&args.from, &seats, &places)?;
    if let Some(limit) = args.wait {
        let waited = cluster::wait(&seats, &from, args.timeout, limit, Snapshot::is_whole)?;
        let code = if waited.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(3) };
        let seen = waited.unwrap_or_else(|seen| seen);
        return show(&seen, json, false).map(|_| code);
    }
    loop {
        let seen = cluster::look(&seats, &from, args.timeout)?;
        if !show(&seen, json, args.watch)? || !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        sleep(Duration::from_secs(1));
    }
}

/// `playdead look`: what the member here sees, for one that asks from another host.
pub(super) fn look_for_another_host() -> Result<ExitCode> {
    let question = serde_json::from_reader(std::io::stdin()).context("the question is not understood")?;
    out::print_json(&serde_json::to_value(cluster::answer(question)?)?).map(|()| ExitCode::SUCCESS)
}

fn from<'a>(named: &'a [String], seats: &'a [Seat], places: &'a [Place]) -> Result<Vec<From<'a>>> {
    let of_place = |place: &'a Place| From { label: &place.label, ns: &place.ns };
    let mut all = nodes::as_places(seats, named)?;
    all.extend(places.iter().map(of_place));
    let mut known = HashSet::new();
    all.retain(|from| known.insert(from.label));
    Ok(all)
}

/// False when nobody reads it any more.
fn show(seen: &Snapshot, json: bool, watch: bool) -> Result<bool> {
    out::look([json, watch], || document(seen), || text(seen))
}

/// The fields are listed in `docs/json.md`.
pub(super) fn document(seen: &Snapshot) -> Value {
    json!({
        "format": shown::FORMAT,
        "quorum": { "through": seen.with_quorum(), "leader": seen.leader(), "term": seen.term() },
        "views": seen.views.iter().map(view_document).collect::<Vec<_>>(),
        "took_ms": seen.took.as_secs_f64() * 1e3,
    })
}

fn view_document(view: &View) -> Value {
    let misses =
        |able: &Able| able.misses.iter().map(|(name, why)| json!({ "name": name, "why": why })).collect::<Vec<_>>();
    json!({
        "member": view.node,
        "from": view.from,
        "live": view.answer.live,
        "able": view.able.as_ref().map(|able| json!({
            "able": able.is_enough(), "reaches": able.reaches, "misses": misses(able), "needs": able.needs,
            "serves": able.serves,
        })),
        "quorum": view.answer.quorum,
        "leader": view.answer.leader,
        "term": view.answer.term,
    })
}

fn text(seen: &Snapshot) -> String {
    let mut table = table::new(["MEMBER", "SEEN FROM", "LIVE", "ABLE", "QUORUM", "LEADER", "TERM"]);
    table.add_rows(seen.views.iter().map(row));
    let mut text = table::text(&table);
    let took = seen.took.as_secs_f64();
    let _ = match seen.with_quorum().as_slice() {
        [] => writeln!(text, "no quorum through any member [{took:.2} s]"),
        through => {
            let leader = seen.leader().map(|leader| format!("; the leader is {leader}")).unwrap_or_default();
            let term = seen.term().map(|term| format!(", term {term}")).unwrap_or_default();
            writeln!(text, "quorum through {}{leader}{term} [{took:.2} s]", through.join(", "))
        }
    };
    text
}

fn row(view: &View) -> [String; 7] {
    let answer = &view.answer;
    [
        view.node.clone(),
        view.from.clone().unwrap_or_else(|| "itself".into()),
        live(&answer.live),
        view.able.as_ref().map(able).unwrap_or_default(),
        quorum(&answer.quorum),
        answer.leader.clone().unwrap_or_default(),
        answer.term.map(|term| term.to_string()).unwrap_or_default(),
    ]
}

fn live(live: &Live) -> String {
    match live {
        Live::Yes => "yes".into(),
        Live::PeerPort => "peer port only".into(),
        Live::No(why) => format!("no: {why}"),
        Live::Unknown(why) => format!("not asked: {why}"),
    }
}

fn able(able: &Able) -> String {
    let others = able.reaches.len() + able.misses.len();
    let verdict = if able.is_enough() { "yes" } else { "no" };
    let own = if able.serves || able.is_enough() { "" } else { ", and does not answer itself" };
    format!("{verdict}: reaches {} of {others}{own}", able.reaches.len())
}

fn quorum(quorum: &Quorum) -> String {
    match quorum {
        Quorum::Yes => "yes".into(),
        Quorum::No(why) => format!("no: {why}"),
        Quorum::Unknown(why) => format!("unknown: {why}"),
    }
}
