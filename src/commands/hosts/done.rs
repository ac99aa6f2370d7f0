//! What came of an instant that several hosts were told.

use std::time::Duration;

use serde_json::{Value, json};

use super::Ready;
use super::talk::{Came, Committed};

/// What each node said, or that it said nothing.
pub(in super::super) struct Done {
    /// Each node, with what it said.
    told: Vec<Told>,
    /// When the leases of those end that were not heard of.
    pub(super) ends: String,
}

/// What one node said. `None`: nothing was heard of it.
pub(super) struct Told {
    pub(super) node: String,
    /// How far its clock may be off.
    uncertain: Duration,
    committed: Option<Committed>,
}

impl Done {
    /// `ends`: when the leases end.
    pub(super) fn of(ready: &[Ready], outcomes: Vec<Came>, ends: String) -> Self {
        let told = ready.iter().zip(outcomes).map(|(one, came)| {
            let committed = match came {
                Came::Committed(committed) => Some(committed),
                Came::Silence | Came::Failed(_) => None,
            };
            Told { node: one.talk.node.name.clone(), uncertain: one.talk.round_trip / 2, committed }
        });
        Self { told: told.collect(), ends }
    }

    /// Those that were heard of.
    pub(super) fn committed(&self) -> impl Iterator<Item = (&Told, &Committed)> {
        self.told.iter().filter_map(|told| Some((told, told.committed.as_ref()?)))
    }

    /// Of each node whether it was heard of.
    pub(super) fn heard(&self) -> impl Iterator<Item = bool> {
        self.told.iter().map(|told| told.committed.is_some())
    }

    /// From the first to the last commit that was heard of; `None` with none.
    fn spread_ms(&self) -> Option<f64> {
        let all = || self.committed().map(|(_, committed)| committed.after_ns);
        Some(millis(all().max()? - all().min()?))
    }

    /// How exact the instant was.
    pub(in super::super) fn accuracy(&self) -> String {
        let uncertain = self.committed().map(|(told, _)| told.uncertain).max().unwrap_or_default();
        let uncertain = uncertain.as_secs_f64() * 1e3;
        match (self.spread_ms(), self.committed().count()) {
            (Some(spread), heard) if heard == self.told.len() => {
                format!("all within {spread:.2} ms, each clock known to {uncertain:.2} ms")
            }
            (Some(spread), heard) => {
                format!("the {heard} heard of within {spread:.2} ms, each clock known to {uncertain:.2} ms")
            }
            (None, _) => "none was heard of since".into(),
        }
    }

    /// What the user must know.
    pub(in super::super) fn notes(&self) -> Vec<String> {
        let notes = |(told, committed): (&Told, &Committed)| {
            let node = told.node.clone();
            committed.notes.clone().into_iter().map(move |note| format!("{node}: {note}"))
        };
        let silent = self.told.iter().filter(|told| told.committed.is_none());
        let silent = silent.map(|told| {
            format!("{} was not heard of since the instant: its lease ends by itself at {}", told.node, self.ends)
        });
        self.committed().flat_map(notes).chain(silent).collect()
    }

    /// How many nodes were told the instant.
    pub(super) fn count(&self) -> usize {
        self.told.len()
    }

    /// Adds what came of it to a document. The fields are listed in `docs/json.md`.
    pub(super) fn add_to(&self, document: &mut Value) {
        document["faults"] = self.faults();
        document["spread_ms"] = self.spread_ms().into();
        document["hosts"] = self.hosts();
    }

    fn faults(&self) -> Value {
        let faults = self.committed().map(|(_, committed)| committed.document.clone());
        faults.filter(|document| !document.is_null()).collect()
    }

    fn hosts(&self) -> Value {
        let host = |told: &Told| {
            let after = told.committed.as_ref().map(|committed| millis(committed.after_ns));
            let uncertain = told.uncertain.as_secs_f64() * 1e3;
            json!({ "node": told.node, "committed_ms": after, "uncertain_ms": uncertain, "lease_ends": self.ends })
        };
        self.told.iter().map(host).collect()
    }
}

fn millis(nanos: i128) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a day of nanoseconds has all of its digits")]
    let nanos = nanos as f64;
    nanos / 1e6
}
