//! `playdead verify` on real faults, in force on the client, on the peer, and on what lies between.

#[path = "net/mod.rs"]
mod net;

use std::process::Output;

use net::cli::{playdead, words};
use net::{At, Segment};
use serde_json::Value;

impl Segment {
    fn verify(&self, at: At, more: &str) -> Output {
        self.run(at, &format!("verify --timeout 1500ms {more}"))
    }
}

fn shown(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[track_caller]
fn assert_exit(output: &Output, code: i32, says: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", shown(output));
    assert!(shown(output).contains(says), "does not say {says:?}: {}", shown(output));
}

const PEERS: &str = "10.99.0.2:2379 [fd99::2]:2379";

/// Each kind as it is typed, and what stops the real process, if that belongs to it.
const FAULTS: [&str; 6] = [
    "dead-host 10.99.0.2 fd99::2",
    "dead-host 10.99.0.2:2379",
    "dead-process 10.99.0.2:2379 [fd99::2]:2379",
    "hung-process 10.99.0.2:2379 [fd99::2]:2379",
    "unreachable --code admin-prohibited 10.99.0.2 fd99::2",
    "rebooted 10.99.0.2:2379 [fd99::2]:2379",
];

#[test]
fn every_kind_is_as_expected_on_the_client() {
    std::thread::scope(|scope| {
        for fault in FAULTS {
            scope.spawn(move || {
                let segment = Segment::new();
                let _server = segment.serve();
                segment.playdead(At::Client, fault);
                assert_exit(&segment.verify(At::Client, ""), 0, "as expected");
            });
        }
    });
}

#[test]
fn every_kind_is_as_expected_on_the_peer_and_on_the_switch_when_seen_from_the_client() {
    std::thread::scope(|scope| {
        for at in [At::Peer, At::Switch] {
            for fault in FAULTS {
                scope.spawn(move || {
                    let segment = Segment::new();
                    let _server = segment.serve();
                    segment.playdead(at, fault);
                    let why = if at == At::Peer { "itself: name a place to look from" } else { "has no route to" };
                    assert_exit(&segment.verify(at, ""), 1, why);
                    let from = format!("--from {}", segment.name(At::Client));
                    assert_exit(&segment.verify(at, &from), 0, "as expected");
                });
            }
        }
    });
}

#[test]
fn a_router_looks_for_itself() {
    let segment = Segment::routed();
    let _server = segment.serve();
    segment.playdead(At::Router, "dead-host 10.99.0.2 fd99::2");
    assert_exit(&segment.verify(At::Router, ""), 0, "as expected");
    assert_exit(&segment.verify(At::Router, &format!("--from {}", segment.name(At::Client))), 0, "as expected");
}

#[test]
fn a_hush_is_as_expected_once_the_process_is_dead_and_not_before() {
    let segment = Segment::new();
    let server = segment.serve();
    segment.playdead(At::Client, &format!("hush {PEERS}"));
    assert_exit(&segment.verify(At::Client, ""), 3, "saw \"connected, answered\"");
    drop(server);
    assert_exit(&segment.verify(At::Client, ""), 0, "hush: as expected");
}

#[test]
fn a_fault_that_lost_one_of_its_tables_differs_and_the_table_is_named() {
    let segment = Segment::new();
    let _server = segment.serve();
    segment.playdead(At::Client, "dead-host 10.99.0.2 fd99::2 --name torn");
    segment.nft(At::Client, "delete table netdev playdead-torn");
    let output = segment.verify(At::Client, "torn");
    assert_exit(&output, 3, "NOT as expected: only 3 of its 4 tables are left");
    let document: Value = serde_json::from_slice(&segment.verify(At::Client, "torn --json").stdout).unwrap();
    assert_eq!(document["faults"][0]["as_expected"], false, "{document:#}");
    assert_eq!(document["faults"][0]["differs"].as_array().unwrap().len(), 1, "{document:#}");
}

/// Somebody else's rule refuses before ours can be silent: the peer's packets are not what the fault promises.
#[test]
fn a_rule_of_somebody_elses_that_refuses_makes_a_dead_host_differ() {
    let segment = Segment::new();
    let _server = segment.serve();
    segment.playdead(At::Peer, "dead-host 10.99.0.2 fd99::2");
    segment.nft(
        At::Client,
        "table inet other { chain o { type filter hook output priority 0; tcp dport 9 reject with tcp reset; }; }",
    );
    let from = format!("--from {}", segment.name(At::Client));
    assert_exit(&segment.verify(At::Peer, &from), 3, "connect: saw \"ECONNREFUSED\" instead of");
}

#[test]
fn an_expired_fault_differs_and_is_not_looked_at() {
    let segment = Segment::new();
    segment.playdead(At::Client, "dead-host 10.99.0.2 --for 200ms");
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert_exit(&segment.verify(At::Client, ""), 3, "it has expired");
}

#[test]
fn a_fault_that_the_look_never_met_differs() {
    let segment = Segment::new();
    segment.playdead(At::Client, "dead-host 10.99.0.9");
    segment.nft(At::Client, "table netdev other { chain o { type filter hook egress device eth0 priority -400; ip daddr 10.99.0.9 drop; }; }");
    assert_exit(&segment.verify(At::Client, ""), 3, "NOT as expected: it hit no packet of the look");
}

#[test]
fn what_is_dropped_on_its_way_from_a_peer_that_says_nothing_is_not_judged() {
    let segment = Segment::new();
    segment.playdead(At::Client, "dead-host 10.99.0.9 --direction from");
    assert_exit(&segment.verify(At::Client, ""), 1, "it hit no packet of the look: the peer sent none");
}

#[test]
fn a_prefix_is_looked_at_by_an_address_that_is_named_in_it() {
    let segment = Segment::new();
    let _server = segment.serve();
    segment.playdead(At::Client, "dead-host 10.99.0.0/30");
    assert_exit(&segment.verify(At::Client, ""), 1, "name an address of it by --peer");
    assert_exit(&segment.verify(At::Client, "--peer 10.99.0.2:2379"), 0, "10.99.0.2:2379");
    assert_exit(&segment.verify(At::Client, "--peer 10.99.0.7:2379"), 2, "is no peer of");
}

/// Errors of ICMP are limited, so that a second look soon after a first one meets silence.
#[test]
fn a_look_soon_after_another_waits_until_errors_are_sent_again() {
    let segment = Segment::new();
    segment.playdead(At::Client, "unreachable 10.99.0.2");
    assert_exit(&segment.verify(At::Client, ""), 0, "as expected");
    assert_exit(&segment.verify(At::Client, ""), 0, "looked twice");
}

#[test]
fn what_one_look_cannot_judge_shows_its_hits_instead() {
    let segment = Segment::new();
    segment.playdead(At::Client, "lossy 10.99.0.2 --percent 20");
    assert_exit(&segment.verify(At::Client, ""), 0, "has no signature");
}

#[test]
fn without_a_fault_or_with_a_name_that_nothing_has_it_fails_in_one_line() {
    let segment = Segment::new();
    assert_exit(&segment.verify(At::Client, ""), 1, "no fault is in force there");
    segment.playdead(At::Client, "dead-host 10.99.0.2");
    let output = segment.verify(At::Client, "other");
    assert_exit(&output, 1, "no fault called other is in force there");
    assert_eq!(shown(&output).lines().count(), 1, "{output:?}");
}

#[test]
fn a_loopback_peer_is_looked_at_where_it_is() {
    let segment = Segment::new();
    segment.playdead(At::Client, "dead-host 127.0.0.9");
    assert_exit(&segment.verify(At::Client, ""), 0, "dead-host: as expected");
}

#[test]
fn a_range_of_ports_is_refused_with_what_to_write() {
    let output = playdead().args(words("probe 127.0.0.1:80-85")).output().unwrap();
    assert_exit(&output, 2, "127.0.0.1:80-85: a probe looks at one port, not at a range: write 127.0.0.1:80\n");
}

#[test]
fn an_explanation_is_a_document_too() {
    for kind in playdead::model::verb::ALL {
        let output = playdead().args(["--json", "explain", kind]).output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["kind"], kind);
        assert!(document["rules"].as_str().unwrap().contains("table inet playdead-"), "{document:#}");
        let probes = document["probes"].as_array().unwrap();
        assert_eq!(probes.len(), if kind == "lossy" { 0 } else { 10 });
        assert!(probes.iter().all(|probe| !probe["v6"].as_array().unwrap().is_empty()), "{document:#}");
    }
}
