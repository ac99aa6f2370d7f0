//! How the client looks at the peer. Each probe has a port of its own, by which its packets are known.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use playdead::kernel::netns::NetNs;
use playdead::probe::{Observation, Options, Outcome, Probe as Library, Watch, What};
use serde::{Deserialize, Serialize};

use crate::places::{Family, Rig};
use crate::record::Seen;

/// The first port; the probe's number is added.
const FIRST_PORT: u16 = 2379;

/// A way to look at the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Probe {
    Connect,
    Idle,
    Writing,
    Udp,
    UdpRecverr,
    Ping,
    /// An open connection on which a request was sent that the process has not read.
    Unread,
}

impl Probe {
    pub(crate) const ALL: &[Self] =
        &[Self::Connect, Self::Idle, Self::Writing, Self::Udp, Self::UdpRecverr, Self::Ping, Self::Unread];

    /// Those that share a run.
    pub(crate) const PLAIN: &[Self] = Self::ALL;

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unread => "unread",
            other => other.library().unwrap().name(),
        }
    }

    /// The same in playdead's own library.
    fn library(self) -> Option<Library> {
        Some(match self {
            Self::Connect => Library::Connect,
            Self::Idle => Library::Idle,
            Self::Writing => Library::Writing,
            Self::Udp => Library::Udp,
            Self::UdpRecverr => Library::UdpRecverr,
            Self::Ping => Library::Ping,
            Self::Unread => return None,
        })
    }

    pub(crate) fn port(self) -> u16 {
        let number = Self::ALL.iter().position(|probe| *probe == self).unwrap();
        FIRST_PORT + u16::try_from(number).unwrap()
    }

    pub(crate) fn at_port(port: u16) -> Option<Self> {
        Self::ALL.get(usize::from(port.checked_sub(FIRST_PORT)?)).copied()
    }

    /// Every port of every probe, as playdead reads them.
    pub(crate) fn ports() -> String {
        format!("{FIRST_PORT}-{}", Self::ALL.last().unwrap().port())
    }

    pub(crate) fn needs_etcd(self) -> bool {
        false
    }

    /// Opens what must be open before the event.
    pub(crate) fn open<'a>(self, rig: &Rig, client: &'a NetNs, timeout: Duration) -> Open<'a> {
        let targets = rig.targets(self.port());
        match self.library() {
            Some(probe) => {
                let how = Options { timeout, probes: vec![probe], ..Options::default() };
                Open::Library(Watch::open(client, &targets, &how).unwrap())
            }
            None => Open::Unread(targets.map(|target| (family(target), open_unread(client, target))).into(), timeout),
        }
    }
}

/// A probe that waits for the event.
pub(crate) enum Open<'a> {
    Library(Watch<'a>),
    Unread(Vec<(Family, TcpStream)>, Duration),
}

impl Open<'_> {
    /// Time zero.
    pub(crate) fn event(&mut self) {
        if let Self::Library(watch) = self {
            watch.event();
        }
    }

    /// What each family saw; `happened` is when the event was complete.
    pub(crate) fn finish(self, zero: Instant, happened: Instant) -> Vec<(Family, Seen)> {
        match self {
            Self::Library(watch) => {
                let seen = watch.finish().unwrap();
                let complete_ms = (happened - zero).as_secs_f64() * 1e3;
                seen.iter().map(|seen| (family(seen.target), from_observation(seen, complete_ms))).collect()
            }
            Self::Unread(streams, timeout) => {
                let until = Instant::now() + timeout;
                let start = |(family, stream)| (family, thread::spawn(move || end_of(stream, happened, until)));
                let threads: Vec<_> = streams.into_iter().map(start).collect();
                threads.into_iter().map(|(family, thread)| (family, thread.join().unwrap())).collect()
            }
        }
    }
}

fn family(target: SocketAddr) -> Family {
    if target.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// How long it takes to kill a process, or to start playdead, is not the client's to see: what was open before counts
/// from when the event was complete.
fn from_observation(seen: &Observation, complete_ms: f64) -> Seen {
    let was_open = seen.started_ms < 0.0;
    let (from, origin) = if was_open { (complete_ms, complete_ms) } else { (0.0, seen.started_ms) };
    let untimed = matches!(seen.outcome, Outcome::Silence | Outcome::Acknowledged | Outcome::Unacknowledged);
    let mut errors: Vec<_> = seen.errors.iter().map(|error| format!("{error:?}")).collect();
    errors.dedup();
    Seen {
        outcome: match &seen.outcome {
            Outcome::Untried { why } => format!("not tried: {why}"),
            other => other.to_string(),
        },
        took_ms: (!untimed).then(|| (seen.took_ms - from).max(0.0)),
        errors,
        steps: seen.steps.iter().map(|step| ((step.at_ms - origin).max(0.0), step_name(&step.what))).collect(),
        kernel: seen.tcp.as_ref().map(|tcp| {
            let Outcome::Answered = seen.outcome else {
                return format!("{} unacked {} retransmits {}", tcp.state, tcp.unacked > 0, tcp.retransmits > 0);
            };
            tcp.state.to_owned()
        }),
        ..Seen::default()
    }
}

/// How much one read collects depends on when the client's process runs.
fn step_name(what: &What) -> String {
    match what {
        What::Received { .. } => "Received".to_owned(),
        other => format!("{other:?}"),
    }
}

/// A request that the process on the probe's port never reads.
fn open_unread(client: &NetNs, target: SocketAddr) -> TcpStream {
    let mut stream = client.run(|| TcpStream::connect(target)).unwrap().unwrap();
    stream.write_all(b"never read").unwrap();
    stream
}

fn end_of(mut stream: TcpStream, happened: Instant, until: Instant) -> Seen {
    stream.set_read_timeout(Some(until.saturating_duration_since(Instant::now()))).unwrap();
    let end = stream.read(&mut [0; 16]);
    let took_ms = happened.elapsed().as_secs_f64() * 1e3;
    let (outcome, timed) = match end {
        Ok(0) => ("end of file".to_owned(), true),
        Ok(_) => ("answered".to_owned(), true),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => ("silence".to_owned(), false),
        Err(error) => (format!("{:?}", nix::errno::Errno::from_raw(error.raw_os_error().unwrap())), true),
    };
    Seen { outcome, took_ms: timed.then_some(took_ms), ..Seen::default() }
}
