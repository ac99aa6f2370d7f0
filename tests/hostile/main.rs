//! Input of somebody who means harm, or of something that went wrong: names, files, paths of namespaces, what others
//! write into the kernel, where files are made, and what a command is given.

#[path = "../net/mod.rs"]
mod net;
#[path = "../own_etc/mod.rs"]
mod own_etc;

mod command;
mod files;
mod kernel;
mod names;
mod places;
mod record;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use net::cli::playdead;
use net::{At, Segment};

/// A directory that is gone when dropped.
struct Scratch(PathBuf);

impl Scratch {
    /// One that everybody may look into.
    fn new(segment: &Segment) -> Self {
        let path = std::env::temp_dir().join(segment.name(At::Client));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::write(self.0.join(name), content).unwrap();
        self.path(name)
    }

    fn fifo(&self, name: &str) -> String {
        let path = self.path(name);
        done("mkfifo", &[&path]);
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn done(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
}

/// playdead in a place.
fn at(segment: &Segment, at: At) -> Command {
    let mut command = playdead();
    command.args(["--netns", &segment.name(at)]);
    command
}

/// Its output, and it must end in that time.
#[track_caller]
fn in_time(command: &mut Command, limit: Duration) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (pid, start) = (child.id(), Instant::now());
    let waits = std::thread::spawn(move || child.wait_with_output().unwrap());
    while !waits.is_finished() {
        if start.elapsed() > limit {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), nix::sys::signal::SIGKILL);
            panic!("{command:?} is not done in {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    waits.join().unwrap()
}

/// Nothing in it makes a terminal do something.
#[track_caller]
fn assert_plain(bytes: &[u8], what: &str) {
    let text = String::from_utf8_lossy(bytes);
    let is_plain = |c: char| matches!(c, '\n' | '\t') || !c.is_control();
    assert!(text.chars().all(is_plain), "{what}: {text:?}");
}

/// One plain line that begins as all of ours do, with this code, and no result.
#[track_caller]
fn assert_refused(output: &Output, codes: &[i32], what: &str) -> String {
    let said = String::from_utf8(output.stderr.clone()).unwrap_or_else(|_| panic!("{what}: {output:?}"));
    assert!(output.status.code().is_some_and(|code| codes.contains(&code)), "{what}: {output:?}");
    assert_plain(&output.stderr, what);
    assert_eq!(said.lines().count(), 1, "{what}: {said}");
    assert!(said.starts_with("playdead: ") && said.len() < 2500, "{what}: {said}");
    assert_eq!(output.stdout, b"", "{what}: {output:?}");
    said
}

fn exists(path: &str) -> bool {
    Path::new(path).symlink_metadata().is_ok()
}
