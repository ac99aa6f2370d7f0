//! A copy of /etc that programs see in its place: users and rights of theirs that are nowhere else on this machine.
#![allow(dead_code, reason = "every test program uses a part of it")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MOUNTED: &str = "mount --bind \"$0\" /etc && exec \"$@\"";

pub(crate) struct OwnEtc(PathBuf);

impl OwnEtc {
    /// The copy goes with the directory that it is made in.
    pub(crate) fn within(directory: &Path) -> Self {
        let etc = directory.join("etc");
        // Its status says too much: a lock that somebody takes meanwhile vanishes before it is copied.
        Command::new("cp").args(["-a", "/etc"]).arg(&etc).stderr(Stdio::null()).status().unwrap();
        Self(etc)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Precedes a program and its arguments. All of the directory is mounted: a file that is mounted over one of /etc, as
    /// `ip netns exec` does, is unmounted in every namespace by whoever replaces that one (`rename(2)`), as useradd does.
    pub(crate) fn words(&self) -> Vec<&OsStr> {
        ["unshare", "--mount", "sh", "-c", MOUNTED].iter().map(OsStr::new).chain([self.0.as_os_str()]).collect()
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let words = self.words();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(program);
        command
    }
}
