//! A client and a peer, on one network segment or with a router between, in namespaces with random names; a peer's
//! process to kill, and views of it.
#![allow(dead_code, reason = "every test program uses a part of it")]

pub(crate) mod capture;
pub(crate) mod cli;
pub(crate) mod places;
pub(crate) mod server;
pub(crate) mod view;

use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;

use playdead::kernel::netns::NetNs;
use playdead::kernel::sysctl;

use server::Server;

/// The port that faults are about.
pub(crate) const PORT: u16 = 2379;
/// A port of the same process that they are not about; datagrams are sent back there.
pub(crate) const OTHER_PORT: u16 = 2380;

/// The peer by both families.
pub(crate) fn targets() -> [SocketAddr; 2] {
    at_port(PORT)
}

/// The peer's other port by both families.
pub(crate) fn other_port() -> [SocketAddr; 2] {
    at_port(OTHER_PORT)
}

/// A port of the peer by both families.
pub(crate) fn at_port(port: u16) -> [SocketAddr; 2] {
    ["10.99.0.2", "fd99::2"].map(|address| SocketAddr::new(address.parse().unwrap(), port))
}

/// An address on the segment that nobody has.
pub(crate) fn nobody() -> SocketAddr {
    SocketAddr::new([10, 99, 0, 9].into(), PORT)
}

/// A namespace of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Client,
    Peer,
    /// The bridge that the peer is plugged in at.
    Switch,
    /// Between the client and the switch, if there is one.
    Router,
}

/// The namespaces. Gone when dropped.
pub(crate) struct Segment {
    name: String,
    routed: bool,
}

impl Segment {
    /// The client at `10.99.0.1` and `fd99::1`, the peer at `.2`, and the switch between them.
    pub(crate) fn new() -> Self {
        Self::wired(false)
    }

    /// The client at `10.98.0.1` and `fd98::1`, and a router that is `254` there and on the peer's segment.
    pub(crate) fn routed() -> Self {
        Self::wired(true)
    }

    fn wired(routed: bool) -> Self {
        let random = RandomState::new().hash_one(std::process::id()) >> 24;
        let segment = Self { name: format!("pdp{random:010x}"), routed };
        segment.wire();
        segment
    }

    fn wire(&self) {
        let [client, peer, switch] = [At::Client, At::Peer, At::Switch].map(|at| self.name(at));
        for ns in self.names() {
            // It takes this from the machine, which may be a router.
            sysctl::set(&NetNs::create(&ns).unwrap(), &[("ipv4/ip_forward", "0")]).unwrap();
            ip(&["-n", &ns, "link", "set", "lo", "up"]);
        }
        ip(&["-n", &switch, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0"]);
        ip(&["-n", &switch, "link", "set", "br0", "up"]);
        if self.routed {
            let router = self.name(At::Router);
            plug_in(&router, &switch, "r", 254);
            self.wire_router(&client, &router);
        } else {
            plug_in(&client, &switch, "c", 1);
        }
        plug_in(&peer, &switch, "p", 2);
        self.lead_peer_back();
        self.warm_neighbours();
    }

    fn wire_router(&self, client: &str, router: &str) {
        ip(&["-n", client, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1", "netns", router]);
        for (ns, device, number) in [(client, "eth0", 1), (router, "eth1", 254)] {
            address(ns, device, 98, number);
        }
        ip(&["-n", client, "route", "add", "default", "via", "10.98.0.254"]);
        ip(&["-n", client, "-6", "route", "add", "default", "via", "fd98::254"]);
        self.sysctl(At::Router, "net.ipv4.ip_forward=1");
        self.sysctl(At::Router, "net.ipv6.conf.all.forwarding=1");
    }

    fn lead_peer_back(&self) {
        if self.routed {
            let peer = self.name(At::Peer);
            ip(&["-n", &peer, "route", "add", "default", "via", "10.99.0.254"]);
            ip(&["-n", &peer, "-6", "route", "add", "default", "via", "fd99::254"]);
        }
    }

    fn warm_neighbours(&self) {
        for target in targets() {
            self.ping_until_answered(&["-n"], target);
        }
    }

    /// Pings until the bridge forwards and the neighbours are known. A new IPv6 address works a little later than
    /// `ip` returns: a ping that comes too early is lost, and a router may say unreachable at first.
    pub(crate) fn ping_until_answered(&self, options: &[&str], target: SocketAddr) {
        let (client, address) = (self.name(At::Client), target.ip().to_string());
        let ping = [&["netns", "exec", &client, "ping", "-q", "-c", "1", "-W", "0.5"], options, &[&address]].concat();
        let answered = || Command::new("ip").args(&ping).output().unwrap().status.success();
        assert!((0..20).any(|_| answered()), "{target} does not answer");
    }

    /// What the namespace is called.
    pub(crate) fn name(&self, at: At) -> String {
        let role = match at {
            At::Client => "c",
            At::Peer => "p",
            At::Switch => "s",
            At::Router => "r",
        };
        format!("{}{role}", self.name)
    }

    /// Whether there is such a namespace.
    pub(crate) fn has(&self, at: At) -> bool {
        self.routed || at != At::Router
    }

    fn all(&self) -> impl Iterator<Item = At> {
        [At::Client, At::Peer, At::Switch, At::Router].into_iter().filter(|at| self.has(*at))
    }

    fn names(&self) -> Vec<String> {
        self.all().map(|at| self.name(at)).collect()
    }

    pub(crate) fn netns(&self, at: At) -> NetNs {
        NetNs::named(&self.name(at)).unwrap()
    }

    pub(crate) fn client(&self) -> NetNs {
        self.netns(At::Client)
    }

    /// Connections are accepted in order: once a later one is answered, those before it have a process.
    /// Killing the process would reset the others instead of closing them.
    pub(crate) fn wait_until_accepted(&self) {
        let mut later = self.connect(targets()[0]);
        later.write_all(b"?").unwrap();
        later.read_exact(&mut [0]).unwrap();
    }

    /// Pulls the peer's cable at the switch.
    pub(crate) fn unplug(&self) {
        ip(&["-n", &self.name(At::Switch), "link", "set", "p", "nomaster"]);
    }

    /// Takes the peer's power and gives it back: its machine has the same addresses and knows nothing any more.
    pub(crate) fn reboot(&self, server: Server) -> Server {
        self.reboot_machine(|| drop(server));
        self.serve()
    }

    /// The same without a process afterwards; `end` ends what runs.
    pub(crate) fn reboot_machine(&self, end: impl FnOnce()) {
        let (peer, switch) = (self.name(At::Peer), self.name(At::Switch));
        self.unplug();
        end();
        ip(&["-n", &peer, "link", "del", "eth0"]);
        ip(&["netns", "del", &peer]);
        ip(&["netns", "add", &peer]);
        plug_in(&peer, &switch, "p", 2);
        self.lead_peer_back();
        self.warm_neighbours();
    }

    /// Gives the peer these nftables rules.
    pub(crate) fn filter_on_peer(&self, chain: &str) {
        self.nft(At::Peer, &format!("table inet probe {{ chain filter {{ {chain} }}; }}"));
    }

    pub(crate) fn forget_neighbours(&self) {
        ip(&["-n", &self.name(At::Client), "neigh", "flush", "dev", "eth0"]);
    }

    /// Neighbour entries that never fail, as behind a quiet router.
    pub(crate) fn pin_neighbours(&self) {
        self.pin_neighbours_on("eth0");
    }

    pub(crate) fn pin_neighbours_on(&self, device: &str) {
        let shown = self.inside(At::Peer, &["cat", "/sys/class/net/eth0/address"]);
        for target in targets() {
            let address = target.ip().to_string();
            let client = self.name(At::Client);
            ip(&["-n", &client, "neigh", "replace", &address, "lladdr", shown.trim(), "dev", device]);
        }
    }

    pub(crate) fn sysctl(&self, at: At, setting: &str) {
        self.inside(at, &["sysctl", "-q", "-w", setting]);
    }

    /// Nobody limits how often ICMP errors are sent: for tests that draw more than six in a second.
    pub(crate) fn unlimited_errors(&self) {
        for at in self.all() {
            self.sysctl(at, "net.ipv4.icmp_ratelimit=0");
            self.sysctl(at, "net.ipv6.icmp.ratelimit=0");
        }
    }

    /// The client gives a connect up after so many repeated SYNs, sent after 1, 3, 7, ... seconds.
    pub(crate) fn syn_retries(&self, number: u8) {
        self.sysctl(At::Client, &format!("net.ipv4.tcp_syn_retries={number}"));
        self.linear_syns(0);
    }

    /// So many SYNs are repeated after a second each before the times double. Kernels before 6.5 double at once.
    pub(crate) fn linear_syns(&self, number: u8) {
        let setting = format!("net.ipv4.tcp_syn_linear_timeouts={number}");
        self.inside(At::Client, &["sysctl", "-e", "-q", "-w", &setting]);
    }

    /// Gives a device of the client another name. Kernels before 6.3 rename none that is up; one that was down has to be
    /// given its IPv6 address and its neighbours again.
    pub(crate) fn rename(&self, device: &str, name: &str) {
        let client = self.name(At::Client);
        ip(&["-n", &client, "link", "set", device, "down"]);
        ip(&["-n", &client, "link", "set", device, "name", name, "up"]);
        ip(&["-n", &client, "addr", "replace", "fd99::1/64", "dev", name, "nodad"]);
        self.pin_neighbours_on(name);
    }

    /// The client's own routing refuses the peer.
    pub(crate) fn refuse_by_route(&self, kind: &str) {
        let client = self.name(At::Client);
        ip(&["-n", &client, "route", "add", kind, "10.99.0.2/32"]);
        ip(&["-n", &client, "-6", "route", "add", kind, "fd99::2/128", "metric", "1"]);
    }

    /// How many TCP connections of the client stand.
    pub(crate) fn established(&self) -> usize {
        let shown = self.inside(At::Client, &["cat", "/proc/net/tcp", "/proc/net/tcp6"]);
        shown.lines().filter(|line| line.split_whitespace().nth(3) == Some("01")).count()
    }

    /// Runs a command in a namespace and gives what it prints.
    pub(crate) fn inside(&self, at: At, command: &[&str]) -> String {
        ip(&[&["netns", "exec", &self.name(at)], command].concat())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        for ns in self.names() {
            let _ = NetNs::delete(&ns);
        }
    }
}

/// A cable from the switch to a machine, with the same MAC address every time.
pub(crate) fn plug_in(ns: &str, switch: &str, port: &str, number: u8) {
    let mac = format!("02:00:00:00:00:{number:02x}");
    ip(&["-n", ns, "link", "add", "eth0", "address", &mac, "type", "veth", "peer", "name", port, "netns", switch]);
    ip(&["-n", switch, "link", "set", port, "master", "br0", "up"]);
    address(ns, "eth0", 99, number);
}

/// Gives a device its addresses, and takes it up.
fn address(ns: &str, device: &str, net: u8, number: u8) {
    ip(&["-n", ns, "link", "set", device, "up"]);
    ip(&["-n", ns, "addr", "add", &format!("10.{net}.0.{number}/24"), "dev", device]);
    ip(&["-n", ns, "addr", "add", &format!("fd{net}::{number}/64"), "dev", device, "nodad"]);
}

pub(crate) fn ip(args: &[&str]) -> String {
    let output = Command::new("ip").args(args).output().unwrap();
    assert!(output.status.success(), "ip {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
