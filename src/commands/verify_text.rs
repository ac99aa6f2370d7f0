//! The text and the document of `playdead verify`.

use std::fmt::Write;

use serde_json::{Value, json};

use super::inforce::Hits;
use super::verify::{Look, Verified};
use super::{probe_text, shown};

pub(super) fn render(verified: &[Verified]) -> String {
    verified.iter().map(fault).collect::<Vec<_>>().join("\n")
}

fn fault(one: &Verified) -> String {
    let mut text = format!("{} ({}) in {}", one.fault.name, one.fault.meta.kind.verb(), one.place);
    if one.looks.is_empty() {
        let Hits { packets: to, .. } = one.fault.to;
        let _ = writeln!(
            text,
            " was not looked at; it has hit {to} packets to the peer, {} from it",
            one.fault.from.packets
        );
    }
    for look in &one.looks {
        let _ = writeln!(text, ", seen from {}:", look.from);
        text.push_str(&probe_text::table(&look.observations));
        text.push_str(&probe_text::verdict_text(&look.verdict));
    }
    if let (Some([to, from]), false) = (one.hits, one.looks.is_empty()) {
        let _ = writeln!(text, "hit during the look: {} packets to the peer, {} from it", to.packets, from.packets);
    }
    for line in &one.differs {
        let _ = writeln!(text, "NOT as expected: {line}");
    }
    for line in &one.open {
        let _ = writeln!(text, "not judged: {line}");
    }
    for line in &one.notes {
        let _ = writeln!(text, "note: {line}");
    }
    text
}

pub(super) fn document(verified: &[Verified]) -> Value {
    let faults: Vec<_> = verified.iter().map(fault_document).collect();
    json!({ "format": shown::FORMAT, "faults": faults })
}

fn fault_document(one: &Verified) -> Value {
    let mut document = shown::in_force(&one.place, &one.fault, None);
    if let Some(fields) = document.as_object_mut() {
        // Who holds it is for `status` to find out.
        fields.remove("holder_pid");
    }
    document["as_expected"] = one.as_expected().into();
    document["looks"] = one.looks.iter().map(look_document).collect();
    document["hits_of_look"] = one.hits.map(|[to, from]| json!({ "to": to, "from": from })).into();
    document["differs"] = json!(one.differs);
    document["not_judged"] = json!(one.open);
    document["notes"] = json!(one.notes);
    document
}

fn look_document(look: &Look) -> Value {
    json!({ "from": look.from, "observations": look.observations, "verdict": look.verdict })
}
