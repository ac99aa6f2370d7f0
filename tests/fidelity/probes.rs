//! How the client looks at the peer. Each probe has a port of its own, by which its packets are known.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use playdead::kernel::netns::NetNs;
use playdead::probe::{Keepalive, Observation, Options, Outcome, Probe as Library, Watch, What};

use crate::etcd;
use crate::pace;
use crate::places::{Family, Rig};
use crate::record::Seen;

/// The first port; the probe's number is added.
const FIRST_PORT: u16 = 2379;

/// Asks first when every event is over, also a reboot.
fn keepalive() -> Keepalive {
    let idle = Duration::from_secs(2) + pace::longer();
    Keepalive { idle: idle.as_secs().try_into().unwrap(), interval: 1, count: 1 }
}

/// From the probe `ping` to `raw-ping`.
const PINGS_APART: Duration = Duration::from_millis(15);

/// A way to look at the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Probe {
    Connect,
    PollConnect,
    Idle,
    Writing,
    UserTimeout,
    Keepalive,
    /// An open connection on which a request was sent that the process has not read.
    Unread,
    Udp,
    UdpRecverr,
    Ping,
    RawPing,
    /// An open `etcdctl watch`: an HTTP/2 connection with its own keepalive.
    EtcdWatch,
}

impl Probe {
    pub(crate) const ALL: &[Self] = &[
        Self::Connect,
        Self::PollConnect,
        Self::Idle,
        Self::Writing,
        Self::UserTimeout,
        Self::Keepalive,
        Self::Unread,
        Self::Udp,
        Self::UdpRecverr,
        Self::Ping,
        Self::RawPing,
        Self::EtcdWatch,
    ];
    /// Those that need no etcd.
    pub(crate) const PLAIN: &[Self] = Self::ALL.split_at(11).0;
    /// Those that do.
    pub(crate) const ETCD: &[Self] = Self::ALL.split_at(11).1;

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unread => "unread",
            Self::EtcdWatch => "etcd-watch",
            other => other.library().unwrap().name(),
        }
    }

    /// The same in playdead's own library.
    fn library(self) -> Option<Library> {
        Some(match self {
            Self::Connect => Library::Connect,
            Self::PollConnect => Library::PollConnect,
            Self::Idle => Library::Idle,
            Self::Writing => Library::Writing,
            Self::UserTimeout => Library::UserTimeout,
            Self::Keepalive => Library::Keepalive,
            Self::Udp => Library::Udp,
            Self::UdpRecverr => Library::UdpRecverr,
            Self::Ping => Library::Ping,
            Self::RawPing => Library::RawPing,
            Self::Unread | Self::EtcdWatch => return None,
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
        Self::ETCD.contains(&self)
    }

    /// Opens what must be open before the event.
    pub(crate) fn open<'a>(self, rig: &Rig, client: &'a NetNs, timeout: Duration) -> Open<'a> {
        let targets = rig.targets(self.port());
        match (self, self.library()) {
            (_, Some(probe)) => {
                // What a stopped process leaves unread closes its window, after some 60 requests on Linux 6.1; what a
                // hung one leaves is read (docs/fidelity.md).
                let timeout = if probe == Library::Writing { timeout.saturating_sub(pace::longer()) } else { timeout };
                let how = Options { timeout, probes: vec![probe], keepalive: keepalive(), ..Options::default() };
                Open::Library(probe, Watch::open(client, &targets, &how).unwrap())
            }
            (Self::EtcdWatch, _) => {
                let watches = targets.map(|target| (Family::of(target.ip()), etcd::Watch::open(rig, target)));
                Open::EtcdWatch(watches.into(), timeout)
            }
            _ => Open::Unread(
                targets.map(|target| (Family::of(target.ip()), open_unread(client, target))).into(),
                timeout,
            ),
        }
    }
}

/// A probe that waits for the event.
pub(crate) enum Open<'a> {
    Library(Library, Watch<'a>),
    Unread(Vec<(Family, TcpStream)>, Duration),
    EtcdWatch(Vec<(Family, etcd::Watch)>, Duration),
}

impl Open<'_> {
    /// Time zero.
    pub(crate) fn event(&mut self) {
        if let Self::Library(_, watch) = self {
            watch.event();
        }
    }

    /// What each family saw; `happened` is when the event was complete.
    pub(crate) fn finish(self, zero: Instant, happened: Instant) -> Vec<(Family, Seen)> {
        match self {
            Self::Library(probe, watch) => {
                // Pings have no ports: the one that comes first is known by that.
                if probe == Library::RawPing {
                    thread::sleep(PINGS_APART);
                }
                let seen = watch.finish().unwrap();
                let complete_ms = (happened - zero).as_secs_f64() * 1e3;
                seen.iter().map(|seen| (Family::of(seen.target.ip()), from_observation(seen, complete_ms))).collect()
            }
            Self::Unread(streams, timeout) => {
                let until = Instant::now() + timeout;
                in_parallel(streams, |stream| end_of(stream, happened, until))
            }
            Self::EtcdWatch(watches, timeout) => {
                let until = Instant::now() + timeout;
                in_parallel(watches, |watch| watch.end(happened, until))
            }
        }
    }
}

fn in_parallel<T: Send>(each: Vec<(Family, T)>, run: impl Fn(T) -> Seen + Sync) -> Vec<(Family, Seen)> {
    let run = &run;
    thread::scope(|scope| {
        let threads: Vec<_> = each.into_iter().map(|(family, one)| (family, scope.spawn(move || run(one)))).collect();
        threads.into_iter().map(|(family, thread)| (family, thread.join().unwrap())).collect()
    })
}

/// How long it takes to kill a process, or to start playdead, is not the client's to see: what was open before counts
/// from when the event was complete.
fn from_observation(seen: &Observation, complete_ms: f64) -> Seen {
    let was_open = seen.started_ms < 0.0;
    let (from, origin) = match seen.probe {
        // Its timer runs since the connection was made; what the peer says does not.
        Library::Keepalive if seen.outcome != Outcome::EndOfFile => (seen.started_ms, seen.started_ms),
        _ if was_open => (complete_ms, complete_ms),
        _ => (0.0, seen.started_ms),
    };
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
            if seen.outcome == Outcome::Answered || tcp.state == "CLOSE" {
                return tcp.state.to_owned();
            }
            format!("{} unacked {} retransmits {}", tcp.state, tcp.unacked > 0, tcp.retransmits > 0)
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
