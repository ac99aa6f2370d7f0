//! `dead-process` beside a process that is really killed, from wherever the rule is written.

mod net;

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use net::capture::Capture;
use net::view::{BRIEF, assert_alike, assert_met, assert_only, by, drain_all};
use net::{At, Segment, other_port, targets};
use playdead::model::signature::Expect;
use playdead::probe::{Observation, Outcome, Probe};

const KILLED: &str = "dead-process 10.99.0.2:2379 [fd99::2]:2379";

fn observe_kill(routed: bool) -> Vec<Observation> {
    let segment = Segment::of(routed);
    let server = segment.serve();
    segment.watch(BRIEF, || drop(server))
}

/// coreos/fleet#715, #1501, #1628: a stopped etcd and a dead machine are different things to the client.
#[test]
fn to_the_client_it_is_kill_9_wherever_an_end_of_the_connections_is() {
    for routed in [false, true] {
        let real = observe_kill(routed);
        assert_only(Expect::DeadProcess, &real);
        for at in [At::Client, At::Peer] {
            let segment = Segment::of(routed);
            let _server = segment.serve();
            let seen = segment.watch_fault(BRIEF, at, KILLED);
            assert_only(Expect::DeadProcess, &seen);
            assert_alike(&format!("routed {routed}, at {at:?}"), &seen, &real);
            for (seen, real) in by(&seen, Probe::Writing).zip(by(&real, Probe::Writing)) {
                let what = |seen: &Observation| seen.steps.iter().map(|step| step.what.clone()).collect::<Vec<_>>();
                assert_eq!(what(seen), what(real), "{at:?}");
            }
            for seen in by(&seen, Probe::Connect).chain(by(&seen, Probe::Udp)).chain(by(&seen, Probe::UdpRecverr)) {
                assert_eq!(seen.outcome, Outcome::errno("ECONNREFUSED"));
                assert!(seen.took_ms < 50.0, "{seen:#?}");
            }
            assert_met(Expect::Alive, &segment.look(BRIEF, &other_port()));
            segment.heal(at);
            segment.assert_alive();
        }
    }
}

/// etcd's watch: an idle client must hear of it, and one in the middle of a stream.
#[test]
fn open_connections_end_within_50_ms_idle_or_busy() {
    for at in [At::Client, At::Peer] {
        let segment = Segment::new();
        let _server = segment.serve();
        let idle = targets().map(|target| segment.connect(target));
        let busy = targets().map(|target| segment.stream(target));
        segment.wait_until_accepted();
        let mut all: Vec<_> = idle.into_iter().chain(busy).collect();
        segment.playdead(at, KILLED);
        let applied = Instant::now();
        for (number, (last, end)) in drain_all(&mut all, applied + Duration::from_millis(300)).into_iter().enumerate() {
            let late = last.saturating_duration_since(applied);
            assert!(late < Duration::from_millis(50), "{at:?}, connection {number}: bytes after {late:?}");
            // A killed process that has read everything closes; the stream's end reads nothing either.
            assert_eq!(end.map_err(|error| error.kind()), Ok(0), "{at:?}, connection {number}");
        }
        for stream in &mut all {
            stream.write_all(b"one").unwrap();
            thread::sleep(Duration::from_millis(20));
            assert_eq!(stream.write_all(b"two").unwrap_err().kind(), ErrorKind::BrokenPipe, "{at:?}");
        }
    }
}

#[test]
fn open_connections_are_reset_or_kept_as_told() {
    for at in [At::Client, At::Peer] {
        let segment = Segment::new();
        let _server = segment.serve();
        let seen = segment.watch_fault(BRIEF, at, &format!("{KILLED} --open-connections reset"));
        for open in by(&seen, Probe::Idle).chain(by(&seen, Probe::Writing)) {
            assert_eq!(open.outcome, Outcome::errno("ECONNRESET"), "{at:?}: {open:#?}");
        }
        segment.heal(at);
        let seen = segment.watch_fault(BRIEF, at, &format!("{KILLED} --open-connections keep"));
        for idle in by(&seen, Probe::Idle) {
            assert_eq!(idle.outcome, Outcome::Silence, "{at:?}: {idle:#?}");
        }
        for writing in by(&seen, Probe::Writing) {
            assert_eq!(writing.outcome, Outcome::errno("ECONNRESET"), "{at:?}: {writing:#?}");
            assert!(writing.took_ms < 200.0, "{writing:#?}");
        }
        for connect in by(&seen, Probe::Connect) {
            assert_eq!(connect.outcome, Outcome::errno("ECONNREFUSED"), "{at:?}: {connect:#?}");
        }
    }
}

/// Connections that only pass through are not known there: each ends with its next packet.
#[test]
fn in_between_new_connections_are_refused_and_open_ones_reset_with_the_next_packet() {
    for (routed, at) in [(false, At::Switch), (true, At::Router), (true, At::Switch)] {
        let segment = Segment::of(routed);
        let _server = segment.serve();
        let seen = segment.watch_fault(BRIEF, at, KILLED);
        for probe in [Probe::Connect, Probe::Udp, Probe::UdpRecverr] {
            for seen in by(&seen, probe) {
                assert_eq!(seen.outcome, Outcome::errno("ECONNREFUSED"), "{at:?}: {seen:#?}");
                assert!(seen.took_ms < 50.0, "{at:?}: {seen:#?}");
            }
        }
        for ping in by(&seen, Probe::Ping) {
            assert_eq!(ping.outcome, Outcome::Answered, "{at:?}");
        }
        for idle in by(&seen, Probe::Idle) {
            assert_eq!(idle.outcome, Outcome::Silence, "{at:?}");
        }
        for writing in by(&seen, Probe::Writing) {
            assert_eq!(writing.outcome, Outcome::errno("ECONNRESET"), "{at:?}: {writing:#?}");
            assert!(writing.took_ms < 200.0, "{writing:#?}");
        }
        assert_met(Expect::Alive, &segment.look(BRIEF, &other_port()));
        segment.heal(at);
        segment.assert_alive();
    }
}

/// The refusal is on the wire what a closed port says, up to the last bit that is not random.
#[test]
fn the_rst_is_that_of_a_closed_port() {
    let real = rst_of(None);
    assert_eq!(real.len(), 2);
    for at in [At::Client, At::Peer, At::Switch] {
        assert_eq!(rst_of(Some(at)), real, "{at:?}");
    }
}

fn rst_of(at: Option<At>) -> Vec<String> {
    let segment = Segment::new();
    // With a rule there is a process that would have answered.
    let _server = at.map(|at| {
        segment.playdead(at, KILLED);
        segment.serve()
    });
    let capture = Capture::start(&segment.client());
    for target in targets() {
        assert_eq!(segment.try_connect(target).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
    capture.resets()
}

/// FIDELITY: an ICMP refusal of TCP is slow; back to back, RSTs never are.
#[test]
fn two_hundred_connects_in_a_row_are_each_refused_at_once() {
    for at in [At::Client, At::Peer, At::Switch] {
        let segment = Segment::new();
        segment.playdead(at, KILLED);
        for number in 0..100 {
            for target in targets() {
                let start = Instant::now();
                assert_eq!(segment.try_connect(target).unwrap_err().kind(), ErrorKind::ConnectionRefused);
                assert!(start.elapsed() < Duration::from_millis(50), "{at:?} {number}: {:?}", start.elapsed());
            }
        }
    }
}

/// The kernel limits the ICMP errors that it sends to one host, and so must whatever sends them in its stead. What one
/// client draws must not be taken from another.
#[test]
fn a_burst_of_datagrams_draws_as_many_errors_as_from_a_killed_process() {
    let count = |segment: &Segment, target: SocketAddr, from: &str| {
        let burst = || {
            let socket = UdpSocket::bind((from, 0)).unwrap();
            socket.connect(target).unwrap();
            (0..200).filter(|_| socket.send(b"?").is_err()).count()
        };
        segment.client().run(burst).unwrap()
    };
    let of_two_clients = |segment: &Segment| {
        let clients = [["10.99.0.1", "10.99.0.7"], ["fd99::1", "fd99::7"]];
        segment.inside(At::Client, &["ip", "addr", "add", "10.99.0.7/24", "dev", "eth0"]);
        segment.inside(At::Client, &["ip", "addr", "add", "fd99::7/64", "dev", "eth0", "nodad"]);
        targets().map(|target| clients[usize::from(target.is_ipv6())].map(|from| count(segment, target, from)))
    };
    // Nobody serves UDP there, so the real refusal needs no killing.
    let segment = Segment::new();
    let real = of_two_clients(&segment);
    assert_eq!(real[0][0], real[0][1]);
    for place in [At::Client, At::Peer, At::Switch] {
        let segment = Segment::new();
        segment.playdead(place, KILLED);
        assert_eq!(of_two_clients(&segment), real, "written at {place:?}");
    }
}
