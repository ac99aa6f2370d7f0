//! `playdead partition` on real etcd: who hears whom, and who has a quorum.

mod labs;

use std::process::Command;

use labs::{Lab, Seen, playdead};
use serde_json::Value;

const ALL: [&str; 3] = ["etcd1", "etcd2", "etcd3"];

fn is_whole(seen: &Seen) -> bool {
    seen.through() == ALL
}

/// Heals in the lab's own places only.
#[track_caller]
fn heal(lab: &Lab, name: &str) {
    let nodes: Vec<_> = ALL.iter().map(|node| format!("--node LAB/{node}")).collect();
    lab.done(&format!("{} heal {name}", nodes.join(" ")));
    assert_eq!(ALL.map(|node| lab.listed(node)), ["", "", ""], "left after heal");
}

#[test]
fn an_isolated_leader_is_replaced_and_comes_back_as_a_follower() {
    let lab = Lab::up(3);
    let before = lab.quorum("");
    let old = before.leader().unwrap();
    let made = lab.json("partition --lab LAB --isolate leader --name split");
    assert_eq!(made["groups"][0][0], old, "{made}");
    assert_eq!((made["faults"].as_array().unwrap().len(), made["cuts"].as_array().unwrap().len()), (3, 4), "{made}");
    assert!(made["spread_ms"].as_f64().unwrap() < 500.0, "{made}");

    let during = lab.quorum_until("another leader", |seen| seen.leader().is_some_and(|leader| leader != old));
    assert!(during.term() > before.term(), "{} {}", before.0, during.0);
    assert_eq!(during.own(old), ["yes", "no", "no"]);
    let [healthy, other] = [0, 1].map(|index| during.through()[index]);
    assert_eq!(during.own(healthy), ["yes", "yes", "yes"]);
    // A client reaches both sides.
    assert!(ALL.iter().all(|node| lab.pings("agent", node)));
    assert!(lab.pings(healthy, other) && !lab.pings(old, healthy) && !lab.pings(other, old));

    heal(&lab, "split");
    let after = lab.quorum_until("whole again", is_whole);
    assert!(after.term() >= during.term());
}

#[test]
fn a_majority_goes_on_and_the_same_seed_splits_in_the_same_way() {
    let lab = Lab::up(3);
    let split = "partition --lab LAB --split majority --seed 7";
    let rules = |line: &str| {
        let document = lab.json(&format!("{line} --dry-run"));
        let without_time =
            |rules: &str| rules.lines().filter(|line| !line.contains("comment \"playdead")).collect::<String>();
        let rules =
            document["dry_run"].as_array().unwrap().iter().map(|one| without_time(one["rules"].as_str().unwrap()));
        (document["groups"].clone(), rules.collect::<Vec<_>>())
    };
    assert_eq!(rules(split), rules(split));
    let groups = |seed: u32| rules(&format!("partition --lab LAB --split majority --seed {seed}")).0;
    assert!((0..10).any(|seed| groups(seed) != groups(7)), "every seed splits in the same way");
    assert_eq!(ALL.map(|node| lab.listed(node)), ["", "", ""], "a dry run writes");

    let made = lab.json(&format!("{split} --name split"));
    let group = |number: usize| -> Vec<String> { serde_json::from_value(made["groups"][number].clone()).unwrap() };
    let (majority, minority) = (group(0), group(1));
    assert_eq!((majority.len(), minority.len()), (2, 1));
    let mut expected = majority.clone();
    expected.sort();
    let seen = lab.quorum_until("a quorum of the majority", |seen| seen.through() == expected);
    assert_eq!(seen.own(&minority[0]), ["yes", "no", "no"]);
    heal(&lab, "split");
    lab.quorum_until("whole again", is_whole);
}

#[test]
fn a_bridge_hears_both_sides_and_one_way_only_one_side_is_deaf() {
    let lab = Lab::up(3);
    lab.done("partition --lab LAB etcd1,etcd2 etcd2,etcd3 --name bridge");
    assert!(lab.pings("etcd1", "etcd2") && lab.pings("etcd2", "etcd3") && !lab.pings("etcd1", "etcd3"));
    let different = lab.run("partition --lab LAB etcd1 etcd2,etcd3 --name bridge");
    assert_eq!(different.status.code(), Some(1), "{different:?}");
    assert!(lab.pings("etcd2", "etcd1"), "something was written");

    // etcd3 hears everybody in the new one, so its rules go.
    lab.done("partition --lab LAB etcd1 etcd2 --one-way --name bridge --replace");
    assert_eq!(["etcd2", "etcd3"].map(|node| lab.listed(node)), ["", ""]);
    assert!(!lab.pings("etcd2", "etcd1") && !lab.pings("etcd1", "etcd2") && lab.pings("etcd1", "etcd3"));
    let hits =
        |node: &str| lab.json(&format!("--node LAB/{node} status"))["faults"][0]["hits"]["from"]["packets"].clone();
    assert!(hits("etcd1").as_u64() > Some(0));
    heal(&lab, "bridge");
}

#[test]
fn what_replaces_a_part_of_a_partition_replaces_all_of_it() {
    let lab = Lab::up(3);
    let play = |one: &str, other: &str| {
        lab.file("both.toml", &format!("[[steps]]\npartition = \"etcd1 etcd2,etcd3{one}\"\n[[steps]]\npartition = \"etcd2 etcd1,etcd3 --replace{other}\"\n[[steps]]\nexpect.command = \"ip netns exec LAB-etcd1 ping -q -c1 -W1 etcd3\"\n"))
    };
    lab.done("partition --lab LAB etcd1 etcd2,etcd3 --for 60s");
    lab.done("partition --lab LAB etcd2 etcd1,etcd3 --for 60s --replace");
    assert!(!lab.pings("etcd1", "etcd2") && !lab.pings("etcd3", "etcd2") && lab.pings("etcd1", "etcd3"));
    // A share where the new one has no rules goes, too.
    lab.done("partition --lab LAB etcd1 etcd2 --one-way --replace --name last");
    assert_eq!(["etcd2", "etcd3"].map(|node| lab.listed(node)), ["", ""]);
    heal(&lab, "last");
    let played = lab.run(&format!("run {} --lab LAB --privileged", play(" --name a", " --name b")));
    assert!(played.status.success(), "{played:?}");
}

#[test]
fn what_replaces_one_share_says_that_the_others_stay() {
    let lab = Lab::up(3);
    lab.done("partition --lab LAB etcd1 etcd2,etcd3 --name split --for 60s");
    let replaced = lab.run("--node LAB/etcd1 dead-host 10.77.0.12 --replace --name dead");
    let said = String::from_utf8_lossy(&replaced.stderr);
    assert!(replaced.status.success() && said.contains("`playdead heal split`"), "{replaced:?}");
    assert!(!lab.listed("etcd1").contains("split") && lab.listed("etcd2").contains("split"));
    heal(&lab, "split dead");
}

#[test]
fn nodes_in_one_namespace_can_be_on_one_side() {
    let lab = Lab::up(2);
    let nodes = [("a", "etcd1"), ("b", "etcd1"), ("c", "etcd2")];
    let nodes = nodes.map(|(name, host)| format!("[nodes.{name}]\nnetns = \"LAB-{host}\"\n")).concat();
    let file = lab.file("nodes.toml", &nodes);
    lab.done(&format!("--nodes {file} partition a,b c --for 60s"));
    assert!(!lab.pings("etcd1", "etcd2") && lab.pings("etcd1", "agent"));
    lab.done("--node LAB/etcd1 --node LAB/etcd2 heal");
    let refused = lab.run(&format!("--nodes {file} partition a b,c"));
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn it_lasts_as_long_as_its_lease_or_its_command_and_all_or_nothing_is_written() {
    let lab = Lab::up(3);
    let command = format!("ip netns exec {}-etcd1 ping -q -c1 -W1 etcd2", lab.name);
    let line = format!("partition --lab {} etcd1 etcd2,etcd3 --privileged -- {command}", lab.name);
    let output = playdead().args(line.split(' ')).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(ALL.map(|node| lab.listed(node)), ["", "", ""]);

    lab.done("partition --lab LAB etcd1 etcd2,etcd3 --for 3s");
    assert!(!lab.pings("etcd1", "etcd2"));
    assert!((0..20).any(|_| lab.pings("etcd1", "etcd2")), "the lease has no end");
    let nodes = "--node LAB/etcd1 --node LAB/etcd2 --node LAB/etcd3";
    lab.done(&format!("{nodes} heal"));

    let namespace = format!("{}-etcd3", lab.name);
    let foreign = ["netns", "exec", &namespace, "nft", "add", "table", "inet", "playdead-x"];
    assert!(Command::new("ip").args(foreign).status().unwrap().success());
    let refused = lab.run("partition --lab LAB etcd1 etcd2,etcd3 --name x");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not playdead's"), "{refused:?}");
    assert_eq!(["etcd1", "etcd2"].map(|node| lab.listed(node)), ["", ""]);
}

#[test]
fn what_cannot_be_meant_is_refused_before_anything_is_written() {
    let lab = Lab::up(1);
    let file = lab.file("nodes.toml", "[nodes.a]\nnetns = \"LAB-etcd1\"\n[nodes.b]\nnetns = \"LAB-etcd1\"\n");
    for (line, what) in [
        ("partition --lab LAB etcd1", "cuts nobody off"),
        ("partition --lab LAB etcd1 etcd9", "no node is called \"etcd9\": there are agent, etcd1"),
        ("partition --lab LAB --isolate etcd9", "no node is called \"etcd9\""),
        ("partition --lab LAB --split ring", "it takes 4"),
        ("partition --lab LAB", "required"),
        ("partition --lab LAB etcd1 agent --split halves", "cannot be used with"),
        ("--node LAB/agent partition --lab LAB etcd1 agent", "name no other"),
        (&format!("--nodes {file} partition a b"), "one network namespace"),
    ] {
        let output = lab.run(line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(error.contains(what), "{line}: {error}");
        assert_eq!(lab.listed("etcd1"), "", "{line}");
    }
    let text = lab.done("partition --lab LAB etcd1 agent --one-way --dry-run");
    assert!(text.starts_with("# Who hears whom, if nothing else is in force:\n# HEARS  agent  etcd1\n# agent  -      yes\n# etcd1  cut    -\n"), "{text}");
    let document: Value = lab.json("partition --lab LAB etcd1 agent --dry-run");
    assert_eq!(document["cuts"][0], serde_json::json!({ "from": "etcd1", "to": "agent" }), "{document}");
}

#[test]
fn only_the_nodes_that_it_is_about_have_to_be_there() {
    let lab = Lab::up(2);
    let file = lab.file(
        "nodes.toml",
        "[nodes.a]\nnetns = \"LAB-etcd1\"\ncheck = \"etcd\"\n[nodes.b]\nnetns = \"LAB-etcd2\"\ncheck = \"etcd\"\n\
         [nodes.gone]\nnetns = \"LAB-gone\"\n[nodes.dead]\nnetns = \"LAB-dead\"\ncheck = \"etcd\"\n",
    );
    let output = lab.run(&format!("--nodes {file} partition a b --name split"));
    let (said, noted) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("in 2 namespaces"), "{output:?}");
    assert!(noted.contains("left out: node gone: ") && noted.contains("left out: node dead: "), "{noted}");
    assert!(!lab.pings("etcd1", "etcd2"));
    lab.done("--node LAB/etcd1 --node LAB/etcd2 heal split");
    for (line, missing) in
        [("a gone", "node gone: "), ("--isolate a", "node dead: "), ("--split halves", "node dead: ")]
    {
        let output = lab.run(&format!("--nodes {file} partition {line}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(missing), "{line}: {said}");
    }
}

#[test]
fn a_node_of_a_file_is_a_peer_of_every_kind_by_its_name() {
    let lab = Lab::up(1);
    let file = lab.file(
        "nodes.toml",
        "[nodes.db]\naddresses = [\"10.77.0.11\"]\n[nodes.me]\nnode = \"LAB/etcd1\"\n[nodes.client]\nnode = \"LAB/agent\"\n",
    );
    let on = format!("--nodes {file} --node client");
    let made = lab.json(&format!("{on} dead-host db --name x"));
    assert_eq!(made["faults"][0]["peers"][0]["name"], "db", "{made}");
    lab.done(&format!("{on} probe db:2379 --only connect --timeout 300ms --expect dead-host"));
    lab.done(&format!("{on} verify x --peer db --timeout 300ms"));
    lab.done(&format!("{on} heal x"));
    lab.done(&format!("{on} flap dead-process me:2379 --up 20ms --down 20ms --cycles 1"));
    let unknown = lab.run(&format!("--nodes {file} --node nobody dead-host db"));
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
}

/// Who comes second writes the same again; nobody is left without.
#[test]
fn of_many_at_once_with_one_name_all_succeed() {
    let lab = Lab::up(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| lab.done("partition etcd1 etcd2,etcd3 --lab LAB --name same --for 20s"));
        }
    });
    for node in ["etcd1", "etcd2", "etcd3"] {
        assert!(lab.listed(node).contains("playdead-same"), "{node}");
    }
}
