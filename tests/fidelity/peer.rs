//! The peer's processes: this program again as a server of every port, and a real etcd.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use socket2::{Domain, Protocol, Socket, Type};

use crate::probes::Probe;

/// Tells this program, started again, that it is the peer.
pub(crate) const ROLE: &str = "PLAYDEAD_FIDELITY_PEER";
/// How many connections wait for `accept`: few, so that a stopped process soon has a full queue.
pub(crate) const BACKLOG: i32 = 16;
const ETCD_PEER_PORT: u16 = 2480;
/// Where the peer itself is a client of its etcd.
pub(crate) const ETCD_LOCAL_PORT: u16 = 2481;

/// A process in a namespace. Killed with SIGKILL when dropped.
pub(crate) struct Process {
    child: Child,
    data: Option<PathBuf>,
}

impl Process {
    /// The server, once it listens.
    pub(crate) fn serve(ns: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", ns]).arg(program).env(ROLE, "server").stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "listening\n", "the peer's process did not start");
        Self { child, data: None }
    }

    /// A real etcd of one member that serves clients at these URLs.
    pub(crate) fn etcd(ns: &str, clients: &[String]) -> Self {
        let data = std::env::temp_dir().join(format!("{ns}-etcd"));
        let [peer, local] = [ETCD_PEER_PORT, ETCD_LOCAL_PORT].map(|port| format!("http://127.0.0.1:{port}"));
        let clients = [clients, &[local]].concat().join(",");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", ns, "etcd", "--name", "e", "--data-dir"]).arg(&data);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("e={peer}")]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, data: Some(data) }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Stops it for real. `kill` returns before the threads on other processors have stopped.
    pub(crate) fn stop(&self) {
        kill(self.pid(), Signal::SIGSTOP).unwrap();
        waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(data) = &self.data {
            let _ = std::fs::remove_dir_all(data);
        }
    }
}

/// Serves until killed.
pub(crate) fn run() -> ! {
    for probe in Probe::ALL.iter().filter(|probe| !probe.needs_etcd()) {
        let answers = *probe != Probe::Unread;
        for address in
            [SocketAddr::from((Ipv4Addr::UNSPECIFIED, probe.port())), (Ipv6Addr::UNSPECIFIED, probe.port()).into()]
        {
            let listener = listen(address);
            thread::spawn(move || accept(&listener, answers));
        }
        let echo = UdpSocket::bind(("::", probe.port())).unwrap();
        thread::spawn(move || send_back(&echo));
    }
    println!("listening");
    loop {
        thread::park();
    }
}

/// By one family only, so that each has an accept queue of its own.
fn listen(address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)).unwrap();
    if address.is_ipv6() {
        socket.set_only_v6(true).unwrap();
    }
    socket.set_reuse_address(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket.listen(BACKLOG).unwrap();
    socket
}

fn accept(listener: &Socket, answers: bool) {
    let mut kept = Vec::new();
    loop {
        let stream: TcpStream = listener.accept().unwrap().0.into();
        if answers {
            thread::spawn(move || answer(stream));
        } else {
            kept.push(stream);
        }
    }
}

/// An answer at once may carry the acknowledgment of the request, or come behind it: that is chance, and a difference
/// with a name. One that comes later than a delayed acknowledgment (`TCP_DELACK_MIN`, 40 ms) never does.
const THOUGHT: Duration = Duration::from_millis(60);

fn answer(mut stream: TcpStream) {
    let mut buffer = [0; 1024];
    while let Ok(1..) = stream.read(&mut buffer) {
        thread::sleep(THOUGHT);
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
            return;
        }
    }
}

fn send_back(socket: &UdpSocket) {
    let mut buffer = [0; 64];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(&buffer[..length], from);
    }
}

/// Asks until it is so.
#[track_caller]
pub(crate) fn wait_until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < until, "still not after {limit:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
