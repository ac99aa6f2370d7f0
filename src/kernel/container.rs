//! Containers, known by their engine's own command.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result, anyhow, bail};
use nix::unistd::{User, geteuid};

use super::Missing;
use super::netns::NetNs;
use super::privilege::{Privilege, behind_sudo};

/// What makes an engine's command ask an engine elsewhere.
const ELSEWHERE: [&str; 4] = ["DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST", "CONTAINER_CONNECTION"];

/// The network namespace of a running Docker or Podman container, by its name or id. Root by sudo also finds those of
/// the user who called sudo: a rootless engine knows its own user's containers only, and root's knows none of them.
///
/// # Errors
/// When no engine is installed or may be asked, none runs a container of that name, several do, the engine is not of
/// this machine, or the namespace cannot be opened.
pub fn namespace(name: &str) -> Result<NetNs> {
    let container = find(name)?;
    container.check_is_here(name)?;
    NetNs::of_container(container.pid).with_context(|| format!("container {name:?}"))
}

/// A running container.
#[derive(Debug)]
struct Container {
    engine: Engine,
    id: String,
    /// Its first process, as the engine counts processes.
    pid: u32,
}

impl Container {
    /// As the engines print it.
    fn short_id(&self) -> &str {
        self.id.get(..12).unwrap_or(&self.id)
    }

    /// The id of a process means something only where the engine runs. That it is the container's is known by what the
    /// engine mounts there (a hosts file, say) or by its control group: the container's id is in their paths.
    fn check_is_here(&self, name: &str) -> Result<()> {
        let Self { engine, id, pid } = self;
        let texts = ["mountinfo", "cgroup"].map(|file| fs::read_to_string(format!("/proc/{pid}/{file}")));
        if texts.iter().flatten().any(|text| text.contains(id)) {
            return Ok(());
        }
        let set = ELSEWHERE.into_iter().filter_map(|key| Some(format!(" with {key}={}", std::env::var(key).ok()?)));
        let set: String = set.collect();
        bail!(
            "{engine}{set} runs the container {name:?} as process {pid}, which is not on this machine or not visible \
             from in here: run playdead where the engine runs"
        )
    }
}

/// An engine's command, and as whom it is run.
#[derive(Debug, Clone)]
struct Engine {
    program: &'static str,
    user: Option<User>,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program)?;
        self.user.as_ref().map_or(Ok(()), |user| write!(f, " of {}", user.name))
    }
}

/// What an engine answers.
enum Answer {
    Runs(Container),
    Stopped,
    /// It has none, or cannot be asked: why.
    None(String),
    NotInstalled,
}

impl Engine {
    fn both(user: Option<&User>) -> [Self; 2] {
        ["docker", "podman"].map(|program| Self { program, user: user.cloned() })
    }

    fn ask(self, name: &str) -> Result<Answer> {
        let output = match self.command().args(["--", name]).output() {
            Ok(output) => output,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Answer::NotInstalled),
            Err(error) => return Err(error).with_context(|| format!("cannot run {self}")),
        };
        let said = String::from_utf8_lossy(&output.stdout);
        let told = said.trim().split_once(' ').and_then(|(pid, id)| Some((pid.parse().ok()?, id.to_owned())));
        Ok(match told {
            Some((0, _)) => Answer::Stopped,
            Some((pid, id)) if !id.is_empty() => Answer::Runs(Container { engine: self, id, pid }),
            _ => Answer::None(format!("{self}: {}", last_line(&output.stderr))),
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.args(["inspect", "--type", "container", "--format", "{{.State.Pid}} {{.Id}}"]).stdin(Stdio::null());
        // What it says is read in one case (`permission denied`).
        command.env("LC_ALL", "C");
        if let Some(user) = &self.user {
            // The user may not be allowed to be where root is.
            Privilege::Dropped(Some(user.clone())).apply(command.current_dir("/"));
            command.env("XDG_RUNTIME_DIR", format!("/run/user/{}", user.uid));
        }
        command
    }
}

/// Podman warns of other things first.
fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    line.map_or("no answer", |line| line.trim_start_matches("Error: ")).to_owned()
}

fn find(name: &str) -> Result<Container> {
    let mut found = Found::default();
    found.ask(Engine::both(None), name)?;
    if found.is_nothing()
        && let Some(user) = behind_sudo()?
    {
        found.ask(Engine::both(Some(&user)), name)?;
    }
    found.the_one(name)
}

/// What all of them answered.
#[derive(Default)]
struct Found {
    running: Vec<Container>,
    stopped: bool,
    reasons: Vec<String>,
}

impl Found {
    fn ask(&mut self, engines: [Engine; 2], name: &str) -> Result<()> {
        for engine in engines {
            match engine.ask(name)? {
                // Docker's command may be Podman's under another name, or ask Podman's socket.
                Answer::Runs(container) if self.running.iter().any(|known| known.id == container.id) => {}
                Answer::Runs(container) => self.running.push(container),
                Answer::Stopped => self.stopped = true,
                Answer::None(reason) => self.reasons.push(reason),
                Answer::NotInstalled => {}
            }
        }
        Ok(())
    }

    const fn is_nothing(&self) -> bool {
        self.running.is_empty() && !self.stopped
    }

    fn the_one(mut self, name: &str) -> Result<Container> {
        match (self.running.pop(), self.running.pop()) {
            (Some(only), None) => Ok(only),
            (Some(one), Some(other)) => {
                let [one, other] = [one, other].map(|one| format!("{} ({})", one.short_id(), one.engine));
                bail!("two engines run a container {name:?}: name one by its id, {other} or {one}")
            }
            (None, _) if self.stopped => bail!("the container {name:?} is not running: start it first"),
            (None, _) => Err(self.none(name)),
        }
    }

    fn none(&self, name: &str) -> Error {
        let reasons = self.reasons.join("; ");
        if reasons.is_empty() {
            Missing(format!("cannot find the container {name:?}: neither docker nor podman is installed")).into()
        } else if reasons.contains("permission denied") {
            Missing(format!("cannot look for the container {name:?}: use sudo ({reasons})")).into()
        } else {
            let hint =
                if geteuid().is_root() { "; root does not see those of other users' rootless engines" } else { "" };
            anyhow!("no running container is called {name:?} ({reasons}{hint})")
        }
    }
}
