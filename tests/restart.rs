//! Restarts in order on real etcd: what comes back, and what cannot. Needs root and etcd, and fails without.

mod labs;

use std::time::{Duration, Instant};

use labs::Lab;

fn restart(lab: &Lab, how: &str) -> (Option<i32>, String, Duration) {
    let text = format!(
        "[[steps]]\nkill = \"all\"\n[[steps]]\nrestart = {{ nodes = \"all\", {how} }}\n\
         [[steps]]\nwait = {{ quorum = \"all\", within = \"20s\" }}\n"
    );
    let file = lab.file("restart.toml", &text);
    let start = Instant::now();
    let output = lab.run(&format!("run {file} --lab LAB"));
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), start.elapsed())
}

#[test]
fn one_by_one_with_a_check_that_needs_the_others_is_a_deadlock_that_is_told_by_name_at_once() {
    let lab = Lab::up(3);
    for check in ["quorum", "able"] {
        let (code, said, took) = restart(&lab, &format!("ready = \"{check}\", within = \"60s\""));
        assert_eq!(code, Some(3), "{said}");
        let named = format!("a deadlock: etcd1 is waited for by ready = \"{check}\"");
        assert!(said.contains(&named) && said.contains("missing are etcd2 and etcd3"), "{said}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

#[test]
fn a_deadlock_that_was_to_be_found_is_as_expected_and_the_scenario_goes_on() {
    let lab = Lab::up(3);
    let text = r#"
        [[steps]]
        kill = "all"
        [[steps]]
        restart = { nodes = "all", ready = "quorum", deadlock = true }
        [[steps]]
        restart = { nodes = ["etcd2", "etcd3"], order = "all-at-once", ready = "quorum" }
        [[steps]]
        restart = { nodes = ["etcd2", "etcd3"], ready = "quorum", deadlock = true }
        [[steps]]
        run = { command = "true" }
        "#;
    let output = lab.run(&format!("run {} --lab LAB", lab.file("known.toml", text)));
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("FAILED step 4") && said.contains("a deadlock was to be found"), "{said}");
    assert_eq!(said.matches(": ok [").count(), 4, "{said}");
}

#[test]
fn members_that_are_down_and_do_not_come_back_are_part_of_a_deadlock() {
    let lab = Lab::up(3);
    let text = "[[steps]]\nkill = \"all\"\n[[steps]]\n\
                restart = { nodes = [\"etcd2\", \"etcd1\"], ready = \"quorum\", within = \"60s\" }\n";
    let output = lab.run(&format!("run {} --lab LAB", lab.file("part.toml", text)));
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("a deadlock: etcd2") && said.contains("missing are etcd1"), "{said}");
    assert!(said.contains("and etcd3, down and not restarted here"), "{said}");
}

#[test]
fn all_at_once_starts_side_by_side() {
    let lab = Lab::up(1);
    let nodes: String = ["a", "b", "c"]
        .map(|name| format!("[nodes.{name}]\nnetns = \"LAB-agent\"\ncommands.start = \"sleep 3\"\n"))
        .concat();
    let text = format!(
        "{nodes}[[steps]]\nrestart = {{ nodes = [\"a\", \"b\", \"c\"], order = \"all-at-once\", ready.command = \"true\" }}\n"
    );
    let start = Instant::now();
    lab.done(&format!("run {}", lab.file("beside.toml", &text)));
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[test]
fn one_by_one_with_a_check_of_the_process_alone_comes_back() {
    let lab = Lab::up(3);
    let (code, said, _) = restart(&lab, "ready = \"live\"");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn all_at_once_comes_back_with_a_check_that_needs_a_quorum() {
    let lab = Lab::up(3);
    let (code, said, _) = restart(&lab, "order = \"all-at-once\", ready = \"quorum\"");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_command_that_wants_a_quorum_is_found_out_when_its_time_is_over() {
    let lab = Lab::up(3);
    let command = "ETCDCTL_API=3 etcdctl --endpoints $PLAYDEAD_NODE:2379 --command-timeout 300ms get x";
    let (code, said, _) = restart(&lab, &format!("ready.command = \"{command}\", within = \"1s\""));
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("if it demands a quorum, this is a deadlock: etcd1"), "{said}");
}
