//! The real binary, run on the places of a segment, and what the kernel then lists.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{At, Segment, ip};

/// The program under test, as root runs it: who may have called sudo for the tests is none of its business.
pub(crate) fn playdead() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_playdead"));
    command.env_remove("SUDO_UID");
    command
}

/// The words of a command line: separated by blanks, none quoted.
pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace()
}

/// What was printed on standard output by a command that succeeded.
#[track_caller]
pub(crate) fn stdout_of(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A listing without what depends on when it was made: the time in the comment, and what is left of leases.
pub(crate) fn timeless(listing: &str) -> String {
    let word = |(before, word): (&str, &str)| match before {
        "since" => "T\"".to_owned(),
        "expires" => "T".to_owned(),
        _ => word.trim_end_matches(',').to_owned(),
    };
    let line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let before = std::iter::once("").chain(words.iter().copied());
        before.zip(words.iter().copied()).map(word).collect::<Vec<_>>().join(" ")
    };
    listing.lines().map(line).collect::<Vec<_>>().join("\n")
}

impl Segment {
    /// Runs playdead with this PLACE.
    pub(crate) fn run(&self, at: At, line: &str) -> Output {
        playdead().args(["--netns", &self.name(at)]).args(words(line)).output().unwrap()
    }

    /// The same, and it must succeed; gives what it printed.
    #[track_caller]
    pub(crate) fn playdead(&self, at: At, line: &str) -> String {
        let output = self.run(at, line);
        assert!(output.status.success(), "{at:?} {line}: {output:?}");
        stdout_of(&output)
    }

    /// Heals all there, and nothing may be left.
    #[track_caller]
    pub(crate) fn heal(&self, at: At) {
        self.playdead(at, "heal");
        assert_eq!(self.listed(at), "", "left after heal");
    }

    /// The ruleset of a place as `nft -s list` shows it: without counters.
    pub(crate) fn listed(&self, at: At) -> String {
        ip(&["netns", "exec", &self.name(at), "nft", "-s", "list", "ruleset"])
    }

    /// Loads nft text in a place.
    pub(crate) fn nft(&self, at: At, text: &str) {
        ip(&["netns", "exec", &self.name(at), "nft", text]);
    }

    /// What is in force in a place, as `status --json` tells.
    pub(crate) fn status(&self, at: At) -> Vec<serde_json::Value> {
        let document: serde_json::Value = serde_json::from_str(&self.playdead(at, "status --json")).unwrap();
        document["faults"].as_array().unwrap().clone()
    }

    /// Starts playdead with this PLACE and waits until the fault is in force.
    pub(crate) fn hold(&self, at: At, line: &str) -> Held {
        let mut command = playdead();
        command.args(["--netns", &self.name(at)]).args(words(line));
        self.hold_by(at, command)
    }

    /// Waits until there is a rule of the fault that the command makes.
    pub(crate) fn hold_by(&self, at: At, mut command: Command) -> Held {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let held = Held { child };
        let until = Instant::now() + Duration::from_secs(60);
        while self.listed(at).is_empty() {
            assert!(Instant::now() < until, "{command:?} is not in force");
        }
        held
    }

    /// How long it takes from now until the place has no rules.
    #[track_caller]
    pub(crate) fn time_to_heal(&self, at: At, limit: Duration) -> Duration {
        let start = Instant::now();
        while !self.tables(at).is_empty() {
            assert!(start.elapsed() < limit, "still there after {limit:?}: {}", self.listed(at));
            std::thread::sleep(Duration::from_millis(1));
        }
        start.elapsed()
    }

    /// The tables there; quick, so that it can be asked often.
    fn tables(&self, at: At) -> String {
        self.netns(at)
            .run(|| Command::new("nft").args(["list", "tables"]).output().unwrap())
            .map(|output| stdout_of(&output))
            .unwrap()
    }
}

/// A playdead that holds a fault. Killed when dropped, if it has not ended.
pub(crate) struct Held {
    pub(crate) child: Child,
}

impl Held {
    pub(crate) fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Reads what it and its command print until this comes.
    pub(crate) fn wait_until_it_says(&mut self, text: &str) {
        let mut lines = BufReader::new(self.child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(text)), "it never said {text}");
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn end(mut self, limit: Duration) -> ExitStatus {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "playdead does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
