//! What `probe` sees of real failures, in real namespaces: by errno and by time.

#[path = "net/mod.rs"]
mod net;

use std::time::{Duration, Instant};

use net::Segment;
use net::view::{BRIEF, assert_met, assert_only, by, everything};
use playdead::model::signature::{Code, Expect, judge};
use playdead::probe::{Observation, Options, Outcome, Probe, Request, Watch, What, look};

#[test]
fn a_healthy_peer_answers_in_every_way() {
    let segment = Segment::new();
    let _server = segment.serve();
    let seen = segment.watch(BRIEF, || {});
    assert_eq!(seen.len(), 12);
    assert_only(Expect::Alive, &seen);
    for observation in by(&seen, Probe::Connect) {
        assert_eq!(observation.first_line.as_deref(), Some("HTTP/1.1 200 OK"));
        assert!(observation.took_ms < 100.0, "{observation:#?}");
    }
    for observation in by(&seen, Probe::Writing) {
        assert_eq!(observation.tcp.as_ref().unwrap().state, "ESTABLISHED");
        assert!(observation.sent >= 4, "{observation:#?}");
    }
    for observation in by(&seen, Probe::UdpRecverr) {
        let v6 = observation.target.is_ipv6();
        let error = &observation.errors[0];
        assert_eq!((error.kind, error.code), if v6 { (1, 4) } else { (3, 3) });
        assert_eq!(error.origin, if v6 { "icmp6" } else { "icmp" });
        assert_eq!(error.from, Some(observation.target.ip()));
    }
}

#[test]
fn a_killed_process_refuses_at_once_and_closes_what_was_open() {
    let segment = Segment::new();
    let server = segment.serve();
    let seen = segment.watch(BRIEF, || drop(server));
    assert_only(Expect::DeadProcess, &seen);
    for observation in by(&seen, Probe::Connect).chain(by(&seen, Probe::Udp)) {
        assert_eq!(observation.outcome, Outcome::errno("ECONNREFUSED"));
        assert!(observation.took_ms < 100.0, "{observation:#?}");
    }
    for observation in by(&seen, Probe::Idle) {
        assert_eq!(observation.outcome, Outcome::EndOfFile);
        assert_eq!(observation.tcp.as_ref().unwrap().state, "CLOSE_WAIT");
        assert!((0.0..100.0).contains(&observation.took_ms), "{observation:#?}");
    }
    for observation in by(&seen, Probe::Writing) {
        let what: Vec<_> = observation.steps.iter().map(|step| format!("{:?}", step.what)).collect();
        assert_eq!(what, ["Connected", "EndOfFile", "Sent", "SendFailed { errno: \"EPIPE\" }"], "{observation:#?}");
    }
}

#[test]
fn a_stopped_process_is_acknowledged_by_its_kernel_and_never_answers() {
    let segment = Segment::new();
    let server = segment.serve();
    let seen = segment.watch(BRIEF, || server.stop());
    assert_only(Expect::HungProcess, &seen);
    for observation in by(&seen, Probe::Writing) {
        let tcp = observation.tcp.as_ref().unwrap();
        assert_eq!((tcp.state, tcp.unacked, tcp.retransmits), ("ESTABLISHED", 0, 0));
        assert!(tcp.bytes_acked > 100, "{observation:#?}");
    }
}

#[test]
fn an_unplugged_peer_is_silent_and_open_connections_retransmit() {
    let segment = Segment::new();
    let _server = segment.serve();
    let seen = segment.watch(BRIEF, || segment.unplug());
    assert_only(Expect::DeadHost, &seen);
    for observation in by(&seen, Probe::Connect).chain(by(&seen, Probe::Idle)).chain(by(&seen, Probe::Ping)) {
        assert_eq!(observation.outcome, Outcome::Silence);
        assert!((580.0..900.0).contains(&observation.took_ms), "{observation:#?}");
    }
    for observation in by(&seen, Probe::Writing) {
        let tcp = observation.tcp.as_ref().unwrap();
        assert_eq!((tcp.state, tcp.bytes_acked), ("ESTABLISHED", 1));
        assert!(tcp.unacked > 0 && tcp.retransmits > 0, "{observation:#?}");
    }
}

#[test]
fn a_rebooted_machine_resets_what_was_open_once_something_is_sent() {
    let segment = Segment::new();
    let server = segment.serve();
    let mut again = None;
    let seen = segment.watch(BRIEF, || again = Some(segment.reboot(server)));
    assert_only(Expect::Rebooted, &seen);
    for observation in by(&seen, Probe::Idle) {
        assert_eq!(observation.outcome, Outcome::Silence, "{observation:#?}");
    }
    for observation in by(&seen, Probe::Writing) {
        assert_eq!(observation.outcome, Outcome::errno("ECONNRESET"), "{observation:#?}");
    }
}

#[test]
fn a_process_whose_refusals_are_filtered_is_silent_while_its_machine_answers_pings() {
    let segment = Segment::new();
    let server = segment.serve();
    segment.filter_on_peer(
        "type filter hook output priority 0; tcp sport 2379 tcp flags & (rst | fin) != 0 drop; \
         icmp type destination-unreachable drop; icmpv6 type destination-unreachable drop;",
    );
    let seen = segment.watch(BRIEF, || drop(server));
    assert_only(Expect::Hush, &seen);
}

#[test]
fn each_code_of_a_refusal_is_told_from_the_others() {
    let codes = [
        ("host", "host-unreachable", "addr-unreachable"),
        ("net", "net-unreachable", "no-route"),
        ("port", "port-unreachable", "port-unreachable"),
        ("host-prohibited", "host-prohibited", "admin-prohibited"),
        ("net-prohibited", "net-prohibited", "admin-prohibited"),
        ("admin-prohibited", "admin-prohibited", "admin-prohibited"),
    ];
    std::thread::scope(|scope| {
        for (code, v4, v6) in codes {
            scope.spawn(move || assert_refusal(code, v4, v6));
        }
    });
}

fn refusal(v4: &str, v6: &str) -> String {
    format!(
        "type filter hook input priority 0; icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept; \
         meta nfproto ipv4 reject with icmp type {v4}; meta nfproto ipv6 reject with icmpv6 type {v6};"
    )
}

fn assert_refusal(code: &str, v4: &str, v6: &str) {
    let segment = Segment::new();
    segment.filter_on_peer(&refusal(v4, v6));
    let how = Options { timeout: Duration::from_millis(2500), ..Options::default() };
    let seen = look(&segment.client(), &net::targets(), &how).unwrap();
    assert_met(format!("unreachable:{code}").parse().unwrap(), &seen);
    for other in ["host", "net", "port", "admin-prohibited"].into_iter().filter(|other| *other != code) {
        assert!(!judge(format!("unreachable:{other}").parse().unwrap(), &seen).met, "{code} taken for {other}");
    }
}

#[test]
fn a_connect_to_an_unplugged_warm_neighbour_times_out_in_the_kernels_time() {
    let segment = Segment::new();
    segment.syn_retries(1);
    segment.pin_neighbours();
    segment.unplug();
    let how = Options { timeout: Duration::from_secs(5), probes: vec![Probe::Connect], ..Options::default() };
    for observation in look(&segment.client(), &net::targets(), &how).unwrap() {
        assert_eq!(observation.outcome, Outcome::errno("ETIMEDOUT"));
        assert!((2900.0..3500.0).contains(&observation.took_ms), "{observation:#?}");
    }
}

#[test]
fn a_cold_neighbour_that_is_unplugged_is_a_host_unreachable_after_its_three_solicitations() {
    let segment = Segment::new();
    segment.unplug();
    segment.forget_neighbours();
    let how = Options { timeout: Duration::from_millis(4500), ..Options::default() };
    let seen = look(&segment.client(), &net::targets(), &how).unwrap();
    assert_met(Expect::DeadHost, &seen);
    for observation in by(&seen, Probe::Connect) {
        assert_eq!(observation.outcome, Outcome::errno("EHOSTUNREACH"));
        assert!((1900.0..4000.0).contains(&observation.took_ms), "{observation:#?}");
    }
    for observation in by(&seen, Probe::UdpRecverr) {
        assert_eq!(observation.outcome, Outcome::errno("EHOSTUNREACH"), "{observation:#?}");
    }
}

#[test]
fn a_router_that_refuses_is_known_by_its_code() {
    let segment = Segment::new();
    segment.refuse_by_route("prohibit");
    let seen = look(&segment.client(), &net::targets(), &everything(BRIEF)).unwrap();
    assert!(!judge(Expect::DeadHost, &by_family(&seen, true)).met);
    for observation in by(&seen, Probe::Connect) {
        assert_eq!(observation.outcome, Outcome::errno("EACCES"), "{observation:#?}");
        assert!(observation.took_ms < 100.0, "{observation:#?}");
    }
    for observation in by(&seen, Probe::Idle) {
        assert!(matches!(observation.outcome, Outcome::Untried { .. }), "{observation:#?}");
    }
    let code = Expect::Unreachable(Some(Code::AdminProhibited));
    let attempts: Vec<_> = by(&seen, Probe::Connect).filter(|seen| seen.target.is_ipv6()).cloned().collect();
    assert_met(code, &attempts);
}

#[test]
fn a_peer_that_closes_without_an_answer_is_not_taken_for_one_that_answers() {
    let segment = Segment::new();
    let _server = segment.serve();
    let how = Options {
        timeout: BRIEF,
        probes: vec![Probe::Connect],
        request: Request::Bytes(b"BYE\r\n\r\n".to_vec()),
        ..Options::default()
    };
    for observation in look(&segment.client(), &net::targets(), &how).unwrap() {
        assert_eq!(observation.outcome, Outcome::EndOfFile);
        assert_eq!(observation.summary(), "connected, end of file");
    }
}

#[test]
fn without_a_question_a_connection_is_all_that_is_seen() {
    let segment = Segment::new();
    let server = segment.serve();
    server.stop();
    let how = Options { timeout: BRIEF, probes: vec![Probe::Connect], request: Request::Nothing, ..Options::default() };
    for observation in look(&segment.client(), &net::targets(), &how).unwrap() {
        assert_eq!(observation.outcome, Outcome::Connected);
        assert!(observation.took_ms < 100.0, "{observation:#?}");
    }
}

#[test]
fn pings_of_several_probes_at_once_do_not_hear_each_other() {
    let segment = Segment::new();
    let [v4, v6] = net::targets();
    let how = Options { timeout: BRIEF, probes: vec![Probe::Ping], ..Options::default() };
    let seen = look(&segment.client(), &[v4, v6, net::nobody()], &how).unwrap();
    let outcomes: Vec<_> = seen.iter().map(|observation| observation.outcome.clone()).collect();
    assert_eq!(outcomes, [Outcome::Answered, Outcome::Answered, Outcome::Silence]);
}

#[test]
fn a_watch_that_is_given_up_leaves_no_connection_open() {
    let segment = Segment::new();
    let _server = segment.serve();
    let ns = segment.client();
    let given_up = Watch::open(&ns, &net::targets(), &everything(BRIEF)).unwrap();
    assert_eq!(segment.established(), 4);
    drop(given_up);
    let until = Instant::now() + Duration::from_secs(2);
    while segment.established() > 0 {
        assert!(Instant::now() < until, "connections of a dropped watch are still open");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_times_of_an_event_that_takes_long_count_from_its_start() {
    let segment = Segment::new();
    let server = segment.serve();
    let seen = segment.watch(BRIEF, || {
        std::thread::sleep(Duration::from_millis(300));
        drop(server);
        std::thread::sleep(Duration::from_millis(300));
    });
    assert_met(Expect::DeadProcess, &seen);
    for observation in by(&seen, Probe::Idle) {
        assert!((300.0..400.0).contains(&observation.took_ms), "{observation:#?}");
        assert!(observation.started_ms < 0.0);
    }
    for observation in by(&seen, Probe::Connect) {
        assert!(observation.started_ms >= 600.0 && observation.took_ms < 100.0, "{observation:#?}");
    }
}

fn by_family(seen: &[Observation], v6: bool) -> Vec<Observation> {
    seen.iter().filter(|observation| observation.target.is_ipv6() == v6).cloned().collect()
}

#[test]
fn loopback_is_looked_at_without_hearing_oneself() {
    let segment = Segment::new();
    let ns = segment.client();
    let targets = ["127.0.0.1:1".parse().unwrap(), "[::1]:1".parse().unwrap()];
    let seen = look(&ns, &targets, &Options { timeout: BRIEF, ..Options::default() }).unwrap();
    assert_met(Expect::DeadProcess, &seen);
}

/// The probes that are not usual.
const UNUSUAL: [Probe; 4] = [Probe::PollConnect, Probe::UserTimeout, Probe::Keepalive, Probe::RawPing];

/// Looks at a failure by the unusual probes.
fn unusual(segment: &Segment, event: impl FnOnce()) -> Vec<Observation> {
    let how = Options { probes: UNUSUAL.to_vec(), ..Options::default() };
    let ns = segment.client();
    let mut watch = Watch::open(&ns, &net::targets(), &how).unwrap();
    segment.wait_until_accepted();
    watch.event();
    event();
    watch.finish().unwrap()
}

/// An unusual probe of each family ended so, in this span of milliseconds.
#[track_caller]
fn assert_ends(seen: &[Observation], probe: Probe, outcome: &Outcome, took: std::ops::Range<f64>) {
    for observation in by(seen, probe) {
        assert_eq!(&observation.outcome, outcome, "{observation:#?}");
        assert!(took.contains(&observation.took_ms), "{observation:#?}");
    }
}

fn polled(observation: &Observation) -> Option<&str> {
    observation.steps.iter().find_map(|step| match &step.what {
        What::Polled { events } => Some(events.as_str()),
        _ => None,
    })
}

#[test]
fn the_unusual_probes_know_a_healthy_and_a_stopped_peer() {
    let segment = Segment::new();
    let server = segment.serve();
    assert_met(Expect::Alive, &unusual(&segment, || {}));
    let seen = unusual(&segment, || server.stop());
    assert_met(Expect::HungProcess, &seen);
    assert!(by(&seen, Probe::PollConnect).all(|seen| polled(seen) == Some("POLLOUT")), "{seen:#?}");
    assert_ends(&seen, Probe::UserTimeout, &Outcome::Acknowledged, 2000.0..3500.0);
    assert_ends(&seen, Probe::Keepalive, &Outcome::Silence, 2400.0..3500.0);
}

#[test]
fn the_unusual_probes_know_a_killed_process() {
    let segment = Segment::new();
    let server = segment.serve();
    let seen = unusual(&segment, || drop(server));
    assert_only(Expect::DeadProcess, &seen);
    for connect in by(&seen, Probe::PollConnect) {
        assert_eq!(polled(connect), Some("POLLIN|POLLOUT|POLLERR|POLLHUP"), "{connect:#?}");
    }
}

#[test]
fn a_rebooted_machine_resets_a_connection_when_its_keepalive_asks() {
    let segment = Segment::new();
    let server = segment.serve();
    let mut again = None;
    let seen = unusual(&segment, || again = Some(segment.reboot(server)));
    assert_only(Expect::Rebooted, &seen);
    assert_ends(&seen, Probe::Keepalive, &Outcome::errno("ECONNRESET"), 900.0..1300.0);
}

#[test]
fn an_unplugged_peer_is_given_up_by_keepalive_and_user_timeout() {
    let segment = Segment::new();
    let _server = segment.serve();
    let seen = unusual(&segment, || segment.unplug());
    assert_only(Expect::DeadHost, &seen);
    assert_ends(&seen, Probe::UserTimeout, &Outcome::errno("ETIMEDOUT"), 1000.0..2000.0);
    assert_ends(&seen, Probe::Keepalive, &Outcome::errno("ETIMEDOUT"), 1900.0..2400.0);
    assert_ends(&seen, Probe::RawPing, &Outcome::Silence, 1900.0..2500.0);
}

#[test]
fn a_hushed_peer_is_given_up_by_timers_and_answers_a_raw_ping() {
    let segment = Segment::new();
    let server = segment.serve();
    segment.filter_on_peer(
        "type filter hook output priority 0; tcp sport 2379 tcp flags & (rst | fin) != 0 drop; \
         icmp type destination-unreachable drop; icmpv6 type destination-unreachable drop;",
    );
    assert_only(Expect::Hush, &unusual(&segment, || drop(server)));
}

/// The host's own stack says so, to a raw socket as to everybody.
#[test]
fn a_raw_socket_hears_that_a_cold_neighbour_does_not_answer() {
    let segment = Segment::new();
    segment.unplug();
    segment.forget_neighbours();
    let how = Options { timeout: Duration::from_millis(4500), probes: vec![Probe::RawPing], ..Options::default() };
    let seen = look(&segment.client(), &net::targets(), &how).unwrap();
    assert_met(Expect::DeadHost, &seen);
    for observation in &seen {
        assert!(matches!(observation.outcome, Outcome::IcmpError { .. }), "{observation:#?}");
        assert!((1900.0..4000.0).contains(&observation.took_ms), "{observation:#?}");
    }
}

/// What ends an open connection after its user timeout is the errno of the last ICMP error; a keepalive's question is
/// about a byte before the window, so the error about it is not believed.
#[test]
fn the_unusual_probes_tell_the_codes_of_a_refusal_apart() {
    let codes = [
        ("host", "host-unreachable", "addr-unreachable"),
        ("net", "net-unreachable", "no-route"),
        ("port", "port-unreachable", "port-unreachable"),
        ("protocol", "prot-unreachable", "port-unreachable"),
        ("admin-prohibited", "admin-prohibited", "admin-prohibited"),
    ];
    std::thread::scope(|scope| {
        for (code, v4, v6) in codes {
            scope.spawn(move || assert_unusual_refusal(code, v4, v6));
        }
    });
}

fn assert_unusual_refusal(code: &str, v4: &str, v6: &str) {
    let segment = Segment::new();
    let _server = segment.serve();
    let seen = unusual(&segment, || segment.filter_on_peer(&refusal(v4, v6)));
    assert_met(format!("unreachable:{code}").parse().unwrap(), &seen);
    assert_met(Expect::Unreachable(None), &seen);
    for other in ["host", "net", "port", "protocol", "admin-prohibited"].into_iter().filter(|other| *other != code) {
        assert!(!judge(format!("unreachable:{other}").parse().unwrap(), &seen).met, "{code} taken for {other}");
    }
    for other in ["alive", "dead-host", "dead-process", "hush", "hung-process", "rebooted"] {
        assert!(!judge(other.parse().unwrap(), &seen).met, "{code} taken for {other}: {seen:#?}");
    }
    assert_ends(&seen, Probe::Keepalive, &Outcome::errno("ETIMEDOUT"), 1900.0..2400.0);
}

#[test]
fn the_connection_that_sends_does_so_in_any_timeout() {
    let segment = Segment::new();
    let _server = segment.serve();
    let how = Options { timeout: Duration::from_millis(20), probes: vec![Probe::Writing], ..Options::default() };
    for observation in look(&segment.client(), &net::targets(), &how).unwrap() {
        assert!(observation.sent > 0, "{observation:#?}");
    }
}
