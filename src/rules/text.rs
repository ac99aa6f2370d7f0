//! The text form: what `nft -f` reads.

use std::fmt::{self, Display, Formatter, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::key::{Concat, Key, Kind};
use super::value::{
    Chain, Element, Entry, Family, Hook, Order, Rate, Reject, Rule, Ruleset, Set, Span, Stmt, Table, Update, Verdict,
};

impl Display for Ruleset {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.writes_raw() {
            writeln!(f, "# The kernel and nft 1.0.6 take `saddr set` of raw bytes, nft 1.0.9 does not.")?;
        }
        self.tables.iter().try_for_each(|table| table.fmt(f))
    }
}

impl Ruleset {
    /// Whether raw bytes become an address, for which nft 1.0.9 finds them to be of the wrong type.
    fn writes_raw(&self) -> bool {
        let rules = self.tables.iter().flat_map(|table| &table.chains).flat_map(|chain| &chain.rules);
        rules.flat_map(|rule| &rule.0).any(|stmt| matches!(stmt, Stmt::Copy(_, Key::Raw(..))))
    }
}

impl Family {
    /// As nft writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Netdev => "netdev",
            Self::Bridge => "bridge",
            Self::Arp => "arp",
        }
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "table {} {} {{", self.family.name(), self.name)?;
        writeln!(f, "\tcomment \"{}\"", self.comment)?;
        if self.owner {
            writeln!(f, "\tflags owner")?;
        }
        for counter in &self.counters {
            writeln!(f, "\tcounter {counter} {{\n\t}}")?;
        }
        self.sets.iter().try_for_each(|set| set.fmt(f))?;
        self.chains.iter().try_for_each(|chain| chain.fmt(f))?;
        writeln!(f, "}}")
    }
}

impl Display for Set {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "\t{} {} {{", if self.data.is_some() { "map" } else { "set" }, self.name)?;
        if self.is_typeof() {
            write!(f, "\t\ttypeof {}", Concat(&self.key))?;
            self.data.iter().try_for_each(|data| write!(f, " : {data}"))?;
            writeln!(f)?;
        } else {
            let kinds: Vec<_> = self.key.iter().map(|key| key.kind().to_string()).collect();
            writeln!(f, "\t\ttype {}", kinds.join(" . "))?;
        }
        if let Some(size) = self.size() {
            writeln!(f, "\t\tsize {size}")?;
        }
        let flags = [(self.dynamic.is_some(), "dynamic"), (self.interval, "interval"), (self.timeout, "timeout")];
        let flags: Vec<_> = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| *flag).collect();
        if !flags.is_empty() {
            writeln!(f, "\t\tflags {}", flags.join(","))?;
        }
        if let Some((_, timeout)) = self.dynamic {
            writeln!(f, "\t\ttimeout {}", Time(timeout))?;
        }
        if !self.elements.is_empty() {
            let elements: Vec<_> = self.elements.iter().map(Element::to_string).collect();
            writeln!(f, "\t\telements = {{ {} }}", elements.join(",\n\t\t\t     "))?;
        }
        writeln!(f, "\t}}")
    }
}

impl Set {
    /// nft declares a set of raw bytes by an expression, since plain integers have no size.
    pub fn is_typeof(&self) -> bool {
        self.key.iter().any(|key| matches!(key, Key::Raw(..)))
    }
}

impl Display for Element {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let spans: Vec<_> = self.key.iter().map(Span::to_string).collect();
        f.write_str(&spans.join(" . "))?;
        if let Some(timeout) = self.timeout {
            write!(f, " timeout {}", Time(timeout))?;
        }
        if let Some(comment) = &self.comment {
            write!(f, " comment \"{comment}\"")?;
        }
        Ok(())
    }
}

impl Display for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_datum(f, self.kind, &self.first)?;
        if self.is_one() {
            return Ok(());
        }
        if let Some(bits) = self.prefix_length() {
            return write!(f, "/{bits}");
        }
        f.write_char('-')?;
        write_datum(f, self.kind, &self.last)
    }
}

impl Span {
    fn prefix_length(&self) -> Option<u32> {
        if !matches!(self.kind, Kind::Ipv4 | Kind::Ipv6) {
            return None;
        }
        let number = |bytes: &[u8]| bytes.iter().fold(0u128, |sum, byte| sum << 8 | u128::from(*byte));
        let (first, last) = (number(&self.first), number(&self.last));
        let size = (last - first).checked_add(1).filter(|size| size.is_power_of_two() && first % size == 0)?;
        Some(u32::try_from(self.first.len() * 8).ok()? - size.trailing_zeros())
    }
}

/// The name of a device. nft has no way to write a quotation mark or the end of a line inside of a string: a device that
/// is called so must not become a rule of somebody's making, and this name is none that nft finds.
fn quoted(name: &str) -> String {
    let shown = |c: char| if c == '"' || c == '\\' || c.is_control() { '\u{fffd}' } else { c };
    format!("\"{}\"", name.chars().map(shown).collect::<String>())
}

fn low_bits(number: u128) -> u32 {
    u32::try_from(number & u128::from(u32::MAX)).unwrap_or(0)
}

fn write_datum(f: &mut Formatter<'_>, kind: Kind, bytes: &[u8]) -> fmt::Result {
    let number = || bytes.iter().fold(0u128, |sum, byte| sum << 8 | u128::from(*byte));
    match (kind, bytes) {
        (Kind::Ipv4, _) => Ipv4Addr::from_bits(low_bits(number())).fmt(f),
        (Kind::Ipv6, _) => Ipv6Addr::from_bits(number()).fmt(f),
        (Kind::Proto, [6]) => f.write_str("tcp"),
        (Kind::Proto, [17]) => f.write_str("udp"),
        (Kind::EtherType, [0x08, 0x00]) => f.write_str("ip"),
        (Kind::EtherType, [0x86, 0xdd]) => f.write_str("ip6"),
        (Kind::EtherType, [0x08, 0x06]) => f.write_str("arp"),
        (Kind::Nfproto, [2]) => f.write_str("ipv4"),
        (Kind::Nfproto, [10]) => f.write_str("ipv6"),
        // What the kernel itself keeps is in the machine's byte order, unlike what comes from a packet.
        (Kind::IfIndex, _) => u32::from_ne_bytes(low_bits(number()).to_be_bytes()).fmt(f),
        (Kind::Mark, _) => write!(f, "{:#x}", u32::from_ne_bytes(low_bits(number()).to_be_bytes())),
        (Kind::IfName, _) => f.write_str(&quoted(String::from_utf8_lossy(bytes).trim_end_matches('\0'))),
        (Kind::Number(_), _) => write!(f, "{:#x}", number()),
        _ => number().fmt(f),
    }
}

impl Display for Chain {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "\tchain {} {{", self.name)?;
        if let Some(hook) = &self.hook {
            writeln!(f, "\t\t{hook}")?;
        }
        self.rules.iter().try_for_each(|rule| writeln!(f, "\t\t{rule}"))?;
        writeln!(f, "\t}}")
    }
}

impl Display for Hook {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (kind, hook, priority, devices) = self.parts();
        write!(f, "type {kind} hook {hook}")?;
        if !devices.is_empty() {
            let devices: Vec<_> = devices.iter().map(|name| quoted(name)).collect();
            write!(f, " devices = {{ {} }}", devices.join(", "))?;
        }
        write!(f, " priority {priority}; policy accept;")
    }
}

impl Hook {
    /// Chain type, hook, priority and devices, as nft names them.
    pub fn parts(&self) -> (&'static str, &'static str, i32, &[String]) {
        match self {
            Self::Prerouting(priority) => ("filter", "prerouting", *priority, &[]),
            Self::Input(priority) => ("filter", "input", *priority, &[]),
            Self::Forward(priority) => ("filter", "forward", *priority, &[]),
            Self::Output(priority) => ("filter", "output", *priority, &[]),
            Self::Reroute(priority) => ("route", "output", *priority, &[]),
            Self::Ingress(priority, devices) => ("filter", "ingress", *priority, devices),
            Self::Egress(priority, devices) => ("filter", "egress", *priority, devices),
        }
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, stmt) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_char(' ')?;
            }
            stmt.fmt(f)?;
        }
        Ok(())
    }
}

impl Display for Stmt {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(key, order, value) => write_is(f, key, *order, value),
            Self::In(keys, set) => write!(f, "{} @{set}", Concat(keys)),
            Self::NotIn(keys, set) => write!(f, "{} != @{set}", Concat(keys)),
            Self::Count(name) => write!(f, "counter name \"{name}\""),
            Self::Write(key @ (Key::Ttl | Key::HopLimit), value) => write!(f, "{key} set {}", plain_number(value)),
            Self::Write(key, value) => {
                write!(f, "{key} set ")?;
                write_datum(f, key.kind(), value)
            }
            Self::Copy(to, from) => write!(f, "{to} set {from}"),
            Self::Update(update) => update.fmt(f),
            Self::Learn(Entry { map, key, data }, life) => {
                write!(f, "update @{map} {{ {} timeout {} : {data} }}", Concat(key), Time(*life))
            }
            Self::Forget(Entry { map, key, data }) => write!(f, "delete @{map} {{ {} : {data} }}", Concat(key)),
            Self::Recall(Entry { map, key, data }) => write!(f, "{data} set {} map @{map}", Concat(key)),
            Self::StealToLo => f.write_str("fwd to \"lo\""),
            Self::ForThisHost => f.write_str("meta pkttype set host"),
            Self::CopyTo(address) => {
                f.write_str("dup to ")?;
                write_datum(f, if address.len() == 4 { Kind::Ipv4 } else { Kind::Ipv6 }, address)
            }
            Self::CopyOnward(key) => write!(f, "dup to {key}"),
            Self::Reject(reject) => reject.fmt(f),
            Self::Do(verdict) => verdict.fmt(f),
        }
    }
}

fn write_is(f: &mut Formatter<'_>, key: &Key, order: Order, value: &[u8]) -> fmt::Result {
    let kind = key.kind();
    write!(f, "{key} ")?;
    match (key, order) {
        (Key::FibDaddrType, Order::Eq) => return f.write_str(fib_type(value)),
        (Key::FibDaddrType, _) => return write!(f, "!= {}", fib_type(value)),
        (Key::Translated, _) => return f.write_str("dnat"),
        (Key::CtDirection, _) => return f.write_str(if value == [0] { "original" } else { "reply" }),
        (Key::TcpFlags(_), Order::Eq) => f.write_str("== ")?,
        (_, Order::Ne) => f.write_str("!= ")?,
        (_, Order::Lt) => f.write_str("< ")?,
        (_, Order::Within) => {
            let (first, last) = value.split_at(kind.size());
            return Span::range(kind, first, last).fmt(f);
        }
        _ => {}
    }
    match (key, kind) {
        (
            Key::IcmpType
            | Key::IcmpCode
            | Key::Icmp6Type
            | Key::Icmp6Code
            | Key::Ttl
            | Key::HopLimit
            | Key::Random(_)
            | Key::Hash(..),
            _,
        ) => plain_number(value).fmt(f),
        _ => write_datum(f, kind, value),
    }
}

fn plain_number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

fn fib_type(value: &[u8]) -> &'static str {
    // The kernel's RTN_UNICAST and RTN_LOCAL.
    if value == 1u32.to_ne_bytes() { "unicast" } else { "local" }
}

impl Display for Update {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "update @{} {{ {} timeout {}", self.set, Concat(&self.key), Time(self.timeout))?;
        if let Some(rate) = self.over {
            write!(f, " {rate}")?;
        }
        f.write_str(" }")
    }
}

impl Display for Rate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { packets, per, burst } = self;
        write!(f, "limit rate over {packets}/{} burst {burst} packets", per.name())
    }
}

impl Display for Reject {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::TcpReset => f.write_str("reject with tcp reset"),
            Self::Icmp(code) => write!(f, "reject with icmp {}", code.1),
            Self::Icmp6(code) => write!(f, "reject with icmpv6 {}", code.1),
        }
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

/// A duration as nft reads and prints one.
struct Time(Duration);

impl Display for Time {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let parts = [
            (millis / 86_400_000, "d"),
            (millis / 3_600_000 % 24, "h"),
            (millis / 60_000 % 60, "m"),
            (millis / 1000 % 60, "s"),
            (millis % 1000, "ms"),
        ];
        parts.iter().filter(|(amount, _)| *amount > 0).try_for_each(|(amount, unit)| write!(f, "{amount}{unit}"))
    }
}
