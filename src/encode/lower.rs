//! From statements to the instructions of the kernel's virtual machine: pure.
//!
//! The instructions are those that `nft` itself compiles the same text to, so that `nft list` prints the rules as
//! they were meant.

use std::collections::HashSet;
use std::time::Duration;

use crate::rules::{Base, Entry, Family, Key, KeyKind, Order, Rate, Reject, Rule, Stmt, Verdict};

/// The first 16-byte register; verdicts go to register 0.
const REG: u32 = 1;
/// The one behind it.
const SECOND: u32 = 2;
/// `NFT_REG32_00`: the same memory as register 1, counted in steps of four bytes.
const REG32: u32 = 8;

/// An instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Instr {
    Payload { base: u32, offset: u32, len: u32, reg: u32 },
    PayloadWrite { base: u32, offset: u32, len: u32, reg: u32, csum: Checksum },
    Meta { key: u32, reg: u32 },
    MetaSet { key: u32, reg: u32 },
    Ct { key: u32, direction: Option<u8>, reg: u32 },
    Fib { reg: u32 },
    Cmp { op: u32, reg: u32, data: Vec<u8> },
    Mask { reg: u32, mask: Vec<u8>, xor: Vec<u8> },
    ToBigEndian { reg: u32 },
    Random { reg: u32, modulus: u32 },
    Hash { from: u32, len: u32, reg: u32, modulus: u32, seed: u32 },
    Lookup { reg: u32, set: &'static str, inverted: bool },
    Find { reg: u32, map: &'static str },
    Load { reg: u32, data: Vec<u8> },
    Update { set: &'static str, reg: u32, timeout_ms: u64, over: Option<Rate> },
    Learn { map: &'static str, reg: u32, data: u32, timeout_ms: u64 },
    Forget { map: &'static str, reg: u32, data: u32 },
    Count { counter: &'static str },
    Forward { reg: u32 },
    Duplicate { reg: u32 },
    Reject { kind: u32, code: u8 },
    Verdict { code: i32, chain: Option<&'static str> },
}

/// Which checksums a write has to mend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checksum {
    /// `NFT_PAYLOAD_CSUM_INET` or none.
    pub kind: u32,
    /// Where in the same header.
    pub offset: u32,
    /// `NFT_PAYLOAD_L4CSUM_PSEUDOHDR`: the transport checksum covers the addresses.
    pub flags: u32,
}

/// Constants of `linux/netfilter/nf_tables.h`.
mod nft {
    pub(super) const META_PROTOCOL: u32 = 1;
    pub(super) const META_MARK: u32 = 3;
    pub(super) const META_OIF: u32 = 5;
    pub(super) const META_IIFNAME: u32 = 6;
    pub(super) const META_OIFNAME: u32 = 7;
    pub(super) const META_NFPROTO: u32 = 15;
    pub(super) const META_L4PROTO: u32 = 16;
    pub(super) const META_PKTTYPE: u32 = 19;
    pub(super) const META_IIFKIND: u32 = 26;
    pub(super) const CT_DIRECTION: u32 = 1;
    pub(super) const CT_STATUS: u32 = 2;
    /// `linux/netfilter/nf_conntrack_common.h`
    pub(super) const IPS_DST_NAT: u32 = 0x20;
    pub(super) const CT_PROTO_DST: u32 = 12;
    pub(super) const CT_DST_IP: u32 = 20;
    pub(super) const CT_DST_IP6: u32 = 22;
    pub(super) const CMP_EQ: u32 = 0;
    pub(super) const CMP_NEQ: u32 = 1;
    pub(super) const CMP_LT: u32 = 2;
    pub(super) const CMP_LTE: u32 = 3;
    pub(super) const CMP_GTE: u32 = 5;
    pub(super) const LINK: u32 = 0;
    pub(super) const NETWORK: u32 = 1;
    pub(super) const TRANSPORT: u32 = 2;
    pub(super) const INNER: u32 = 3;
    pub(super) const REJECT_ICMP: u32 = 0;
    pub(super) const REJECT_TCP_RST: u32 = 1;
    pub(super) const VERDICT_GOTO: i32 = -4;
    pub(super) const NF_DROP: i32 = 0;
    pub(super) const NF_ACCEPT: i32 = 1;
}

/// The instructions of `rule` in a table of that family; `lo` is the index of the loopback device.
pub(super) fn lower(rule: &Rule, family: Family, lo: u32) -> Vec<Instr> {
    // A table of one version sees no packets of the other.
    let known = matches!(family, Family::Ip | Family::Ip6).then_some(Known::Network).into_iter().collect();
    let mut lowering = Lowering { family, lo, known, out: Vec::new() };
    rule.0.iter().for_each(|stmt| lowering.stmt(stmt));
    lowering.out
}

/// What a rule has to have checked before it may look at a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Known {
    Network,
    Transport,
}

struct Lowering {
    family: Family,
    lo: u32,
    known: HashSet<Known>,
    out: Vec<Instr>,
}

impl Lowering {
    fn stmt(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::Is(key, order, value) => self.is(key, *order, value),
            Stmt::In(keys, set) => self.lookup(keys, set, false),
            Stmt::NotIn(keys, set) => self.lookup(keys, set, true),
            Stmt::Count(counter) => self.out.push(Instr::Count { counter }),
            Stmt::Write(key, value) => self.write(key, value),
            Stmt::Copy(to, from) => {
                self.load(from, REG);
                self.write_from(to, REG);
            }
            Stmt::Update(update) => {
                self.load_all(&update.key);
                let timeout_ms = millis(update.timeout);
                self.out.push(Instr::Update { set: update.set, reg: REG, timeout_ms, over: update.over });
            }
            Stmt::Learn(entry, life) => {
                self.load_entry(entry);
                let timeout_ms = millis(*life);
                self.out.push(Instr::Learn { map: entry.map, reg: REG, data: SECOND, timeout_ms });
            }
            Stmt::Forget(entry) => {
                self.load_entry(entry);
                self.out.push(Instr::Forget { map: entry.map, reg: REG, data: SECOND });
            }
            Stmt::Recall(entry) => {
                self.need_headers_of(&entry.data);
                self.load_all(&entry.key);
                self.out.push(Instr::Find { reg: REG, map: entry.map });
                self.write_from(&entry.data, REG);
            }
            Stmt::StealToLo => {
                self.out.push(Instr::Load { reg: REG, data: self.lo.to_ne_bytes().to_vec() });
                self.out.push(Instr::Forward { reg: REG });
            }
            Stmt::ForThisHost => {
                // PACKET_HOST is 0.
                self.out.push(Instr::Load { reg: REG, data: vec![0] });
                self.out.push(Instr::MetaSet { key: nft::META_PKTTYPE, reg: REG });
            }
            Stmt::CopyTo(address) => {
                self.out.push(Instr::Load { reg: REG, data: address.clone() });
                self.out.push(Instr::Duplicate { reg: REG });
            }
            Stmt::CopyOnward(key) => {
                self.load(key, REG);
                self.out.push(Instr::Duplicate { reg: REG });
            }
            Stmt::Reject(reject) => self.reject(*reject),
            Stmt::Do(verdict) => self.out.push(verdict_instr(*verdict)),
        }
    }

    fn is(&mut self, key: &Key, order: Order, value: &[u8]) {
        self.load(key, REG);
        if matches!(key, Key::Random(_) | Key::Hash(..)) {
            self.out.push(Instr::ToBigEndian { reg: REG });
        }
        let mut cmp = |op, data: &[u8]| self.out.push(Instr::Cmp { op, reg: REG, data: data.to_vec() });
        match order {
            Order::Eq => cmp(nft::CMP_EQ, value),
            Order::Ne => cmp(nft::CMP_NEQ, value),
            Order::Lt => cmp(nft::CMP_LT, value),
            Order::Within => {
                let (first, last) = value.split_at(key.kind().size());
                cmp(nft::CMP_GTE, first);
                cmp(nft::CMP_LTE, last);
            }
        }
        match key {
            Key::Protocol | Key::Nfproto => drop(self.known.insert(Known::Network)),
            Key::L4proto => drop(self.known.insert(Known::Transport)),
            _ => {}
        }
    }

    fn lookup(&mut self, keys: &[Key], set: &'static str, inverted: bool) {
        self.load_all(keys);
        self.out.push(Instr::Lookup { reg: REG, set, inverted });
    }

    /// The key of an entry, and what it is to have.
    fn load_entry(&mut self, entry: &Entry) {
        self.need_headers_of(&entry.data);
        self.load_all(&entry.key);
        self.load(&entry.data, SECOND);
    }

    /// Loads keys side by side, as a concatenation is kept in registers.
    fn load_all(&mut self, keys: &[Key]) {
        let mut offset = 0;
        for key in keys {
            self.load(key, register(offset));
            offset += key.kind().padded();
        }
    }

    fn load(&mut self, key: &Key, reg: u32) {
        self.need_headers_of(key);
        if let Some(instr) = packet_field(key, reg) {
            self.out.push(instr);
            if let Key::TcpFlags(mask) = key {
                self.out.push(Instr::Mask { reg, mask: vec![*mask], xor: vec![0] });
            }
            return;
        }
        match key {
            Key::Random(modulus) => self.out.push(Instr::Random { reg, modulus: *modulus }),
            Key::Hash(keys, modulus, seed) => self.hash(keys, *modulus, *seed, reg),
            Key::FibDaddrType => self.out.push(Instr::Fib { reg }),
            Key::Translated => {
                self.out.push(Instr::Ct { key: nft::CT_STATUS, direction: None, reg });
                self.out.push(Instr::Mask { reg, mask: nft::IPS_DST_NAT.to_ne_bytes().to_vec(), xor: vec![0; 4] });
            }
            _ => self.out.push(meta_or_ct(key, reg)),
        }
    }

    fn hash(&mut self, keys: &[Key], modulus: u32, seed: u32, reg: u32) {
        // Behind register 1, where the result goes.
        let from = SECOND;
        let mut offset = 16;
        for key in keys {
            self.load(key, if offset == 16 { from } else { register(offset) });
            offset += key.kind().padded();
        }
        let len = u32::try_from(offset - 16).unwrap_or(0);
        self.out.push(Instr::Hash { from, len, reg, modulus, seed });
    }

    fn need_headers_of(&mut self, key: &Key) {
        let (network, transport) = match key {
            Key::Saddr4 | Key::Daddr4 | Key::Dscp | Key::Id | Key::FragOff | Key::Ttl => (Some(4), None),
            Key::Saddr6 | Key::Daddr6 | Key::HopLimit => (Some(6), None),
            Key::IcmpType | Key::IcmpCode | Key::IcmpChecksum => (Some(4), Some(1)),
            Key::Icmp6Type | Key::Icmp6Code => (Some(6), Some(58)),
            Key::TcpFlags(_) | Key::TcpSequence => (None, Some(6)),
            _ => (None, None),
        };
        if let Some(version) = network.filter(|_| self.known.insert(Known::Network)) {
            self.need_network(version);
        }
        if let Some(proto) = transport.filter(|_| self.known.insert(Known::Transport)) {
            self.out.push(Instr::Meta { key: nft::META_L4PROTO, reg: REG });
            self.out.push(Instr::Cmp { op: nft::CMP_EQ, reg: REG, data: vec![proto] });
        }
    }

    fn need_network(&mut self, version: u8) {
        let (key, data) = match (self.family, version) {
            (Family::Inet, 4) => (nft::META_NFPROTO, vec![2]),
            (Family::Inet, _) => (nft::META_NFPROTO, vec![10]),
            (_, 4) => (nft::META_PROTOCOL, vec![0x08, 0x00]),
            _ => (nft::META_PROTOCOL, vec![0x86, 0xdd]),
        };
        self.out.push(Instr::Meta { key, reg: REG });
        self.out.push(Instr::Cmp { op: nft::CMP_EQ, reg: REG, data });
    }

    fn write(&mut self, key: &Key, value: &[u8]) {
        self.need_headers_of(key);
        match (key, value) {
            // The upper six bits of the second byte: what the mask keeps stays, the others become these.
            (Key::Dscp, [dscp]) => {
                self.out.push(Instr::Payload { base: nft::NETWORK, offset: 0, len: 2, reg: REG });
                self.out.push(Instr::Mask { reg: REG, mask: vec![0xff, 0x03], xor: vec![0, dscp << 2] });
            }
            _ => self.out.push(Instr::Load { reg: REG, data: value.to_vec() }),
        }
        self.write_from(key, REG);
    }

    fn write_from(&mut self, key: &Key, reg: u32) {
        let Some((base, offset)) = location(key) else {
            self.out.push(Instr::MetaSet { key: nft::META_MARK, reg });
            return;
        };
        // IPv4's header has a checksum of its own at byte 10; both kinds of address are in the pseudo header.
        let csum = match key {
            Key::Saddr4 | Key::Daddr4 => Checksum { kind: 1, offset: 10, flags: 1 },
            Key::Dscp | Key::Id | Key::FragOff | Key::Ttl => Checksum { kind: 1, offset: 10, flags: 0 },
            Key::HopLimit => Checksum { kind: 0, offset: 0, flags: 0 },
            Key::UdpChecksum => Checksum { kind: 1, offset: 6, flags: 0 },
            Key::TcpSequence => Checksum { kind: 1, offset: 16, flags: 0 },
            _ => Checksum { kind: 0, offset: 0, flags: 1 },
        };
        let len = if *key == Key::Dscp { 2 } else { u32::try_from(key.kind().size()).unwrap_or(0) };
        self.out.push(Instr::PayloadWrite { base, offset, len, reg, csum });
    }

    fn reject(&mut self, reject: Reject) {
        let (kind, code) = match reject {
            Reject::TcpReset => (nft::REJECT_TCP_RST, 0),
            Reject::Icmp(code) | Reject::Icmp6(code) => (nft::REJECT_ICMP, code.0),
        };
        // The kernel takes the ICMP or ICMPv6 meaning of a code from the packet that it answers.
        self.out.push(Instr::Reject { kind, code });
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn register(offset: usize) -> u32 {
    if offset == 0 { REG } else { REG32 + u32::try_from(offset / 4).unwrap_or(0) }
}

fn packet_field(key: &Key, reg: u32) -> Option<Instr> {
    let (base, offset) = location(key)?;
    let len = u32::try_from(key.kind().size()).ok()?;
    Some(Instr::Payload { base, offset, len, reg })
}

/// Header and offset in bytes of a key that is part of the packet.
fn location(key: &Key) -> Option<(u32, u32)> {
    Some(match key {
        // With the byte before it, since checksums are about two.
        Key::Dscp => (nft::NETWORK, 0),
        Key::Id => (nft::NETWORK, 4),
        Key::FragOff => (nft::NETWORK, 6),
        Key::HopLimit => (nft::NETWORK, 7),
        Key::Ttl | Key::Saddr6 => (nft::NETWORK, 8),
        Key::Saddr4 => (nft::NETWORK, 12),
        Key::Daddr4 => (nft::NETWORK, 16),
        Key::ArpSaddr => (nft::NETWORK, 14),
        Key::Daddr6 | Key::ArpDaddr => (nft::NETWORK, 24),
        Key::Dport | Key::IcmpChecksum => (nft::TRANSPORT, 2),
        Key::Sport | Key::IcmpType | Key::Icmp6Type => (nft::TRANSPORT, 0),
        Key::IcmpCode | Key::Icmp6Code => (nft::TRANSPORT, 1),
        Key::TcpSequence => (nft::TRANSPORT, 4),
        Key::TcpFlags(_) => (nft::TRANSPORT, 13),
        Key::UdpChecksum => (nft::TRANSPORT, 6),
        Key::Raw(base, bit, _) => {
            let base = match base {
                Base::Link => nft::LINK,
                Base::Network => nft::NETWORK,
                Base::Transport => nft::TRANSPORT,
                Base::Inner => nft::INNER,
            };
            (base, u32::from(*bit) / 8)
        }
        _ => return None,
    })
}

fn meta_or_ct(key: &Key, reg: u32) -> Instr {
    let original = Some(0);
    match key {
        Key::Protocol => Instr::Meta { key: nft::META_PROTOCOL, reg },
        Key::Nfproto => Instr::Meta { key: nft::META_NFPROTO, reg },
        Key::L4proto => Instr::Meta { key: nft::META_L4PROTO, reg },
        Key::IifName => Instr::Meta { key: nft::META_IIFNAME, reg },
        Key::IifKind => Instr::Meta { key: nft::META_IIFKIND, reg },
        Key::Oif => Instr::Meta { key: nft::META_OIF, reg },
        Key::OifName => Instr::Meta { key: nft::META_OIFNAME, reg },
        Key::CtDirection => Instr::Ct { key: nft::CT_DIRECTION, direction: None, reg },
        Key::CtOriginalDport => Instr::Ct { key: nft::CT_PROTO_DST, direction: original, reg },
        Key::CtOriginalDaddr(KeyKind::Ipv6) => Instr::Ct { key: nft::CT_DST_IP6, direction: original, reg },
        Key::CtOriginalDaddr(_) => Instr::Ct { key: nft::CT_DST_IP, direction: original, reg },
        _ => Instr::Meta { key: nft::META_MARK, reg },
    }
}

fn verdict_instr(verdict: Verdict) -> Instr {
    let (code, chain) = match verdict {
        Verdict::Accept => (nft::NF_ACCEPT, None),
        Verdict::Drop => (nft::NF_DROP, None),
        Verdict::Goto(chain) => (nft::VERDICT_GOTO, Some(chain)),
    };
    Instr::Verdict { code, chain }
}
