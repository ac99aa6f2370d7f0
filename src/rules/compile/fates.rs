//! What becomes of a packet to or from a peer, kind by kind: the chains that all sites share.

use super::super::key::{FIN, RST, SYN};
use super::super::value::{IcmpCode, Reject};
use super::{
    ABSORB, Base, Chain, Compiler, DOOMED_MARK, FORGED_MARK, FRESH, FRESH_LIFE, FROM, Failure, Ip, Key, LossScope,
    OpenConnections, Order, Per, QUEUED, QUEUED_LIFE, REFUSED_MARK, Rate, Rule, Stmt, TO, Update, Vanish, Verdict, Way,
    chain, numbers, rule,
};
use crate::model::{Code, Loss};

/// The chain for packets to a peer.
pub(super) const TO_PEER: &str = "to_peer";
/// The chain for packets from a peer.
pub(super) const FROM_PEER: &str = "from_peer";
/// The chain that answers in the peer's stead.
pub(super) const REFUSE: &str = "refuse";

/// The first and the last type of its messages (RFC 4861).
const NEIGHBOUR_DISCOVERY: [u8; 2] = [133, 137];

impl Compiler<'_> {
    /// The chain for packets that go `way`; without rules where they pass.
    pub(super) fn fate(&self, way: Way, vanish: Vanish) -> Chain {
        let (name, affected) = match way {
            Way::To => (TO_PEER, self.fault.direction.to()),
            Way::From => (FROM_PEER, self.fault.direction.from()),
        };
        let rules = match (affected, way) {
            (false, _) => Vec::new(),
            (true, Way::To) => self.fate_to(vanish),
            (true, Way::From) => self.fate_from(vanish),
        };
        chain(name, None, self.sparing_neighbours(rules))
    }

    /// A machine that is there for its neighbours answers them, over IPv6 by packets of its own address.
    fn sparing_neighbours(&self, mut rules: Vec<Rule>) -> Vec<Rule> {
        let every_protocol = matches!(self.fault.kind, Failure::Unreachable(_) | Failure::Lossy(_));
        if every_protocol && !self.silences_neighbours() && !rules.is_empty() {
            rules.insert(0, rule([Stmt::Is(Key::Icmp6Type, Order::Within, NEIGHBOUR_DISCOVERY.to_vec()), accept()]));
        }
        rules
    }

    fn fate_to(&self, vanish: Vanish) -> Vec<Rule> {
        match self.fault.kind {
            Failure::DeadHost => gone(Way::To, vanish, vec![]),
            Failure::Lossy(loss) => lost(loss, Way::To, vanish),
            Failure::HungProcess(backlog) => self.beyond_the_queue(backlog, vanish),
            Failure::DeadProcess(open) => {
                let refused = refused(vanish, vec![]);
                let asked = (!refused.is_empty()).then(|| question(open)).flatten();
                asked.into_iter().chain(refused).collect()
            }
            Failure::Unreachable(_) => refused(vanish, vec![]),
            Failure::Rebooted if vanish != Vanish::Drop => {
                known(Way::To).into_iter().chain(refused(vanish, vec![is_tcp()])).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The kernel drops a SYN when more connections wait for `accept` than the backlog allows (`tcp_conn_request`,
    /// `sk_acceptq_is_full`). What the process accepts here would wait there.
    fn beyond_the_queue(&self, backlog: Option<u32>, vanish: Vanish) -> Vec<Rule> {
        let places = backlog.map_or(self.vantage.accept_queue, |backlog| backlog.saturating_add(1));
        let of = |ip: Ip| {
            let over = Some(Rate { packets: 1, per: Per::Day, burst: places });
            let key = vec![ip.daddr(), Key::Dport];
            let queue = Stmt::Update(Update { set: ip.name(QUEUED), key, timeout: QUEUED_LIFE, over });
            let conditions = [is_ip(ip), has_flags(SYN)].into_iter().chain((places > 0).then_some(queue));
            gone_of(Way::To, vanish, &[ip], conditions.collect())
        };
        Ip::BOTH.into_iter().flat_map(of).collect()
    }

    fn fate_from(&self, vanish: Vanish) -> Vec<Rule> {
        let way = Way::From;
        match self.fault.kind {
            Failure::DeadHost => gone(way, vanish, vec![]),
            Failure::Lossy(loss) => lost(loss, way, vanish),
            Failure::Hush => gone(way, vanish, vec![has_flags(FIN | RST)]),
            Failure::HungProcess(_) => {
                let lost = [vec![has_flags(FIN | RST)], carries_data(), vec![is_udp()]];
                let lost = lost.into_iter().flat_map(|conditions| gone(way, vanish, conditions));
                numbers::learned().into_iter().chain(lost).chain(numbers::recalled()).collect()
            }
            Failure::DeadProcess(open) => {
                // What refuses in the process's stead passes here too, and so do the FINs that end its connections.
                let mut rules = vec![rule([is_mark(FORGED_MARK), accept()]), rule([has_flags(RST), accept()])];
                if open != OpenConnections::Keep {
                    // Bare acknowledgments are not counted: most answer the question that ends a connection.
                    rules.extend(gone(way, vanish, carries_data()));
                    rules.extend(gone(way, vanish, vec![has_flags(SYN | FIN)]));
                    rules.extend(vanished(vanish, &Ip::BOTH, &[is_tcp()]));
                }
                rules.extend(gone(way, vanish, vec![]));
                rules
            }
            Failure::Unreachable(_) => {
                // On the peer itself the refusal has the peer's address.
                let mut rules = own_errors().to_vec();
                rules.extend(gone(way, vanish, vec![]));
                rules
            }
            Failure::Rebooted => {
                let mut rules = vec![rule([has_flags(RST), accept()])];
                rules.extend(known(way));
                rules.extend(gone(way, vanish, vec![is_tcp()]));
                rules
            }
        }
    }

    /// The chain that answers in the peer's stead; it has rules only for kinds that refuse.
    pub(super) fn refuse(&self) -> Chain {
        let count = Stmt::Count(TO);
        let rules = match self.fault.kind {
            _ if !self.fault.direction.to() => Vec::new(),
            Failure::DeadProcess(open) => refuse_as_closed_port(open),
            Failure::Unreachable(code) => {
                let v4 = [is_ip(Ip::V4), count.clone(), Stmt::Reject(Reject::Icmp(icmp(code)))];
                let v6 = [is_ip(Ip::V6), count, Stmt::Reject(Reject::Icmp6(icmp6(code)))];
                fragments_without_checksum().into_iter().chain([rule(v4), rule(v6)]).collect()
            }
            Failure::Rebooted => {
                let old = rule([is_tcp(), count, Stmt::Reject(Reject::TcpReset)]);
                known(Way::To).into_iter().chain([old]).collect()
            }
            _ => Vec::new(),
        };
        chain(REFUSE, None, self.sparing_neighbours(rules))
    }
}

/// The kernel refuses no packet whose checksum it finds wrong, and that of a datagram is never right for its first
/// fragment alone; without one (RFC 768) it is refused. The others carry no ports, and are never answered.
fn fragments_without_checksum() -> [Rule; 2] {
    // Both versions have it in byte 6: IPv4 the flag that more follow, beside that not to cut further; IPv6 the
    // protocol of what comes next, a fragment header.
    let byte = |value: u8| Stmt::Is(Key::Raw(Base::Network, 48, 8), Order::Eq, vec![value]);
    let no_checksum = Stmt::Write(Key::UdpChecksum, vec![0, 0]);
    [(Ip::V4, 0x20), (Ip::V6, 44)].map(|(ip, value)| rule([is_ip(ip), is_udp(), byte(value), no_checksum.clone()]))
}

/// Where the refusal is made and counted elsewhere.
fn refused(vanish: Vanish, conditions: Vec<Stmt>) -> Vec<Rule> {
    match vanish {
        Vanish::Drop => Vec::new(),
        Vanish::StealToLo => vec![rule(conditions.into_iter().chain([Stmt::StealToLo]))],
        Vanish::Reroute => vec![rule(conditions.into_iter().chain([mark(REFUSED_MARK), accept()]))],
    }
}

/// By which the peer is asked for the numbers of a connection that is to end (`kernel::forge`).
fn question(open: OpenConnections) -> Option<Rule> {
    (open != OpenConnections::Keep).then(|| rule([is_mark(FORGED_MARK), accept()]))
}

/// As the kernel answers for a port that nobody listens on.
fn refuse_as_closed_port(open: OpenConnections) -> Vec<Rule> {
    let reset = || [Stmt::Count(TO), Stmt::Reject(Reject::TcpReset)];
    let mut rules = Vec::new();
    rules.extend(question(open));
    if open != OpenConnections::Keep {
        // The acknowledgment of the FIN, and those of a challenge, must not be answered: FIN-WAIT-2 takes them in.
        rules.push(rule(carries_data().into_iter().chain(reset())));
        rules.push(rule([has_flags(SYN | FIN)].into_iter().chain(reset())));
        rules.push(rule([Stmt::In(vec![Key::Protocol], ABSORB), is_tcp(), Stmt::Do(Verdict::Drop)]));
    }
    rules.push(rule([is_tcp()].into_iter().chain(reset())));
    rules.extend(fragments_without_checksum());
    let port_unreachable = [Reject::Icmp(icmp(Code::Port)), Reject::Icmp6(icmp6(Code::Port))];
    rules.extend(
        Ip::BOTH
            .into_iter()
            .zip(port_unreachable)
            .map(|(ip, reject)| rule([is_ip(ip), Stmt::Count(TO), Stmt::Reject(reject)])),
    );
    rules
}

fn icmp(code: Code) -> IcmpCode {
    match code {
        Code::Net => IcmpCode(0, "net-unreachable"),
        Code::Host => IcmpCode(1, "host-unreachable"),
        Code::Protocol => IcmpCode(2, "prot-unreachable"),
        Code::Port => IcmpCode(3, "port-unreachable"),
        Code::NetProhibited => IcmpCode(9, "net-prohibited"),
        Code::HostProhibited => IcmpCode(10, "host-prohibited"),
        Code::AdminProhibited => IcmpCode(13, "admin-prohibited"),
    }
}

fn icmp6(code: Code) -> IcmpCode {
    match code {
        Code::Net => IcmpCode(0, "no-route"),
        Code::HostProhibited | Code::AdminProhibited => IcmpCode(1, "admin-prohibited"),
        Code::Host => IcmpCode(3, "addr-unreachable"),
        Code::Port | Code::Protocol => IcmpCode(4, "port-unreachable"),
        Code::NetProhibited => IcmpCode(6, "reject-route"),
    }
}

/// Counts and makes vanish what meets the conditions.
fn gone(way: Way, vanish: Vanish, conditions: Vec<Stmt>) -> Vec<Rule> {
    gone_of(way, vanish, &Ip::BOTH, conditions)
}

/// The same for conditions that only packets of these versions can meet.
pub(super) fn gone_of(way: Way, vanish: Vanish, ips: &[Ip], conditions: Vec<Stmt>) -> Vec<Rule> {
    let count = Stmt::Count(if way == Way::To { TO } else { FROM });
    vanished(vanish, ips, &conditions.into_iter().chain([count]).collect::<Vec<_>>())
}

/// Makes vanish, uncounted.
fn vanished(vanish: Vanish, ips: &[Ip], base: &[Stmt]) -> Vec<Rule> {
    let then = |end| vec![rule(base.iter().cloned().chain([end]))];
    match vanish {
        Vanish::Drop => then(Stmt::Do(Verdict::Drop)),
        Vanish::StealToLo => then(Stmt::StealToLo),
        Vanish::Reroute => ips.iter().map(|ip| rerouted(*ip, base)).collect(),
    }
}

fn rerouted(ip: Ip, conditions: &[Stmt]) -> Rule {
    rule([is_ip(ip)].into_iter().chain(conditions.iter().cloned()).chain(doomed(ip)))
}

/// Gives a packet a loopback address. It never arrives there: its mark sees to that.
pub(super) fn doomed(ip: Ip) -> [Stmt; 3] {
    [mark(DOOMED_MARK), Stmt::Write(ip.daddr(), ip.loopback()), accept()]
}

pub(super) fn mark(mark: u32) -> Stmt {
    Stmt::Write(Key::Mark, mark.to_ne_bytes().to_vec())
}

/// Rolls the dice. One that survives is accepted here: it must not be judged twice when both ends are peers.
fn lost(loss: Loss, way: Way, vanish: Vanish) -> Vec<Rule> {
    let below = |key: Key| Stmt::Is(key, Order::Lt, loss.per_myriad.to_be_bytes().to_vec());
    let roll = |keys: Vec<Key>, seed| below(Key::Hash(keys, MYRIAD, seed));
    let mut rules = match loss.scope {
        LossScope::Packet => gone(way, vanish, vec![below(Key::Random(MYRIAD))]),
        LossScope::Connection { seed } => Ip::BOTH
            .into_iter()
            .flat_map(|ip| {
                let dropped = |conditions: Vec<Stmt>| gone_of(way, vanish, &[ip], conditions);
                let by_ports = |proto: Stmt| {
                    let mut rules = dropped(vec![is_ip(ip), proto.clone(), roll(tuple(way, ip, true), seed)]);
                    rules.push(rule([is_ip(ip), proto, accept()]));
                    rules
                };
                let other = dropped(vec![is_ip(ip), roll(tuple(way, ip, false), seed)]);
                [by_ports(is_tcp()), by_ports(is_udp()), other].concat()
            })
            .collect(),
    };
    rules.push(rule([accept()]));
    rules
}

const MYRIAD: u32 = 10_000;

/// Who talks to whom, the other end first, so that both directions of a connection hash alike.
fn tuple(way: Way, ip: Ip, ports: bool) -> Vec<Key> {
    let (other, peer) = ([ip.saddr(), Key::Sport], [ip.daddr(), Key::Dport]);
    let ends = if way == Way::To { [other, peer] } else { [peer, other] };
    ends.into_iter().flat_map(|end| end.into_iter().take(if ports { 2 } else { 1 })).collect()
}

/// Lets the connections pass that were made since the reboot, and learns them by their SYN or SYN-ACK: no
/// connection tracking is needed, and the two directions learn for themselves.
fn known(way: Way) -> Vec<Rule> {
    let of = |ip: Ip| {
        let key = tuple(way, ip, true);
        let update = Stmt::Update(Update { set: ip.name(FRESH), key: key.clone(), timeout: FRESH_LIFE, over: None });
        let known = Stmt::In(key, ip.name(FRESH));
        [
            rule([is_ip(ip), has_flags(SYN), update.clone(), accept()]),
            rule([is_ip(ip), is_tcp(), known, update, accept()]),
        ]
    };
    Ip::BOTH.into_iter().flat_map(of).collect()
}

fn own_errors() -> [Rule; 2] {
    let unreachable = |key: Key, number: u8| rule([Stmt::Is(key, Order::Eq, vec![number]), accept()]);
    [unreachable(Key::IcmpType, 3), unreachable(Key::Icmp6Type, 1)]
}

pub(super) fn accept() -> Stmt {
    Stmt::Do(Verdict::Accept)
}

pub(super) fn is_tcp() -> Stmt {
    Stmt::Is(Key::L4proto, Order::Eq, vec![6])
}

pub(super) fn is_not_tcp() -> Stmt {
    Stmt::Is(Key::L4proto, Order::Ne, vec![6])
}

pub(super) fn is_udp() -> Stmt {
    Stmt::Is(Key::L4proto, Order::Eq, vec![17])
}

pub(super) fn is_ip(ip: Ip) -> Stmt {
    Stmt::Is(Key::Protocol, Order::Eq, ip.ether_type().to_vec())
}

pub(super) fn is_mark(mark: u32) -> Stmt {
    Stmt::Is(Key::Mark, Order::Eq, mark.to_ne_bytes().to_vec())
}

pub(super) fn has_flags(mask: u8) -> Stmt {
    Stmt::Is(Key::TcpFlags(mask), Order::Ne, vec![0])
}

/// A byte behind the TCP header can be loaded: the segment carries data. Loading it fails on a bare ACK, and a
/// load that fails ends the rule.
pub(super) fn carries_data() -> Vec<Stmt> {
    vec![is_tcp(), Stmt::Is(Key::Raw(Base::Inner, 0, 8), Order::Within, vec![0, 255])]
}
