//! A client and a peer on one network segment, or with a router between them, in namespaces with random names, and a
//! peer process to kill.
#![allow(dead_code, reason = "each test binary uses its own part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use playdead::kernel::netns::NetNs;

const PORT: u16 = 2379;
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The peer by both families.
pub(crate) fn targets() -> [SocketAddr; 2] {
    ["10.99.0.2", "fd99::2"].map(|address| SocketAddr::new(address.parse().unwrap(), PORT))
}

/// An address on the segment that nobody has.
pub(crate) fn nobody() -> SocketAddr {
    SocketAddr::new([10, 99, 0, 9].into(), PORT)
}

/// Namespaces: the client, the peer, the switch between them, and a router if wanted. Gone when dropped.
pub(crate) struct Segment {
    name: String,
    routed: bool,
}

impl Segment {
    pub(crate) fn new() -> Self {
        Self::of(false)
    }

    /// With a router between the client and the switch.
    pub(crate) fn routed() -> Self {
        Self::of(true)
    }

    fn of(routed: bool) -> Self {
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pdp{:x}{:05x}{number}", std::process::id(), nanos & 0xf_ffff);
        let segment = Self { name, routed };
        segment.wire();
        segment
    }

    fn wire(&self) {
        let [client, peer, switch] = self.names();
        for ns in self.places() {
            ip(&["netns", "add", &self.place(ns)]);
            ip(&["-n", &self.place(ns), "link", "set", "lo", "up"]);
        }
        ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"]);
        ip(&["-n", &switch, "link", "set", "br0", "up"]);
        if self.routed {
            self.route();
        } else {
            plug_in(&client, &switch, "c", 1);
        }
        plug_in(&peer, &switch, "p", 2);
        if self.routed {
            self.route_back();
        }
        self.warm_neighbours();
    }

    /// The router has the client's place on the segment, and the client another one behind it.
    fn route(&self) {
        let (client, router) = (self.place("c"), self.place("r"));
        plug_in(&router, &self.place("s"), "c", 1);
        ip(&["-n", &client, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1", "netns", &router]);
        for (ns, device, address) in [(&client, "eth0", 2), (&router, "eth1", 1)] {
            ip(&["-n", ns, "link", "set", device, "up"]);
            ip(&["-n", ns, "addr", "add", &format!("10.98.0.{address}/24"), "dev", device]);
            ip(&["-n", ns, "addr", "add", &format!("fd98::{address}/64"), "dev", device, "nodad"]);
        }
        for gateway in ["10.98.0.1", "fd98::1"] {
            ip(&["-n", &client, "route", "add", "default", "via", gateway]);
        }
        inside(&router, &["sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
    }

    fn route_back(&self) {
        for gateway in ["10.99.0.1", "fd99::1"] {
            ip(&["-n", &self.place("p"), "route", "add", "default", "via", gateway]);
        }
    }

    /// Where rules can be written: c(lient), p(eer), s(witch), and r(outer).
    pub(crate) fn places(&self) -> &'static [&'static str] {
        if self.routed { &["c", "p", "s", "r"] } else { &["c", "p", "s"] }
    }

    /// The namespace of a place.
    pub(crate) fn place(&self, role: &str) -> String {
        format!("{}{role}", self.name)
    }

    /// Runs playdead at a place, and expects it to succeed.
    pub(crate) fn playdead(&self, role: &str, words: &[&str]) -> String {
        let program = env!("CARGO_BIN_EXE_playdead");
        let output = Command::new(program).args(["--netns", &self.place(role)]).args(words).output().unwrap();
        assert!(output.status.success(), "playdead at {role} {words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A first ping in each family waits until the bridge forwards and the neighbours are known.
    fn warm_neighbours(&self) {
        for address in ["10.99.0.2", "fd99::2"] {
            inside(&self.names()[0], &["ping", "-q", "-c", "1", "-W", "5", address]);
        }
    }

    fn names(&self) -> [String; 3] {
        ["c", "p", "s"].map(|role| self.place(role))
    }

    pub(crate) fn client(&self) -> NetNs {
        NetNs::named(&self.names()[0]).unwrap()
    }

    /// Starts the peer's process.
    pub(crate) fn serve(&self) -> Server {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.names()[1]])
            .arg(program)
            .args(["--exact", "server", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("listening")), "the peer's process did not start");
        Server { child }
    }

    /// Connections are accepted in order: once a later one is answered, those before it have a process.
    /// Killing the process would reset the others instead of closing them.
    pub(crate) fn wait_until_accepted(&self) {
        let mut later = self.client().run(|| TcpStream::connect(targets()[0])).unwrap().unwrap();
        later.write_all(b"?").unwrap();
        later.read_exact(&mut [0]).unwrap();
    }

    /// Pulls the peer's cable at the switch.
    pub(crate) fn unplug(&self) {
        ip(&["-n", &self.names()[2], "link", "set", "p", "nomaster"]);
    }

    /// Takes the peer's power and gives it back: its machine has the same addresses and knows nothing any more.
    pub(crate) fn reboot(&self, server: Server) -> Server {
        let [_, peer, switch] = self.names();
        self.unplug();
        drop(server);
        ip(&["-n", &peer, "link", "del", "eth0"]);
        ip(&["netns", "del", &peer]);
        ip(&["netns", "add", &peer]);
        plug_in(&peer, &switch, "p", 2);
        self.warm_neighbours();
        self.serve()
    }

    /// Gives the peer these nftables rules.
    pub(crate) fn filter_on_peer(&self, chain: &str) {
        inside(&self.names()[1], &["nft", &format!("table inet probe {{ chain filter {{ {chain} }}; }}")]);
    }

    pub(crate) fn forget_neighbours(&self) {
        ip(&["-n", &self.names()[0], "neigh", "flush", "dev", "eth0"]);
    }

    /// Neighbour entries that never fail, as behind a quiet router.
    pub(crate) fn pin_neighbours(&self) {
        let shown = inside(&self.names()[1], &["cat", "/sys/class/net/eth0/address"]);
        for address in ["10.99.0.2", "fd99::2"] {
            ip(&["-n", &self.names()[0], "neigh", "replace", address, "lladdr", shown.trim(), "dev", "eth0"]);
        }
    }

    pub(crate) fn client_sysctl(&self, setting: &str) {
        inside(&self.names()[0], &["sysctl", "-q", "-w", setting]);
    }

    /// The client's own routing refuses the peer.
    pub(crate) fn refuse_by_route(&self, kind: &str) {
        ip(&["-n", &self.names()[0], "route", "add", kind, "10.99.0.2/32"]);
        ip(&["-n", &self.names()[0], "-6", "route", "add", kind, "fd99::2/128", "metric", "1"]);
    }

    /// How many TCP connections of the client stand.
    pub(crate) fn established(&self) -> usize {
        let shown = inside(&self.names()[0], &["cat", "/proc/net/tcp", "/proc/net/tcp6"]);
        shown.lines().filter(|line| line.split_whitespace().nth(3) == Some("01")).count()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        for role in self.places() {
            let _ = Command::new("ip").args(["netns", "del", &self.place(role)]).status();
        }
    }
}

/// A cable from the switch to a machine, with the same MAC address every time.
fn plug_in(ns: &str, switch: &str, port: &str, number: u8) {
    let mac = format!("02:00:00:00:00:0{number}");
    ip(&["-n", ns, "link", "add", "eth0", "address", &mac, "type", "veth", "peer", "name", port, "netns", switch]);
    ip(&["-n", switch, "link", "set", port, "master", "br0", "up"]);
    ip(&["-n", ns, "link", "set", "eth0", "up"]);
    ip(&["-n", ns, "addr", "add", &format!("10.99.0.{number}/24"), "dev", "eth0"]);
    ip(&["-n", ns, "addr", "add", &format!("fd99::{number}/64"), "dev", "eth0", "nodad"]);
}

/// Runs a command in the namespace of that name and gives what it prints.
fn inside(ns: &str, command: &[&str]) -> String {
    ip(&[&["netns", "exec", ns], command].concat())
}

fn ip(args: &[&str]) -> String {
    let output = Command::new("ip").args(args).output().unwrap();
    assert!(output.status.success(), "ip {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The peer's process. Killed with SIGKILL when dropped.
pub(crate) struct Server {
    child: Child,
}

impl Server {
    /// Stops it for real. `kill` returns before the threads on other processors have stopped.
    pub(crate) fn stop(&self) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, Signal::SIGSTOP).unwrap();
        waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves `GET` over HTTP/1.1 on both families, and closes on `BYE`, for ever.
pub(crate) fn server() {
    let listener = TcpListener::bind(("::", PORT)).unwrap();
    println!("listening");
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        std::thread::spawn(move || answer(stream));
    }
}

fn answer(mut stream: TcpStream) {
    let mut buffer = [0; 1024];
    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
        if buffer[..bytes].starts_with(b"BYE")
            || stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err()
        {
            return;
        }
    }
}
