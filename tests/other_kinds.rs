//! `hush`, `hung-process`, `unreachable` and `rebooted`, beside the real thing where there is one.

mod net;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use net::places::at_all;
use net::view::{BRIEF, assert_alike, assert_met, assert_only, by};
use net::{At, OTHER_PORT, PORT, Segment, at_port, other_port, targets};
use playdead::model::Code;
use playdead::model::signature::Expect;
use playdead::probe::{Outcome, Probe};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

const PORTS: &str = "10.99.0.2:2379 [fd99::2]:2379";
const HOST: &str = "10.99.0.2 fd99::2";
/// flux-core#4086: a power-off is not noticed where a kill is. Here the kill looks like a power-off on its port alone.
#[test]
fn a_hushed_process_that_is_killed_looks_like_a_gone_machine_on_its_port_only() {
    at_all(|segment, at| {
        let server = segment.serve();
        segment.syn_retries(1);
        segment.unlimited_errors();
        let seen = segment.watch(Duration::from_millis(3400), || {
            segment.playdead(at, &format!("hush {PORTS}"));
            drop(server);
        });
        assert_only(Expect::Hush, &seen);
        for connect in by(&seen, Probe::Connect) {
            assert_eq!(connect.outcome, Outcome::errno("ETIMEDOUT"), "{at:?}: {connect:#?}");
            assert!((2950.0..3250.0).contains(&connect.took_ms), "{connect:#?}");
        }
        // The other port of that machine refuses, since its process is gone: that is not filtered.
        assert_met(Expect::DeadProcess, &segment.look(BRIEF, &other_port()));
        segment.heal(at);
        assert_met(Expect::DeadProcess, &segment.look(BRIEF, &targets()));
    });
}

#[test]
fn hush_lets_a_living_process_talk() {
    at_all(|segment, at| {
        let _server = segment.serve();
        segment.playdead(at, &format!("hush {PORTS}"));
        let seen = segment.watch(BRIEF, || {});
        for probe in [Probe::Connect, Probe::Writing, Probe::Ping] {
            for seen in by(&seen, probe) {
                assert_eq!(seen.outcome, Outcome::Answered, "{at:?}: {seen:#?}");
            }
        }
    });
}

#[test]
fn hush_runs_what_stops_the_process_once_it_is_armed_and_tells_when_that_fails() {
    let segment = Segment::new();
    let server = segment.serve();
    let seen = segment.watch(BRIEF, || {
        let mut command = net::cli::playdead();
        command.args(["--netns", &segment.name(At::Client), "hush", "10.99.0.2:2379", "[fd99::2]:2379", "--then"]);
        let output = command.arg(format!("kill -9 {}", server.pid())).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        // `kill` returns before a process is gone; this waits for it.
        drop(server);
    });
    assert_only(Expect::Hush, &seen);
    segment.heal(At::Client);
    let output = segment.run(At::Client, &format!("hush {PORTS} --then false"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(segment.status(At::Client).len(), 1, "armed all the same");
}

/// kubernetes#5589, etcd#10816, #10832: a frozen leader.
#[test]
fn a_hung_process_is_one_that_was_stopped() {
    let real = thread::scope(|scope| {
        [false, true]
            .map(|routed| {
                scope.spawn(move || {
                    let segment = Segment::of(routed);
                    let server = segment.serve();
                    segment.watch(BRIEF, || server.stop())
                })
            })
            .map(|thread| thread.join().unwrap())
    });
    for real in &real {
        assert_only(Expect::HungProcess, real);
    }
    at_all(|segment, at| {
        let _server = segment.serve();
        let seen = segment.watch_fault(BRIEF, at, &format!("hung-process {PORTS}"));
        assert_only(Expect::HungProcess, &seen);
        let tcp: Vec<_> =
            seen.iter().filter(|seen| !matches!(seen.probe, Probe::Udp | Probe::UdpRecverr)).cloned().collect();
        let real: Vec<_> = real[usize::from(segment.has(At::Router))]
            .iter()
            .filter(|seen| !matches!(seen.probe, Probe::Udp | Probe::UdpRecverr))
            .cloned()
            .collect();
        assert_alike(&format!("{at:?}"), &tcp, &real);
        for writing in by(&seen, Probe::Writing) {
            let tcp = writing.tcp.as_ref().unwrap();
            assert_eq!((tcp.state, tcp.unacked, tcp.retransmits), ("ESTABLISHED", 0, 0), "{at:?}: {writing:#?}");
        }
        assert_met(Expect::Alive, &segment.look(BRIEF, &other_port()));
        segment.heal(at);
        segment.assert_alive();
    });
}

/// The process here goes on to accept; stopped, it would let them wait, and its kernel would drop further SYNs.
#[test]
fn a_hung_process_takes_no_more_connections_than_wait_for_accept() {
    const BUSY: u16 = 4444;
    at_all(|segment, at| {
        let listener: TcpListener = segment.netns(At::Peer).run(|| listen(BUSY, 1)).unwrap().into();
        thread::spawn(move || listener.incoming().collect::<Vec<_>>());
        // On the peer the socket is asked.
        let told = if at == At::Peer { "" } else { " --backlog 1" };
        segment.playdead(at, &format!("hung-process 10.99.0.2:{BUSY} [fd99::2]:{BUSY}{told}"));
        for target in at_port(BUSY) {
            let connect = || {
                let connect = || TcpStream::connect_timeout(&target, Duration::from_millis(400));
                segment.client().run(connect).unwrap().map_err(|error| error.kind())
            };
            let taken = [connect(), connect()];
            assert!(taken.iter().all(Result::is_ok), "{at:?} {target}: {taken:?}");
            assert_eq!(connect().unwrap_err(), ErrorKind::TimedOut, "{at:?} {target}");
        }
    });
}

fn listen(port: u16, backlog: i32) -> Socket {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into()).unwrap();
    socket.listen(backlog).unwrap();
    socket
}

/// The port of the server below.
const ECHO: u16 = 4445;
/// The kernel's default.
const NEVER: Duration = Duration::from_secs(7200);

/// Serves echoes, each so late that the kernel has acknowledged by itself. After so long a silence the kernel asks
/// whether the client is there.
fn echo(segment: &Segment, keepalive: Duration) {
    let listener: TcpListener = segment.netns(At::Peer).run(|| listen(ECHO, 8)).unwrap().into();
    thread::spawn(move || {
        let alive = TcpKeepalive::new().with_time(keepalive);
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            SockRef::from(&stream).set_tcp_keepalive(&alive).unwrap();
            thread::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
                    thread::sleep(Duration::from_millis(100));
                    let _ = stream.write_all(&buffer[..bytes]);
                }
            });
        }
    });
}

/// What the client's kernel says of a connection some time after a request.
fn after_a_request(segment: &Segment, stream: &mut TcpStream) -> String {
    stream.write_all(b"?").unwrap();
    thread::sleep(Duration::from_millis(700));
    let local = format!("sport = :{}", stream.local_addr().unwrap().port());
    segment.inside(At::Client, &["ss", "-tinH", "state", "established", &local])
}

/// It has an acknowledgement of all that was sent, and had it before it sent anything again.
#[track_caller]
fn is_acknowledged(segment: &Segment, at: At, stream: &mut TcpStream) {
    let told = after_a_request(segment, stream);
    assert!(told.contains("rto:") && !told.contains("unacked:") && !told.contains("retrans:"), "{at:?}: {told}");
}

#[test]
fn a_hung_process_acknowledges_with_the_number_that_it_stood_at() {
    at_all(|segment, at| {
        echo(segment, NEVER);
        let mut streams = at_port(ECHO).map(|target| segment.connect(target));
        segment.playdead(at, &format!("hung-process 10.99.0.2:{ECHO} [fd99::2]:{ECHO}"));
        let learn = |set: &str| format!("tcp sport {ECHO} meta nfproto ip{set} add @{set} {{ tcp sequence }};");
        let sets = ["v4", "v6"].map(|set| format!("set {set} {{ typeof tcp sequence; flags dynamic; }};")).concat();
        let rules = ["v4", "v6"].map(learn).concat();
        let hook = "type filter hook prerouting priority -299;";
        segment.nft(At::Client, &format!("table inet seen {{ {sets} chain c {{ {hook} {rules} }}; }}"));
        for _ in 0..3 {
            for stream in &mut streams {
                is_acknowledged(segment, at, stream);
            }
        }
        for set in ["v4", "v6"] {
            let seen = segment.inside(At::Client, &["nft", "list", "set", "inet", "seen", set]);
            let (_, elements) = seen.split_once("elements = {").unwrap();
            assert_eq!(elements.split(',').count(), 1, "{at:?}: {seen}");
        }
        segment.nft(At::Client, "delete table inet seen");
        segment.heal(at);
        for stream in &mut streams {
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            stream.read_exact(&mut [0; 3]).unwrap();
        }
    });
}

/// A keepalive has the number before, which the client would not take with an acknowledgement.
#[test]
fn a_hung_process_whose_kernel_asks_first_still_acknowledges() {
    at_all(|segment, at| {
        echo(segment, Duration::from_secs(1));
        let mut streams = at_port(ECHO).map(|target| segment.connect(target));
        segment.playdead(at, &format!("hung-process 10.99.0.2:{ECHO} [fd99::2]:{ECHO}"));
        thread::sleep(Duration::from_millis(1300));
        for _ in 0..2 {
            for stream in &mut streams {
                is_acknowledged(segment, at, stream);
            }
        }
    });
}

/// What was learned then is a number that the client is beyond.
#[test]
fn a_hung_process_that_sends_again_what_the_client_has_still_acknowledges() {
    at_all(|segment, at| {
        echo(segment, NEVER);
        let mut streams = at_port(ECHO).map(|target| segment.connect(target));
        // Bare acknowledgements are lost, also those that select: 20 or 40 bytes, then TCP's 32 or 44.
        let mute = "chain c { type filter hook output priority 0; meta length { 52, 64, 72, 84 } drop; };";
        segment.nft(At::Client, &format!("table inet mute {{ {mute} }}"));
        for stream in &mut streams {
            stream.write_all(b"?").unwrap();
            stream.read_exact(&mut [0]).unwrap();
        }
        segment.playdead(at, &format!("hung-process 10.99.0.2:{ECHO} [fd99::2]:{ECHO}"));
        thread::sleep(Duration::from_millis(900));
        segment.nft(At::Client, "delete table inet mute");
        for _ in 0..2 {
            for stream in &mut streams {
                let told = after_a_request(segment, stream);
                assert!(told.contains("rto:") && !told.contains("unacked:"), "{at:?}: {told}");
            }
        }
    });
}

#[test]
fn a_hung_process_takes_a_new_connection_by_the_ports_of_an_old_one() {
    at_all(|segment, at| {
        echo(segment, NEVER);
        segment.playdead(at, &format!("hung-process 10.99.0.2:{ECHO} [fd99::2]:{ECHO}"));
        for target in at_port(ECHO) {
            for _ in 0..2 {
                let mut stream = connect_by_port(segment, 5555, target);
                is_acknowledged(segment, at, &mut stream);
                // Closed by RST, it leaves nothing behind.
                SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
    });
}

/// From this port, once it is free: a process that is just being started holds sockets of this one open.
fn connect_by_port(segment: &Segment, port: u16, target: SocketAddr) -> TcpStream {
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let connect = || {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddr::from((any, port)).into()).unwrap();
        socket.connect(&target.into()).map(|()| socket.into())
    };
    for _ in 0..100 {
        match segment.client().run(connect).unwrap() {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => thread::sleep(Duration::from_millis(10)),
            connected => return connected.unwrap(),
        }
    }
    panic!("port {port} is still taken after 1 s");
}

#[test]
fn what_a_place_cannot_show_is_said_there_and_only_there() {
    const UNASKED: &str = "no host unreachable";
    const UNLISTED: &str = "only pass through here";
    const LOST: &str = "only when it is sent again";
    let segment = Segment::routed();
    let said = |at, line: &str| String::from_utf8(segment.run(at, &format!("{line} --dry-run")).stderr).unwrap();
    for (line, note, places) in [
        (format!("dead-host {HOST}"), UNASKED, &[At::Client][..]),
        (format!("dead-process {PORTS}"), UNLISTED, &[At::Router, At::Switch]),
        (format!("dead-process {PORTS} --open-connections keep"), UNLISTED, &[]),
        (format!("hung-process {PORTS}"), LOST, &[At::Client, At::Peer, At::Router, At::Switch]),
    ] {
        for at in [At::Client, At::Peer, At::Router, At::Switch] {
            let said = said(at, &line);
            assert_eq!(said.contains(note), places.contains(&at), "{line} at {at:?}: {said}");
        }
    }
}

#[test]
fn every_code_is_seen_as_its_errno_wherever_the_rule_is() {
    at_all(|segment, at| {
        let _server = segment.serve();
        segment.unlimited_errors();
        for code in Code::ALL {
            let (name, port) = (code.name(), port_of(code));
            segment.playdead(at, &format!("unreachable 10.99.0.2:{port} [fd99::2]:{port} --code {name} --name {name}"));
        }
        let all: Vec<_> = Code::ALL.into_iter().flat_map(|code| at_port(port_of(code))).collect();
        let seen = segment.look(Duration::from_millis(1500), &all);
        for code in Code::ALL {
            let of_code = seen.iter().filter(|seen| seen.target.port() == port_of(code));
            let of_code: Vec<_> = of_code.cloned().collect();
            assert_met(format!("unreachable:{}", code.name()).parse().unwrap(), &of_code);
            for datagram in by(&of_code, Probe::UdpRecverr) {
                let errno = Outcome::errno(errno(code, datagram.target.is_ipv6()));
                assert_eq!(datagram.outcome, errno, "{at:?} {}: {datagram:#?}", code.name());
            }
        }
        for ping in by(&seen, Probe::Ping) {
            assert_eq!(ping.outcome, Outcome::Answered, "{at:?}: only ports are refused");
        }
        segment.heal(at);
        segment.assert_alive();
    });
}

/// Where a closed port would say the same, one that is open.
fn port_of(code: Code) -> u16 {
    match code {
        Code::Port => PORT,
        Code::Protocol => OTHER_PORT,
        Code::Net => 9001,
        Code::Host => 9002,
        Code::NetProhibited => 9003,
        Code::HostProhibited => 9004,
        Code::AdminProhibited => 9005,
    }
}

/// `icmp_err_convert` of the kernel, and its `icmpv6_err_convert`.
fn errno(code: Code, v6: bool) -> &'static str {
    match (code, v6) {
        (Code::Port, _) | (Code::Protocol, true) => "ECONNREFUSED",
        (Code::Protocol, false) => "ENOPROTOOPT",
        (Code::Net, _) | (Code::NetProhibited, false) => "ENETUNREACH",
        (Code::HostProhibited | Code::AdminProhibited | Code::NetProhibited, true) => "EACCES",
        (Code::Host | Code::HostProhibited | Code::AdminProhibited, _) => "EHOSTUNREACH",
    }
}

/// The machine lives for its neighbours, whatever becomes of its packets: IPv6 finds it by packets of its own address.
#[test]
fn a_neighbour_that_is_not_known_yet_is_found_all_the_same() {
    for kind in ["unreachable HOST --code admin-prohibited", "lossy HOST --percent 100 --per-connection --seed 1"] {
        for at in [At::Client, At::Peer, At::Switch] {
            let segment = Segment::new();
            segment.playdead(at, &kind.replace("HOST", HOST));
            segment.forget_neighbours();
            let seen = segment.look(Duration::from_millis(400), &targets());
            if kind.starts_with("unreachable") {
                for (datagram, errno) in by(&seen, Probe::UdpRecverr).zip(["EHOSTUNREACH", "EACCES"]) {
                    assert_eq!(datagram.outcome, Outcome::errno(errno), "{at:?}: {datagram:#?}");
                    assert!(datagram.took_ms < 100.0, "{at:?}: {datagram:#?}");
                }
            }
            let client = segment.name(At::Client);
            let known = net::ip(&["-n", &client, "neigh", "show", "dev", "eth0"]);
            for target in targets() {
                let entry = known.lines().find(|line| line.starts_with(&format!("{} ", target.ip())));
                assert!(entry.is_some_and(|line| line.contains("lladdr")), "{kind} at {at:?}: {known}");
            }
        }
    }
}

#[test]
fn open_connections_survive_an_icmp_error() {
    at_all(|segment, at| {
        let _server = segment.serve();
        let seen = segment.watch_fault(BRIEF, at, &format!("unreachable {HOST}"));
        for writing in by(&seen, Probe::Writing) {
            assert_eq!(writing.outcome, Outcome::Unacknowledged, "{at:?}: {writing:#?}");
            assert_eq!(writing.tcp.as_ref().unwrap().state, "ESTABLISHED");
        }
    });
}

#[test]
fn a_rebooted_machine_resets_who_sends_and_talks_to_who_is_new() {
    let real = {
        let segment = Segment::new();
        let server = segment.serve();
        let mut again = None;
        segment.watch(BRIEF, || again = Some(segment.reboot(server)))
    };
    assert_only(Expect::Rebooted, &real);
    at_all(|segment, at| {
        let _server = segment.serve();
        let seen = segment.watch_fault(BRIEF, at, &format!("rebooted {HOST}"));
        assert_only(Expect::Rebooted, &seen);
        for (seen, real) in seen.iter().zip(&real) {
            assert_eq!(seen.outcome, real.outcome, "{at:?}: {seen:#?}\n{real:#?}");
        }
        // What was made since stays good.
        assert_met(Expect::Alive, &segment.watch(BRIEF, || {}));
    });
}
