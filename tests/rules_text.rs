//! `--dry-run`: what it prints is what applying writes, whoever asks, and asking changes nothing.

mod net;

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::thread;

use net::cli::{playdead, stdout_of, timeless, words};
use net::{At, Segment};

/// Every kind, with every option that changes rules.
const FAULTS: [&str; 21] = [
    "dead-host 10.99.0.2 fd99::2",
    "dead-host 10.99.0.0/24 fd99::/64 --with 10.99.0.1 --with fd99::1 --for 50s --direction to",
    "dead-host 10.99.0.2:1-5 [fd99::2]:53 --proto udp",
    "dead-host 10.99.0.2 10.99.0.4 10.99.0.6/31 fd99::2 --direction from --proto tcp",
    "dead-host 127.0.0.1 ::1",
    "dead-process 10.99.0.2:2379 [fd99::2]:2379-2380",
    "dead-process 10.99.0.2:2379 --open-connections reset --for 1h",
    "dead-process [fd99::2]:2379 --open-connections keep --proto tcp",
    "hush 10.99.0.2:2379 [fd99::2]:80-90",
    "hush 10.99.0.2:2379 [fd99::2]:80 --proto udp --with 10.99.0.0/30,fd99::/126",
    "hung-process 10.99.0.2:2379 [fd99::2]:2379",
    "hung-process 10.99.0.2:2379-2380 [fd99::2]:2379 --backlog 16 --direction to",
    "unreachable 10.99.0.2 fd99::/64 --code admin-prohibited",
    "unreachable 10.99.0.2:80 [fd99::2]:80 --code protocol",
    "unreachable 10.99.0.2 fd99::2 --code net-prohibited --direction to --for 30s",
    "lossy 10.99.0.2 fd99::2 --percent 20",
    "lossy 10.99.0.2 fd99::2 --percent 0.01 --direction from",
    "lossy 10.99.0.2 [fd99::2]:80 --percent 20 --per-connection --seed 5",
    "rebooted 10.99.0.2 fd99::2",
    "rebooted 10.99.0.2:2379 [fd99::2]:1-65535 --direction to",
    "dead-host 10.99.0.2 fd99::2 --name a.name_of-my-own",
];

fn inside(segment: &Segment, at: At, before: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &segment.name(at)]).args(before);
    command
}

/// Asks in the namespace itself, as somebody without any right.
fn as_nobody(segment: &Segment, at: At, line: &str) -> Output {
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    inside(segment, at, &nobody).arg(playdead().get_program()).args(words(line)).output().unwrap()
}

fn load(segment: &Segment, at: At, text: &str) {
    let mut nft =
        inside(segment, at, &["nft", "-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    nft.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = nft.wait_with_output().unwrap();
    assert!(output.status.success(), "{at:?}: {}\n{text}", String::from_utf8_lossy(&output.stderr));
}

/// What nft 1.0.9 does not take, in its own listing either.
const RAW: [&str; 2] = [" ip saddr set @th,192,32", " ip6 saddr set @th,256,128"];

fn takes(segment: &Segment, statement: &str) -> bool {
    let mut nft = inside(segment, At::Client, &["nft", "-c", "-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    write!(nft.stdin.take().unwrap(), "table inet x {{\n chain x {{\n {statement}\n }}\n}}\n").unwrap();
    nft.wait().unwrap().success()
}

fn assert_text_is_what_is_applied(segment: &Segment, at: At, fault: &str) {
    let text = segment.playdead(at, &format!("{fault} --dry-run"));
    assert_eq!(segment.listed(at), "", "--dry-run changed something");
    // Where nft has no words for it, all but that has to be the same, and it has to be said.
    let mut refused = RAW.to_vec();
    refused.retain(|statement| text.contains(statement) && !takes(segment, statement));
    assert!(refused.is_empty() || text.contains("nft 1.0.9 does not"), "{text}");
    let without = |text: &str| refused.iter().fold(text.to_owned(), |text, statement| text.replace(statement, ""));
    load(segment, at, &without(&text));
    let loaded = timeless(&segment.listed(at));
    // What was loaded by hand is a fault like any other.
    assert_eq!(segment.status(at).len(), 1, "{fault}");
    segment.heal(at);
    segment.playdead(at, fault);
    let applied = timeless(&without(&segment.listed(at)));
    segment.heal(at);
    assert_eq!(loaded, applied, "{fault} at {at:?}");
    assert!(applied.lines().count() > 5);
}

#[test]
fn loading_the_text_is_the_same_as_applying_for_every_kind_at_every_place() {
    thread::scope(|scope| {
        for at in [At::Client, At::Peer, At::Router, At::Switch] {
            scope.spawn(move || {
                let segment = Segment::routed();
                for fault in FAULTS {
                    assert_text_is_what_is_applied(&segment, at, fault);
                }
            });
        }
    });
}

/// A held fault's tables have an owner; loaded by hand they would go with nft.
#[test]
fn the_text_of_a_held_fault_says_so_and_is_else_the_same() {
    let segment = Segment::new();
    let fault = "dead-process 10.99.0.2:2379 [fd99::2]:2379";
    let text = segment.playdead(At::Client, &format!("{fault} --hold --dry-run"));
    let free: Vec<_> = text.lines().filter(|line| !line.contains("flags owner")).collect();
    assert_eq!(text.lines().count() - free.len(), text.matches("table ").count(), "{text}");
    assert_eq!(timeless(&free.join("\n")), timeless(&segment.playdead(At::Client, &format!("{fault} --dry-run"))));
    let _held = segment.hold(At::Client, &format!("{fault} --hold"));
    let listed = segment.listed(At::Client);
    assert_eq!(listed.matches("flags owner").count(), listed.matches("table ").count(), "{listed}");
}

#[test]
fn whoever_has_no_rights_gets_the_same_text() {
    let segment = Segment::routed();
    for at in [At::Client, At::Peer, At::Router] {
        for fault in FAULTS {
            let line = format!("{fault} --dry-run");
            let text = stdout_of(&as_nobody(&segment, at, &line));
            let root = stdout_of(
                &inside(&segment, at, &[]).arg(playdead().get_program()).args(words(&line)).output().unwrap(),
            );
            assert_eq!(timeless(&text), timeless(&root), "{fault} at {at:?}");
        }
        assert_eq!(segment.listed(at), "");
    }
}

#[test]
fn of_several_places_each_is_printed_with_its_name() {
    let segment = Segment::new();
    let both = ["--netns", &segment.name(At::Client), "--netns", &segment.name(At::Peer)];
    let output = playdead().args(both).args(words("dead-host 10.99.0.2 --name x --dry-run")).output().unwrap();
    let text = stdout_of(&output);
    for at in [At::Client, At::Peer] {
        assert!(text.contains(&format!("# x in {}\n", segment.name(at))), "{text}");
        assert_eq!(segment.listed(at), "");
    }
    let json = playdead().args(both).args(words("--json dead-host 10.99.0.2 --dry-run")).output().unwrap();
    let document: serde_json::Value = serde_json::from_str(&stdout_of(&json)).unwrap();
    assert_eq!(document["dry_run"].as_array().unwrap().len(), 2);
    assert!(document["dry_run"][0]["rules"].as_str().unwrap().contains("table inet playdead-"));
}
