//! Labs with real etcd for tests of verbs that are about a cluster. Needs root and etcd, and fails without.
#![allow(dead_code, reason = "every test program uses a part of it")]

pub(crate) mod zookeeper;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// The program under test, as root runs it: who may have called sudo for the tests is none of its business.
pub(crate) fn playdead() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_playdead"));
    command.env_remove("SUDO_UID");
    command
}

/// A lab with a name that no other run has; gone with the value, whatever the test does.
pub(crate) struct Lab {
    pub(crate) name: String,
}

impl Lab {
    /// With fast elections: a leader that hears nothing is one no more after half a second.
    pub(crate) fn up(members: u8) -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        let lab = Self { name: format!("c{}-{nanos:x}-{number}", std::process::id()) };
        lab.done(&format!("lab up --lab {} --etcd {members} --heartbeat-interval 50", lab.name));
        lab
    }

    /// Runs playdead; `LAB` in the line stands for the lab's name.
    pub(crate) fn run(&self, line: &str) -> Output {
        playdead().args(line.replace("LAB", &self.name).split_whitespace()).output().unwrap()
    }

    /// The same, and it must succeed; gives what it printed.
    #[track_caller]
    pub(crate) fn done(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The same with `--json`.
    #[track_caller]
    pub(crate) fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.done(&format!("--json {line}"))).unwrap()
    }

    /// What `quorum` sees, and it must see it in time.
    #[track_caller]
    pub(crate) fn quorum(&self, more: &str) -> Seen {
        let seen = Seen(self.json(&format!("quorum --lab LAB {more}")));
        assert!(seen.0["took_ms"].as_f64().unwrap() < 1500.0, "{}", seen.0);
        seen
    }

    /// Looks until it is so.
    #[track_caller]
    pub(crate) fn quorum_until(&self, what: &str, so: impl Fn(&Seen) -> bool) -> Seen {
        self.until("quorum --lab LAB", what, so)
    }

    /// The same with another command line.
    #[track_caller]
    pub(crate) fn until(&self, line: &str, what: &str, so: impl Fn(&Seen) -> bool) -> Seen {
        let start = Instant::now();
        loop {
            let seen = Seen(self.json(line));
            if so(&seen) {
                return seen;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "never: {what}; last: {}", seen.0);
        }
    }

    /// Writes a file that is gone with the lab.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.directory().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text.replace("LAB", &self.name)).unwrap();
        path.display().to_string()
    }

    fn directory(&self) -> PathBuf {
        std::env::temp_dir().join(format!("playdead-{}", self.name))
    }

    /// Whether a ping from a node comes back: that takes both directions.
    pub(crate) fn pings(&self, from: &str, to: &str) -> bool {
        let namespace = format!("{}-{from}", self.name);
        let ping = ["netns", "exec", &namespace, "ping", "-q", "-c1", "-W1", to];
        Command::new("ip").args(ping).output().unwrap().status.success()
    }

    /// The ruleset of a node as nft lists it.
    pub(crate) fn listed(&self, node: &str) -> String {
        let namespace = format!("{}-{node}", self.name);
        let output = Command::new("ip").args(["netns", "exec", &namespace, "nft", "list", "ruleset"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.run("lab down --lab LAB --purge");
        let _ = std::fs::remove_dir_all(self.directory());
    }
}

/// The document of `quorum`.
pub(crate) struct Seen(pub(crate) Value);

impl Seen {
    /// The view of a member from a place; `None`: its own.
    #[track_caller]
    pub(crate) fn view(&self, member: &str, from: Option<&str>) -> &Value {
        let views = self.0["views"].as_array().unwrap();
        views.iter().find(|view| view["member"] == member && view["from"].as_str() == from).unwrap()
    }

    /// Live, able and quorum of a member, as it sees itself.
    #[track_caller]
    pub(crate) fn own(&self, member: &str) -> [String; 3] {
        let view = self.view(member, None);
        let able = if view["able"]["able"].as_bool().unwrap() { "yes" } else { "no" };
        [&view["live"]["answer"], &able.into(), &view["quorum"]["answer"]]
            .map(|answer| answer.as_str().unwrap().to_owned())
    }

    /// The members through which the cluster answered.
    pub(crate) fn through(&self) -> Vec<&str> {
        self.0["quorum"]["through"].as_array().unwrap().iter().filter_map(Value::as_str).collect()
    }

    /// The leader's name.
    pub(crate) fn leader(&self) -> Option<&str> {
        self.0["quorum"]["leader"].as_str()
    }

    /// The leader's term.
    pub(crate) fn term(&self) -> Option<u64> {
        self.0["quorum"]["term"].as_u64()
    }
}
