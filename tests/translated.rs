//! A peer behind DNAT, as a container's published port is: whichever of its addresses is named, everybody who talks to
//! it finds it dead, whether he comes from outside or sits on the host that translates.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use playdead::kernel::netns::NetNs;

/// The published addresses on the host, and the container's own.
const PUBLISHED: [&str; 2] = ["10.61.0.1:2379", "[fd61::1]:2379"];
const INSIDE: [&str; 2] = ["10.62.0.2:2380", "[fd62::2]:2380"];
const PATIENCE: Duration = Duration::from_millis(300);

const WIRING: &str = r#"
set -e
for n in client host inside; do ip netns add $P$n; ip -n $P$n link set lo up; done
ip -n ${P}host link add outer type veth peer name eth0 netns ${P}client
ip -n ${P}host link add port type veth peer name eth0 netns ${P}inside
ip -n ${P}host link add br0 type bridge mcast_snooping 0
ip -n ${P}host link set port master br0
for l in outer port br0; do ip -n ${P}host link set $l up; done
ip -n ${P}client link set eth0 up; ip -n ${P}inside link set eth0 up
a() { case $2 in *:*) set -- "$@" nodad;; esac; ip -n $P$1 addr add $2 dev $3 ${4:-}; }
a client 10.61.0.2/24 eth0; a client fd61::2/64 eth0; a host 10.61.0.1/24 outer; a host fd61::1/64 outer
a host 10.62.0.1/24 br0; a host fd62::1/64 br0; a inside 10.62.0.2/24 eth0; a inside fd62::2/64 eth0
ip -n ${P}inside route add default via 10.62.0.1; ip -n ${P}inside -6 route add default via fd62::1
ip netns exec ${P}host sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
"#;

/// How the host translates: with nftables, or with the iptables of old, of which `nf_tables` lists nothing.
#[derive(Debug, Clone, Copy)]
enum Translator {
    Nft,
    OldIptables,
}

const BY_NFT: &str = r"
exec ip netns exec ${P}host nft -f - <<N
table inet publish {
  chain in {
    type nat hook prerouting priority dstnat
    meta nfproto ipv4 tcp dport 2379 fib daddr type local dnat ip to 10.62.0.2:2380
    meta nfproto ipv6 tcp dport 2379 fib daddr type local dnat ip6 to [fd62::2]:2380
  }
  chain out {
    type nat hook output priority -100
    meta nfproto ipv4 tcp dport 2379 fib daddr type local dnat ip to 10.62.0.2:2380
    meta nfproto ipv6 tcp dport 2379 fib daddr type local dnat ip6 to [fd62::2]:2380
  }
}
N
";

const BY_OLD_IPTABLES: &str = r"
for chain in PREROUTING OUTPUT; do
  ip netns exec ${P}host iptables-legacy -t nat -A $chain -p tcp -d 10.61.0.1 --dport 2379 -j DNAT --to 10.62.0.2:2380
  ip netns exec ${P}host ip6tables-legacy -t nat -A $chain -p tcp -d fd61::1 --dport 2379 -j DNAT --to '[fd62::2]:2380'
done
";

struct Published(String);

impl Published {
    fn new(tag: &str, translator: Translator) -> Self {
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        let published = Self(format!("pdt{:x}{nanos:x}{tag}", std::process::id()));
        let rules = match translator {
            Translator::Nft => BY_NFT,
            Translator::OldIptables => BY_OLD_IPTABLES,
        };
        let script = format!("{WIRING}{rules}");
        let wired = Command::new("bash").args(["-c", &script]).env("P", &published.0).status().unwrap();
        assert!(wired.success(), "the namespaces of a published port cannot be made");
        published.serve();
        published
    }

    fn name(&self, end: &str) -> String {
        format!("{}{end}", self.0)
    }

    /// Accepts connections inside for as long as the test process lives.
    fn serve(&self) {
        let ns = NetNs::named(&self.name("inside")).unwrap();
        for address in INSIDE {
            let listener = ns.run(|| TcpListener::bind(address)).unwrap().unwrap();
            std::thread::spawn(move || listener.incoming().for_each(drop));
        }
    }

    fn connect(&self, from: &str, to: &str) -> Result<(), ErrorKind> {
        let to: SocketAddr = to.parse().unwrap();
        let ns = NetNs::named(&self.name(from)).unwrap();
        ns.run(|| TcpStream::connect_timeout(&to, PATIENCE).map(drop).map_err(|error| error.kind())).unwrap()
    }

    fn playdead(&self, words: &[&str]) {
        let ran = Command::new(env!("CARGO_BIN_EXE_playdead"))
            .args(["--netns", &self.name("host")])
            .args(words)
            .output()
            .unwrap();
        assert!(ran.status.success(), "playdead {words:?}: {}", String::from_utf8_lossy(&ran.stderr));
    }

    /// Neighbour discovery goes on once a second, so what has just been plugged in or healed takes a while.
    fn everybody_is_served(&self, when: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        for (from, to) in ["client", "host"].into_iter().flat_map(|from| PUBLISHED.map(|to| (from, to))) {
            while let Err(error) = self.connect(from, to) {
                assert!(Instant::now() < deadline, "{when}: from the {from} to {to}: {error}");
            }
        }
    }

    fn everybody_finds(&self, kind: &str, error: ErrorKind) {
        for from in ["client", "host"] {
            for to in PUBLISHED {
                assert_eq!(self.connect(from, to), Err(error), "{kind}: from the {from} to {to}");
            }
        }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        for end in ["client", "host", "inside"] {
            let _ = Command::new("ip").args(["netns", "del", &self.name(end)]).status();
        }
    }
}

fn dead_by_either_name(kind: &str, tag: &str, translator: Translator, error: ErrorKind) {
    let published = Published::new(tag, translator);
    published.everybody_is_served("before");
    for peers in [PUBLISHED, INSIDE] {
        published.playdead(&[kind, peers[0], peers[1]]);
        published.everybody_finds(&format!("{kind} {peers:?}"), error);
        published.playdead(&["heal"]);
        published.everybody_is_served("healed");
    }
}

#[test]
fn a_dead_process_behind_dnat_refuses_whichever_address_was_named() {
    dead_by_either_name("dead-process", "p", Translator::Nft, ErrorKind::ConnectionRefused);
}

#[test]
fn a_dead_host_behind_dnat_is_silent_whichever_address_was_named() {
    dead_by_either_name("dead-host", "h", Translator::Nft, ErrorKind::TimedOut);
}

#[test]
fn a_machine_named_without_a_port_is_dead_to_those_who_come_by_its_published_address() {
    let published = Published::new("m", Translator::Nft);
    published.everybody_is_served("before");
    published.playdead(&["dead-host", "10.62.0.2", "fd62::2"]);
    published.everybody_finds("dead-host", ErrorKind::TimedOut);
    published.playdead(&["heal"]);
    published.everybody_is_served("healed");
}

#[test]
fn the_iptables_of_old_translate_too() {
    dead_by_either_name("dead-process", "o", Translator::OldIptables, ErrorKind::ConnectionRefused);
}
