//! Every scenario of `scripts/scenarios`, on a lab with real etcd, NATS and ZooKeeper. Needs root and
//! all of these, and fails without.

mod labs;

use std::fs;
use std::path::Path;

use labs::Lab;

/// Plays it on a lab of its own; it must end as expected, and leave nothing in force.
#[track_caller]
fn plays(name: &str, members: u8) -> String {
    let lab = Lab::up(members);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/scenarios").join(name).with_extension("toml");
    let out = lab.file("made", "").replace("made", "out");
    let output = lab.run(&format!("run {} --lab LAB --out {out}", file.display()));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for node in ["agent", "etcd1", "etcd2", "etcd3"] {
        assert_eq!(lab.listed(node), "", "{node}");
    }
    let out = Path::new(&out);
    assert!(fs::read_to_string(out.join("junit.xml")).unwrap().contains("failures=\"0\" errors=\"0\""));
    let logs = fs::read_dir(out.join("logs")).unwrap().flatten();
    // What ran before and goes on may have nothing to say; what was started has.
    let counts = |log: &fs::DirEntry| !name.starts_with("statefulset") || log.metadata().unwrap().len() > 0;
    let count = logs.filter(counts).count();
    assert!(count >= usize::from(members), "{count} logs of members");
    fs::read_to_string(out.join("summary.md")).unwrap()
}

#[test]
fn client_failover() {
    let summary = plays("client-failover", 3);
    assert_eq!(summary.matches("| first answer after ").count(), 4, "{summary}");
}

#[test]
fn leader_isolated() {
    let summary = plays("leader-isolated", 3);
    assert!(summary.contains(" s after this step began"), "from heal to steady: {summary}");
}

#[test]
fn minority_majority() {
    plays("minority-majority", 3);
}

#[test]
fn one_way() {
    plays("one-way", 3);
}

#[test]
fn bridge() {
    plays("bridge", 3);
}

#[test]
fn ring() {
    plays("ring", 5);
}

#[test]
fn agent_alone() {
    let summary = plays("agent-alone", 3);
    assert!(summary.contains("ms without an answer at most"), "{summary}");
}

#[test]
fn power_cycle() {
    plays("power-cycle", 3);
}

#[test]
fn statefulset() {
    let summary = plays("statefulset", 3);
    assert_eq!(summary.matches("as was to be found: a deadlock: etcd1").count(), 2, "{summary}");
}

#[test]
fn statefulset_nats() {
    let summary = plays("statefulset-nats", 3);
    assert_eq!(summary.matches("as was to be found: a deadlock: nats1").count(), 2, "{summary}");
}

#[test]
fn statefulset_zookeeper() {
    let summary = plays("statefulset-zookeeper", 3);
    assert_eq!(summary.matches("as was to be found: a deadlock: zk1").count(), 2, "{summary}");
}

#[test]
fn every_shipped_scenario_has_its_test() {
    let tests = include_str!("shipped.rs");
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/scenarios")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap().replace(".toml", "");
        assert!(tests.contains(&format!("plays(\"{name}\"")), "{name}");
    }
}
