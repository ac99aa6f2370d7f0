//! Tables, chains, rules and sets as values.

use std::sync::Arc;
use std::time::Duration;

use super::key::{Key, Kind};
use super::sets::GATE_SET;

/// Everything that one fault writes into one namespace, in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// One table a family; all have the same name.
    pub tables: Vec<Table>,
}

impl Ruleset {
    /// Whether every table has a gate, and that is open: it could be written shut and opened later.
    pub fn has_gates(&self) -> bool {
        let is_gate = |set: &Set| set.name == GATE_SET && !set.elements.is_empty();
        self.tables.iter().all(|table| table.sets.iter().any(is_gate))
    }
}

/// Which packets a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4 and IPv6 at the hooks of the IP stack.
    Inet,
    /// IPv4 there.
    Ip,
    /// IPv6 there.
    Ip6,
    /// Frames at a device.
    Netdev,
    /// Frames on their way through a bridge.
    Bridge,
    /// ARP of this host.
    Arp,
}

impl Family {
    /// Every family that rules are written in.
    pub const ALL: [Self; 6] = [Self::Inet, Self::Ip, Self::Ip6, Self::Netdev, Self::Bridge, Self::Arp];
}

/// A table of our own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: String,
    /// What `status` needs to know and the rules do not say (at most 126 bytes).
    pub comment: String,
    /// The kernel deletes it with the socket that made it (Linux 5.12).
    pub owner: bool,
    /// Named counters.
    pub counters: Vec<&'static str>,
    /// Named sets.
    pub sets: Vec<Set>,
    /// Chains, those that others jump to first.
    pub chains: Vec<Chain>,
}

/// A named set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: &'static str,
    /// What is looked up in it.
    pub key: Vec<Key>,
    /// What is found there, if it is a map.
    pub data: Option<Key>,
    /// Whether elements are ranges.
    pub interval: bool,
    /// Whether elements may expire.
    pub timeout: bool,
    /// Filled by rules: how many elements it may hold, and how long each lives.
    pub dynamic: Option<(u32, Duration)>,
    /// Its elements. The tables of a fault have the same ones.
    pub elements: Arc<[Element]>,
}

impl Set {
    /// How many elements it may hold, where that is said. A hash whose size is not said grows behind what is put into it
    /// (`rhashtable`): its chains are long while a transaction fills it, which took a third of the time of 100,000.
    pub fn size(&self) -> Option<u32> {
        let is_fixed = !self.interval && !self.timeout && !self.elements.is_empty();
        let fixed = || is_fixed.then(|| u32::try_from(self.elements.len()).ok()).flatten();
        self.dynamic.map(|(size, _)| size).or_else(fixed)
    }
}

/// An element of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// One range a field of the key.
    pub key: Vec<Span>,
    /// When it stops matching, counted from the commit.
    pub timeout: Option<Duration>,
    /// How the user named it.
    pub comment: Option<String>,
}

/// From the first to the last value, both included; bytes as in the packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Its type, for printing.
    pub kind: Kind,
    /// First value.
    pub first: Vec<u8>,
    /// Last value.
    pub last: Vec<u8>,
}

impl Span {
    /// A single value.
    pub fn one(kind: Kind, value: impl Into<Vec<u8>>) -> Self {
        let first = value.into();
        Self { kind, last: first.clone(), first }
    }

    /// A range of values.
    pub fn range(kind: Kind, first: impl Into<Vec<u8>>, last: impl Into<Vec<u8>>) -> Self {
        Self { kind, first: first.into(), last: last.into() }
    }

    /// Whether it is a single value.
    pub fn is_one(&self) -> bool {
        self.first == self.last
    }
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// Where packets come in; `None` for one that others jump to.
    pub hook: Option<Hook>,
    /// Its rules.
    pub rules: Vec<Rule>,
}

/// Where a base chain is hooked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hook {
    /// `prerouting`, and for bridges too.
    Prerouting(i32),
    /// `input`.
    Input(i32),
    /// `forward`.
    Forward(i32),
    /// `output`.
    Output(i32),
    /// `output` of type `route`: a packet whose address was rewritten is routed again.
    Reroute(i32),
    /// `ingress` of devices.
    Ingress(i32, Vec<String>),
    /// `egress` of devices (Linux 5.16).
    Egress(i32, Vec<String>),
}

/// A rule: its statements, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule(pub Vec<Stmt>);

/// How two numbers compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less than.
    Lt,
    /// Within a range, both ends included.
    Within,
}

/// A statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stmt {
    /// Goes on if the key compares so with the bytes (for `Within`: the first and the last value).
    Is(Key, Order, Vec<u8>),
    /// Goes on if the keys are in the set.
    In(Vec<Key>, &'static str),
    /// Goes on if the keys are not in the set.
    NotIn(Vec<Key>, &'static str),
    /// Adds the packet to a named counter.
    Count(&'static str),
    /// Writes constant bytes into the packet, checksums included.
    Write(Key, Vec<u8>),
    /// Writes other bytes of the packet into the packet.
    Copy(Key, Key),
    /// Adds or refreshes an element, and goes on if there are more packets of it than it may have.
    Update(Update),
    /// Puts what the packet has there into a map, for so long. What the map has already stays, and lives anew.
    Learn(Entry, Duration),
    /// Takes it out of the map.
    Forget(Entry),
    /// Writes what the map has into the packet, checksum included; goes on only if it has something.
    Recall(Entry),
    /// Steals the frame and hands it to `lo`; its sender is told that it was sent.
    StealToLo,
    /// `meta pkttype set host`: the frame is for this host after all.
    ForThisHost,
    /// Sends a copy to a host.
    CopyTo(Vec<u8>),
    /// Sends a copy on to the host whose address is this field of the packet.
    CopyOnward(Key),
    /// Answers and drops.
    Reject(Reject),
    /// Ends the rule.
    Do(Verdict),
}

/// Adds or refreshes an element of a dynamic set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The set.
    pub set: &'static str,
    /// What is stored.
    pub key: Vec<Key>,
    /// How long it lives.
    pub timeout: Duration,
    /// How many packets of each element do not go on; `None`: every packet goes on.
    pub over: Option<Rate>,
}

/// An entry of a dynamic map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The map.
    pub map: &'static str,
    /// What it is found by. Of a map's key, nft 1.0.6 has room for no more than 16 bytes in a rule that adds to it.
    pub key: Vec<Key>,
    /// The field of the packet that it is about.
    pub data: Key,
}

/// So many packets at once, and then so many in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Packets in the time.
    pub packets: u64,
    /// The time.
    pub per: Per,
    /// Packets at once.
    pub burst: u32,
}

/// A unit of time that nft has a word for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    /// A second.
    Second,
    /// The longest but for a week.
    Day,
}

impl Per {
    /// Its length.
    pub fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Day => 86_400,
        }
    }

    /// As nft writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Day => "day",
        }
    }
}

/// How a packet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// By a TCP segment with RST.
    TcpReset,
    /// By an ICMP error with this code of type 3.
    Icmp(IcmpCode),
    /// By an ICMPv6 error with this code of type 1.
    Icmp6(IcmpCode),
}

/// A code with the name that nft prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpCode(pub u8, pub &'static str);

/// What happens to the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Goes on to the next table.
    Accept,
    /// Is gone.
    Drop,
    /// Through that chain and not back.
    Goto(&'static str),
}
