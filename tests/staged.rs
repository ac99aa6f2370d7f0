//! What is cut in several places at one moment is written before, with shut gates, and opened then.

mod net;

use std::path::PathBuf;
use std::process::Output;

use net::cli::{playdead, timeless, words};
use net::{At, Segment};
use playdead::encode::{Builder, Finalized};
use playdead::kernel::nft::{Nft, Refused};
use playdead::kernel::route;
use playdead::model::{Device, Direction, Fault, Kind, Lifetime, Proto, Target, Vantage};
use playdead::rules::{Ruleset, compile};

const PLACES: [At; 2] = [At::Client, At::Peer];

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
    fn of(segment: &Segment) -> Self {
        let file = std::env::temp_dir().join(format!("{}.toml", segment.name(At::Client)));
        let [client, peer] = PLACES.map(|at| segment.name(at));
        let node =
            |name, ns: &str, host| format!("[nodes.{name}]\nnetns = \"{ns}\"\naddresses = [\"10.99.0.{host}\"]\n");
        std::fs::write(&file, node("one", &client, 1) + &node("two", &peer, 2)).unwrap();
        Self(file)
    }

    fn run(&self, line: &str) -> Output {
        playdead().arg("--nodes").arg(&self.0).args(words(line)).output().unwrap()
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
    let nodes = Nodes::of(&segment);
    let made = nodes.run("partition one two --name split");
    assert!(made.status.success(), "{made:?}");
    for at in PLACES {
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
