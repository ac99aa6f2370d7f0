//! `--expect`, on a real etcd member for each kind of failure: its own kind is told from every other.

mod labs;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use labs::{Lab, playdead};
use playdead::lab::node;
use playdead::model::observation::{Observation, Probe};
use playdead::model::signature::{Expect, judge};
use playdead::model::verb;
use playdead::probe::{Options, Watch};

/// The IPv6 connect to whom a router refuses fails with its first retransmission, after a second, or, if that drew no
/// error for there were too many, with the second.
const PATIENCE: Duration = Duration::from_millis(2400);

/// What is in force, and what it must be taken for.
const CASES: [(&str, &str); 13] = [
    ("", "alive"),
    ("dead-host etcd1", verb::DEAD_HOST),
    ("dead-process etcd1:2379", verb::DEAD_PROCESS),
    ("hush etcd1:2379 --then", verb::HUSH),
    ("hung-process etcd1:2379", verb::HUNG_PROCESS),
    ("rebooted etcd1", verb::REBOOTED),
    ("unreachable etcd1 --code host", "unreachable:host"),
    ("unreachable etcd1 --code net", "unreachable:net"),
    ("unreachable etcd1 --code port", "unreachable:port"),
    ("unreachable etcd1 --code protocol", "unreachable:protocol"),
    ("unreachable etcd1 --code host-prohibited", "unreachable:host-prohibited"),
    ("unreachable etcd1 --code net-prohibited", "unreachable:net-prohibited"),
    ("unreachable etcd1 --code admin-prohibited", "unreachable:admin-prohibited"),
];

/// The words that make the failure, seen from the agent.
fn words(lab: &Lab, fault: &str) -> Vec<String> {
    if fault.is_empty() {
        return vec!["true".into()];
    }
    let program = env!("CARGO_BIN_EXE_playdead");
    let mut words: Vec<String> = [program, "--node", &format!("{}/agent", lab.name)].map(Into::into).into();
    words.extend(fault.split(' ').map(Into::into));
    words.extend(fault.ends_with("--then").then(|| format!("{program} lab kill {}/etcd1", lab.name)));
    words
}

/// Looks at the member, with open connections, while the fault comes into force.
fn look(lab: &Lab, fault: &str) -> Vec<Observation> {
    let [agent, member] = ["agent", "etcd1"].map(|name| node(Some(&lab.name), name).unwrap());
    let targets: Vec<_> = member.addresses.iter().map(|address| SocketAddr::new(*address, 2379)).collect();
    let options = Options { timeout: PATIENCE, probes: Probe::USUAL.to_vec(), ..Options::default() };
    let agent = agent.namespace().unwrap();
    let mut watch = Watch::open(&agent, &targets, &options).unwrap();
    watch.event();
    let words = words(lab, fault);
    assert!(std::process::Command::new(&words[0]).args(&words[1..]).status().unwrap().success(), "{words:?}");
    std::thread::sleep(Duration::from_millis(50));
    watch.finish().unwrap()
}

/// All is healthy again.
fn mend(lab: &Lab, fault: &str) {
    lab.done("--node LAB/agent heal");
    if fault.ends_with("--then") {
        lab.done("lab start LAB/etcd1");
    }
    let alive = || lab.run("--node LAB/agent probe etcd1:2379 --only connect --expect alive").status.success();
    assert!((0..20).any(|_| alive()), "the member does not come back");
}

/// A bad link has no signature of one look: no expectation names it, and one that is lost whole is a dead host.
#[test]
fn every_kind_on_a_real_etcd_member_is_told_from_every_other() {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                let lab = Lab::up(1);
                while let Some((fault, own)) = CASES.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let seen = look(&lab, fault);
                    mend(&lab, fault);
                    for (_, expect) in CASES.into_iter().chain([("", verb::UNREACHABLE)]) {
                        let fits = expect == *own || own.split(':').next() == Some(expect);
                        let verdict = judge(expect.parse::<Expect>().unwrap(), &seen);
                        assert_eq!(verdict.met, fits, "{fault:?}, expected {expect}: {verdict:#?}\n{seen:#?}");
                    }
                }
            });
        }
    });
}

/// What is judged is what the program exits with.
#[test]
fn the_exit_code_says_whether_it_is_the_kind_that_was_expected() {
    let lab = Lab::up(1);
    for (fault, expect, code) in [
        ("dead-process etcd1:2379", "dead-process", 0),
        ("dead-process etcd1:2379", "dead-host", 3),
        ("hung-process etcd1:2379", "hung-process", 0),
        ("hung-process etcd1:2379", "alive", 3),
        ("", "alive", 0),
        ("", "dead-process", 3),
    ] {
        let mut probe = playdead();
        probe.args(["--node", &format!("{}/agent", lab.name), "probe", "etcd1:2379", "--timeout", "500ms"]);
        let output = probe.args(["--expect", expect, "--"]).args(words(&lab, fault)).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{fault:?}, expected {expect}: {output:#?}");
        mend(&lab, fault);
    }
}

fn run(words: &[&str]) -> std::process::Output {
    playdead().args(words).output().unwrap()
}

#[test]
fn probes_that_cannot_tell_say_what_else_it_may_be() {
    let lab = Lab::up(1);
    let agent = format!("{}/agent", lab.name);
    assert!(run(&["--node", &agent, "dead-host", "etcd1"]).status.success());
    let output = run(&["--node", &agent, "probe", "etcd1:2379", "--only", "udp", "--expect", "dead-host"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("note: the same is seen of hush (told by ping, raw-ping)"), "{text}");
    assert!(text.contains("note: the same is seen of alive (told by "), "{text}");
}
