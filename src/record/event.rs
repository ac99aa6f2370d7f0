//! The events of a record. Their fields are listed in `docs/json.md`.

use serde::Serialize;
use serde_json::Value;

/// The version of the record; it grows when a field changes its meaning or goes.
pub const FORMAT: &str = "playdead-record/1";

/// An event with its times.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stamped {
    /// Milliseconds since the start, by the monotonic clock.
    pub ms: f64,
    /// RFC 3339 in UTC, by the wall clock.
    pub wall: String,
    /// The number of the step that it belongs to; none: it belongs to the whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// It begins.
    Start {
        /// [`FORMAT`].
        format: &'static str,
        /// What it is called.
        scenario: String,
        /// What it is about.
        about: String,
        /// Where its dice began.
        seed: u64,
        /// Who takes part.
        nodes: Vec<String>,
        /// The plan: each step's number and text.
        plan: Vec<(String, String)>,
    },
    /// A step begins.
    Begin {
        /// What it does.
        text: String,
        /// How much later than planned, in milliseconds; null where it has no time of its own.
        late_ms: Option<f64>,
    },
    /// A step has ended.
    End {
        /// In milliseconds.
        took_ms: f64,
        /// What went wrong.
        #[serde(skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    },
    /// A fault is in force.
    Fault {
        /// What it is called.
        name: String,
        /// In short.
        text: String,
        /// The nodes that seem broken, or else those where it is.
        nodes: Vec<String>,
        /// Where its rules are, as files of the record.
        rules: Vec<String>,
        /// The documents of its places, as `--json` prints them.
        faults: Vec<Value>,
    },
    /// A fault that comes and goes has come or gone.
    Edge {
        /// What it is called.
        name: String,
        /// Whether it came.
        down: bool,
        /// When it was to be, in milliseconds since its first edge was to be.
        planned_ms: f64,
        /// When it was.
        done_ms: f64,
    },
    /// A fault that comes and goes has gone for the last time; its counters are told when it is healed.
    Over {
        /// What it is called.
        name: String,
    },
    /// A fault is gone.
    Healed {
        /// What it was called.
        name: String,
        /// The packets that it met, to its peers and from them, in all places; null where nobody could count them.
        packets: Option<[u64; 2]>,
    },
    /// Something was done to a node's process or cable.
    Node {
        /// Which.
        node: String,
        /// `kill`, `start`, ...
        did: String,
        /// The process.
        #[serde(skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
    },
    /// A command has ended.
    Command {
        /// As given to `sh -c`.
        command: String,
        /// Where.
        #[serde(skip_serializing_if = "Option::is_none")]
        node: Option<String>,
        /// As a shell gives it; null: it was killed because it took too long, or at the end.
        exit: Option<u8>,
        /// In milliseconds.
        took_ms: f64,
        /// The last line of its output.
        said: String,
        /// The file of the record that its output is in.
        output: String,
    },
    /// What a client saw.
    Probe {
        /// From where.
        from: String,
        /// In short.
        text: String,
        /// The document that `probe --json` prints.
        report: Value,
    },
    /// What one place sees of one member, whenever that changes.
    Member {
        /// The member.
        node: String,
        /// From where; null: from its own place.
        from: Option<String>,
        /// What it is.
        state: State,
        /// When it was asked, in milliseconds since the start: one that does not answer is known to be silent only
        /// when its time is over.
        asked_ms: f64,
        /// Whether it reaches enough others; null where that is not known.
        able: Option<bool>,
        /// Why it is not better.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// Who leads, whenever that changes; null: nobody does.
    Leader {
        /// Who.
        leader: Option<String>,
        /// Since which term or epoch.
        term: Option<u64>,
        /// When the members were asked, in milliseconds since the start.
        asked_ms: f64,
    },
    /// A name was picked.
    Picked {
        /// The name.
        name: String,
        /// What it stands for from now on.
        value: String,
    },
    /// Something was waited for, or had to be so.
    Expect {
        /// What.
        what: String,
        /// Whether it was so.
        met: bool,
        /// What was seen.
        seen: String,
        /// How long it took, in milliseconds.
        took_ms: f64,
    },
    /// Something to bear in mind.
    Note {
        /// What.
        text: String,
    },
    /// It has ended.
    Finish {
        /// How.
        outcome: Outcome,
        /// What went wrong, a line each.
        failed: Vec<String>,
    },
}

/// How well a member does, best last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It does not answer.
    Silent,
    /// Its process serves, but the cluster does not answer through it.
    Live,
    /// The cluster answers through it.
    Quorum,
}

/// How a scenario ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// As expected.
    Passed,
    /// Something that was expected was not so.
    Unmet,
    /// Something could not be done.
    Broken,
    /// A signal.
    Interrupted,
}

impl Outcome {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Unmet => "an expectation was not met",
            Self::Broken => "failed",
            Self::Interrupted => "interrupted",
        }
    }
}
