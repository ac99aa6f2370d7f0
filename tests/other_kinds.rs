//! `hush`, `hung-process`, `unreachable`, `lossy` and `rebooted`, beside the real thing where there is one.

mod net;

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use net::view::{BRIEF, assert_alike, assert_met, assert_only, by};
use net::{At, OTHER_PORT, PORT, Segment, at_port, other_port, targets};
use playdead::model::Code;
use playdead::model::signature::Expect;
use playdead::probe::{Outcome, Probe};

const PORTS: &str = "10.99.0.2:2379 [fd99::2]:2379";
const HOST: &str = "10.99.0.2 fd99::2";
const PLACES: [(bool, At); 5] =
    [(false, At::Client), (false, At::Peer), (false, At::Switch), (true, At::Router), (true, At::Client)];

fn segment(routed: bool) -> Segment {
    if routed { Segment::routed() } else { Segment::new() }
}

/// Every place at once.
fn at_all(run: impl Fn(bool, At) + Sync) {
    let run = &run;
    thread::scope(|scope| {
        for (routed, at) in PLACES {
            scope.spawn(move || run(routed, at));
        }
    });
}

/// flux-core#4086: a power-off is not noticed where a kill is. Here the kill looks like a power-off on its port alone.
#[test]
fn a_hushed_process_that_is_killed_looks_like_a_gone_machine_on_its_port_only() {
    at_all(|routed, at| {
        let segment = segment(routed);
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
    at_all(|routed, at| {
        let segment = segment(routed);
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
                    let segment = segment(routed);
                    let server = segment.serve();
                    segment.watch(BRIEF, || server.stop())
                })
            })
            .map(|thread| thread.join().unwrap())
    });
    for real in &real {
        assert_only(Expect::HungProcess, real);
    }
    at_all(|routed, at| {
        let segment = segment(routed);
        let _server = segment.serve();
        let seen = segment.watch_fault(BRIEF, at, &format!("hung-process {PORTS}"));
        assert_only(Expect::HungProcess, &seen);
        let tcp: Vec<_> =
            seen.iter().filter(|seen| !matches!(seen.probe, Probe::Udp | Probe::UdpRecverr)).cloned().collect();
        let real: Vec<_> = real[usize::from(routed)]
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

#[test]
fn every_code_is_seen_as_its_errno_wherever_the_rule_is() {
    at_all(|routed, at| {
        let segment = segment(routed);
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
            segment.look(Duration::from_millis(400), &targets());
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
    at_all(|routed, at| {
        let segment = segment(routed);
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
    at_all(|routed, at| {
        let segment = segment(routed);
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

/// etcd#17737: count per direction. comcast#67: a loss that the sender is told of is none.
#[test]
fn a_fifth_of_the_packets_is_lost_each_way_and_no_sender_hears_of_it() {
    at_all(|routed, at| {
        let segment = segment(routed);
        let _server = segment.serve();
        segment.playdead(at, &format!("lossy {HOST} --percent 20"));
        for target in at_port(OTHER_PORT) {
            let sent = 2000;
            let (arrived, back) = exchange(&segment, target, sent);
            // Five standard deviations of 2000 packets of which 80 % arrive are 90.
            assert!((1510..=1690).contains(&arrived), "{at:?} {target}: {arrived} of {sent} arrived");
            let expected = arrived * 8 / 10;
            assert!(back.abs_diff(expected) < 90, "{at:?} {target}: {back} of {arrived} came back");
        }
    });
}

/// Sends datagrams that are sent back with their count; gives how many arrived at least, and how many came back.
fn exchange(segment: &Segment, target: SocketAddr, number: u32) -> (u32, u32) {
    let any: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { "[::]:0".parse().unwrap() };
    let socket = segment.client().run(|| UdpSocket::bind(any)).unwrap().unwrap();
    socket.connect(target).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (mut first, mut last, mut back) = (u32::MAX, 0, 0);
    let mut receive = |wait: bool| {
        socket.set_nonblocking(!wait).unwrap();
        let mut buffer = [0; 64];
        while let Ok(length) = socket.recv(&mut buffer) {
            assert_eq!(length, 8);
            let count = u32::from_be_bytes(buffer[..4].try_into().unwrap());
            (first, last, back) = (first.min(count), last.max(count), back + 1);
        }
    };
    for i in 0..number {
        socket.send(&i.to_be_bytes()).unwrap();
        if i % 20 == 0 {
            receive(false);
            thread::sleep(Duration::from_millis(1));
        }
    }
    receive(true);
    (last + 1 - first, back)
}

/// xk6-disruptor#154: whole connections are lost, for as long as they live. scylla-cluster-tests#2191: and again.
#[test]
fn the_same_seed_loses_the_same_connections_everywhere_and_for_their_whole_life() {
    let lost: Vec<_> = thread::scope(|scope| {
        let run = |(routed, at)| scope.spawn(move || lost_ports(routed, at, 7));
        let threads = [(false, At::Client), (false, At::Peer), (false, At::Switch), (false, At::Client)].map(run);
        threads.map(|thread| thread.join().unwrap()).into()
    });
    assert!((5..=45).contains(&lost[0].len()), "{:?} of 50", lost[0]);
    assert!(lost.iter().all(|other| *other == lost[0]), "{lost:?}");
    assert_ne!(lost_ports(false, At::Client, 8), lost[0], "another seed");
}

/// Of fifty sockets those whose every datagram is lost; the others must lose none.
fn lost_ports(routed: bool, at: At, seed: u32) -> BTreeSet<u16> {
    let segment = segment(routed);
    let _server = segment.serve();
    segment.playdead(at, &format!("lossy {HOST} --percent 50 --per-connection --seed {seed}"));
    let lost = |port: &u16| {
        let socket = segment.client().run(|| UdpSocket::bind(("10.99.0.1", *port))).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
        socket.connect(at_port(OTHER_PORT)[0]).unwrap();
        (0..5).for_each(|_| assert_eq!(socket.send(b"?").unwrap(), 1));
        let answered = (0..5).take_while(|_| socket.recv(&mut [0; 64]).is_ok()).count();
        assert!(answered == 0 || answered == 5, "port {port}: {answered} of 5 answered");
        answered == 0
    };
    (40_000..40_050).filter(lost).collect()
}
