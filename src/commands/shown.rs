//! How faults are shown, as text and as JSON. The fields of the documents are listed in `docs/json.md`.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::inforce::InForce;
use crate::model::{Fault, Lifetime, PeerSpec, Target};

/// The version of the JSON documents; it grows when a field changes its meaning or goes.
pub(super) const FORMAT: u32 = 1;

/// `etcd1 (10.77.0.11:2379, [fd77::11]:2379), 10.0.0.9`
pub(super) fn peers(peers: &[Target]) -> String {
    let mut shown: Vec<(Option<&str>, Vec<String>)> = Vec::new();
    for peer in peers {
        let label = peer.label.as_deref();
        let same_name = label.and_then(|_| shown.iter_mut().find(|(known, _)| *known == label));
        match same_name {
            Some((_, addresses)) => addresses.push(peer.to_string()),
            None => shown.push((label, vec![peer.to_string()])),
        }
    }
    let of = |(label, addresses): &(Option<&str>, Vec<String>)| match label {
        Some(label) => format!("{label} ({})", addresses.join(", ")),
        None => addresses.join(", "),
    };
    let many = shown.len().checked_sub(8).filter(|rest| *rest > 0);
    let mut text: Vec<_> = shown.iter().take(8).map(of).collect();
    text.extend(many.map(|rest| format!("and {rest} more")));
    text.join(", ")
}

/// As they were typed.
pub(super) fn typed(peers: &[PeerSpec]) -> String {
    peers.iter().map(|peer| peer.text.as_str()).collect::<Vec<_>>().join(", ")
}

/// A time without more digits than anyone reads.
pub(super) fn time(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{} ms", duration.as_millis()),
        seconds @ 1..60 => format!("{}.{} s", seconds, duration.subsec_millis() / 100),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// `until healed`, `for 30 s`, ...
pub(super) fn lifetime(lifetime: Lifetime) -> String {
    match lifetime {
        Lifetime::Open => "until healed".into(),
        Lifetime::Lease(lease) => format!("for {}", time(lease)),
        Lifetime::Held => format!("held by process {}", std::process::id()),
    }
}

/// The fields that every document has of a fault.
pub(super) fn document(place: &str, fault: &Fault) -> Value {
    json!({
        "place": place,
        "name": fault.name.to_string(),
        "kind": fault.kind.verb(),
        "detail": fault.kind.to_string().split_once(':').map(|(_, detail)| detail),
        "peers": fault.peers.iter().map(peer).collect::<Vec<_>>(),
        "with": fault.with,
        "direction": fault.direction.name(),
        "proto": fault.proto.name(),
        "since": since(&fault.since),
    })
}

/// To the second.
pub(super) fn since(exact: &str) -> String {
    exact.split_once('.').map_or(exact.to_owned(), |(second, _)| format!("{second}Z"))
}

fn peer(peer: &Target) -> Value {
    json!({ "peer": peer.to_string(), "address": peer.net, "ports": peer.ports.map(|p| [p.first, p.last]), "name": peer.label })
}

/// A fault in force, with its hits.
pub(super) fn in_force(place: &str, fault: &InForce, holder: Option<u32>) -> Value {
    let mut document = document(place, &fault.fault());
    document["active"] = fault.is_active().into();
    document["damage"] = fault.damage().into();
    document["late_devices"] = fault.late.clone().into();
    document["lease_ms"] = fault.meta.lease.map(|lease| lease.as_millis()).into_value();
    document["left_ms"] = fault.left.map(|left| left.as_millis()).into_value();
    document["held"] = fault.owner.is_some().into();
    document["holder_pid"] = holder.into();
    document["hits"] = json!({ "to": fault.to, "from": fault.from });
    document
}

trait IntoValue {
    fn into_value(self) -> Value;
}

impl IntoValue for Option<u128> {
    fn into_value(self) -> Value {
        self.and_then(|number| u64::try_from(number).ok()).into()
    }
}

/// The rules of a fault for `nft -f`, as a dry run prints them.
pub(super) fn rules(name: impl fmt::Display, place: &str, rules: impl fmt::Display) -> String {
    format!("# {name} in {place}\n{rules}")
}

/// The same text as a comment among rules.
pub(super) fn comment(text: &str) -> String {
    let mut comment = String::new();
    text.lines().for_each(|line| comment.extend(["# ", line, "\n"]));
    comment
}
