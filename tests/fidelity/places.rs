//! Where the peer sits, where the rules are written, and the namespaces of one run.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use playdead::kernel::netns::NetNs;
use playdead::kernel::sockets::connections;

use crate::net::{At, Segment, ip};
use crate::peer::{Process, wait_until};
use crate::probes::Probe;

/// Where the peer sits, seen from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Location {
    Segment,
    Routed,
    Loopback,
}

impl Location {
    pub(crate) const ALL: [Self; 3] = [Self::Segment, Self::Routed, Self::Loopback];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Segment => "segment",
            Self::Routed => "routed",
            Self::Loopback => "loopback",
        }
    }

    /// Where rules can be written between the two, the ends included.
    pub(crate) fn vantages(self) -> &'static [Vantage] {
        match self {
            Self::Segment => &[Vantage::Client, Vantage::Peer, Vantage::Bridge],
            Self::Routed => &[Vantage::Client, Vantage::Peer, Vantage::Router, Vantage::Bridge],
            Self::Loopback => &[Vantage::Client],
        }
    }

    /// The peer's address.
    pub(crate) fn address(self, family: Family) -> IpAddr {
        let address = match (self, family) {
            (Self::Loopback, Family::V4) => "127.0.0.1",
            (Self::Loopback, Family::V6) => "::1",
            (_, Family::V4) => "10.99.0.2",
            (_, Family::V6) => "fd99::2",
        };
        address.parse().unwrap()
    }
}

/// Where rules are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Vantage {
    Client,
    Peer,
    Router,
    Bridge,
}

impl Vantage {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Peer => "peer",
            Self::Router => "router",
            Self::Bridge => "bridge",
        }
    }

    pub(crate) fn at(self) -> At {
        match self {
            Self::Client => At::Client,
            Self::Peer => At::Peer,
            Self::Router => At::Router,
            Self::Bridge => At::Switch,
        }
    }
}

/// The family of the peer's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V6 => "v6",
        }
    }
}

/// The router is one that tracks connections, as one with a firewall or with translation does.
fn track_connections(segment: &Segment) {
    segment.nft(
        At::Router,
        "table inet tracks { chain pass { type filter hook forward priority 0; ct state established accept\n}\n}",
    );
}

/// The namespaces of one run, and the peer's processes.
pub(crate) struct Rig {
    pub(crate) segment: Segment,
    pub(crate) location: Location,
    pub(crate) server: Option<Process>,
    pub(crate) etcd: Option<Process>,
    /// Connections that stand until the end.
    pub(crate) kept: Vec<TcpStream>,
}

impl Rig {
    /// A client that gives a connect up after one repeated SYN (3 s), and a peer that serves.
    pub(crate) fn new(location: Location, with_etcd: bool) -> Self {
        let segment = Segment::of(location == Location::Routed);
        if location == Location::Routed {
            track_connections(&segment);
        }
        segment.syn_retries(1);
        let mut rig = Self { segment, location, server: None, etcd: None, kept: Vec::new() };
        rig.start(with_etcd);
        rig
    }

    /// Starts the peer's processes.
    pub(crate) fn start(&mut self, with_etcd: bool) {
        let ns = self.segment.name(self.peer_at());
        self.server = Some(Process::serve(&ns));
        if with_etcd {
            let ports = Probe::ALL.iter().filter(|probe| probe.needs_etcd()).map(|probe| probe.port());
            let urls = ports.flat_map(|port| self.targets(port)).map(|target| format!("http://{target}"));
            self.etcd = Some(Process::etcd(&ns, &urls.collect::<Vec<_>>()));
        }
    }

    /// Where the peer's process runs.
    pub(crate) fn peer_at(&self) -> At {
        if self.location == Location::Loopback { At::Client } else { At::Peer }
    }

    pub(crate) fn peer(&self) -> NetNs {
        self.segment.netns(self.peer_at())
    }

    /// A port of the peer by both families.
    pub(crate) fn targets(&self, port: u16) -> [SocketAddr; 2] {
        Family::ALL.map(|family| SocketAddr::new(self.location.address(family), port))
    }

    pub(crate) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.server.iter().chain(&self.etcd)
    }

    /// A process that is killed before it accepted a connection resets it instead of closing it, and data that is not
    /// acknowledged is sent again. A peer's kernel acknowledges after 40 ms at the latest what nobody answers.
    pub(crate) fn wait_until_quiet(&self) {
        let ns = self.peer();
        let accepted = || connections(&ns).unwrap().iter().all(|connection| connection.accepted);
        wait_until("every connection is accepted", Duration::from_secs(5), accepted);
        std::thread::sleep(Duration::from_millis(60));
    }

    /// Lays the peer's cable again at the switch.
    pub(crate) fn plug_in_again(&self) {
        ip(&["-n", &self.segment.name(At::Switch), "link", "set", "p", "master", "br0"]);
    }
}
