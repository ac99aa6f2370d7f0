//! Namespaces with a wire between them, and rules that silence a peer. Everything goes when the value is dropped.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use playdead::kernel::netns::NetNs;

/// The mark of forged packets in these tests.
pub(crate) const MARK: u32 = 0x00de_ad01;
/// The port of the peer.
pub(crate) const PORT: u16 = 2379;

/// A client and a peer on one wire, or with a router between.
pub(crate) struct Net {
    names: Vec<String>,
    /// Where the client runs.
    pub(crate) client: NetNs,
    /// Where the peer runs.
    pub(crate) peer: NetNs,
    /// Forwards between them, if they are on two wires.
    pub(crate) router: Option<NetNs>,
}

impl Net {
    /// `10.77.0.1` and `fd77::1` (client), `10.77.0.2` and `fd77::2` (peer) on one wire, both called `eth0`.
    pub(crate) fn wire() -> Self {
        let names = names(&["c", "p"]);
        let net = Self::new(names, None);
        let [c, p] = [&net.names[0], &net.names[1]];
        ip(&format!("-n {c} link add eth0 type veth peer name eth0 netns {p}"));
        net.address(0, "eth0", "10.77.0.1/24", "fd77::1/64");
        net.address(1, "eth0", "10.77.0.2/24", "fd77::2/64");
        net
    }

    /// `10.77.1.1` and `fd77:1::1` (client), `10.77.2.1` and `fd77:2::1` (peer), and a router that is `.254` of both.
    pub(crate) fn routed() -> Self {
        let names = names(&["c", "p", "r"]);
        let router = names[2].clone();
        let net = Self::new(names, Some(&router));
        for (end, number) in [(0, 1), (1, 2)] {
            let name = &net.names[end];
            ip(&format!("-n {name} link add eth0 type veth peer name eth{number} netns {router}"));
            net.address(
                2,
                &format!("eth{number}"),
                &format!("10.77.{number}.254/24"),
                &format!("fd77:{number}::254/64"),
            );
            net.address(end, "eth0", &format!("10.77.{number}.1/24"), &format!("fd77:{number}::1/64"));
            ip(&format!("-n {name} route add default via 10.77.{number}.254"));
            ip(&format!("-n {name} -6 route add default via fd77:{number}::254"));
        }
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            run(Command::new("ip").args(["netns", "exec", &router, "sysctl", "-qw", &format!("{key}=1")]));
        }
        net
    }

    fn new(names: Vec<String>, router: Option<&str>) -> Self {
        let made = names.iter().map(|name| NetNs::create(name).unwrap()).collect::<Vec<_>>();
        let mut made = made.into_iter();
        let (client, peer) = (made.next().unwrap(), made.next().unwrap());
        for name in &names {
            ip(&format!("-n {name} link set lo up"));
        }
        let router = router.and_then(|_| made.next());
        Self { names, client, peer, router }
    }

    fn address(&self, end: usize, device: &str, v4: &str, v6: &str) {
        let name = &self.names[end];
        ip(&format!("-n {name} addr add {v4} dev {device}"));
        ip(&format!("-n {name} addr add {v6} dev {device} nodad"));
        ip(&format!("-n {name} link set {device} addrgenmode none up"));
        ip(&format!("-n {name} addr add fe80::{}/64 dev {device} nodad", end + 1));
    }

    /// On the client: what it sends to the peer is stolen and refused, bare ACKs absorbed; what comes from the peer is dropped.
    pub(crate) fn silence_at_client(&self, peer: IpAddr) {
        let ip = if peer.is_ipv4() { "ip" } else { "ip6" };
        nft(&self.names[0], &format!(
            "table netdev away {{
               chain out {{ type filter hook egress device eth0 priority 0; {ip} daddr {peer} tcp dport {PORT} meta mark != {MARK} fwd to lo; }}
               chain back {{ type filter hook ingress device lo priority 0; {ip} daddr {peer} tcp dport {PORT} meta pkttype set host; }}
             }}
             table inet away {{ chain in {{ type filter hook prerouting priority -300;
               iifname lo {ip} daddr {peer} tcp dport {PORT} tcp flags & (syn | ack) == syn reject with tcp reset
               iifname lo {ip} daddr {peer} tcp dport {PORT} @ih,0,8 0-255 reject with tcp reset
               iifname lo {ip} daddr {peer} tcp dport {PORT} drop
               {ip} saddr {peer} tcp sport {PORT} tcp flags & rst == 0 meta mark != {MARK} drop
             }}
             }}"));
    }

    /// On the peer: the same for all that it gets and sends at its port.
    pub(crate) fn silence_at_peer(&self) {
        nft(
            &self.names[1],
            &format!(
                "table inet away {{
               chain in {{ type filter hook input priority -300;
                 meta mark {MARK} accept
                 tcp dport {PORT} tcp flags & (syn | ack) == syn reject with tcp reset
                 tcp dport {PORT} @ih,0,8 0-255 reject with tcp reset
                 tcp dport {PORT} drop
               }}
             }}
             table netdev away {{
               chain out {{ type filter hook egress device eth0 priority 0;
                 tcp sport {PORT} tcp flags & rst == 0 meta mark != {MARK} fwd to lo
               }}
             }}"
            ),
        );
    }

    /// The peer's machine hears nothing more.
    pub(crate) fn deafen_peer(&self) {
        nft(
            &self.names[1],
            "table inet deaf { chain in { type filter hook prerouting priority -300; policy drop\n }\n }",
        );
    }

    /// On the client: what connection tracking calls invalid is dropped, as many firewalls have it.
    pub(crate) fn drop_invalid_at_client(&self) {
        nft(
            &self.names[0],
            "table inet strict { chain in { type filter hook input priority 0; ct state invalid drop\n }\n }",
        );
    }

    /// A listener in the peer's namespace.
    pub(crate) fn listen(&self, address: SocketAddr) -> TcpListener {
        self.peer.run(|| TcpListener::bind(address)).unwrap().unwrap()
    }

    /// A connection of the client: its end, and the peer's.
    pub(crate) fn pair(&self, peer: SocketAddr) -> (TcpStream, TcpStream) {
        let listener = self.listen(peer);
        let client = self.connect(peer);
        (client, listener.accept().unwrap().0)
    }

    /// A connection from the client's namespace.
    pub(crate) fn connect(&self, address: SocketAddr) -> TcpStream {
        self.client.run(|| TcpStream::connect(address)).unwrap().unwrap()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = NetNs::delete(name);
        }
    }
}

fn names(ends: &[&str]) -> Vec<String> {
    let random = RandomState::new().hash_one(std::process::id()) >> 32;
    ends.iter().map(|end| format!("pd-forge-{random:x}-{end}")).collect()
}

fn ip(arguments: &str) {
    run(Command::new("ip").args(arguments.split(' ')));
}

fn nft(name: &str, rules: &str) {
    let mut child =
        Command::new("ip").args(["netns", "exec", name, "nft", "-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "nft refused:\n{rules}");
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
