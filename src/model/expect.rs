//! What may be expected of a peer.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::code::Code;
use super::verb;

/// What is expected of a peer: health, or one kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing is wrong.
    Alive,
    /// The machine lost its power.
    DeadHost,
    /// The process died, its machine lives.
    DeadProcess,
    /// The process is gone and its refusals are filtered.
    Hush,
    /// The process is stuck.
    HungProcess,
    /// A router refuses; with this code, or with any.
    Unreachable(Option<Code>),
    /// The machine came back without its connections.
    Rebooted,
}

pub(super) const KINDS: [(Expect, &str); 7] = [
    (Expect::Alive, "alive"),
    (Expect::DeadHost, verb::DEAD_HOST),
    (Expect::DeadProcess, verb::DEAD_PROCESS),
    (Expect::Hush, verb::HUSH),
    (Expect::HungProcess, verb::HUNG_PROCESS),
    (Expect::Unreachable(None), verb::UNREACHABLE),
    (Expect::Rebooted, verb::REBOOTED),
];

impl Expect {
    /// Everything else that may be expected; the codes only beside a code, which is never told from "any".
    pub(super) fn others(self) -> Vec<Self> {
        let kinds = KINDS.into_iter().map(|(kind, _)| kind).filter(|kind| *kind != self);
        let Self::Unreachable(Some(own)) = self else { return kinds.collect() };
        let codes = Code::ALL.into_iter().filter(|code| *code != own).map(|code| Self::Unreachable(Some(code)));
        kinds.filter(|kind| *kind != Self::Unreachable(None)).chain(codes).collect()
    }
}

impl FromStr for Expect {
    type Err = String;

    /// A kind's name; `unreachable:CODE` for one code.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((verb::UNREACHABLE, code)) = text.split_once(':') {
            return Code::from_name(code)
                .map(|code| Self::Unreachable(Some(code)))
                .ok_or_else(|| format!("no such code; there are {}", Code::ALL.map(Code::name).join(", ")));
        }
        let found = KINDS.iter().find(|(_, name)| *name == text);
        found.map(|(kind, _)| *kind).ok_or_else(|| {
            format!(
                "one look cannot tell that; it can tell {}, unreachable:CODE",
                KINDS.map(|(_, name)| name).join(", ")
            )
        })
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Unreachable(Some(code)) = self {
            return write!(f, "{}:{}", verb::UNREACHABLE, code.name());
        }
        f.write_str(KINDS.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name))
    }
}

impl Serialize for Expect {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
