//! What a rule can load from a packet, with the names and types that nft gives it.

use std::fmt;

/// The header that an offset of a [`Key::Raw`] counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Base {
    /// Link layer.
    Link,
    /// IPv4, IPv6 or ARP.
    Network,
    /// TCP, UDP or ICMP.
    Transport,
    /// What the transport header carries (Linux 5.16).
    Inner,
}

/// The type of a key: how its bytes print, and what a set of it is declared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Four bytes.
    Ipv4,
    /// Sixteen bytes.
    Ipv6,
    /// An IP protocol number, one byte.
    Proto,
    /// A port, two bytes.
    Port,
    /// The protocol of a frame, two bytes.
    EtherType,
    /// The index of an interface, four bytes in host order.
    IfIndex,
    /// A number of that many bytes.
    Number(u8),
    /// The name of an interface, sixteen bytes.
    IfName,
    /// A packet's mark, four bytes in host order.
    Mark,
    /// `NFPROTO_IPV4` or `NFPROTO_IPV6`, one byte.
    Nfproto,
}

impl Kind {
    /// Bytes in the packet.
    pub fn size(self) -> usize {
        match self {
            Self::Proto | Self::Nfproto => 1,
            Self::Port | Self::EtherType => 2,
            Self::Ipv4 | Self::IfIndex | Self::Mark => 4,
            Self::Ipv6 | Self::IfName => 16,
            Self::Number(bytes) => bytes.into(),
        }
    }

    /// Bytes in a register: the kernel pads every field of a concatenation to 32 bits.
    pub fn padded(self) -> usize {
        self.size().next_multiple_of(4)
    }

    /// The datatype number of nft's userland (`enum datatypes`), by which `nft list` prints elements.
    pub fn datatype(self) -> u32 {
        match self {
            Self::Number(_) => 4,
            Self::Ipv4 => 7,
            Self::Ipv6 => 8,
            Self::EtherType => 10,
            Self::Proto => 12,
            Self::Port => 13,
            Self::IfIndex => 20,
            Self::IfName => 41,
            Self::Mark => 19,
            Self::Nfproto => 2,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "ipv4_addr",
            Self::Ipv6 => "ipv6_addr",
            Self::Proto => "inet_proto",
            Self::Port => "inet_service",
            Self::EtherType => "ether_type",
            Self::IfIndex => "iface_index",
            Self::IfName => "ifname",
            Self::Mark => "mark",
            Self::Nfproto => "nf_proto",
            Self::Number(_) => "integer",
        })
    }
}

/// One thing that a rule loads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// `meta protocol`: ip, ip6 or arp.
    Protocol,
    /// `meta nfproto`: the same in the IP stack.
    Nfproto,
    /// `meta l4proto`.
    L4proto,
    /// `meta mark`.
    Mark,
    /// `iifname`.
    IifName,
    /// `meta iifkind`: what sort of device a packet came in by (`bridge`, `veth`, ...).
    IifKind,
    /// `meta oif`: the index of the device that a packet leaves by.
    Oif,
    /// `oifname`: its name.
    OifName,
    /// `ip saddr`.
    Saddr4,
    /// `ip daddr`.
    Daddr4,
    /// `ip dscp`, which is only ever written.
    Dscp,
    /// `ip id`.
    Id,
    /// `ip frag-off`: the flags and the offset of a fragment.
    FragOff,
    /// `ip ttl`.
    Ttl,
    /// `ip6 hoplimit`.
    HopLimit,
    /// `ip6 saddr`.
    Saddr6,
    /// `ip6 daddr`.
    Daddr6,
    /// `th sport`.
    Sport,
    /// `th dport`.
    Dport,
    /// `udp checksum`.
    UdpChecksum,
    /// `arp saddr ip`.
    ArpSaddr,
    /// `arp daddr ip`.
    ArpDaddr,
    /// `icmp type`.
    IcmpType,
    /// `icmp code`.
    IcmpCode,
    /// `icmp checksum`.
    IcmpChecksum,
    /// `icmpv6 type`.
    Icmp6Type,
    /// `icmpv6 code`.
    Icmp6Code,
    /// `fib daddr type`.
    FibDaddrType,
    /// `ct original ip daddr` / `ct original ip6 daddr`: whom the sender named before NAT.
    CtOriginalDaddr(Kind),
    /// `ct original proto-dst`.
    CtOriginalDport,
    /// `ct direction`.
    CtDirection,
    /// `ct status dnat`: the address that the sender named was replaced.
    Translated,
    /// `tcp sequence`.
    TcpSequence,
    /// `tcp flags & MASK`.
    TcpFlags(u8),
    /// `@base,offset,bits`: any bytes of the packet.
    Raw(Base, u16, u16),
    /// `numgen random mod N`.
    Random(u32),
    /// `jhash KEYS mod N seed S`.
    Hash(Vec<Key>, u32, u32),
}

/// SYN, as in byte 13 of a TCP header, counted from 0.
pub(super) const SYN: u8 = 0x02;
/// FIN.
pub(super) const FIN: u8 = 0x01;
/// RST.
pub(super) const RST: u8 = 0x04;

impl Key {
    /// The type of what is loaded.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Protocol => Kind::EtherType,
            Self::Nfproto => Kind::Nfproto,
            Self::Mark => Kind::Mark,
            Self::L4proto => Kind::Proto,
            Self::IifName | Self::OifName | Self::IifKind => Kind::IfName,
            Self::Oif => Kind::IfIndex,
            Self::Saddr4 | Self::Daddr4 | Self::ArpSaddr | Self::ArpDaddr => Kind::Ipv4,
            Self::Saddr6 | Self::Daddr6 => Kind::Ipv6,
            Self::Sport | Self::Dport | Self::CtOriginalDport => Kind::Port,
            Self::CtOriginalDaddr(kind) => *kind,
            Self::UdpChecksum | Self::IcmpChecksum | Self::Id | Self::FragOff => Kind::Number(2),
            Self::FibDaddrType | Self::Translated | Self::TcpSequence | Self::Random(_) | Self::Hash(..) => {
                Kind::Number(4)
            }
            Self::IcmpType
            | Self::IcmpCode
            | Self::Icmp6Type
            | Self::Icmp6Code
            | Self::Dscp
            | Self::Ttl
            | Self::HopLimit
            | Self::TcpFlags(_)
            | Self::CtDirection => Kind::Number(1),
            Self::Raw(_, _, bits) => Kind::Number(u8::try_from(bits / 8).unwrap_or(u8::MAX)),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol => f.write_str("meta protocol"),
            Self::Nfproto => f.write_str("meta nfproto"),
            Self::L4proto => f.write_str("meta l4proto"),
            Self::Mark => f.write_str("meta mark"),
            Self::IifName => f.write_str("iifname"),
            Self::IifKind => f.write_str("meta iifkind"),
            Self::Oif => f.write_str("oif"),
            Self::OifName => f.write_str("oifname"),
            Self::Saddr4 => f.write_str("ip saddr"),
            Self::Daddr4 => f.write_str("ip daddr"),
            Self::Dscp => f.write_str("ip dscp"),
            Self::Id => f.write_str("ip id"),
            Self::FragOff => f.write_str("ip frag-off"),
            Self::Ttl => f.write_str("ip ttl"),
            Self::HopLimit => f.write_str("ip6 hoplimit"),
            Self::Saddr6 => f.write_str("ip6 saddr"),
            Self::Daddr6 => f.write_str("ip6 daddr"),
            Self::Sport => f.write_str("th sport"),
            Self::Dport => f.write_str("th dport"),
            Self::UdpChecksum => f.write_str("udp checksum"),
            Self::ArpSaddr => f.write_str("arp saddr ip"),
            Self::ArpDaddr => f.write_str("arp daddr ip"),
            Self::IcmpType => f.write_str("icmp type"),
            Self::IcmpCode => f.write_str("icmp code"),
            Self::IcmpChecksum => f.write_str("icmp checksum"),
            Self::Icmp6Type => f.write_str("icmpv6 type"),
            Self::Icmp6Code => f.write_str("icmpv6 code"),
            Self::FibDaddrType => f.write_str("fib daddr type"),
            Self::CtOriginalDaddr(Kind::Ipv6) => f.write_str("ct original ip6 daddr"),
            Self::CtOriginalDaddr(_) => f.write_str("ct original ip daddr"),
            Self::CtOriginalDport => f.write_str("ct original proto-dst"),
            Self::CtDirection => f.write_str("ct direction"),
            Self::Translated => f.write_str("ct status"),
            Self::TcpSequence => f.write_str("tcp sequence"),
            Self::TcpFlags(mask) => write!(f, "tcp flags & {mask:#x}"),
            Self::Raw(base, offset, bits) => {
                let base = match base {
                    Base::Link => "ll",
                    Base::Network => "nh",
                    Base::Transport => "th",
                    Base::Inner => "ih",
                };
                write!(f, "@{base},{offset},{bits}")
            }
            Self::Random(modulus) => write!(f, "numgen random mod {modulus}"),
            Self::Hash(keys, modulus, seed) => {
                write!(f, "jhash {} mod {modulus} seed {seed:#x}", Concat(keys))
            }
        }
    }
}

/// Keys side by side, as nft writes a concatenation.
pub(super) struct Concat<'a>(pub &'a [Key]);

impl fmt::Display for Concat<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, key) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(" . ")?;
            }
            write!(f, "{key}")?;
        }
        Ok(())
    }
}
