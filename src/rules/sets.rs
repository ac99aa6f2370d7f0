//! The sets of a fault: who it is about, and for how long.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;

use super::key::{Base, Key, Kind};
use super::value::{Element, Set, Span};
use crate::model::{Fault, Lifetime, Ports, Target};

/// Peers without ports.
pub(super) const HOSTS: [&str; 2] = ["hosts4", "hosts6"];
/// Peers with ports.
pub(super) const PORTS: [&str; 2] = ["ports4", "ports6"];
/// The other ends that a fault is limited to.
pub(super) const WITH: [&str; 2] = ["with4", "with6"];
/// Peers with ports, as an ICMP error quotes them.
pub(super) const QUOTED: [&str; 2] = ["quoted4", "quoted6"];
/// IPv6 peers, as neighbour discovery asks for them.
pub(super) const SOUGHT: &str = "sought6";
/// The set without whose elements nothing of a fault applies: a lease that has run out, an edge of a flap, a partition whose
/// moment has not come.
pub const GATE_SET: &str = "gate";

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ip {
    V4,
    V6,
}

impl Ip {
    pub(super) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub(super) fn name(self, names: [&'static str; 2]) -> &'static str {
        names[self as usize]
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Self::V4 => Kind::Ipv4,
            Self::V6 => Kind::Ipv6,
        }
    }

    pub(super) fn saddr(self) -> Key {
        match self {
            Self::V4 => Key::Saddr4,
            Self::V6 => Key::Saddr6,
        }
    }

    pub(super) fn daddr(self) -> Key {
        match self {
            Self::V4 => Key::Daddr4,
            Self::V6 => Key::Daddr6,
        }
    }

    /// How many routers a packet may still pass.
    pub(super) fn ttl(self) -> Key {
        match self {
            Self::V4 => Key::Ttl,
            Self::V6 => Key::HopLimit,
        }
    }

    pub(super) fn loopback(self) -> Vec<u8> {
        match self {
            Self::V4 => Ipv4Addr::LOCALHOST.octets().to_vec(),
            Self::V6 => Ipv6Addr::LOCALHOST.octets().to_vec(),
        }
    }

    /// The protocol of a frame that carries it.
    pub(super) fn ether_type(self) -> [u8; 2] {
        match self {
            Self::V4 => [0x08, 0x00],
            Self::V6 => [0x86, 0xdd],
        }
    }

    fn has(self, net: &IpNet) -> bool {
        matches!((self, net), (Self::V4, IpNet::V4(_)) | (Self::V6, IpNet::V6(_)))
    }
}

/// The fields of an ICMP error's quoted packet: destination address, protocol, destination port. The ICMP header
/// has 8 bytes; the quoted IPv4 header has 20 (no options), the IPv6 header 40 (no extension headers).
fn quoted_key(ip: Ip) -> Vec<Key> {
    let raw = |byte: u16, bytes: u16| Key::Raw(Base::Transport, byte * 8, bytes * 8);
    match ip {
        Ip::V4 => vec![raw(8 + 16, 4), raw(8 + 9, 1), raw(8 + 20 + 2, 2)],
        Ip::V6 => vec![raw(8 + 24, 16), raw(8 + 6, 1), raw(8 + 40 + 2, 2)],
    }
}

/// Where a neighbour solicitation or advertisement says whom it is about: behind type, code, checksum and flags.
pub(super) fn sought_key() -> Key {
    Key::Raw(Base::Transport, 64, 128)
}

/// The peers without ports of one family.
pub(super) fn hosts(fault: &Fault, ip: Ip) -> Option<Set> {
    let key = vec![ip.daddr()];
    addresses(ip.name(HOSTS), key, ip.kind(), fault.peers.iter().filter(|p| p.ports.is_none() && ip.has(&p.net)))
}

/// The IPv6 peers without ports, to be found in neighbour discovery.
pub(super) fn sought(fault: &Fault) -> Option<Set> {
    let peers = fault.peers.iter().filter(|p| p.ports.is_none() && Ip::V6.has(&p.net));
    addresses(SOUGHT, vec![sought_key()], Kind::Number(16), peers)
}

/// The other ends of one family.
pub(super) fn with(fault: &Fault, ip: Ip) -> Option<Set> {
    let ends: Vec<_> = fault.with.iter().map(|net| Target { net: *net, ports: None, label: None }).collect();
    addresses(ip.name(WITH), vec![ip.saddr()], ip.kind(), ends.iter().filter(|end| ip.has(&end.net)))
}

fn addresses<'a>(
    name: &'static str,
    key: Vec<Key>,
    kind: Kind,
    targets: impl Iterator<Item = &'a Target>,
) -> Option<Set> {
    let targets = disjoint(targets);
    let elements = targets.iter().map(|target| Element {
        key: vec![span(kind, &target.net)],
        timeout: None,
        comment: target.label.clone(),
    });
    named(name, key, elements.collect())
}

/// The peers with ports of one family, one element a protocol.
pub(super) fn ports(fault: &Fault, ip: Ip) -> Option<Set> {
    let key = vec![ip.daddr(), Key::L4proto, Key::Dport];
    named(ip.name(PORTS), key, port_elements(fault, ip, [ip.kind(), Kind::Proto, Kind::Port]))
}

/// The same as an ICMP error quotes them.
pub(super) fn quoted(fault: &Fault, ip: Ip) -> Option<Set> {
    let kinds = [Kind::Number(u8::try_from(ip.kind().size()).ok()?), Kind::Number(1), Kind::Number(2)];
    named(ip.name(QUOTED), quoted_key(ip), port_elements(fault, ip, kinds))
}

fn port_elements(fault: &Fault, ip: Ip, kinds: [Kind; 3]) -> Vec<Element> {
    let targets = disjoint(fault.peers.iter().filter(|p| p.ports.is_some() && ip.has(&p.net)));
    let element = |target: &Target, ports: Ports, proto: u8| Element {
        key: vec![
            span(kinds[0], &target.net),
            Span::one(kinds[1], [proto]),
            Span::range(kinds[2], ports.first.to_be_bytes(), ports.last.to_be_bytes()),
        ],
        timeout: None,
        comment: target.label.clone(),
    };
    let of_target = |target: Target| {
        let protos = fault.proto.numbers().iter();
        target.ports.map(|ports| protos.map(|proto| element(&target, ports, *proto)).collect::<Vec<_>>())
    };
    targets.into_iter().filter_map(of_target).flatten().collect()
}

/// The kernel refuses elements of an interval set that overlap, so each address and port is kept once: ranges of
/// one prefix are merged, and what a wider prefix names already is left out of the narrower.
fn disjoint<'a>(targets: impl Iterator<Item = &'a Target>) -> Vec<Target> {
    let mut sorted: Vec<_> = targets.collect();
    sorted.sort();
    let mut wider: Vec<(IpNet, Vec<Ports>)> = Vec::new();
    let mut kept = Vec::with_capacity(sorted.len());
    for same in sorted.chunk_by(|a, b| a.net == b.net) {
        // Sorted by address and then by length, a prefix comes before all that it contains.
        while wider.last().is_some_and(|(net, _)| !net.contains(&same[0].net)) {
            wider.pop();
        }
        let named = merged(same.iter().map(|target| target.ports.unwrap_or(EVERY_PORT)));
        let fresh = wider.iter().fold(named.clone(), |ports, (_, taken)| without(&ports, taken));
        let label = same.iter().find_map(|target| target.label.clone());
        kept.extend(fresh.iter().map(|ports| Target {
            net: same[0].net,
            ports: same[0].ports.map(|_| *ports),
            label: label.clone(),
        }));
        wider.push((same[0].net, named));
    }
    kept
}

const EVERY_PORT: Ports = Ports { first: 0, last: u16::MAX };

fn merged(ports: impl Iterator<Item = Ports>) -> Vec<Ports> {
    let mut merged: Vec<Ports> = Vec::new();
    // They come sorted by their first port.
    for next in ports {
        match merged.last_mut() {
            Some(last) if u32::from(next.first) <= u32::from(last.last) + 1 => last.last = last.last.max(next.last),
            _ => merged.push(next),
        }
    }
    merged
}

/// What is left of ranges without others; both lists are merged.
fn without(ports: &[Ports], taken: &[Ports]) -> Vec<Ports> {
    let mut left = Vec::new();
    let mut taken = taken.iter().peekable();
    for range in ports {
        let (mut first, last) = (u32::from(range.first), u32::from(range.last));
        while let Some(cut) = taken.next_if(|cut| cut.last <= range.last) {
            left.extend(span_of(first, u32::from(cut.first)));
            first = first.max(u32::from(cut.last) + 1);
        }
        // One that reaches further may cut the next range, too.
        let end = taken.peek().map_or(last + 1, |cut| u32::from(cut.first).min(last + 1));
        left.extend(span_of(first, end));
    }
    left
}

/// From the first port to the one before the end, if there is any.
fn span_of(first: u32, end: u32) -> Option<Ports> {
    let last = u16::try_from(end.checked_sub(1)?).ok()?;
    let first = u16::try_from(first).ok()?;
    (first <= last).then_some(Ports { first, last })
}

fn span(kind: Kind, net: &IpNet) -> Span {
    match net {
        IpNet::V4(net) => Span::range(kind, net.network().octets(), net.broadcast().octets()),
        IpNet::V6(net) => Span::range(kind, net.network().octets(), net.broadcast().octets()),
    }
}

fn named(name: &'static str, key: Vec<Key>, elements: Vec<Element>) -> Option<Set> {
    if elements.is_empty() {
        return None;
    }
    // A hash is faster than an interval tree, and grows better.
    let interval = elements.iter().flat_map(|element| &element.key).any(|span| !span.is_one());
    let elements = elements.into();
    Some(Set { name, key, data: None, interval, timeout: false, dynamic: None, elements })
}

/// A set that holds the protocols of all frames until the time has passed, if it does. One look-up decides for a whole
/// chain, however many peers there are, and opening or renewing touches three elements.
pub(super) fn gate(name: &'static str, timeout: Option<Duration>, ether_types: &[[u8; 2]]) -> Set {
    let element = |proto: &[u8; 2]| Element { key: vec![Span::one(Kind::EtherType, *proto)], timeout, comment: None };
    let elements = ether_types.iter().map(element).collect();
    Set { name, key: vec![Key::Protocol], data: None, interval: false, timeout: true, dynamic: None, elements }
}

/// The gate of a fault that has one: its lease ends with it, or it is a share that begins when the others do.
pub(super) fn gate_of(fault: &Fault) -> Option<Set> {
    match fault.lifetime {
        Lifetime::Lease(lease) => Some(renewed(lease)),
        Lifetime::Open | Lifetime::Held if fault.is_share() => Some(gate(GATE_SET, None, &EVERY_PROTOCOL)),
        Lifetime::Open | Lifetime::Held => None,
    }
}

/// IPv4, IPv6 and ARP.
const EVERY_PROTOCOL: [[u8; 2]; 3] = [[0x08, 0x00], [0x86, 0xdd], [0x08, 0x06]];

/// The sets that say who a fault is about, as they are read back.
pub const READ_BACK: [&str; 6] = [HOSTS[0], HOSTS[1], PORTS[0], PORTS[1], WITH[0], WITH[1]];

/// What an element of one of [`READ_BACK`] stands for: `first` and `last` are keys as the kernel keeps them, every
/// field padded to four bytes, both included.
pub fn read_back(first: &[u8], last: &[u8], label: Option<String>) -> Option<(Target, Option<u8>)> {
    let address_len = match first.len() {
        4 | 12 => 4,
        16 | 24 => 16,
        _ => return None,
    };
    let (from, to) = (first.get(..address_len)?, last.get(..address_len)?);
    let same_bits = from.iter().zip(to).map(|(a, b)| (a ^ b).leading_zeros()).collect::<Vec<_>>();
    let whole = same_bits.iter().take_while(|bits| **bits == 8).count();
    let bits = whole * 8 + same_bits.get(whole).map_or(0, |bits| *bits as usize);
    let address = match address_len {
        4 => std::net::IpAddr::from(<[u8; 4]>::try_from(from).ok()?),
        _ => std::net::IpAddr::from(<[u8; 16]>::try_from(from).ok()?),
    };
    let net = IpNet::new(address, u8::try_from(bits).ok()?).ok()?;
    let port = |key: &[u8]| Some(u16::from_be_bytes([*key.get(address_len + 4)?, *key.get(address_len + 5)?]));
    let ports = port(first).zip(port(last)).map(|(first, last)| Ports { first, last });
    Some((Target { net, ports, label }, first.get(address_len).copied()))
}

/// The set of a lease that is renewed.
pub fn renewed(lease: Duration) -> Set {
    gate(GATE_SET, Some(lease), &EVERY_PROTOCOL)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target() -> impl Strategy<Value = Target> {
        // Few addresses and ports, so that prefixes and ranges meet.
        (0u8..8, 28u8..=32, 1u16..12, 0u16..4).prop_map(|(host, bits, first, more)| {
            let net = ipnet::Ipv4Net::new([10, 0, 0, host].into(), bits).unwrap().trunc();
            Target { net: net.into(), ports: Some(Ports { first, last: first + more }), label: None }
        })
    }

    proptest! {
        #[test]
        fn no_element_overlaps_another_and_all_that_was_named_is_covered(
            targets in prop::collection::vec(target(), 1..12)
        ) {
            let kept = disjoint(targets.iter());
            for host in 0..16u8 {
                for port in 1..20 {
                    let address = std::net::IpAddr::from([10, 0, 0, host]);
                    let named = targets.iter().any(|target| target.names(address, port));
                    let elements = kept.iter().filter(|target| target.names(address, port)).count();
                    prop_assert_eq!(elements, usize::from(named), "{} {}", address, port);
                }
            }
        }

        #[test]
        fn what_is_written_is_read_back(target in target()) {
            let span = span(Kind::Ipv4, &target.net);
            let ports = target.ports.unwrap();
            let key = |address: &[u8], port: u16| {
                [address, &[6, 0, 0, 0], &port.to_be_bytes(), &[0, 0]].concat()
            };
            let read = read_back(&key(&span.first, ports.first), &key(&span.last, ports.last), None);
            prop_assert_eq!(read, Some((target, Some(6))));
        }
    }
}
