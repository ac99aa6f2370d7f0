//! Who is made to look dead: as typed, and as addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// Ports from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ports {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

impl Ports {
    /// Whether the port is one of them.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Whether one is in both.
    pub fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = |text: &str| match text.parse::<u16>() {
            Ok(port) if port > 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
            _ => Err(format!("{text:?} is not a port: ports are numbers from 1 to 65535")),
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let ports = Self { first: port(first)?, last: port(last)? };
        if ports.first > ports.last {
            return Err(format!("the port range {text} runs backwards: write {}-{}", ports.last, ports.first));
        }
        Ok(ports)
    }
}

/// The part of a peer before its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// An address or a prefix.
    Net(IpNet),
    /// A name that has to be looked up in the place.
    Name(String),
    /// A name whose addresses are known, whatever the place knows by it.
    Node {
        /// As typed.
        name: String,
        /// All of them.
        addresses: Vec<IpAddr>,
    },
    /// Members of a live etcd cluster: the host and port to ask, and which of its members are meant.
    Etcd {
        /// Whom to ask for the members, `HOST:PORT`.
        endpoint: String,
        /// Which of them.
        which: Members,
    },
}

/// Which members of a cluster are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Members {
    /// Every one.
    All,
    /// The leader.
    Leader,
    /// All but the leader.
    Followers,
    /// All but the one that is asked.
    Others,
}

/// A peer as typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerSpec {
    /// As typed.
    pub text: String,
    /// The host.
    pub host: Host,
    /// Its ports; `None` for the whole machine.
    pub ports: Option<Ports>,
}

impl PeerSpec {
    /// As typed, but the same for every way to write the same peer.
    pub fn canonical(&self) -> String {
        match &self.host {
            Host::Net(net) => Target { net: *net, ports: self.ports, label: None }.to_string(),
            Host::Name(_) | Host::Node { .. } | Host::Etcd { .. } => self.text.clone(),
        }
    }
}

impl FromStr for PeerSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, ports) = match text.strip_prefix("etcd://") {
            Some(rest) => (parse_etcd(text, rest)?, None),
            None => split_port(text)?,
        };
        Ok(Self { text: text.into(), host, ports })
    }
}

fn parse_etcd(text: &str, rest: &str) -> Result<Host, String> {
    let (endpoint, which) = rest.split_once('?').map_or((rest, None), |(endpoint, which)| (endpoint, Some(which)));
    let which = match which {
        None => Members::All,
        Some("leader") => Members::Leader,
        Some("followers") => Members::Followers,
        Some("others") => Members::Others,
        Some(other) => return Err(format!("{text}: ?{other} is not one of ?leader, ?followers, ?others")),
    };
    let write = || format!("{text}: write etcd://HOST:PORT of a member's client port");
    if endpoint.is_empty() {
        return Err(write());
    }
    match split_port(endpoint)? {
        (Host::Name(_) | Host::Net(_), Some(ports)) if ports.first == ports.last => {
            Ok(Host::Etcd { endpoint: endpoint.into(), which })
        }
        _ => Err(write()),
    }
}

fn split_port(text: &str) -> Result<(Host, Option<Ports>), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) =
            rest.split_once(']').ok_or_else(|| format!("{text}: the bracket is not closed: write [ADDR6]:PORT"))?;
        let host = parse_host(text, inside)?;
        if !matches!(host, Host::Net(IpNet::V6(_))) {
            return Err(format!("{text}: only IPv6 addresses stand in brackets"));
        }
        return match after.strip_prefix(':') {
            Some(ports) => Ok((host, Some(in_peer(text, ports)?))),
            None if after.is_empty() => Ok((host, None)),
            None => Err(format!("{text}: after the bracket only :PORT may follow")),
        };
    }
    match text.split_once(':') {
        // Two colons: an IPv6 address, which has to be bracketed to take a port.
        Some((_, rest)) if rest.contains(':') => Ok((parse_host(text, text)?, None)),
        Some((host, ports)) => Ok((parse_host(text, host)?, Some(in_peer(text, ports)?))),
        None => Ok((parse_host(text, text)?, None)),
    }
}

fn in_peer(text: &str, ports: &str) -> Result<Ports, String> {
    ports.parse().map_err(|error| format!("{text}: {error}"))
}

fn parse_host(text: &str, host: &str) -> Result<Host, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return checked(text, address.into()).map(Host::Net);
    }
    if let Some((address, bits)) = host.split_once('/')
        && (address.contains(':') || is_numeric(address))
    {
        let net = address.parse().ok().and_then(|address| IpNet::new(address, plain_number(bits)?).ok());
        let net = net.ok_or_else(|| {
            format!("{text}: {host} is not a prefix: write ADDR/BITS, with at most 32 bits for IPv4, 128 for IPv6")
        })?;
        return checked(text, net.trunc()).map(Host::Net);
    }
    if let Some((address, scope)) = host.split_once('%') {
        return Err(format!(
            "{text}: a peer has no scope: write {address}; --netns or --node says where, and it means every link there ({scope} too)"
        ));
    }
    if host.contains(':') {
        return Err(format!("{text}: {host} is not an IPv6 address"));
    }
    if is_numeric(host) || ends_in_a_number(host) {
        return Err(format!("{text}: {host:?} is not an IPv4 address"));
    }
    let label = |part: &str| {
        !part.is_empty()
            && part.len() <= 63
            && !part.starts_with('-')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    let name = host.strip_suffix('.').unwrap_or(host);
    let node = name.split_once('/').is_some_and(|(lab, node)| label(lab) && label(node));
    if name.len() <= 253 && (node || name.split('.').all(label)) {
        return Ok(Host::Name(name.into()));
    }
    Err(format!("{text}: {host:?} is neither an address, a prefix nor a host name"))
}

/// A decimal number without sign, leading zeros or any other clothes.
fn plain_number(text: &str) -> Option<u8> {
    let number: u8 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// Resolvers take `0x7f000001` and `10.1.0x2` for IPv4 addresses (`inet_aton(3)`); no name of a host ends so.
fn ends_in_a_number(host: &str) -> bool {
    let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or(host).to_ascii_lowercase();
    let hex = last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    hex || (!last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_numeric(host: &str) -> bool {
    !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// Refuses addresses that never name a machine. `text` is what the error says they stand in.
///
/// # Errors
///
/// IPv4 mapped into IPv6, a prefix of no bits, an unspecified, multicast or broadcast address.
pub fn checked(text: &str, net: IpNet) -> Result<IpNet, String> {
    let address = net.addr();
    let mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    if mapped {
        return Err(format!("{text}: this is an IPv4 address in IPv6 clothes: write it as IPv4"));
    }
    if net.prefix_len() == 0 {
        return Err(format!("{text}: this names every machine there is: name the peer, or a smaller prefix"));
    }
    if address.is_unspecified() || address.is_multicast() || address == IpAddr::from([255, 255, 255, 255]) {
        return Err(format!("{text}: {address} is not the address of a machine"));
    }
    Ok(net)
}

/// A peer after its name was looked up: one address or prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// Its address or addresses.
    pub net: IpNet,
    /// Its ports; `None` for the whole machine.
    pub ports: Option<Ports>,
    /// How the user called it, when that was not the address itself.
    pub label: Option<String>,
}

impl Target {
    /// Whether all that the other names is named by this one too.
    pub fn covers(&self, other: &Self) -> bool {
        let ports = match (self.ports, other.ports) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(mine), Some(theirs)) => mine.first <= theirs.first && theirs.last <= mine.last,
        };
        ports && self.net.contains(&other.net)
    }

    /// Whether both name something in common: of the same machine, one of its ports, or all of it.
    pub fn meets(&self, other: &Self) -> bool {
        let ports = self.ports.zip(other.ports).is_none_or(|(mine, theirs)| mine.meets(theirs));
        ports && (self.net.contains(&other.net) || other.net.contains(&self.net))
    }

    /// Whether it names this address and port.
    pub fn names(&self, address: IpAddr, port: u16) -> bool {
        self.net.contains(&address) && self.ports.is_none_or(|ports| ports.contains(port))
    }
}

/// Whether any of ours meets any of theirs, in the time of sorting them.
pub fn meet(ours: &[Target], theirs: &[Target]) -> bool {
    let mut all: Vec<_> = ours.iter().map(|our| (our, 0)).chain(theirs.iter().map(|their| (their, 1))).collect();
    all.sort_unstable_by_key(|(target, _)| target.net);
    // Prefixes are disjoint or one is in the other, and whatever is in one comes behind it.
    let mut around: Vec<(&Target, usize)> = Vec::new();
    all.into_iter().any(|(target, side)| {
        while around.last().is_some_and(|(last, _)| !last.net.contains(&target.net)) {
            around.pop();
        }
        let is_met = around.iter().any(|(other, of)| *of != side && other.meets(target));
        around.push((target, side));
        is_met
    })
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let single = self.net.prefix_len() == self.net.max_prefix_len();
        let host = if single { self.net.addr().to_string() } else { self.net.to_string() };
        match self.ports {
            Some(ports) if host.contains(':') => write!(f, "[{host}]:{ports}"),
            Some(ports) => write!(f, "{host}:{ports}"),
            None => f.write_str(&host),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target() -> impl Strategy<Value = Target> {
        // Few addresses, so that prefixes meet.
        let ports = prop::option::of((1u16..4, 0u16..2).prop_map(|(first, more)| Ports { first, last: first + more }));
        (any::<bool>(), any::<u8>(), 24u8..=32, ports).prop_map(|(is_v6, host, bits, ports)| {
            let net: IpNet = if is_v6 {
                ipnet::Ipv6Net::new([0xfd00, 0, 0, 0, 0, 0, 0, host.into()].into(), bits + 96).unwrap().trunc().into()
            } else {
                ipnet::Ipv4Net::new([10, 0, 0, host].into(), bits).unwrap().trunc().into()
            };
            Target { net, ports, label: None }
        })
    }

    proptest! {
        #[test]
        fn lists_meet_if_any_two_of_them_do(
            ours in prop::collection::vec(target(), 0..6), theirs in prop::collection::vec(target(), 0..6)
        ) {
            let expected = ours.iter().any(|our| theirs.iter().any(|their| our.meets(their)));
            prop_assert_eq!(meet(&ours, &theirs), expected);
        }
    }

    #[test]
    fn every_form_of_a_peer_is_understood() {
        let net = |text: &str| Host::Net(text.parse().unwrap());
        let ports = |first, last| Some(Ports { first, last });
        let name = |text: &str| Host::Name(text.into());
        for (text, host, port) in [
            ("10.0.0.1", net("10.0.0.1/32"), None),
            ("10.0.0.7/24", net("10.0.0.0/24"), None),
            ("10.0.0.1:2379", net("10.0.0.1/32"), ports(2379, 2379)),
            ("10.0.0.1:2379-2380", net("10.0.0.1/32"), ports(2379, 2380)),
            ("fd00::1", net("fd00::1/128"), None),
            ("[fd00::1]:80", net("fd00::1/128"), ports(80, 80)),
            ("[fd00::/64]:80", net("fd00::/64"), ports(80, 80)),
            ("etcd1", name("etcd1"), None),
            ("lab/etcd1:2379", name("lab/etcd1"), ports(2379, 2379)),
            ("db.example.org.", name("db.example.org"), None),
        ] {
            let spec: PeerSpec = text.parse().unwrap();
            assert_eq!((spec.host, spec.ports), (host, port), "{text}");
        }
    }

    #[test]
    fn two_ways_to_write_a_peer_are_one_peer() {
        for (one, other) in [
            ("10.0.0.1", "10.0.0.1/32"),
            ("10.0.0.7/24", "10.0.0.0/24"),
            ("fd00:0::1", "fd00::1/128"),
            ("[fd00:0::1]:80-80", "[fd00::1]:80"),
        ] {
            let canonical = |text: &str| text.parse::<PeerSpec>().unwrap().canonical();
            assert_eq!(canonical(one), canonical(other));
        }
    }

    #[test]
    fn every_malformed_peer_is_refused_with_a_line_that_names_it() {
        for text in [
            "",
            ":80",
            "10.0.0.1:",
            "10.0.0.1:0",
            "10.0.0.1:65536",
            "10.0.0.1:+80",
            "10.0.0.1:90-80",
            "10.0.0.1/33",
            "10.0.0.1/",
            "10.0.0.256",
            "10.0.0",
            "fd00::1/129",
            "[fd00::1",
            "[fd00::1]80",
            "[10.0.0.1]:80",
            "fd00:::1",
            "0.0.0.0",
            "0.0.0.0/0",
            "::",
            "::/0",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "::ffff:10.0.0.1",
            "10.0.0.0/+24",
            "10.0.0.0/024",
            "0x0a000001",
            "10.0.0x1",
            "db.1:80",
            "fe80::1%eth0",
            "[fe80::1%2]:80",
            "a b",
            "-etcd",
            "etcd..1",
            "etcd://x",
            "etcd://x:1?all",
            "etcd://x:1-2",
            "\u{e9}tcd",
            "a/b/c",
        ] {
            let error = text.parse::<PeerSpec>().expect_err(text);
            assert!(!error.contains('\n') && !error.is_empty(), "{text}: {error}");
        }
    }
}
