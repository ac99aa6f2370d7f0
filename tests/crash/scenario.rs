//! `run`: its faults go with it, and what it has paused, started and made is put right by its helper.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::net::cli::playdead;
use crate::places::Places;
use crate::sweep::{Subject, trial};
use crate::tracer::Run;

/// How long the helper may take.
const RIGHT: Duration = Duration::from_secs(5);

struct Scenario {
    places: Places,
    file: PathBuf,
    /// What is paused for real.
    victim: Pid,
    /// The length of a sleep that nobody else sleeps.
    background: String,
    seen: Duration,
    right: Duration,
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("run", Scenario::new)]
}

impl Scenario {
    fn new() -> Self {
        let places = Places::new(1);
        let (name, victim) = (places.names[0].clone(), orphan());
        let background = format!("99999.{}", victim.as_raw());
        let file = std::env::temp_dir().join(format!("playdead-{name}-scenario.toml"));
        let text = format!(
            "telemetry.on = false\n\
             [nodes.a]\nnetns = \"{name}\"\naddresses = [\"10.99.0.1\"]\n\
             [nodes.a.commands]\npause = \"sleep 0.03; kill -STOP {victim}\"\nresume = \"kill -CONT {victim}\"\n\
             [[steps]]\nfault = \"dead-host 10.99.0.2 --node a --name dead\"\n\
             [[steps]]\nflap = \"dead-host 10.99.0.3 --up 20ms --down 20ms --node a --name comes\"\n\
             [[steps]]\npause = \"a\"\n\
             [[steps]]\nrun = {{ command = \"sleep {background}\", background = true }}\n\
             [[steps]]\nresume = \"a\"\n\
             [[steps]]\npause = \"a\"\n\
             [[steps]]\nheal = \"all\"\n"
        );
        fs::write(&file, text).unwrap();
        Self { places, file, victim, background, seen: Duration::ZERO, right: Duration::ZERO }
    }

    /// What the helper has to put right yet.
    fn amiss(&self, runner: Pid) -> Vec<String> {
        let mut amiss = Vec::new();
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.victim)).unwrap();
        if stat.contains(") T ") {
            amiss.push("a process is still paused".into());
        }
        amiss.extend(work_of(runner).map(|work| format!("{} is left", work.display())));
        for pid in sleeping(&self.background) {
            amiss.push(format!("process {pid} still runs in the background"));
        }
        amiss
    }

    /// Of what the helper does not do: so that the next run finds nothing of this one's.
    fn clean(&self, runner: Pid) {
        let _ = kill(self.victim, Signal::SIGCONT);
        work_of(runner).for_each(|work| drop(fs::remove_dir_all(work)));
        for pid in sleeping(&self.background) {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

impl Subject for Scenario {
    fn prepare(&mut self) -> Vec<OsString> {
        let words = ["run".into(), self.file.clone().into_os_string()];
        std::iter::once(playdead().get_program().to_owned()).chain(words).collect()
    }

    fn look(&mut self, run: &Run) -> Result<&'static str, String> {
        self.seen = self.seen.max(self.places.check_gone(run)?);
        // What is not amiss yet may be so in a moment.
        let quiet = Duration::from_millis(100);
        let (mut last, mut amiss) = (Instant::now(), self.amiss(run.root));
        let mut right = run.killed.elapsed();
        while last.elapsed() < quiet {
            if !amiss.is_empty() {
                if run.killed.elapsed() > RIGHT {
                    self.clean(run.root);
                    return Err(amiss.join(", "));
                }
                last = Instant::now();
                right = run.killed.elapsed();
            }
            sleep(Duration::from_millis(5));
            amiss = self.amiss(run.root);
        }
        self.right = self.right.max(right);
        Ok("none")
    }

    fn few(&self) -> usize {
        8
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn measured(&self) -> String {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        format!(
            "; in force until {:.0} ms after it at most, all put right after {:.0} ms",
            ms(self.seen),
            ms(self.right)
        )
    }
}

impl Drop for Scenario {
    fn drop(&mut self) {
        let _ = kill(self.victim, Signal::SIGKILL);
        let _ = fs::remove_file(&self.file);
    }
}

/// The directories that a runner has made: each has its id, and a number by chance.
fn work_of(runner: Pid) -> impl Iterator<Item = PathBuf> {
    let ours = format!("playdead-run-{runner}-");
    let entries = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    entries.filter(move |entry| entry.file_name().to_string_lossy().starts_with(&ours)).map(|entry| entry.path())
}

/// A process that is nobody's child here: the tracer waits for all of its own.
fn orphan() -> Pid {
    let output = Command::new("sh").args(["-c", "sleep 99999 >/dev/null 2>&1 & echo $!"]).output().unwrap();
    Pid::from_raw(String::from_utf8(output.stdout).unwrap().trim().parse().unwrap())
}

/// The processes that `sleep` so long, or are about to.
fn sleeping(long: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let is_ours = |path: &PathBuf| {
        let words = fs::read(path.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(&format!("sleep\0{long}"))
            || String::from_utf8_lossy(&words).contains(&format!("sleep {long}"))
    };
    entries.filter(is_ours).filter_map(|path| pid(&path)).collect()
}

fn pid(path: &Path) -> Option<Pid> {
    path.file_name()?.to_str()?.parse().ok().map(Pid::from_raw)
}
