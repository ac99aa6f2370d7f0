//! A fault: a value that can be printed, compared and tested without a machine.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;

use super::kind::{Direction, Kind, Proto};
use super::peer::Target;

/// The first words of the comment of every table of ours, with the version of what follows.
pub const MARKER: &str = "playdead 1 ";

/// What tables are called, before the fault's own name.
const PREFIX: &str = "playdead-";

/// The name of a fault, unique in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// The name of the tables.
    pub fn table(&self) -> String {
        format!("{PREFIX}{}", self.0)
    }

    /// The name of the fault that a table of this name would belong to.
    pub fn of_table(table: &str) -> Option<Self> {
        table.strip_prefix(PREFIX)?.parse().ok()
    }

    /// A name made of what is broken, the same for the same fault: verb, first peer, and a digest of the rest.
    pub fn made_up(kind: Kind, first: &str, digest: u32) -> Self {
        let mut first: String = first.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        first.truncate(40);
        Self(format!("{}-{}-{:04x}", kind.verb(), first.trim_matches('-'), digest & 0xffff))
    }

    /// The same for a partition into these groups.
    pub fn of_partition(groups: &str, digest: u32) -> Self {
        let plain = |c: char| match c {
            ',' => '.',
            c if c.is_ascii_alphanumeric() || ".-_".contains(c) => c,
            _ => '-',
        };
        let mut groups: String = groups.chars().map(plain).collect();
        groups.truncate(60);
        Self(format!("partition-{groups}-{:04x}", digest & 0xffff))
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
        if text.is_empty() || text.len() > 100 || !text.chars().all(plain) {
            return Err(format!("{text:?} is not a name for a fault: use 1 to 100 letters, digits, '-', '_' or '.'"));
        }
        // `heal -x` would not be about a fault called -x.
        if text.starts_with('-') {
            return Err(format!("{text:?} is not a name for a fault: it would be taken for an option"));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How long a fault lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Until it is healed.
    Open,
    /// Until the kernel lets its elements expire.
    Lease(Duration),
    /// As long as the process that made it.
    Held,
}

/// What one fault is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Its name.
    pub name: Name,
    /// What happened.
    pub kind: Kind,
    /// To whom.
    pub peers: Vec<Target>,
    /// Only traffic with these other ends; empty: with everybody.
    pub with: Vec<IpNet>,
    /// Which way.
    pub direction: Direction,
    /// Which protocols.
    pub proto: Proto,
    /// For how long.
    pub lifetime: Lifetime,
    /// When, as RFC 3339 in UTC with seconds.
    pub since: String,
}

impl Fault {
    /// What its tables, of which there are so many, say of it besides their rules.
    pub fn meta(&self, tables: usize) -> Meta {
        Meta {
            kind: self.kind,
            direction: self.direction,
            proto: self.proto,
            since: self.since.clone(),
            lease: match self.lifetime {
                Lifetime::Lease(lease) => Some(lease),
                Lifetime::Open | Lifetime::Held => None,
            },
            digest: self.digest(),
            tables,
        }
    }

    /// Whether it is a node's share of a partition: silence of what comes from the others.
    pub fn is_share(&self) -> bool {
        is_share(self.kind, self.direction, self.proto)
    }

    /// Whether it is about the traffic of this peer with that other end.
    pub fn is_between(&self, peer: SocketAddr, other: SocketAddr) -> bool {
        self.peers.iter().any(|target| target.names(peer.ip(), peer.port()))
            && (self.with.is_empty() || self.with.iter().any(|net| net.contains(&other.ip())))
    }

    /// Whether it is about a TCP connection with these ends, whichever of them is a peer.
    pub fn is_about(&self, one: SocketAddr, other: SocketAddr) -> bool {
        self.proto != Proto::Udp && (self.is_between(one, other) || self.is_between(other, one))
    }

    /// The same for two faults that break the same in the same way, whatever they are called and however long
    /// they last (FNV-1a).
    pub fn digest(&self) -> u32 {
        let mut peers: Vec<_> = self.peers.iter().map(ToString::to_string).collect();
        let mut with: Vec<_> = self.with.iter().map(ToString::to_string).collect();
        peers.sort();
        with.sort();
        let text = format!("{} {} {} {peers:?} {with:?}", self.kind, self.direction.name(), self.proto.name());
        text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }
}

/// What stands in the comment of a fault's tables. The peers stand in their sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// What happened.
    pub kind: Kind,
    /// Which way.
    pub direction: Direction,
    /// Which protocols.
    pub proto: Proto,
    /// When, as RFC 3339.
    pub since: String,
    /// How long it was to last, when that is the kernel's to end.
    pub lease: Option<Duration>,
    /// [`Fault::digest`].
    pub digest: u32,
    /// How many tables it has. One that has fewer was damaged by somebody.
    pub tables: usize,
}

impl Meta {
    /// [`Fault::is_share`].
    pub fn is_share(&self) -> bool {
        is_share(self.kind, self.direction, self.proto)
    }
}

fn is_share(kind: Kind, direction: Direction, proto: Proto) -> bool {
    (kind, direction, proto) == (Kind::DeadHost, Direction::From, Proto::All)
}

impl fmt::Display for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (direction, proto) = (self.direction.name(), self.proto.name());
        let Self { kind, digest, since, tables, .. } = self;
        write!(f, "{MARKER}{kind} {direction} {proto} {digest:08x} since {since} of {tables}")?;
        match self.lease {
            Some(lease) => write!(f, " for {}ms", lease.as_millis()),
            None => Ok(()),
        }
    }
}

impl FromStr for Meta {
    type Err = ();

    fn from_str(comment: &str) -> Result<Self, ()> {
        let words: Vec<_> = comment.strip_prefix(MARKER).ok_or(())?.split(' ').collect();
        let (&[kind, direction, proto, digest, "since", since, "of", tables], rest) =
            words.split_first_chunk().ok_or(())?
        else {
            return Err(());
        };
        // Anybody may write such a comment, and what stands there is shown.
        since.parse::<jiff::Timestamp>().map_err(drop)?;
        let lease = match rest {
            [] => None,
            ["for", lease] => Some(lease.strip_suffix("ms").and_then(|ms| ms.parse().ok()).ok_or(())?),
            _ => return Err(()),
        };
        Ok(Self {
            kind: kind.parse()?,
            direction: Direction::from_name(direction).ok_or(())?,
            proto: Proto::from_name(proto).ok_or(())?,
            since: since.into(),
            lease: lease.map(Duration::from_millis),
            digest: u32::from_str_radix(digest, 16).map_err(drop)?,
            tables: tables.parse().map_err(drop)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Code, Loss, LossScope, OpenConnections};

    fn kinds() -> Vec<Kind> {
        let loss = |scope| Kind::Lossy(Loss { per_myriad: 1205, scope });
        let mut kinds = vec![
            Kind::DeadHost,
            Kind::Hush,
            Kind::HungProcess(None),
            Kind::HungProcess(Some(u32::MAX)),
            Kind::Rebooted,
            loss(LossScope::Packet),
            loss(LossScope::Connection { seed: u32::MAX }),
        ];
        kinds.extend([OpenConnections::Fin, OpenConnections::Reset, OpenConnections::Keep].map(Kind::DeadProcess));
        kinds.extend(Code::ALL.map(Kind::Unreachable));
        kinds
    }

    #[test]
    fn the_comment_of_a_table_says_what_the_fault_is_and_fits_into_nft_s_limit() {
        for kind in kinds() {
            let meta = Meta {
                kind,
                direction: Direction::From,
                proto: Proto::Tcp,
                since: "2026-11-30T05:00:00.123456Z".into(),
                lease: Some(Duration::from_secs(366 * 86_400)),
                digest: u32::MAX,
                tables: 4,
            };
            let comment = meta.to_string();
            assert!(comment.len() < 127, "{comment} has {} bytes", comment.len());
            assert_eq!(comment.parse(), Ok(meta), "{comment}");
        }
    }

    #[test]
    fn a_comment_of_somebody_else_is_not_taken_for_ours() {
        for foreign in [
            "",
            "playdead",
            "playdead 1 ",
            "playdead 1 dead-host",
            "playdead 1 dead-host both all 0 since x of 1",
            "playdead 1 dead-host both all 0 since 2026-11-30T05:00:00Z\u{1b}[31m of 1",
            "playdead 2 dead-host both all 0 since 2026-11-30T05:00:00Z of 1",
            "playdead 1 lossy:99999999.00% both all 0 since 2026-11-30T05:00:00Z of 1",
            "playdead 1 lossy:4294967295.99% both all 0 since 2026-11-30T05:00:00Z of 1",
            "x",
        ] {
            assert!(foreign.parse::<Meta>().is_err(), "{foreign:?}");
        }
    }
}
