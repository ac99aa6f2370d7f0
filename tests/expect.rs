//! `playdead probe --expect`, on a real etcd member for each kind of failure: its own kind is told from every other.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use playdead::model::verb;

static COUNT: AtomicU32 = AtomicU32::new(0);

fn playdead(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_playdead")).args(words).output().unwrap()
}

/// A lab with one member, and a name that no other run has; gone with the value.
struct Lab {
    name: String,
}

impl Lab {
    fn up() -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        let lab = Self { name: format!("x{}-{nanos:x}-{number}", std::process::id()) };
        let output = playdead(&["lab", "--lab", &lab.name, "up", "--etcd", "1", "--heartbeat-interval", "50"]);
        assert!(output.status.success(), "{output:?}");
        lab
    }

    fn agent(&self) -> String {
        format!("{}/agent", self.name)
    }

    /// Looks from the agent with open connections, lets the fault come into force, and judges; then all is healthy
    /// again.
    fn probe(&self, fault: &str, expect: &str) -> Output {
        let (agent, member) = (self.agent(), format!("{}/etcd1", self.name));
        let fault = fault.replace("MEMBER", &member).replace("PLAYDEAD", env!("CARGO_BIN_EXE_playdead"));
        // The IPv6 connect to whom a router refuses fails with its first retransmission, after a second.
        let probe = ["--node", &agent, "probe", "etcd1:2379", "--timeout", "1300ms", "--expect", expect, "--"];
        let seen = if fault.is_empty() {
            playdead(&[&probe[..], &["true"]].concat())
        } else {
            let words: Vec<_> = fault.splitn(3, ' ').collect();
            let made = [env!("CARGO_BIN_EXE_playdead"), "--node", &agent];
            let then: Vec<_> = match words.as_slice() {
                // What follows --then is one word.
                [verb, peer, then] if then.starts_with("--then ") => vec![*verb, *peer, "--then", &then[7..]],
                _ => fault.split(' ').collect(),
            };
            playdead(&[&probe[..], &made, &then].concat())
        };
        assert!(playdead(&["--node", &agent, "heal"]).status.success());
        if fault.contains("kill") {
            assert!(playdead(&["lab", "start", &member]).status.success());
            self.wait_until_healthy();
        }
        seen
    }

    fn wait_until_healthy(&self) {
        let agent = self.agent();
        let alive = || {
            let probe = [
                "--node",
                &agent,
                "probe",
                "etcd1:2379",
                "--only",
                "connect",
                "--timeout",
                "300ms",
                "--expect",
                "alive",
            ];
            playdead(&probe).status.success()
        };
        assert!((0..50).any(|_| alive() || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            false
        }));
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        playdead(&["lab", "--lab", &self.name, "down", "--purge"]);
    }
}

/// What is in force, and what it must be taken for.
const CASES: [(&str, &str); 13] = [
    ("", "alive"),
    ("dead-host etcd1", verb::DEAD_HOST),
    ("dead-process etcd1:2379", verb::DEAD_PROCESS),
    ("hush etcd1:2379 --then PLAYDEAD lab kill MEMBER", verb::HUSH),
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

/// A bad link has no signature of one look: no expectation names it, and one that is lost whole is a dead host.
#[test]
fn every_kind_on_a_real_etcd_member_is_told_from_every_other() {
    let next = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let lab = Lab::up();
                while let Some((fault, own)) = CASES.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    for (_, expect) in CASES.into_iter().chain([("", verb::UNREACHABLE)]) {
                        let own_kind = own.split(':').next() == Some(expect);
                        let code = if expect == *own || own_kind { 0 } else { 3 };
                        let output = lab.probe(fault, expect);
                        assert_eq!(output.status.code(), Some(code), "{fault:?}, expected {expect}: {output:#?}");
                    }
                }
            });
        }
    });
}

#[test]
fn probes_that_cannot_tell_say_what_else_it_may_be() {
    let lab = Lab::up();
    let agent = lab.agent();
    assert!(playdead(&["--node", &agent, "dead-host", "etcd1"]).status.success());
    let output = playdead(&["--node", &agent, "probe", "etcd1:2379", "--only", "udp", "--expect", "dead-host"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("note: the same is seen of hush (told by ping, raw-ping)"), "{text}");
    assert!(text.contains("note: the same is seen of alive (told by "), "{text}");
}
