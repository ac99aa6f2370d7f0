//! `dead-host` beside a machine that is really unplugged, from wherever the rule is written.

mod net;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use net::capture::Capture;
use net::view::{BRIEF, assert_alike, assert_met, assert_only, by};
use net::{At, PORT, Segment, ip, other_port, targets};
use playdead::model::signature::Expect;
use playdead::probe::{Observation, Outcome, Probe};

const DEAD: &str = "dead-host 10.99.0.2 fd99::2";
/// Behind one switch, and behind a router.
const PLACES: [(bool, At); 6] = [
    (false, At::Client),
    (false, At::Peer),
    (false, At::Switch),
    (true, At::Client),
    (true, At::Router),
    (true, At::Peer),
];

/// Where the peer dies: whether behind a router, and by a rule at which place; `None`: for real.
type Death = (bool, Option<At>);

fn deaths() -> Vec<Death> {
    let real = [(false, None), (true, None)];
    real.into_iter().chain(PLACES.map(|(routed, at)| (routed, Some(at)))).collect()
}

/// What is seen at every place at once, the real ones by `routed`.
fn everywhere<T: Send>(run: impl Fn(&Segment, Option<At>) -> T + Sync) -> Vec<(Death, T)> {
    let run = &run;
    thread::scope(|scope| {
        let start = |(routed, at): Death| {
            let thread = scope.spawn(move || run(&Segment::of(routed), at));
            ((routed, at), thread)
        };
        let threads: Vec<_> = deaths().into_iter().map(start).collect();
        threads.into_iter().map(|(death, thread)| (death, thread.join().unwrap())).collect()
    })
}

fn kill(segment: &Segment, at: Option<At>) {
    match at {
        Some(at) => drop(segment.playdead(at, DEAD)),
        None => segment.unplug(),
    }
}

fn assert_all_alike(seen: &[(Death, Vec<Observation>)]) {
    for ((routed, at), simulated) in seen.iter().filter(|((_, at), _)| at.is_some()) {
        let (_, real) = seen.iter().find(|((r, at), _)| r == routed && at.is_none()).unwrap();
        assert_alike(&format!("routed {routed}, at {at:?}"), simulated, real);
    }
}

/// chaos-mesh#1485: local loss was reported to TCP. comcast#67, kronosnet#178, liboping#48, gpdb#1360: EPERM.
#[test]
fn connects_time_out_and_syns_go_out_as_for_an_unplugged_machine() {
    let seen = everywhere(|segment, at| {
        let _server = segment.serve();
        segment.syn_retries(2);
        let capture = Capture::start(&segment.client());
        kill(segment, at);
        let seen = segment.look(Duration::from_millis(7600), &targets());
        (seen, capture.syns(targets()))
    });
    for ((routed, at), (_, syns)) in &seen {
        for times in syns {
            let late: Vec<_> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
            assert_eq!(late.len(), 3, "routed {routed}, at {at:?}: {late:?}");
            for (late, due) in late.iter().zip([0.0, 1000.0, 3000.0]) {
                // Within 50 ms or 5 %: the kernel's timers of seconds are 32 ms coarse (HZ=250), each from the one before.
                assert!(
                    (late - due).abs() < f64::max(50.0, due * 0.05),
                    "routed {routed}, at {at:?}: {late} instead of {due}"
                );
            }
        }
    }
    let seen: Vec<_> = seen.into_iter().map(|(death, (seen, _))| (death, seen)).collect();
    for (_, seen) in &seen {
        assert_met(Expect::DeadHost, seen);
        for connect in by(seen, Probe::Connect) {
            assert_eq!(connect.outcome, Outcome::errno("ETIMEDOUT"), "{connect:#?}");
        }
    }
    assert_all_alike(&seen);
}

/// With a cold neighbour entry on one segment the kernel says that nobody is there.
#[test]
fn a_cold_neighbour_is_looked_for_as_long_as_for_an_unplugged_machine() {
    let seen = everywhere(|segment, at| {
        kill(segment, at);
        segment.forget_neighbours();
        segment.look(Duration::from_millis(3800), &targets())
    });
    assert_all_alike(&seen);
    for ((routed, _), seen) in &seen {
        assert_met(Expect::DeadHost, seen);
        for connect in by(seen, Probe::Connect).filter(|_| !routed) {
            assert_eq!(connect.outcome, Outcome::errno("EHOSTUNREACH"), "{connect:#?}");
        }
    }
}

/// kubernetes#66312, #46964: open connections hang; toxiproxy#123, #410, #149: the cable pulled in mid-stream.
#[test]
fn open_connections_stay_and_retransmit_as_to_an_unplugged_machine() {
    let seen = everywhere(|segment, at| {
        let _server = segment.serve();
        let seen = segment.watch(BRIEF, || kill(segment, at));
        assert_only(Expect::DeadHost, &seen);
        seen
    });
    assert_all_alike(&seen);
    for connection in seen.iter().flat_map(|(_, seen)| seen).filter(|seen| seen.probe == Probe::Writing) {
        let tcp = connection.tcp.as_ref().unwrap();
        assert_eq!((tcp.state, tcp.bytes_acked), ("ESTABLISHED", 1), "{connection:#?}");
    }
}

/// sts#48, chaosblade#1260, calico#2759: only new connections were cut. toxiproxy#465: healed, and still failing.
#[test]
fn a_stream_stops_within_a_round_trip_and_after_heal_a_connect_succeeds_at_once() {
    thread::scope(|scope| {
        for (routed, at) in PLACES {
            scope.spawn(move || {
                let segment = Segment::of(routed);
                let _server = segment.serve();
                let mut streams = targets().map(|target| segment.stream(target));
                segment.playdead(at, DEAD);
                for stream in &mut streams {
                    stream.set_nonblocking(true).unwrap();
                    assert!(received(stream) > 0, "{at:?}: what came before is here");
                }
                thread::sleep(Duration::from_millis(200));
                for stream in &mut streams {
                    assert_eq!(received(stream), 0, "{at:?}: bytes came after the fault was in force");
                }
                segment.heal(at);
                for target in targets() {
                    let start = Instant::now();
                    segment.connect(target);
                    assert!(start.elapsed() < Duration::from_millis(50), "{at:?}: {:?}", start.elapsed());
                }
            });
        }
    });
}

/// How many bytes are here; the connection must stand.
fn received(stream: &mut TcpStream) -> usize {
    let (mut number, mut buffer) = (0, [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(bytes @ 1..) => number += bytes,
            end => {
                assert_eq!(end.map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
                return number;
            }
        }
    }
}

/// Many datagrams, many pings, no error but those of a dead machine.
#[test]
fn senders_of_datagrams_and_pings_hear_nothing() {
    thread::scope(|scope| {
        for (routed, at) in PLACES {
            scope.spawn(move || {
                let segment = Segment::of(routed);
                segment.playdead(at, DEAD);
                for target in targets().into_iter().chain(other_port()) {
                    send_many(&segment, target, 300);
                }
                for target in targets() {
                    ping_in_vain(&segment, &target.ip().to_string());
                }
            });
        }
    });
}

fn send_many(segment: &Segment, target: SocketAddr, number: usize) {
    let any: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { "[::]:0".parse().unwrap() };
    for recverr in [false, true] {
        let socket = segment.client().run(|| UdpSocket::bind(any)).unwrap().unwrap();
        if recverr && target.is_ipv4() {
            nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Ipv4RecvErr, &true).unwrap();
        } else if recverr {
            nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Ipv6RecvErr, &true).unwrap();
        }
        socket.connect(target).unwrap();
        for i in 0..number {
            assert_eq!(socket.send(&[0; 1200]).unwrap_or_else(|error| panic!("{target} {i}: {error}")), 1200);
        }
    }
}

/// `ping` writes "Operation not permitted" on standard error if its sending fails.
fn ping_in_vain(segment: &Segment, address: &str) {
    let client = segment.name(At::Client);
    let ping = ["netns", "exec", &client, "ping", "-n", "-c", "5", "-i", "0.05", "-W", "0.2", address];
    let output = Command::new("ip").args(ping).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("5 packets transmitted, 0 received") && !said.contains("error"), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_peer_on_loopback_is_silent_for_everyone_there() {
    let segment = Segment::new();
    let _server = segment.serve_at(At::Client);
    segment.syn_retries(1);
    let loopback = ["127.0.0.1", "::1"].map(|ip| SocketAddr::new(ip.parse().unwrap(), PORT));
    assert_met(Expect::Alive, &segment.look(BRIEF, &loopback));
    segment.playdead(At::Client, "dead-host 127.0.0.1 ::1");
    let seen = segment.look(Duration::from_millis(3400), &loopback);
    assert_met(Expect::DeadHost, &seen);
    for connect in by(&seen, Probe::Connect) {
        assert_eq!(connect.outcome, Outcome::errno("ETIMEDOUT"), "{connect:#?}");
        assert!((2950.0..3250.0).contains(&connect.took_ms), "{connect:#?}");
    }
    for target in loopback {
        send_many(&segment, target, 100);
    }
    segment.heal(At::Client);
    assert_met(Expect::Alive, &segment.look(BRIEF, &loopback));
}

/// The route moves to a device that did not exist when the fault was made.
#[test]
fn a_device_that_appears_while_the_fault_is_in_force_is_silent_too() {
    let segment = Segment::new();
    let _server = segment.serve();
    segment.syn_retries(1);
    segment.playdead(At::Client, DEAD);
    let (client, switch) = (segment.name(At::Client), segment.name(At::Switch));
    ip(&["-n", &client, "link", "add", "eth1", "type", "veth", "peer", "name", "c1", "netns", &switch]);
    ip(&["-n", &switch, "link", "set", "c1", "master", "br0", "up"]);
    ip(&["-n", &client, "link", "set", "eth0", "down"]);
    ip(&["-n", &client, "link", "set", "eth1", "up"]);
    ip(&["-n", &client, "addr", "add", "10.99.0.3/24", "dev", "eth1"]);
    ip(&["-n", &client, "addr", "add", "fd99::3/64", "dev", "eth1", "nodad"]);
    let mac = segment.inside(At::Peer, &["cat", "/sys/class/net/eth0/address"]);
    for target in targets() {
        let address = target.ip().to_string();
        ip(&["-n", &client, "neigh", "replace", &address, "lladdr", mac.trim(), "dev", "eth1"]);
    }
    let seen = segment.look(Duration::from_millis(3400), &targets());
    assert_met(Expect::DeadHost, &seen);
    for connect in by(&seen, Probe::Connect) {
        assert_eq!(connect.outcome, Outcome::errno("ETIMEDOUT"), "{connect:#?}");
        assert!((2950.0..3250.0).contains(&connect.took_ms), "{connect:#?}");
    }
    for target in targets() {
        send_many(&segment, target, 100);
        ping_in_vain(&segment, &target.ip().to_string());
    }
    segment.heal(At::Client);
    let mut stream = segment.connect(targets()[0]);
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
}
