//! What `playdead lab` prints: text for people, and JSON whose fields are only ever added to.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::commands::{out, table};
use crate::lab::{self, EtcdStatus, Health, Made, Node, NodeStatus, Removed, Status};

/// The version of the JSON documents.
const FORMAT: u32 = 1;

pub(super) fn made_text(lab: &str, made: &Made) -> String {
    let mut table = table::new(["node", "namespace", "addresses"]);
    for node in &made.nodes {
        table.add_row([node.name.clone(), node.netns.clone(), addresses(&node.addresses)]);
    }
    let seconds = made.quorum_after.as_secs_f64();
    format!("{}quorum after {seconds:.1} s; logs in {}\n", table::text(&table), lab::log_directory(lab).display())
}

pub(super) fn made_json(lab: &str, made: &Made) -> String {
    line(&json!({
        "format": FORMAT,
        "lab": lab,
        "nodes": made.nodes.iter().map(node_json).collect::<Vec<_>>(),
        "quorum_after_s": made.quorum_after.as_secs_f64(),
        "logs": lab::log_directory(lab),
    }))
}

pub(super) fn removed_text(lab: &str, removed: &Removed) -> String {
    let mut text = match removed.nodes.as_slice() {
        [] => format!("no lab {lab} is there"),
        nodes => format!("removed the lab {lab}: {}", nodes.join(", ")),
    };
    if let Some(logs) = &removed.logs {
        let _ = write!(text, "; its logs are kept in {}", logs.display());
    }
    text + "\n"
}

pub(super) fn removed_json(lab: &str, removed: &Removed) -> String {
    line(&json!({ "format": FORMAT, "lab": lab, "removed": removed.nodes, "logs": removed.logs }))
}

pub(super) fn done_text(done: &str, nodes: &[(&Node, Option<u32>)]) -> String {
    let mut text = String::new();
    for (node, pid) in nodes {
        let process = pid.map(|pid| format!(" (etcd, process {pid})")).unwrap_or_default();
        let _ = writeln!(text, "{done} {}/{}{process}", node.lab, node.name);
    }
    text
}

pub(super) fn done_json(done: &str, nodes: &[(&Node, Option<u32>)]) -> String {
    let nodes = nodes.iter().map(|(node, pid)| json!({ "lab": node.lab, "name": node.name, "pid": pid }));
    line(&json!({ "format": FORMAT, "done": done, "nodes": nodes.collect::<Vec<_>>() }))
}

pub(super) fn status_text(all: &[Status]) -> String {
    let texts: Vec<_> = all.iter().map(one_status_text).collect();
    if texts.is_empty() { "no lab is up\n".to_owned() } else { texts.join("\n") }
}

fn one_status_text(status: &Status) -> String {
    let mut table = table::new(["node", "namespace", "addresses", "link", "etcd", "seen from the agent"]);
    for node in &status.nodes {
        let plugged = node.plugged.map_or("", |plugged| if plugged { "plugged" } else { "unplugged" });
        let namespace = if node.exists { node.node.netns.clone() } else { "missing".to_owned() };
        let etcd = node.etcd.as_ref();
        table.add_row([
            node.node.name.clone(),
            namespace,
            addresses(&node.node.addresses),
            plugged.to_owned(),
            etcd.map(process).unwrap_or_default(),
            etcd.map(|etcd| health(&etcd.health)).unwrap_or_default(),
        ]);
    }
    let quorum = if status.quorum() { "has a quorum" } else { "has no quorum that the agent could see" };
    format!("lab {}: {quorum}\n{}", status.lab, table::text(&table))
}

pub(super) fn status_json(all: &[Status]) -> String {
    let labs = all.iter().map(|status| {
        let nodes: Vec<_> = status.nodes.iter().map(node_status_json).collect();
        json!({ "lab": status.lab, "quorum": status.quorum(), "nodes": nodes })
    });
    line(&json!({ "format": FORMAT, "labs": labs.collect::<Vec<_>>() }))
}

fn node_status_json(status: &NodeStatus) -> Value {
    let mut value = node_json(&status.node);
    value["exists"] = json!(status.exists);
    value["plugged"] = json!(status.plugged);
    value["etcd"] = status
        .etcd
        .as_ref()
        .map_or(Value::Null, |etcd| json!({ "pid": etcd.pid, "state": state(etcd), "health": etcd.health }));
    value
}

fn node_json(node: &Node) -> Value {
    json!({ "name": node.name, "netns": node.netns, "addresses": node.addresses })
}

fn process(etcd: &EtcdStatus) -> String {
    etcd.pid.map_or_else(|| state(etcd).to_owned(), |pid| format!("{} ({pid})", state(etcd)))
}

fn state(etcd: &EtcdStatus) -> &'static str {
    match (etcd.pid, etcd.paused) {
        (None, _) => "dead",
        (Some(_), true) => "paused",
        (Some(_), false) => "runs",
    }
}

fn health(health: &Health) -> String {
    match health {
        Health::Healthy => "serves".to_owned(),
        Health::NoQuorum => "no quorum".to_owned(),
        Health::Silent(why) => why.clone(),
    }
}

fn addresses(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn line(value: &Value) -> String {
    out::json(value)
}
