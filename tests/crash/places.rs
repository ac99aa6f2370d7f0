//! Namespaces with devices, what nft lists there, and what playdead says of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use playdead::kernel::netns::NetNs;
use playdead::model::Name;

use crate::net::cli::{playdead, timeless, words};
use crate::net::ip;
use crate::tracer::Run;

/// How long after its holder's end a fault may be seen.
const GONE: Duration = Duration::from_millis(100);

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Namespaces in which faults are made; gone with the value.
pub(crate) struct Places {
    pub(crate) names: Vec<String>,
}

/// The tables of each place, as nft lists them, without times and counts.
pub(crate) type Listed = Vec<String>;

impl Places {
    /// Each with a device that has an address beside the peers' `10.99.0.2` and `fd99::2`, and a bridge: so that a fault
    /// has tables of all families.
    pub(crate) fn new(number: usize) -> Self {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |index| format!("pdcr{}n{count}x{index}", std::process::id());
        let places = Self { names: (0..number).map(name).collect() };
        for name in &places.names {
            NetNs::create(name).unwrap();
            for line in [
                "link set lo up",
                "link add d0 type veth peer name d1",
                "link add br0 type bridge",
                "addr add 10.99.0.1/24 dev d0",
                "addr add fd99::1/64 dev d0 nodad",
                "link set d0 up",
                "link set br0 up",
                "link set d1 master br0 up",
            ] {
                ip(&[&["-n", name], &*words(line).collect::<Vec<_>>()].concat());
            }
        }
        places
    }

    /// The real command line, in all places unless it names nodes; `FILE` stands for a file of them.
    pub(crate) fn command(&self, line: &str) -> Vec<OsString> {
        let mut command = vec![playdead().get_program().to_owned()];
        let line = if line.contains("FILE") {
            line.replace("FILE", &self.nodes().display().to_string())
        } else {
            command.extend(self.names.iter().flat_map(|name| ["--netns".into(), name.into()]));
            line.to_owned()
        };
        command.extend(words(&line).map(OsString::from));
        command
    }

    /// A file of nodes, `n0`, `n1`, ..., that are the places.
    pub(crate) fn nodes(&self) -> PathBuf {
        let node = |(index, name): (usize, &String)| {
            format!("[nodes.n{index}]\nnetns = \"{name}\"\naddresses = [\"10.99.0.{}\"]\n", index + 10)
        };
        let text: String = self.names.iter().enumerate().map(node).collect();
        fs::write(self.file(), text).unwrap();
        self.file()
    }

    fn file(&self) -> PathBuf {
        std::env::temp_dir().join(format!("playdead-{}.toml", self.names[0]))
    }

    pub(crate) fn run(&self, line: &str) -> Output {
        let command = self.command(line);
        Command::new(&command[0]).args(&command[1..]).output().unwrap()
    }

    /// Runs it, and it must succeed.
    #[track_caller]
    pub(crate) fn done(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// As the kernel has it, by another program than playdead.
    pub(crate) fn listed(&self) -> Listed {
        let list = |name: &String| timeless(&ip(&["netns", "exec", name, "nft", "-s", "list", "ruleset"]));
        self.names.iter().map(list).collect()
    }

    /// How long after the kill tables were last seen, by looks that are quick; zero if none were. `None`: a look that
    /// began later than `limit` after the end of the process has seen some.
    fn last_seen(&self, run: &Run, limit: Duration) -> Option<Duration> {
        let mut seen = Duration::ZERO;
        loop {
            let asked = run.ended.elapsed();
            let is_empty = |name: &String| {
                let list = || Command::new("nft").args(["list", "tables"]).output().unwrap();
                NetNs::named(name).unwrap().run(list).unwrap().stdout.is_empty()
            };
            if self.names.iter().all(is_empty) {
                return Some(seen);
            }
            if asked > limit {
                return None;
            }
            seen = run.killed.elapsed();
        }
    }

    /// Nothing is in force in time, nor told to be. Gives how long after the kill it was last seen.
    pub(crate) fn check_gone(&self, run: &Run) -> Result<Duration, String> {
        let Some(seen) = self.last_seen(run, GONE) else {
            let listed = self.listed().concat();
            let _ = self.check_heal();
            return Err(format!("still in force after {GONE:?}: {listed}"));
        };
        self.check_status(&self.listed(), None)?;
        Ok(seen)
    }

    /// Takes away the rules of a fault, and nothing else of it.
    pub(crate) fn empty(&self, name: &str) {
        self.in_tables_of(name, |table| format!("flush {table}"));
    }

    /// Shuts the gates of a fault.
    pub(crate) fn shut(&self, name: &str) {
        self.in_tables_of(name, |table| table.replacen("table", "flush set", 1) + " gate");
    }

    fn in_tables_of(&self, name: &str, command: impl Fn(&str) -> String) {
        for place in &self.names {
            let nft = |what: &str| ip(&["netns", "exec", place, "nft", what]);
            let tables = nft("list tables");
            for table in tables.lines().filter(|table| table.ends_with(&format!("playdead-{name}"))) {
                nft(&command(table));
            }
        }
    }

    /// `status` lists what nft does, and nothing else; and nothing in it is damaged, but for what is allowed.
    pub(crate) fn check_status(&self, listed: &Listed, allowed: Option<&str>) -> Result<serde_json::Value, String> {
        let output = self.run("status --json");
        let status: serde_json::Value =
            serde_json::from_slice(&output.stdout).map_err(|error| format!("status: {error}: {output:?}"))?;
        let mut told = BTreeMap::<_, BTreeSet<_>>::new();
        for fault in status["faults"].as_array().into_iter().flatten() {
            let is_allowed = |damage: &str| allowed.is_some_and(|allowed| damage.contains(allowed));
            if !fault["damage"].as_str().is_none_or(is_allowed) {
                return Err(format!("damaged: {fault}"));
            }
            let text = |key: &str| fault[key].as_str().unwrap_or_default().to_owned();
            told.entry(text("place")).or_default().insert(text("name"));
        }
        for (place, listed) in self.names.iter().zip(listed) {
            let told = told.remove(place).unwrap_or_default();
            if told != names(listed) {
                return Err(format!("status lists {told:?}, nft {:?} in {place}", names(listed)));
            }
        }
        Ok(status)
    }

    /// `heal` heals all, and nothing is left in the kernel.
    pub(crate) fn check_heal(&self) -> Result<(), String> {
        let output = self.run("heal");
        if !output.status.success() {
            return Err(format!("heal: {output:?}"));
        }
        let left = self.listed().concat();
        if left.is_empty() { Ok(()) } else { Err(format!("not healed: {left}")) }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = NetNs::delete(name);
        }
        let _ = fs::remove_file(self.file());
    }
}

/// The faults whose tables stand in a listing.
fn names(listed: &str) -> BTreeSet<String> {
    let tables = listed.lines().filter_map(|line| line.strip_prefix("table ")?.split(' ').nth(1));
    tables.filter_map(Name::of_table).map(|name| name.to_string()).collect()
}
