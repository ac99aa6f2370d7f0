//! Where packets are judged: one table a family, one chain a hook.

use super::fates::{FROM_PEER, REFUSE, TO_PEER, accept, gone_of, is_mark, is_udp};
use super::neighbours::asks;
use super::{
    ABSORB, Base, COVERED_SET, Chain, Compiler, DOOMED_MARK, FIN_WAIT, FIRST, Failure, Family, Hook, Ip, Key, Kind,
    LAST, OpenConnections, Order, PACED, PACED_LIFE, Per, Rate, Rule, Set, Span, Stmt, TO, Table, Update, Vanish,
    Verdict, Way, chain, rule, sets, when,
};
use crate::model::{BridgeReject, Device, Proto, Vantage};

/// `XRLIM_BURST_FACTOR`: so many ICMP errors to one host may be sent at once.
pub(super) const ICMP_BURST: u32 = 6;
/// The class selector of precedence 6.
const INTERNETWORK_CONTROL: u8 = 0x30;
/// The kernel's `RTN_UNICAST`: not for this host.
const UNICAST: u32 = 1;
/// The kernel's `RTN_LOCAL`: an address of this host.
const LOCAL: u32 = 2;

impl Compiler<'_> {
    pub(super) fn inet(&self) -> Option<Table> {
        let mut chains = vec![self.fate(Way::To, Vanish::Drop), self.fate(Way::From, Vanish::Drop), self.refuse()];
        let [to, from] =
            [Way::To, Way::From].map(|way| Chain { name: rerouting(way).into(), ..self.fate(way, Vanish::Reroute) });
        let (to_rerouted, from_rerouted) = (!to.rules.is_empty(), !from.rules.is_empty());
        chains.extend([to, from]);
        let [to, from, refuses] = [0, 1, 2].map(|i| !chains[i].rules.is_empty());
        chains.push(chain("arrive", Some(Hook::Prerouting(FIRST)), self.arrive(to, from, refuses)));
        chains.push(chain("deliver", Some(Hook::Input(LAST)), self.deliver(to, from, refuses)));
        chains.push(chain("pass", Some(Hook::Forward(LAST)), self.pass(to, from, refuses)));
        chains.push(chain("leave", Some(Hook::Reroute(FIRST)), self.leave(to_rerouted, from_rerouted)));
        chains.push(self.answer());
        chains.push(chain("leave_translated", Some(Hook::Reroute(LAST)), self.leave_translated(to_rerouted, refuses)));
        let mut sets = self.sets.clone();
        sets.extend(self.absorb());
        sets.push(self.covered());
        self.table(Family::Inet, sets, chains)
    }

    /// Packets that have just come in, before they are routed.
    fn arrive(&self, to: bool, from: bool, refuses: bool) -> Vec<Rule> {
        let mut rules = vec![rule([is_mark(DOOMED_MARK), Stmt::Do(Verdict::Drop)])];
        if self.is_lossy() {
            // The dice must not roll twice: what a bridge passes on or up to this host was judged there. With
            // br_netfilter even what it passes on comes by here.
            rules.push(rule([by_bridge(), accept()]));
        }
        rules.extend(self.local_is_spared(&[on_lo(), fib(Order::Eq, LOCAL)]));
        rules.extend(self.errors(Vanish::Drop));
        if from {
            // A packet that only passes through is judged when it leaves.
            let here = self.is_lossy().then(|| fib(Order::Ne, UNICAST));
            rules.extend(when(&with_extra(self.matches(Way::From), here.as_ref()), &goto(FROM_PEER)));
        }
        if to {
            rules.extend(self.sought(goto(TO_PEER)));
            rules.extend(when(&with_extra(self.matches(Way::To), Some(&fib(Order::Eq, LOCAL))), &goto(TO_PEER)));
        }
        if refuses {
            // Stolen on their way out, they come back on lo as if they were for this host; copies do so by themselves.
            let stolen = [on_lo(), fib(Order::Ne, LOCAL)];
            rules.extend(self.after_the_way(&stolen));
            rules.extend(self.refused_unlimited(&stolen));
        }
        rules
    }

    /// Refuses what meets the conditions, by ICMP no more often than the peer or router would: the kernel limits the
    /// errors that it sends to another host, but not those that it sends to itself, or below the IP stack.
    pub(super) fn refused_unlimited(&self, conditions: &[Stmt]) -> Vec<Rule> {
        Ip::BOTH.into_iter().flat_map(|ip| self.refused_unlimited_of(ip, conditions)).collect()
    }

    fn refused_unlimited_of(&self, ip: Ip, conditions: &[Stmt]) -> Vec<Rule> {
        let conditions = self.matches_of(Way::To, ip).into_iter().map(|stmts| [conditions.to_vec(), stmts].concat());
        let conditions: Vec<_> = conditions.collect();
        let by_icmp = match self.fault.kind {
            Failure::DeadProcess(_) => Some(is_udp()),
            Failure::Unreachable(_) => None,
            _ => return when(&conditions, &goto(REFUSE)),
        };
        // One a second to one host (`icmp_ratelimit`); ICMPv6 allows a /64 four times that.
        let per_second = if ip == Ip::V4 { 1 } else { 4 };
        let rate = Rate { packets: per_second, per: Per::Second, burst: ICMP_BURST };
        let key = super::paced_key(self.fault, ip);
        let sent = Stmt::Update(Update { set: ip.name(PACED), key, timeout: PACED_LIFE, over: Some(rate) });
        let too_many = [sent, Stmt::Count(TO), Stmt::Do(Verdict::Drop)];
        let pace = |stmts: &Vec<Stmt>| rule(stmts.iter().cloned().chain(by_icmp.clone()).chain(too_many.clone()));
        conditions.iter().map(pace).chain(when(&conditions, &goto(REFUSE))).collect()
    }

    /// Packets for a process of this host.
    fn deliver(&self, to: bool, from: bool, refuses: bool) -> Vec<Rule> {
        let mut judged = Vec::new();
        if refuses {
            judged.extend(when(&self.matches(Way::To), &goto(REFUSE)));
        }
        judged.extend(self.translated(to, from, refuses));
        let spared = self.local_is_spared(&[on_lo()]).filter(|_| !judged.is_empty());
        spared.into_iter().chain(judged).collect()
    }

    /// No router is asked about what a host sends to itself.
    fn local_is_spared(&self, local: &[Stmt]) -> Option<Rule> {
        matches!(self.fault.kind, Failure::Unreachable(_)).then(|| rule(local.iter().cloned().chain([accept()])))
    }

    /// Packets that their sender addressed to a peer, and the answers to them, where the peer's address has been
    /// translated since or is yet to be translated back. Only a place that translates has these rules: they need
    /// conntrack, which is there then anyway and must not be switched on elsewhere.
    fn translated(&self, to: bool, from: bool, refuses: bool) -> Vec<Rule> {
        let to = if refuses { Some(REFUSE) } else { to.then_some(TO_PEER) };
        let ways = [(to, Way::To), (from.then_some(FROM_PEER), Way::From)];
        let of = |(fate, way): (Option<&'static str>, Way)| {
            fate.map_or(Vec::new(), |fate| when(&self.matches_translated(way), &goto(fate)))
        };
        ways.into_iter().flat_map(of).collect()
    }

    /// The same for packets of this host, once they have been translated.
    fn leave_translated(&self, to: bool, refuses: bool) -> Vec<Rule> {
        let fate = if refuses { Some(REFUSE) } else { to.then_some(rerouting(Way::To)) };
        fate.map_or(Vec::new(), |fate| when(&self.matches_translated(Way::To), &goto(fate)))
    }

    /// Packets on their way through this router.
    fn pass(&self, to: bool, from: bool, refuses: bool) -> Vec<Rule> {
        let translated = self.translated(to, from, refuses);
        if refuses {
            return [when(&self.matches(Way::To), &goto(REFUSE)), translated].concat();
        }
        let ways = [(from, Way::From, FROM_PEER), (to, Way::To, TO_PEER)];
        let judged = ways.into_iter().filter(|(judged, ..)| *judged);
        let judged: Vec<_> = judged.flat_map(|(_, way, fate)| when(&self.matches(way), &goto(fate))).collect();
        let judged = if judged.is_empty() { judged } else { [vec![is_covered()], judged].concat() };
        [translated, judged].concat()
    }

    /// Packets of this host, before they are given a device that has no egress hook of ours, or are cut into fragments.
    fn leave(&self, to: bool, from: bool) -> Vec<Rule> {
        let mut rules = self.errors(Vanish::Reroute);
        for (way, _) in [(Way::From, from), (Way::To, to)].into_iter().filter(|(_, judged)| *judged) {
            rules.extend(when(&self.matches(way), &goto(rerouting(way))));
        }
        if !rules.is_empty() {
            rules.insert(0, is_covered());
        }
        [self.signed_by_peer(), self.in_their_name(), self.whole(), rules].concat()
    }

    /// The kernel signs an ICMP error with an address of the host that rejects; a client can read it, and has to find
    /// the peer's. The quoted packet has it as its destination.
    fn signed_by_peer(&self) -> Vec<Rule> {
        // TCP is refused by RST.
        let is_tcp = self.fault.proto == Proto::Tcp;
        if !matches!(self.fault.kind, Failure::DeadProcess(_)) || !self.fault.direction.to() || is_tcp {
            return Vec::new();
        }
        let port_unreachable =
            [(Ip::V4, [(Key::IcmpType, 3), (Key::IcmpCode, 3)]), (Ip::V6, [(Key::Icmp6Type, 1), (Key::Icmp6Code, 4)])];
        let of = |(ip, error): (Ip, [(Key, u8); 2])| {
            let set = self.set(ip.name(sets::QUOTED))?;
            let is_error = error.map(|(key, value)| Stmt::Is(key, Order::Eq, vec![value]));
            let quoted = set.key[0].clone();
            let about = [Stmt::In(set.key.clone(), set.name), Stmt::Copy(ip.saddr(), quoted)];
            Some(rule(is_error.into_iter().chain(about)))
        };
        port_unreachable.into_iter().filter_map(of).collect()
    }

    /// What `leave` need not look at: devices with an egress hook of ours, and lo, whose packets come in again. From
    /// Linux 6.16 on a hook belongs to a name, before to a device: only one with both is sure to have it.
    fn covered(&self) -> Set {
        let lo = Device { index: self.vantage.loopback, name: "lo".into() };
        let element = |device: &Device| {
            let [index, name] = covered_by(device);
            let key = vec![Span::one(Kind::IfIndex, index), Span::one(Kind::IfName, name)];
            super::super::value::Element { key, timeout: None, comment: None }
        };
        let ports = ports_with_rules(self.fault.kind, self.vantage);
        let elements = self.vantage.devices.iter().chain(ports).chain([&lo]).map(element).collect();
        let (name, key) = (COVERED_SET, covered_key());
        Set { name, key, data: None, interval: false, timeout: false, dynamic: None, elements }
    }

    pub(super) fn netdev(&self) -> Option<Table> {
        let fates = [self.fate(Way::To, Vanish::StealToLo), self.fate(Way::From, Vanish::StealToLo)];
        let devices = &self.vantage.devices;
        let mut chains = Vec::new();
        if !devices.is_empty() {
            let rules = self.depart(!fates[0].rules.is_empty(), !fates[1].rules.is_empty());
            chains.extend(super::chains("depart", Hook::Egress, devices, &rules));
            if self.fault.kind.refuses() && self.fault.direction.to() {
                // lo gives a stolen frame to nobody, since its address is another machine's.
                let rules = when(&self.matches(Way::To), &Stmt::ForThisHost);
                chains.push(chain("bounce", Some(Hook::Ingress(FIRST, vec!["lo".into()])), rules));
            }
        }
        let ports = ports_with_rules(self.fault.kind, self.vantage);
        let refuse = self.refuse();
        if !ports.is_empty() && !refuse.rules.is_empty() {
            if self.vantage.bridge_reject == BridgeReject::Ports {
                chains.push(refuse);
                chains.extend(super::chains("port", Hook::Ingress, ports, &self.refused_unlimited(&[])));
            }
            // What is refused in the bridge leaves by the port that the packet came by, too.
            chains.extend(super::chains("dress", Hook::Egress, ports, &self.as_by_the_stack()));
        }
        self.table(Family::Netdev, self.netdev_sets(), fates.into_iter().chain(chains).collect())
    }

    /// An ICMP error that is made in a bridge or at its port has DF, no id and no type of service
    /// (`nf_reject_iphdr_put`); `icmp_send` gives it an id, may cut it, and has it sent as internetwork control
    /// (RFC 1812, 4.3.2.5).
    fn as_by_the_stack(&self) -> Vec<Rule> {
        let Some(set) = self.set(sets::QUOTED[0]).filter(|_| matches!(self.fault.kind, Failure::DeadProcess(_))) else {
            return Vec::new();
        };
        let is = |key: Key, value: &[u8]| Stmt::Is(key, Order::Eq, value.to_vec());
        let error = [is(Key::IcmpType, &[3]), is(Key::IcmpCode, &[3]), is(Key::Id, &[0, 0])];
        let about = Stmt::In(set.key.clone(), set.name);
        // Any number will do that differs from one to the next: the checksum of the error.
        let id = Stmt::Copy(Key::Id, Key::IcmpChecksum);
        let rest = [Stmt::Write(Key::FragOff, vec![0, 0]), Stmt::Write(Key::Dscp, vec![INTERNETWORK_CONTROL]), id];
        vec![rule(error.into_iter().chain([about]).chain(rest))]
    }

    fn netdev_sets(&self) -> Vec<Set> {
        let mut sets = self.sets.clone();
        if self.vantage.bridge_reject == BridgeReject::Ports {
            sets.extend(self.absorb());
        }
        sets
    }

    /// The set that is there while bare acknowledgments are taken in silently.
    fn absorb(&self) -> Option<Set> {
        matches!(self.fault.kind, Failure::DeadProcess(open) if open != OpenConnections::Keep)
            .then(|| sets::gate(ABSORB, Some(FIN_WAIT), &Ip::BOTH.map(Ip::ether_type)))
    }

    /// Frames that leave this host, its own and those it forwards.
    fn depart(&self, to: bool, from: bool) -> Vec<Rule> {
        // One that carries a VLAN tag has been judged on the VLAN's own device.
        let tagged = Stmt::Is(Key::Raw(Base::Link, 96, 16), Order::Eq, vec![0x81, 0x00]);
        let mut rules = self.errors(Vanish::StealToLo);
        if from {
            rules.extend(when(&self.matches(Way::From), &goto(FROM_PEER)));
        }
        if to {
            // The question whether the peer is there goes out, as it does when nobody answers it.
            rules.extend(self.asks_aloud().then(|| rule([asks(), accept()])));
            rules.extend(when(&self.matches(Way::To), &goto(TO_PEER)));
        }
        if !rules.is_empty() {
            rules.insert(0, rule([tagged, accept()]));
        }
        rules
    }

    pub(super) fn bridge(&self) -> Option<Table> {
        let fates = [self.fate(Way::To, Vanish::Drop), self.fate(Way::From, Vanish::Drop)];
        let [to, from] = [0, 1].map(|i| !fates[i].rules.is_empty());
        let mut rules = self.errors(Vanish::Drop);
        let mut refuse = self.refuse();
        if self.silences_neighbours() {
            rules.extend(self.arp_rules(Family::Bridge, to, from));
        }
        if from {
            rules.extend(when(&self.matches(Way::From), &goto(FROM_PEER)));
        }
        if to {
            rules.extend(self.sought(goto(TO_PEER)));
            rules.extend(when(&self.matches(Way::To), &goto(TO_PEER)));
        }
        match self.vantage.bridge_reject {
            BridgeReject::Bridge if !refuse.rules.is_empty() => {
                rules.extend(self.refused_unlimited(&[]));
            }
            _ => refuse.rules.clear(),
        }
        let mut sets = self.sets.clone();
        sets.extend(self.absorb());
        let [to, from] = fates;
        let through = chain("through", Some(Hook::Prerouting(FIRST)), rules);
        self.table(Family::Bridge, sets, vec![to, from, refuse, through])
    }

    /// ICMP errors about the peers' ports, whoever sends them.
    fn errors(&self, vanish: Vanish) -> Vec<Rule> {
        if self.fault.kind != Failure::Hush || !self.fault.direction.from() {
            return Vec::new();
        }
        // A message that a packet was too big is about the path: IPv4 has it as a code, IPv6 as a type.
        let too_big = Stmt::Is(Key::IcmpCode, Order::Ne, vec![4]);
        let v4 = vec![Stmt::Is(Key::IcmpType, Order::Eq, vec![3]), too_big];
        let v6 = vec![Stmt::Is(Key::Icmp6Type, Order::Eq, vec![1])];
        let of = |(ip, mut conditions): (Ip, Vec<Stmt>)| {
            let set = self.set(ip.name(sets::QUOTED))?;
            let scope = self.scope(ip, ip.daddr())?;
            conditions.push(Stmt::In(set.key.clone(), set.name));
            conditions.extend(scope);
            Some(gone_of(Way::From, vanish, &[ip], conditions))
        };
        [(Ip::V4, v4), (Ip::V6, v6)].into_iter().filter_map(of).flatten().collect()
    }
}

pub(super) fn goto(chain: &'static str) -> Stmt {
    Stmt::Do(Verdict::Goto(chain))
}

pub(super) fn rerouting(way: Way) -> &'static str {
    match way {
        Way::To => "to_peer_by_lo",
        Way::From => "from_peer_by_lo",
    }
}

fn fib(order: Order, kind: u32) -> Stmt {
    Stmt::Is(Key::FibDaddrType, order, kind.to_ne_bytes().to_vec())
}

fn on_lo() -> Stmt {
    Stmt::Is(Key::IifName, Order::Eq, sixteen_bytes("lo"))
}

/// Index and name, as they stand in the set.
pub(super) fn covered_by(device: &Device) -> [Vec<u8>; 2] {
    [device.index.to_ne_bytes().to_vec(), sixteen_bytes(&device.name)]
}

/// The ports of a bridge at which frames are refused, or what refuses them leaves.
pub(super) fn ports_with_rules(kind: Failure, vantage: &Vantage) -> &[Device] {
    let there = vantage.bridge_reject != BridgeReject::Missing && kind.refuses();
    if there { &vantage.ports } else { &[] }
}

fn covered_key() -> Vec<Key> {
    vec![Key::Oif, Key::OifName]
}

fn is_covered() -> Rule {
    rule([Stmt::In(covered_key(), COVERED_SET), accept()])
}

fn by_bridge() -> Stmt {
    Stmt::Is(Key::IifKind, Order::Eq, sixteen_bytes("bridge"))
}

fn sixteen_bytes(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

fn with_extra(conditions: Vec<Vec<Stmt>>, extra: Option<&Stmt>) -> Vec<Vec<Stmt>> {
    conditions.into_iter().map(|stmts| stmts.into_iter().chain(extra.cloned()).collect()).collect()
}
