//! Every kind beside the real failure, from every place where its rules can be written: the client must not be able to
//! tell them apart, by errno or by time.

#[path = "net/mod.rs"]
mod net;

use std::fmt::Write;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use net::server::Server;
use net::{At, Segment};
use playdead::probe::{Observation, Options, Outcome, Probe, Watch};

const HOST: [&str; 2] = ["10.99.0.2", "fd99::2"];
const PROCESS: [&str; 2] = ["10.99.0.2:2379", "[fd99::2]:2379"];
const PATIENCE: Duration = Duration::from_millis(1500);
/// Longer than the three seconds in which a connect with one retransmission, or a cold neighbour, fails.
const KERNEL_TIMERS: Duration = Duration::from_millis(4500);

/// Where rules can be written; the router only where there is one.
const PLACES: [At; 4] = [At::Client, At::Peer, At::Switch, At::Router];

fn line(kind: &str, peers: [&str; 2]) -> String {
    format!("{kind} {}", peers.join(" "))
}

/// Looks at the peer while `event` happens to it.
fn watch(segment: &Segment, probes: &[Probe], timeout: Duration, event: impl FnOnce()) -> Vec<Observation> {
    let options = Options { timeout, probes: probes.to_vec(), ..Options::default() };
    let client = segment.client();
    let mut watch = Watch::open(&client, &net::targets(), &options).unwrap();
    segment.wait_until_accepted();
    watch.event();
    let start = Instant::now();
    event();
    let happened_ms = start.elapsed().as_secs_f64() * 1e3;
    std::thread::sleep(Duration::from_millis(20));
    let mut seen = watch.finish().unwrap();
    // How long it takes to kill a process, or to start playdead, is not the client's to see: the end of an open
    // connection counts from when the event was complete.
    for idle in seen.iter_mut().filter(|seen| seen.probe == Probe::Idle && seen.outcome != Outcome::Silence) {
        idle.took_ms = (idle.took_ms - happened_ms).max(0.0);
    }
    seen
}

/// One failure, made for real in one set of namespaces, and by playdead in others.
struct Case {
    routed: bool,
    prepare: fn(&Segment),
    real: fn(&Segment, Server) -> Option<Server>,
    simulated: &'static str,
    peers: [&'static str; 2],
    probes: &'static [Probe],
    timeout: Duration,
}

impl Case {
    fn segment(&self) -> Segment {
        let segment = if self.routed { Segment::routed() } else { Segment::new() };
        segment.syn_retries(1);
        segment
    }

    fn really(&self) -> Vec<Observation> {
        let segment = self.segment();
        let mut server = Some(segment.serve());
        (self.prepare)(&segment);
        watch(&segment, self.probes, self.timeout, || {
            server = (self.real)(&segment, server.take().unwrap());
        })
    }

    fn simulated(&self, place: At) -> Vec<Observation> {
        let segment = self.segment();
        let _server = segment.serve();
        (self.prepare)(&segment);
        let seen = watch(&segment, self.probes, self.timeout, || {
            segment.playdead(place, &line(self.simulated, self.peers));
        });
        segment.heal(place);
        seen
    }

    /// Compares every place but those named, which cannot be exact here.
    fn holds_everywhere_but(&self, exempt: &[At]) {
        let places = PLACES[..if self.routed { 4 } else { 3 }].iter().filter(|place| !exempt.contains(place));
        std::thread::scope(|scope| {
            let real = scope.spawn(|| self.really());
            let simulated: Vec<_> = places.map(|place| (place, scope.spawn(|| self.simulated(*place)))).collect();
            let real = real.join().unwrap();
            for (place, seen) in simulated {
                let differences = differences(&real, &seen.join().unwrap());
                assert!(differences.is_empty(), "{} written at {place:?}:\n{differences}", self.simulated);
            }
        });
    }

    fn holds_everywhere(&self) {
        self.holds_everywhere_but(&[]);
    }
}

/// What the client could tell the two apart by.
fn differences(real: &[Observation], simulated: &[Observation]) -> String {
    assert_eq!(real.len(), simulated.len());
    let mut told = String::new();
    for (real, simulated) in real.iter().zip(simulated) {
        if real.outcome != simulated.outcome || !same_time(real, simulated) || errors(real) != errors(simulated) {
            let _ = writeln!(
                told,
                "{} {}\n  real      {}\n  simulated {}",
                real.probe,
                real.target,
                brief(real),
                brief(simulated)
            );
        }
    }
    told
}

fn brief(seen: &Observation) -> String {
    format!("{:?} after {:.1} ms, {:?}", seen.outcome, seen.took_ms, errors(seen))
}

/// Type, code and sender of the errors in the error queue.
fn errors(seen: &Observation) -> Vec<String> {
    let mut errors: Vec<_> = seen.errors.iter().map(|error| format!("{error:?}")).collect();
    errors.dedup();
    errors
}

/// Within 50 ms or 5 %, whichever is more. An outcome of the timeout itself has the timeout's time.
fn same_time(real: &Observation, simulated: &Observation) -> bool {
    // When the end of a connection is noticed by a writer depends on when it writes next.
    if real.probe == Probe::Writing || real.outcome == Outcome::Silence {
        return true;
    }
    (real.took_ms - simulated.took_ms).abs() <= f64::max(50.0, real.took_ms * 0.05)
}

const UNPLUGGED: Case = Case {
    routed: false,
    prepare: |_| {},
    real: |segment, server| {
        segment.unplug();
        Some(server)
    },
    simulated: "dead-host",
    peers: HOST,
    probes: &Probe::USUAL,
    timeout: PATIENCE,
};

#[test]
fn a_dead_host_is_as_silent_as_an_unplugged_machine() {
    UNPLUGGED.holds_everywhere();
}

#[test]
fn a_dead_host_behind_a_router_is_as_silent_as_an_unplugged_machine() {
    Case { routed: true, ..UNPLUGGED }.holds_everywhere();
}

#[test]
fn a_connect_to_a_dead_host_fails_when_one_to_an_unplugged_machine_fails() {
    let connect = Case { probes: &[Probe::Connect], timeout: KERNEL_TIMERS, ..UNPLUGGED };
    connect.holds_everywhere();
}

#[test]
fn a_cold_neighbour_that_is_dead_is_unreachable_when_an_unplugged_one_is() {
    let probes = &[Probe::Connect, Probe::Udp, Probe::UdpRecverr, Probe::Ping];
    // A neighbour is given up after three seconds, and so must not be the connect.
    let prepare = |segment: &Segment| {
        segment.syn_retries(3);
        segment.forget_neighbours();
    };
    Case { prepare, probes, timeout: KERNEL_TIMERS, ..UNPLUGGED }.holds_everywhere();
}

const KILLED: Case = Case {
    real: |_, server| {
        drop(server);
        None
    },
    simulated: "dead-process",
    peers: PROCESS,
    ..UNPLUGGED
};

#[test]
fn a_dead_process_refuses_and_closes_as_a_killed_one() {
    // A bridge has no address of its own: it cannot list what passes through, nor send to the client.
    KILLED.holds_everywhere_but(&[At::Switch]);
}

#[test]
fn a_dead_process_behind_a_router_refuses_as_a_killed_one() {
    let probes = &[Probe::Connect, Probe::Udp, Probe::UdpRecverr, Probe::Ping];
    Case { routed: true, probes, ..KILLED }.holds_everywhere();
}

#[test]
fn a_dead_process_behind_a_router_closes_as_a_killed_one_for_the_ends() {
    let probes = &[Probe::Idle, Probe::Writing];
    Case { routed: true, probes, ..KILLED }.holds_everywhere_but(&[At::Switch, At::Router]);
}

#[test]
fn a_bridge_refuses_in_the_name_of_a_dead_process() {
    let probes = &[Probe::Connect, Probe::Udp, Probe::UdpRecverr, Probe::Ping];
    Case { probes, ..KILLED }.holds_everywhere();
}

/// The kernel limits the ICMP errors that it sends to one host, and so must whatever sends them in its stead.
#[test]
fn a_burst_of_datagrams_draws_as_many_errors_as_from_a_killed_process() {
    let count = |segment: &Segment, target| {
        let burst = || {
            let socket = UdpSocket::bind(if SocketAddr::is_ipv6(&target) { "[::]:0" } else { "0.0.0.0:0" }).unwrap();
            socket.connect(target).unwrap();
            (0..200).filter(|_| socket.send(b"?").is_err()).count()
        };
        segment.client().run(burst).unwrap()
    };
    // Nobody serves UDP there, so the real refusal needs no killing.
    let segment = Segment::new();
    let real = net::targets().map(|target| count(&segment, target));
    for place in [At::Client, At::Peer, At::Switch] {
        let segment = Segment::new();
        segment.playdead(place, &line("dead-process", PROCESS));
        assert_eq!(net::targets().map(|target| count(&segment, target)), real, "written at {place:?}");
    }
}

const STOPPED: Case = Case {
    real: |_, server| {
        server.stop();
        Some(server)
    },
    simulated: "hung-process",
    peers: PROCESS,
    ..UNPLUGGED
};

#[test]
fn a_hung_process_acknowledges_and_never_answers_as_a_stopped_one() {
    STOPPED.holds_everywhere();
}

#[test]
fn a_hung_process_behind_a_router_is_as_a_stopped_one() {
    Case { routed: true, ..STOPPED }.holds_everywhere();
}

const REBOOTED: Case = Case {
    real: |segment, server| Some(segment.reboot(server)),
    simulated: "rebooted",
    peers: HOST,
    probes: &[Probe::Connect, Probe::Idle, Probe::Writing, Probe::Ping],
    ..UNPLUGGED
};

#[test]
fn a_rebooted_machine_resets_what_was_open_once_it_sends_and_serves_what_is_new() {
    REBOOTED.holds_everywhere();
}

/// A process that is really killed behind the filter, beside a machine that is unplugged.
#[test]
fn a_hushed_process_that_is_killed_is_on_its_port_a_machine_that_is_gone() {
    let probes: &[Probe] = &[Probe::Connect, Probe::Idle, Probe::Writing, Probe::Udp, Probe::UdpRecverr];
    for routed in [false, true] {
        let case = Case { routed, probes, ..UNPLUGGED };
        std::thread::scope(|scope| {
            let real = scope.spawn(|| case.really());
            let places = PLACES[..if routed { 4 } else { 3 }].iter();
            let hushed: Vec<_> = places.map(|place| (place, scope.spawn(|| hushed(&case, *place)))).collect();
            let real = real.join().unwrap();
            for (place, seen) in hushed {
                let differences = differences(&real, &seen.join().unwrap());
                assert!(differences.is_empty(), "hush written at {place:?}:\n{differences}");
            }
        });
    }
}

fn hushed(case: &Case, place: At) -> Vec<Observation> {
    let segment = case.segment();
    let mut server = Some(segment.serve());
    watch(&segment, case.probes, case.timeout, || {
        segment.playdead(place, &line("hush", PROCESS));
        server = None;
    })
}
