//! A node on another host, reached by the system's own OpenSSH and the user's own configuration of it.
//!
//! Words for the other host pass its user's shell, and are quoted for it; no shell of this host sees them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::child::output;
use crate::kernel::Missing;

/// Runs playdead as root. Its own exit codes are small; these two are [`explain`](Ssh::explain)'s.
const AS_ROOT: &str = "command -v playdead >/dev/null || exit 91
[ \"$(id -u)\" = 0 ] && exec playdead \"$@\"
sudo -n -l playdead \"$@\" >/dev/null 2>&1 || exit 94
exec sudo -n playdead \"$@\"";
/// A shell gives what is in the background no standard input, but any other descriptor.
const SUPERVISED: &str = "exec 3<&0
setsid sh -c \"$1\" 3<&- </dev/null & child=$!
{ cat <&3; kill -s TERM -- -$child; sleep 2; kill -s KILL -- -$child; } >/dev/null 2>&1 & watch=$!
exec 3<&-
wait $child; code=$?
kill $watch
exit $code";
/// How long it may take until a host has done what takes no time: after a login, above all.
pub const ANSWER: Duration = Duration::from_secs(30);
/// How long a connection may take to end.
const ENDING: Duration = Duration::from_secs(2);
const NO_PLAYDEAD: i32 = 91;
const NO_RIGHTS: i32 = 94;
/// What ssh itself ends with when it cannot reach the host.
const NOT_REACHED: i32 = 255;
/// A path of a socket has 108 bytes; ssh adds 40 hexadecimal digits and, for a while, 17 more characters.
const LONGEST_DIRECTORY: usize = 30;

/// Whom ssh is told to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ssh {
    destination: String,
    config: Option<PathBuf>,
}

impl Ssh {
    /// `HOST` or `USER@HOST`, as ssh and its configuration know it; `config` is read instead of the user's own.
    ///
    /// # Errors
    /// When it would be an option for ssh, or is no single word.
    pub fn new(destination: &str, config: Option<PathBuf>) -> Result<Self, String> {
        let plain = |c: char| !c.is_whitespace() && !c.is_control();
        if destination.is_empty() || destination.starts_with('-') || !destination.chars().all(plain) {
            return Err(format!("{destination:?} is nobody ssh can connect to: write HOST or USER@HOST"));
        }
        Ok(Self { destination: destination.to_owned(), config })
    }

    /// playdead on the host, as root or by `sudo -n`.
    pub fn playdead(&self, words: &[&str]) -> Command {
        self.command([&["sh", "-c", AS_ROOT, "playdead"], words].concat().into_iter())
    }

    /// playdead on the host, as the user who logs in.
    pub fn playdead_as_user(&self, words: &[&str]) -> Command {
        self.command([&["playdead"], words].concat().into_iter())
    }

    /// A command for `sh -c` on the host, as the user who logs in.
    pub fn shell(&self, command: &str, env: &BTreeMap<String, String>) -> Command {
        let env: Vec<_> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let words = std::iter::once("env").chain(env.iter().map(String::as_str));
        self.command(words.chain(["sh", "-c", command]))
    }

    /// The same, but while it runs, it ends with all that it has started when its standard input does, as it does with
    /// ssh.
    pub fn supervised(&self, command: &str, env: &BTreeMap<String, String>) -> Command {
        let script = format!("set -- {}\n{SUPERVISED}", shlex::try_quote(command).unwrap_or_default());
        self.shell(&script, env)
    }

    /// `BatchMode`: nobody is there to be asked for a password. What the user's own configuration runs instead of a shell
    /// (`RemoteCommand`) is not run. All that is run for one playdead shares a connection, and one that is dead is given up
    /// after 15 s.
    fn command<'a>(&self, words: impl Iterator<Item = &'a str>) -> Command {
        let mut ssh = Command::new("ssh");
        if let Some(config) = &self.config {
            ssh.arg("-F").arg(config);
        }
        let alive = ["ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"];
        for option in ["BatchMode=yes", "RemoteCommand=none"].into_iter().chain(alive) {
            ssh.args(["-o", option]);
        }
        if let Some(path) = control_path() {
            let path = format!("ControlPath={path}%C");
            ssh.args(["-o", "ControlMaster=auto", "-o", "ControlPersist=30", "-o", &path]);
        }
        // A NUL, which alone cannot be quoted, cannot be in an argument either.
        let words = shlex::try_join(words).unwrap_or_default();
        ssh.args(["-T", "--", &self.destination, &words]);
        ssh
    }

    /// Waits until the host runs what it is told to: a login may hang, in a script of its user's or for want of a disk.
    ///
    /// # Errors
    /// When it cannot be reached, or has not run anything after [`ANSWER`].
    pub fn arrive(&self) -> Result<()> {
        self.answer(self.command(std::iter::once("true"))).map(drop)
    }

    /// The addresses by which others may reach the host, as playdead there sees them.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn addresses(&self) -> Result<Vec<IpAddr>> {
        #[derive(Deserialize)]
        struct Hello {
            addresses: Vec<IpAddr>,
        }
        self.arrive()?;
        // With nothing to read it says hello and ends.
        let hello = self.answer(self.playdead(&["share"]))?.stdout;
        let hello: Hello = serde_json::from_slice(&hello).context("its playdead does not say its addresses")?;
        ensure!(!hello.addresses.is_empty(), "it has no address: give its addresses");
        Ok(hello.addresses)
    }

    /// What a command that takes no time prints, with nothing to read.
    fn answer(&self, mut command: Command) -> Result<Output> {
        let Some(output) = output(&mut command, Some(ANSWER)).map_err(no_ssh)? else {
            bail!("{self}: no answer in {} s", ANSWER.as_secs())
        };
        if !output.status.success() {
            return Err(self.explain(output.status, &String::from_utf8_lossy(&output.stderr)));
        }
        Ok(output)
    }

    /// Why what was to be run there did not end well; `said` is what came on standard error.
    pub fn explain(&self, status: ExitStatus, said: &str) -> Error {
        let host = &self.destination;
        match status.code() {
            Some(NO_PLAYDEAD) => Missing(format!("ssh {host}: no playdead is installed there")).into(),
            Some(NO_RIGHTS) => Missing(format!(
                "ssh {host}: its user may not change rules there: log in as root, or allow sudo playdead without a \
                 password"
            ))
            .into(),
            Some(NOT_REACHED) if said.trim().is_empty() => anyhow!("ssh {host}: the connection was lost"),
            Some(NOT_REACHED) => anyhow!("ssh {host}: cannot be reached: {}", last_line(said)),
            // Its own words, which an older one says of what it does not know.
            Some(2) => match self.version() {
                Some(version) if version != env!("CARGO_PKG_VERSION") => Missing(format!(
                    "ssh {host}: playdead {version} is there, which is not {}: install that",
                    env!("CARGO_PKG_VERSION")
                ))
                .into(),
                _ => anyhow!("{}", last_line(said)),
            },
            Some(4) => Missing(last_line(said).to_owned()).into(),
            _ => anyhow!("{} ({status})", last_line(said)),
        }
    }

    fn version(&self) -> Option<String> {
        let output = output(&mut self.playdead(&["--version"]), Some(ANSWER)).ok()??;
        let text = String::from_utf8(output.stdout).ok()?;
        text.trim().strip_prefix("playdead ").map(str::to_owned)
    }
}

impl fmt::Display for Ssh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ssh {}", self.destination)
    }
}

/// The last that was said, without the name of who said it.
pub fn last_line(said: &str) -> &str {
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim();
    last.strip_prefix("playdead: ").unwrap_or(last)
}

/// That ssh cannot be started.
pub fn no_ssh(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::NotFound => Missing("there is no ssh: install openssh-client".into()).into(),
        _ => Error::new(error).context("cannot run ssh"),
    }
}

/// Where the sockets of this process's connections are, up to what ssh adds. Nowhere if no directory is ours alone.
fn control_path() -> Option<String> {
    // In a path ssh takes `%`, `$`, blanks and quotes for something else.
    let is_plain = |own: &String| own.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    let own = std::env::var("XDG_RUNTIME_DIR").ok().filter(|own| own.len() <= LONGEST_DIRECTORY).filter(is_plain);
    let own = own.filter(|own| Path::new(own).is_dir());
    let directory = own.or_else(|| geteuid().is_root().then(|| "/run".to_owned()))?;
    Some(format!("{directory}/playdead-{}-", std::process::id()))
}

/// Ends the connections of this process. Those that it does not end, as when it is killed, end after 30 s without use.
pub fn close_connections() {
    let Some(prefix) = control_path() else { return };
    let Some((directory, prefix)) = prefix.rsplit_once('/') else { return };
    for entry in Path::new(directory).read_dir().into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            let mut exit = Command::new("ssh");
            exit.args(["-F", "none", "-O", "exit", "-S"]).arg(entry.path()).arg("--").arg("playdead");
            let _ = output(&mut exit, Some(ENDING));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_other_shell_as_they_are() {
        let ssh = Ssh::new("a@b", Some("my file".into())).unwrap();
        let command = ssh.playdead(&["it's", "$(reboot)", "a b", ""]);
        let arguments: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(arguments[..2], ["-F", "my file"]);
        let [.., "--", "a@b", remote] = arguments[..] else { panic!("{arguments:?}") };
        let words = shlex::split(remote).unwrap();
        assert_eq!(words[4..], ["it's", "$(reboot)", "a b", ""]);
    }

    #[test]
    fn what_would_be_an_option_is_nobody() {
        for wrong in ["", "-oProxyCommand=x", "a b", "a\n"] {
            assert!(Ssh::new(wrong, None).is_err(), "{wrong:?}");
        }
    }
}
