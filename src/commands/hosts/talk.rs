//! The conversation with one host's [`share`](super::super::share).

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use serde_json::Value;

use crate::cluster::{Node, Place, Scratch, Ssh, last_line, no_ssh};
use crate::commands::share::{Ask, PROTOCOL, Part, Replaced, Say, Share, nanos};
use crate::kernel::thread::start;
use crate::kernel::{Missing, timer};

/// How long a host has to log us in and to say hello. ssh itself gives up connecting after 10 s.
const HELLO: Duration = Duration::from_secs(30);
/// How long it has to compile and check; names may have to be looked up.
const PREPARING: Duration = Duration::from_secs(30);
/// How long the time that it tells may take, and that it healed.
const ANSWER: Duration = Duration::from_secs(5);
/// How often it is asked what its clock shows; the quickest answer is the best.
const TIMES: usize = 5;
/// As much as is read of what it says on standard error.
pub(super) const MOST_ERRORS: usize = 1 << 16;

/// One node, ready to be told what to do.
pub(super) struct Talk {
    pub(super) node: Node,
    /// By which the others may reach it, as it says itself.
    pub(super) addresses: Vec<IpAddr>,
    /// Which network namespace, on which machine.
    pub(super) namespace: String,
    /// The partitions that are in force there.
    pub(super) shares: Vec<Share>,
    /// How far its monotonic clock is ahead of ours, in nanoseconds.
    ahead: i128,
    /// How long the question took that told so: half of it is how far that may be wrong.
    pub(super) round_trip: Duration,
    child: Child,
    stdin: Option<ChildStdin>,
    said: Receiver<Say>,
    errors: Scratch,
}

/// What a node says of what is in force.
pub(super) struct Committed {
    /// Since so many nanoseconds after the instant (before it, if negative).
    pub(super) after_ns: i128,
    /// As it is printed as text, and as a document.
    pub(super) line: String,
    pub(super) document: Value,
    pub(super) notes: Vec<String>,
    pub(super) replaced: Vec<Replaced>,
}

/// What came of a commit.
pub(super) enum Came {
    /// It is in force.
    Committed(Committed),
    /// Nothing was heard.
    Silence,
    /// It failed there, and nothing is in force.
    Failed(Error),
}

impl Talk {
    /// Logs in, hears what is there, and compares the clocks. Nothing changes there.
    pub(super) fn open(node: &Node) -> Result<Self> {
        let mut command = arrived(node, &["share"])?;
        let errors = Scratch::new().context("no room for a file")?;
        // A process group of its own: what a terminal sends to end us must leave us the means to heal.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors.end()?);
        let mut child = command.spawn().map_err(no_ssh)?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("no standard output")?;
        let (send, said) = channel();
        start(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Ok(say) = serde_json::from_str(&line) else { return };
                if send.send(say).is_err() {
                    return;
                }
            }
        })?;
        let (node, round_trip) = (node.clone(), Duration::MAX);
        let (addresses, namespace, shares) = (Vec::new(), String::new(), Vec::new());
        let mut talk = Self { node, addresses, namespace, shares, ahead: 0, round_trip, child, stdin, said, errors };
        talk.greet()?;
        (0..TIMES).try_for_each(|_| talk.compare_clocks())?;
        Ok(talk)
    }

    fn greet(&mut self) -> Result<()> {
        match self.hear(HELLO)? {
            Some(Say::Hello { protocol: PROTOCOL, addresses, namespace, shares, .. }) => {
                (self.addresses, self.namespace, self.shares) = (addresses, namespace, shares);
                Ok(())
            }
            Some(Say::Hello { version, .. }) => {
                let own = env!("CARGO_PKG_VERSION");
                Err(Missing(format!("playdead {version} is there, which does not understand {own}: install that"))
                    .into())
            }
            Some(_) => bail!("what answers there is not playdead"),
            None => bail!("no answer in {} s", HELLO.as_secs()),
        }
    }

    /// What it tells it knew in the middle between question and answer, give or take half of that time.
    fn compare_clocks(&mut self) -> Result<()> {
        let asked = timer::now()?;
        self.say(&Ask::Clock)?;
        let Some(Say::Clock { ns }) = self.hear(ANSWER)? else { bail!("it does not tell what its clock shows") };
        let round_trip = timer::now()?.saturating_sub(asked);
        if round_trip < self.round_trip {
            self.round_trip = round_trip;
            self.ahead = i128::from(ns) - i128::from(nanos(asked + round_trip / 2));
        }
        Ok(())
    }

    /// Has it compiled and checked. Gives the rules, and the document of what would be.
    pub(super) fn prepare(&mut self, part: &Part) -> Result<(String, Value)> {
        self.say(&Ask::Prepare(part.clone()))?;
        match self.hear(PREPARING)? {
            Some(Say::Prepared { rules, document }) => Ok((rules, document)),
            Some(_) => bail!("it does not say that it is ready"),
            None => bail!("not ready after {} s", PREPARING.as_secs()),
        }
    }

    /// Tells it the instant, by our clock.
    pub(super) fn commit(&mut self, at: Duration) -> Result<()> {
        let at_ns = i128::from(nanos(at)) + self.ahead;
        self.say(&Ask::Commit { at_ns: u64::try_from(at_ns).context("its clock shows no time")? })
    }

    /// Hears what came of it, until then by our clock.
    pub(super) fn outcome(&mut self, at: Duration, until: Instant) -> Came {
        match self.hear(until.saturating_duration_since(Instant::now())) {
            Ok(Some(Say::Committed { at_ns, line, document, notes, replaced })) => {
                let after_ns = i128::from(at_ns) - self.ahead - i128::from(nanos(at));
                Came::Committed(Committed { after_ns, line, document, notes, replaced })
            }
            Ok(Some(_)) => Came::Failed(anyhow!("it does not say what came of it")),
            Ok(None) => Came::Silence,
            Err(error) => Came::Failed(error),
        }
    }

    /// Has it taken back what it committed. Gives the packets that it met, to its peers and from them.
    pub(super) fn heal(&mut self) -> Result<Option<[u64; 2]>> {
        self.say(&Ask::Heal)?;
        match self.hear(ANSWER)? {
            Some(Say::Healed { packets }) => Ok(packets),
            _ => bail!("it does not say that it is healed"),
        }
    }

    /// The packets that it has met so far.
    pub(super) fn hits(&mut self) -> Result<Option<[u64; 2]>> {
        self.say(&Ask::Hits)?;
        match self.hear(ANSWER)? {
            Some(Say::Hits { packets }) => Ok(packets),
            _ => bail!("{}: it does not say what it met", self.node.name),
        }
    }

    fn say(&mut self, ask: &Ask) -> Result<()> {
        let line = serde_json::to_string(ask)? + "\n";
        let sent = self.stdin.as_mut().map(|stdin| stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(self.why_it_ended()),
        }
    }

    /// `None`: nothing came in that time.
    fn hear(&mut self, patience: Duration) -> Result<Option<Say>> {
        match self.said.recv_timeout(patience) {
            Ok(say) => Ok(Some(say)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.why_it_ended()),
        }
    }

    fn why_it_ended(&mut self) -> Error {
        let until = Instant::now() + ANSWER;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
                _ => return anyhow!("what answers there is not playdead"),
            }
        };
        let said = self.errors.read(MOST_ERRORS).unwrap_or_default();
        explain(&self.node, status, &String::from_utf8_lossy(&said))
    }
}

impl Drop for Talk {
    /// It ends by itself when nobody listens; ssh, over a line that is cut, would not.
    fn drop(&mut self) {
        self.stdin = None;
        let until = Instant::now() + Duration::from_millis(200);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Why playdead in the node's place did not end well; `said` is what came on standard error.
pub(super) fn explain(node: &Node, status: ExitStatus, said: &str) -> Error {
    match node.ssh() {
        Some(ssh) => ssh.explain(status, said),
        None if status.code() == Some(4) => Missing(last_line(said).to_owned()).into(),
        None => anyhow!("{}", last_line(said)),
    }
}

/// The same as [`playdead`], on a host that can be logged in to.
pub(super) fn arrived(node: &Node, words: &[&str]) -> Result<Command> {
    let command = playdead(node, words)?;
    node.ssh().map_or(Ok(()), Ssh::arrive)?;
    Ok(command)
}

/// playdead with these words in the node's place, wherever that is.
pub(super) fn playdead(node: &Node, words: &[&str]) -> Result<Command> {
    let place = node.place.as_ref().with_context(|| format!("the node {} has no place, only addresses", node.name))?;
    if let Place::Ssh(ssh) = place {
        return Ok(ssh.playdead(&[&["--here", &node.name], words].concat()));
    }
    let mut command = Command::new(std::env::current_exe().context("cannot find playdead itself")?);
    match place {
        Place::NetNs(name) => command.args(["--netns", name]),
        Place::Pid(pid) => command.args(["--pid", &pid.to_string()]),
        Place::Container(name) => command.args(["--container", name]),
        Place::Node(name) => command.args(["--node", name]),
        Place::Ssh(_) => &mut command,
    };
    command.args(words);
    Ok(command)
}
