//! What is cut in several places at one moment is written before, with shut gates, and opened then.

mod net;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use net::cli::{playdead, timeless, words};
use net::{At, Segment};
use playdead::encode::{Builder, Finalized};
use playdead::kernel::nft::{Nft, Refused};
use playdead::kernel::route;
use playdead::model::{Device, Direction, Fault, Kind, Lifetime, Proto, Target, Vantage};
use playdead::rules::{Ruleset, compile};

const PLACES: [At; 3] = [At::Client, At::Peer, At::Switch];

fn batch(rules: &Ruleset, fill: impl FnOnce(&mut Builder, &Ruleset)) -> Finalized {
    let mut batch = Builder::new(1);
    fill(&mut batch, rules);
    batch.finalize()
}

/// What `dead-host 10.99.0.2 fd99::2 --direction from --name staged` compiles to on the client.
fn rules(segment: &Segment, lifetime: Lifetime) -> Ruleset {
    let interfaces = route::interfaces(&segment.netns(At::Client)).unwrap();
    let device = |one: &route::Interface| Device { index: one.index, name: one.name.clone() };
    let devices = interfaces.iter().filter(|one| one.ethernet && !one.loopback).map(device).collect();
    let vantage = Vantage { devices, ..Vantage::default() };
    let peer = |net: &str| Target { net: net.parse().unwrap(), ports: None, label: None };
    let fault = Fault {
        name: "staged".parse().unwrap(),
        kind: Kind::DeadHost,
        peers: ["10.99.0.2/32", "fd99::2/128"].map(peer).to_vec(),
        with: Vec::new(),
        direction: Direction::From,
        proto: Proto::All,
        lifetime,
        since: "2026-11-30T00:00:00Z".into(),
    };
    compile(&fault, &vantage)
}

#[test]
fn behind_a_shut_gate_no_packet_is_met_and_opened_it_is_the_usual_fault() {
    for (lifetime, typed, told) in [
        (Lifetime::Open, "", "it has not begun"),
        (Lifetime::Lease(std::time::Duration::from_secs(3600)), " --for 1h", "expired"),
    ] {
        let segment = Segment::new();
        segment.playdead(At::Client, &format!("dead-host 10.99.0.2 fd99::2 --direction from --name staged{typed}"));
        let usual = timeless(&segment.listed(At::Client));
        segment.heal(At::Client);

        let rules = rules(&segment, lifetime);
        let nft = Nft::open(&segment.netns(At::Client)).unwrap();
        nft.commit(&batch(&rules, Builder::add_shut)).unwrap();
        assert_eq!(segment.status(At::Client)[0]["active"], false);
        let status = segment.run(At::Client, "status");
        assert!(String::from_utf8_lossy(&status.stdout).contains(told), "{status:?}");
        assert!(segment.run(At::Client, "probe 10.99.0.2:2379 --only ping --expect alive").status.success());

        nft.commit(&batch(&rules, Builder::open)).unwrap();
        assert_eq!(timeless(&segment.listed(At::Client)), usual);
        assert_eq!(segment.status(At::Client)[0]["active"], true);
        assert!(!segment.run(At::Client, "probe 10.99.0.2:2379 --only ping --expect alive").status.success());
        segment.heal(At::Client);
    }
}

#[test]
fn what_has_gone_is_not_made_anew_by_opening_it() {
    let segment = Segment::new();
    let rules = rules(&segment, Lifetime::Open);
    let nft = Nft::open(&segment.netns(At::Client)).unwrap();
    nft.commit(&batch(&rules, Builder::add_shut)).unwrap();
    segment.heal(At::Client);
    let refused = nft.commit(&batch(&rules, Builder::open)).unwrap_err();
    assert!(refused.downcast_ref::<Refused>().is_some_and(Refused::is_race), "{refused:#}");
    assert_eq!(segment.listed(At::Client), "");
}

struct Nodes(PathBuf);

impl Nodes {
    /// As many as there are names.
    fn of(segment: &Segment, names: &[&str]) -> Self {
        let file = std::env::temp_dir().join(format!("{}.toml", segment.name(At::Client)));
        let node = |(index, name): (usize, &&str)| {
            let ns = segment.name(PLACES[index]);
            format!("[nodes.{name}]\nnetns = \"{ns}\"\naddresses = [\"10.99.0.{}\"]\n", index + 1)
        };
        std::fs::write(&file, names.iter().enumerate().map(node).collect::<String>()).unwrap();
        Self(file)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = playdead();
        command.arg("--nodes").arg(&self.0).args(words(line));
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_partition_leaves_nothing_shut_neither_done_nor_refused() {
    let segment = Segment::new();
    let nodes = Nodes::of(&segment, &["one", "two"]);
    let made = nodes.run("partition one two --name split");
    assert!(made.status.success(), "{made:?}");
    for at in [At::Client, At::Peer] {
        assert_eq!(segment.status(at)[0]["active"], true);
        assert_eq!(segment.status(at)[0]["damage"], serde_json::Value::Null);
        segment.heal(at);
    }
    // Somebody else's table has the name in one place: nothing may be left in the other.
    segment.nft(At::Peer, "add table inet playdead-split");
    let refused = nodes.run("partition one two --name split");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert_eq!(segment.listed(At::Client), "");
    segment.nft(At::Peer, "delete table inet playdead-split");
}

/// How many peers each place no longer hears.
fn cut(segment: &Segment) -> [usize; 3] {
    PLACES.map(|at| {
        let faults = segment.status(at);
        let active = faults.iter().filter(|fault| fault["active"] == true);
        active.map(|fault| fault["peers"].as_array().unwrap().len()).sum::<usize>()
    })
}

#[test]
fn of_partitions_of_one_name_at_once_one_is_in_force_whole_and_the_others_have_changed_nothing() {
    let segment = Segment::new();
    let nodes = Nodes::of(&segment, &["one", "two", "three"]);
    let each = [("one two,three", [2, 1, 1]), ("two one,three", [1, 2, 1]), ("three one,two", [1, 1, 2])];
    for round in 0..12 {
        let start = |(groups, _): &(&str, [usize; 3])| {
            let mut command = nodes.command(&format!("partition {groups} --name split"));
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        // Two or all three.
        let of = &each[round % 2..];
        let started: Vec<_> = of.iter().map(start).collect();
        let outputs: Vec<_> = started.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        let done: Vec<_> = of.iter().zip(&outputs).filter(|(_, output)| output.status.success()).collect();
        let expected = match done.as_slice() {
            [] => [0; 3],
            [((_, expected), _)] => *expected,
            _ => panic!("several were done: {outputs:?}"),
        };
        assert_eq!(cut(&segment), expected, "{outputs:?}");
        for output in outputs.iter().filter(|output| !output.status.success()) {
            assert!(String::from_utf8_lossy(&output.stderr).contains("nothing was changed"), "{output:?}");
        }
        nodes.run("heal");
        assert_eq!(PLACES.map(|at| segment.listed(at)), ["", "", ""]);
    }
}

#[test]
fn what_is_undone_takes_nobody_elses_partition_with_it() {
    let segment = Segment::new();
    let nodes = Nodes::of(&segment, &["one", "two", "three"]);
    for _ in 0..10 {
        let line = "partition one two,three --name split";
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let fine = nodes.command(line).stdout(Stdio::piped()).spawn().unwrap();
        let cannot_tell = nodes.command(line).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let [fine, cannot_tell] = [fine, cannot_tell].map(|child| child.wait_with_output().unwrap());
        assert!(fine.status.success(), "{fine:?}");
        assert!(!cannot_tell.status.success(), "{cannot_tell:?}");
        assert_eq!(cut(&segment), [2, 1, 1], "{cannot_tell:?}");
        nodes.run("heal");
    }
}

#[test]
fn a_file_of_nodes_limits_what_is_healed_and_shown_to_them() {
    let segment = Segment::new();
    let nodes = Nodes::of(&segment, &["one"]);
    segment.playdead(At::Client, "dead-host 10.99.0.9 --name inside --for 1h");
    segment.playdead(At::Peer, "dead-host 10.99.0.9 --name outside --for 1h");
    let shown = nodes.run("status");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("inside") && !shown.contains("outside"), "{shown}");
    assert_eq!(nodes.run("renew outside --for 2h").status.code(), Some(1));
    assert!(nodes.run("heal").status.success());
    assert_eq!(segment.listed(At::Client), "");
    assert_eq!(segment.status(At::Peer)[0]["name"], "outside");
    let missing = playdead().args(["--nodes", "/nonexistent", "heal"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2), "{missing:?}");
    assert_eq!(segment.status(At::Peer)[0]["name"], "outside");
    segment.heal(At::Peer);
}

#[test]
fn without_room_for_threads_a_partition_is_made_or_refused_and_ends() {
    let segment = Segment::new();
    let nodes = Nodes::of(&segment, &["one", "two", "three"]);
    for kib in [30_000, 32_000, 34_000, 36_000] {
        let line = format!("ulimit -v {kib}; exec timeout -s KILL 20 \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &line, "sh"]).arg(playdead().get_program());
        command.args(nodes.command("partition one two,three --name split").get_args());
        let output = command.output().unwrap();
        assert_ne!(output.status.code(), Some(137), "it hung with {kib} KiB: {output:?}");
        let expected = if output.status.success() { [2, 1, 1] } else { [0; 3] };
        assert_eq!(cut(&segment), expected, "{output:?}");
        nodes.run("heal");
    }
}
