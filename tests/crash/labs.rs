//! `lab up` and `lab down`: whatever a kill leaves, `down` removes, and `up` makes the lab again.

use std::ffi::OsString;
use std::fs;
use std::process::{Command, Output};

use libtest_mimic::Trial;

use crate::net::cli::{playdead, words};
use crate::sweep::{Subject, trial};
use crate::tracer::Run;

/// After one in so many kills the lab is made again: that takes a second.
const AGAIN: usize = 8;

struct Lab {
    name: String,
    /// It is `down` that is killed.
    down: bool,
    kills: usize,
}

pub(crate) fn trials() -> Vec<Trial> {
    [("lab-up", false), ("lab-down", true)]
        .map(|(name, down)| {
            let make = move || Lab { name: format!("cr{}{name}", std::process::id()), down, kills: 0 };
            trial(name, make)
        })
        .into()
}

impl Lab {
    fn command(&self, line: &str) -> Vec<OsString> {
        let lab = ["lab", "--lab", &self.name].into_iter().chain(words(line)).map(OsString::from);
        std::iter::once(playdead().get_program().to_owned()).chain(lab).collect()
    }

    fn run(&self, line: &str) -> Output {
        let command = self.command(line);
        Command::new(&command[0]).args(&command[1..]).output().unwrap()
    }

    fn done(&self, line: &str) -> Result<(), String> {
        let output = self.run(line);
        if output.status.success() { Ok(()) } else { Err(format!("{line}: {output:?}")) }
    }

    /// Everything on the machine that bears the lab's name.
    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for directory in ["/run/netns", "/etc/netns", "/var/lib/playdead"] {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            left.push(String::from_utf8_lossy(&words).replace('\0', " "));
        }
        left.retain(|thing| thing.contains(&format!("/{}", self.name)));
        left
    }

    fn check_down(&self) -> Result<(), String> {
        self.done("down --purge")?;
        let left = self.left();
        if left.is_empty() { Ok(()) } else { Err(format!("left after down: {left:?}")) }
    }
}

const UP: &str = "up --etcd 1 --heartbeat-interval 50";

impl Subject for Lab {
    fn prepare(&mut self) -> Vec<OsString> {
        if !self.down {
            return self.command(UP);
        }
        self.done(UP).unwrap();
        self.command("down --purge")
    }

    fn look(&mut self, _: &Run) -> Result<&'static str, String> {
        let what = if self.left().is_empty() { "nothing there" } else { "something there" };
        self.check_down()?;
        self.kills += 1;
        if self.kills.is_multiple_of(AGAIN) && !self.down {
            self.done(UP)?;
            self.check_down()?;
        }
        Ok(what)
    }

    fn few(&self) -> usize {
        if self.down { 4 } else { 8 }
    }

    fn is_slow(&self) -> bool {
        true
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.run("down --purge");
    }
}
