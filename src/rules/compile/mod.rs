//! From a fault to the rules that make it look real, wherever they are written.
//!
//! Every packet is judged at the last place of a namespace that it passes before somebody could notice it:
//!
//! | on its way | is judged at |
//! | --- | --- |
//! | to a process here | `inet` prerouting, before conntrack and every other table |
//! | out of this host | `netdev` egress, the only hook where a stolen packet counts as sent |
//! | out of a device that has no such hook (new, or without Ethernet) | `inet` output, by rerouting it to lo |
//! | through this router | egress too, so that the router's own neighbour entry fails as for a dead machine |
//! | through this bridge | `bridge` prerouting |
//!
//! The same rules therefore serve on the client, on the peer, and on a router or bridge in between.
//! The reasons stand in `docs/fidelity.md`.

mod copies;
mod distance;
mod fates;
mod neighbours;
mod numbers;
mod sites;

use std::collections::HashSet;
use std::time::Duration;

use super::key::{Base, Key, Kind};
use super::sets::{self, Ip};
use super::value::{Chain, Family, Hook, Order, Per, Rate, Rule, Ruleset, Set, Span, Stmt, Table, Update, Verdict};
use crate::model::{
    BridgeReject, Device, Fault, Kind as Failure, Lifetime, LossScope, OpenConnections, Proto, Vantage,
};

/// The mark of the segments that playdead sends in the name of a dead process ("play").
pub const FORGED_MARK: u32 = 0x706c_6179;
/// The mark of packets that were rerouted to lo to end there ("dead").
const DOOMED_MARK: u32 = 0x6465_6164;
/// The mark of packets that are to be refused ("refu").
const REFUSED_MARK: u32 = 0x7265_6675;
/// The mark of their copies ("copy").
const COPY_MARK: u32 = 0x636f_7079;

/// The set whose presence of a protocol means that bare acknowledgments are still taken in silently.
const ABSORB: &str = "absorb";
/// A killed process's connections wait so long in FIN-WAIT-2 (`tcp_fin_timeout`) before their segments draw RST.
const FIN_WAIT: Duration = Duration::from_secs(60);
/// Connections made since a reboot.
const FRESH: [&str; 2] = ["fresh4", "fresh6"];
const FRESH_LIFE: Duration = Duration::from_secs(3600);
/// How many connections to each address and port a hung process's kernel has taken since.
const QUEUED: [&str; 2] = ["queued4", "queued6"];
/// As long as the longest time that a rate is counted in.
const QUEUED_LIFE: Duration = Duration::from_secs(86_400);
/// How many ICMP errors each client was sent.
const PACED: [&str; 2] = ["paced4", "paced6"];
/// After so long without any, as many ICMP errors as at first may be sent at once again.
pub const ICMP_REST: Duration = Duration::from_secs(sites::ICMP_BURST as u64);
/// Longer than that.
const PACED_LIFE: Duration = Duration::from_secs(60);
/// So many elements can rules put into a set.
const FILLED_SIZE: u32 = 65_535;
/// The set, in the `inet` table, of the devices that a fault has rules at: their egress hook judges; packets that leave by
/// another device are judged in the output hook.
pub const COVERED_SET: &str = "covered";

/// The priority of all that judges first.
///
/// Before conntrack (-200) and every usual table, so that an accept elsewhere cannot come first.
pub const FIRST: i32 = -300;
/// So many devices can one chain be hooked to: the kernel refuses the 256th (`NFT_NETDEVICE_MAX`).
const MAX_DEVICES: usize = 255;

/// After every filter: a closed port is refused only if the firewall would have let the packet in.
const LAST: i32 = 300;

const TO: &str = "to";
const FROM: &str = "from";

/// The rules of `fault` for a namespace of which `vantage` tells.
pub fn compile(fault: &Fault, vantage: &Vantage) -> Ruleset {
    let compiler = Compiler { fault, vantage, sets: peer_sets(fault) };
    let [copies4, copies6] = Ip::BOTH.map(|ip| compiler.copies(ip));
    let tables = [compiler.inet(), copies4, copies6, compiler.netdev(), compiler.bridge(), compiler.arp()];
    let mut tables: Vec<_> = tables.into_iter().flatten().collect();
    let comment = fault.meta(tables.len()).to_string();
    for table in &mut tables {
        table.comment.clone_from(&comment);
    }
    Ruleset { tables }
}

/// The devices of `present` that a fault has no rules at: they came, or were given another name, after it was made. `covered`
/// are the keys in its [`COVERED_SET`], every field padded to four bytes; a fault without that set misses none.
///
/// By such a device silence and refusals are as they should be, but for what `docs/fidelity.md` says of it; what comes in
/// by such a port of a bridge, to be refused there, passes. Making the fault again mends both.
pub fn uncovered<'a>(kind: Failure, present: &'a Vantage, covered: &[Vec<u8>]) -> Vec<&'a Device> {
    let known: HashSet<&[u8]> = covered.iter().map(Vec::as_slice).collect();
    let missed = |device: &&Device| !known.is_empty() && !known.contains(sites::covered_by(device).concat().as_slice());
    let ports = match present.bridge_reject {
        BridgeReject::Ports => sites::ports_with_rules(kind, present),
        _ => &[],
    };
    present.devices.iter().chain(ports).filter(missed).collect()
}

struct Compiler<'a> {
    fault: &'a Fault,
    vantage: &'a Vantage,
    /// The peers and other ends, made once: rules only ask which of these sets there are.
    sets: Vec<Set>,
}

/// Which way a packet goes, seen from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    To,
    From,
}

/// How a packet disappears in a table without its sender noticing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vanish {
    /// Somebody else's packet is simply dropped.
    Drop,
    /// A frame of this host is handed to lo, where it is discarded as meant for another machine.
    StealToLo,
    /// A packet of this host is routed to lo by another address and dropped there.
    Reroute,
}

impl Compiler<'_> {
    /// A table of this fault: its sets first, then what `chains` has made; empty chains are left out.
    fn table(&self, family: Family, mut sets: Vec<Set>, chains: Vec<Chain>) -> Option<Table> {
        let mut chains: Vec<_> = chains.into_iter().filter(|chain| !chain.rules.is_empty()).collect();
        if !chains.iter().any(|chain| chain.hook.is_some()) {
            return None;
        }
        if family == Family::Inet {
            chains.iter_mut().flat_map(|chain| &mut chain.rules).flat_map(|rule| &mut rule.0).for_each(in_ip_stack);
        }
        if let Some(gate) = sets::gate_of(self.fault) {
            // While it is shut nothing in a chain applies.
            let shut = rule([Stmt::NotIn(vec![Key::Protocol], gate.name), Stmt::Do(Verdict::Accept)]);
            chains
                .iter_mut()
                .filter(|chain| chain.hook.is_some())
                .for_each(|chain| chain.rules.insert(0, shut.clone()));
            sets.insert(0, gate);
        }
        sets.retain(|set| chains.iter().any(|chain| mentions(chain, set.name)));
        Some(Table {
            family,
            name: self.fault.name.table(),
            // Until it is known how many tables there are.
            comment: String::new(),
            owner: self.fault.lifetime == Lifetime::Held,
            counters: if counts(&chains) { vec![TO, FROM] } else { Vec::new() },
            sets,
            chains,
        })
    }

    /// The set of that name, if anyone is in it.
    fn set(&self, name: &str) -> Option<&Set> {
        self.sets.iter().find(|set| set.name == name)
    }

    /// The conditions under which a packet goes `way`, one list for each set of peers.
    fn matches(&self, way: Way) -> Vec<Vec<Stmt>> {
        Ip::BOTH.into_iter().flat_map(|ip| self.matches_of(way, ip)).collect()
    }

    fn matches_of(&self, way: Way, ip: Ip) -> Vec<Vec<Stmt>> {
        let (peer, port, other) = match way {
            Way::To => (ip.daddr(), Key::Dport, ip.saddr()),
            Way::From => (ip.saddr(), Key::Sport, ip.daddr()),
        };
        self.matches_by(ip, &[], [peer, port, other], &[None])
    }

    /// The conditions under which a packet belongs to a connection that was addressed to a peer and then translated;
    /// none where nothing is translated.
    fn matches_translated(&self, way: Way) -> Vec<Vec<Stmt>> {
        if !self.vantage.translates {
            return Vec::new();
        }
        Ip::BOTH.into_iter().flat_map(|ip| self.matches_translated_of(way, ip)).collect()
    }

    fn matches_translated_of(&self, way: Way, ip: Ip) -> Vec<Vec<Stmt>> {
        let (direction, other) = match way {
            Way::To => (0, ip.saddr()),
            Way::From => (1, ip.daddr()),
        };
        let translated =
            [Stmt::Is(Key::Translated, Order::Ne, vec![0; 4]), Stmt::Is(Key::CtDirection, Order::Eq, vec![direction])];
        let keys = [Key::CtOriginalDaddr(ip.kind()), Key::CtOriginalDport, other];
        // nft knows what a port is only once it knows the protocol.
        let of = |proto: &u8| Some(Stmt::Is(Key::L4proto, Order::Eq, vec![*proto]));
        let protos: Vec<_> = self.fault.proto.numbers().iter().map(of).collect();
        self.matches_by(ip, &translated, keys, &protos)
    }

    /// By these keys of the peer, its port and the other end, behind other conditions; those of ports once for each of
    /// `protos`.
    fn matches_by(
        &self,
        ip: Ip,
        before: &[Stmt],
        [peer, port, other]: [Key; 3],
        protos: &[Option<Stmt>],
    ) -> Vec<Vec<Stmt>> {
        let Some(scope) = self.scope(ip, other) else { return Vec::new() };
        let host = |set: &Set| [Some(Stmt::In(vec![peer.clone()], set.name)), self.proto()];
        let port = |set: &Set| Some(Stmt::In(vec![peer.clone(), Key::L4proto, port.clone()], set.name));
        let hosts = self.set(ip.name(sets::HOSTS)).into_iter().map(host);
        let ports = self.set(ip.name(sets::PORTS)).into_iter();
        let ports = ports.flat_map(|set| protos.iter().map(|proto| [proto.clone(), port(set)]));
        let all = |own: [Option<Stmt>; 2]| before.iter().cloned().chain(own.into_iter().flatten()).chain(scope.clone());
        hosts.chain(ports).map(|own| all(own).collect()).collect()
    }

    /// The condition that the other end is one of `--with`; `None` if no packet of this family is meant.
    fn scope(&self, ip: Ip, other: Key) -> Option<Vec<Stmt>> {
        if self.fault.with.is_empty() {
            return Some(Vec::new());
        }
        self.set(ip.name(sets::WITH)).map(|set| vec![Stmt::In(vec![other], set.name)])
    }

    fn proto(&self) -> Option<Stmt> {
        match self.fault.proto {
            Proto::All => None,
            proto => Some(Stmt::Is(Key::L4proto, Order::Eq, proto.numbers().to_vec())),
        }
    }

    fn is_lossy(&self) -> bool {
        matches!(self.fault.kind, Failure::Lossy(_))
    }

    /// Whether the peers are whole machines for which no neighbour discovery is answered either.
    fn silences_neighbours(&self) -> bool {
        // Neighbour discovery belongs to no connection.
        let per_packet = !matches!(self.fault.kind, Failure::Lossy(loss) if loss.scope != LossScope::Packet);
        self.fault.kind.affects_neighbours() && per_packet && self.fault.proto == Proto::All
    }
}

/// In the IP stack the version of a packet is known as its netfilter family; `nft list` prints addresses only behind
/// that.
fn in_ip_stack(stmt: &mut Stmt) {
    for (ip, nfproto) in [(Ip::V4, 2), (Ip::V6, 10)] {
        if *stmt == fates::is_ip(ip) {
            *stmt = Stmt::Is(Key::Nfproto, Order::Eq, vec![nfproto]);
        }
    }
}

/// The sets that say whom a fault is about, and those that its rules fill.
fn peer_sets(fault: &Fault) -> Vec<Set> {
    let each = |ip| [sets::hosts(fault, ip), sets::ports(fault, ip), sets::with(fault, ip), sets::quoted(fault, ip)];
    let mut sets: Vec<_> = Ip::BOTH.into_iter().flat_map(each).flatten().collect();
    sets.extend(sets::sought(fault));
    if fault.kind == Failure::Rebooted {
        sets.extend(Ip::BOTH.map(fresh));
    }
    if matches!(fault.kind, Failure::HungProcess(_)) {
        sets.extend(Ip::BOTH.map(queued));
        sets.extend(Ip::BOTH.map(numbers::said));
    }
    if matches!(fault.kind, Failure::DeadProcess(_) | Failure::Unreachable(_)) {
        sets.extend(Ip::BOTH.map(|ip| paced(fault, ip)));
    }
    sets
}

/// A set that rules fill. Each element lives so long.
fn filled(name: &'static str, key: Vec<Key>, life: Duration) -> Set {
    let dynamic = Some((FILLED_SIZE, life));
    Set { name, key, data: None, interval: false, timeout: true, dynamic, elements: [].into() }
}

fn paced(fault: &Fault, ip: Ip) -> Set {
    filled(ip.name(PACED), paced_key(fault, ip), PACED_LIFE)
}

/// Who sends an error to whom: each peer, or the one router in front of all.
fn paced_key(fault: &Fault, ip: Ip) -> Vec<Key> {
    if matches!(fault.kind, Failure::Unreachable(_)) { vec![ip.saddr()] } else { vec![ip.saddr(), ip.daddr()] }
}

fn fresh(ip: Ip) -> Set {
    filled(ip.name(FRESH), vec![ip.saddr(), Key::Sport, ip.daddr(), Key::Dport], FRESH_LIFE)
}

fn queued(ip: Ip) -> Set {
    filled(ip.name(QUEUED), vec![ip.daddr(), Key::Dport], QUEUED_LIFE)
}

fn counts(chains: &[Chain]) -> bool {
    chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.0).any(|stmt| matches!(stmt, Stmt::Count(_)))
}

fn mentions(chain: &Chain, set: &str) -> bool {
    chain.rules.iter().flat_map(|rule| &rule.0).any(|stmt| match stmt {
        Stmt::In(_, name) | Stmt::NotIn(_, name) => *name == set,
        Stmt::Update(update) => update.set == set,
        Stmt::Learn(entry, _) | Stmt::Forget(entry) | Stmt::Recall(entry) => entry.map == set,
        _ => false,
    })
}

fn rule(stmts: impl IntoIterator<Item = Stmt>) -> Rule {
    Rule(stmts.into_iter().collect())
}

fn chain(name: &str, hook: Option<Hook>, rules: Vec<Rule>) -> Chain {
    Chain { name: name.to_owned(), hook, rules }
}

/// The same chain as often as it takes to hook it to all devices.
fn chains(name: &str, hook: fn(i32, Vec<String>) -> Hook, devices: &[Device], rules: &[Rule]) -> Vec<Chain> {
    let numbered = |number: usize| if number == 1 { name.to_owned() } else { format!("{name}{number}") };
    let of = |(number, devices): (usize, &[Device])| {
        let names = devices.iter().map(|device| device.name.clone()).collect();
        chain(&numbered(number), Some(hook(FIRST, names)), rules.to_vec())
    };
    (1..).zip(devices.chunks(MAX_DEVICES)).map(of).collect()
}

/// `conditions`, then each of `ends` of its own.
fn when(conditions: &[Vec<Stmt>], end: &Stmt) -> Vec<Rule> {
    conditions.iter().map(|stmts| rule(stmts.iter().chain([end]).cloned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: u32, name: &str) -> Vec<u8> {
        let mut name = name.as_bytes().to_vec();
        name.resize(16, 0);
        [index.to_ne_bytes().to_vec(), name].concat()
    }

    #[test]
    fn a_device_is_covered_under_the_name_and_index_that_it_had() {
        let device = |index, name: &str| Device { index, name: name.into() };
        let present = Vantage {
            devices: vec![device(2, "eth0"), device(3, "wan0"), device(5, "eth1")],
            ports: vec![device(7, "p0")],
            bridge_reject: BridgeReject::Ports,
            ..Vantage::default()
        };
        let covered = [key(1, "lo"), key(2, "eth0"), key(3, "eth3"), key(4, "eth1")];
        let names =
            |kind| uncovered(kind, &present, &covered).iter().map(|device| device.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(Failure::DeadHost), ["wan0", "eth1"]);
        assert_eq!(names(Failure::Rebooted), ["wan0", "eth1", "p0"]);
        assert_eq!(uncovered(Failure::Rebooted, &present, &[]), Vec::<&Device>::new());
    }
}
