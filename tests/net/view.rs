//! What the client sees, and whether two views are the same.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use playdead::model::signature::{Check, Expect, Verdict, judge};
use playdead::probe::{Observation, Options, Outcome, Probe, Watch, look};

use super::{At, Segment, targets};

/// Long enough for everything that happens at once, and for a first retransmit.
pub(crate) const BRIEF: Duration = Duration::from_millis(600);

pub(crate) fn everything(timeout: Duration) -> Options {
    Options { timeout, probes: Probe::USUAL.to_vec(), ..Options::default() }
}

impl Segment {
    /// Opens, lets `event` happen, and looks from the client by every probe. Time zero is the event's beginning.
    pub(crate) fn watch(&self, timeout: Duration, event: impl FnOnce()) -> Vec<Observation> {
        let ns = self.netns(At::Client);
        let mut watch = Watch::open(&ns, &targets(), &everything(timeout)).unwrap();
        self.wait_until_accepted();
        watch.event();
        event();
        watch.finish().unwrap()
    }

    /// The same for a fault. Time zero is when playdead says that it is in force: how long a process takes to start is
    /// no part of it.
    pub(crate) fn watch_fault(&self, timeout: Duration, at: At, line: &str) -> Vec<Observation> {
        let ns = self.netns(At::Client);
        let mut watch = Watch::open(&ns, &targets(), &everything(timeout)).unwrap();
        self.wait_until_accepted();
        self.playdead(at, line);
        watch.event();
        watch.finish().unwrap()
    }

    /// Looks by every probe that needs no open connection.
    pub(crate) fn look(&self, timeout: Duration, at: &[SocketAddr]) -> Vec<Observation> {
        look(&self.netns(At::Client), at, &Options { timeout, ..Options::default() }).unwrap()
    }

    /// The client sees the peer, on both ports, by both families, alive.
    #[track_caller]
    pub(crate) fn assert_alive(&self) {
        assert_met(Expect::Alive, &self.look(BRIEF, &targets()));
    }

    /// A connection from the client to the peer.
    pub(crate) fn connect(&self, target: SocketAddr) -> TcpStream {
        self.try_connect(target).unwrap_or_else(|error| panic!("{target}: {error}"))
    }

    /// The same, or why not.
    pub(crate) fn try_connect(&self, target: SocketAddr) -> std::io::Result<TcpStream> {
        self.netns(At::Client).run(|| TcpStream::connect_timeout(&target, Duration::from_secs(2))).unwrap()
    }

    /// An open connection on which the peer sends a byte every millisecond.
    pub(crate) fn stream(&self, target: SocketAddr) -> TcpStream {
        let mut stream = self.connect(target);
        stream.write_all(b"STREAM").unwrap();
        stream.read_exact(&mut [0; 20]).unwrap();
        stream
    }
}

/// When the last byte came on a connection, and how reading ended.
pub(crate) type Drained = (Instant, std::io::Result<usize>);

/// Reads all connections at once, each until its end, an error or the time.
pub(crate) fn drain_all(streams: &mut [TcpStream], until: Instant) -> Vec<Drained> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = streams.iter_mut().map(|stream| scope.spawn(move || drain(stream, until))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn drain(stream: &mut TcpStream, until: Instant) -> Drained {
    let mut last = Instant::now();
    loop {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left)).unwrap();
        match stream.read(&mut [0; 4096]) {
            Ok(1..) if Instant::now() < until => last = Instant::now(),
            end => return (last, end),
        }
    }
}

#[track_caller]
pub(crate) fn assert_met(expect: Expect, seen: &[Observation]) {
    let verdict = judge(expect, seen);
    assert!(verdict.met, "not {expect}: {}\n{seen:#?}", differing(&verdict));
}

/// One line a probe that saw something else.
fn differing(verdict: &Verdict) -> String {
    let line = |check: &Check| {
        let (target, probe, seen, allowed) = (check.target, check.probe, &check.seen, check.allowed.join(" or "));
        format!("{target} {probe}: {seen} instead of {allowed}; ")
    };
    verdict.differing().map(line).collect()
}

/// Met, and taken for no other kind.
#[track_caller]
pub(crate) fn assert_only(expect: Expect, seen: &[Observation]) {
    assert_met(expect, seen);
    let kinds = ["alive", "dead-host", "dead-process", "hush", "hung-process", "rebooted"];
    for other in kinds.iter().map(|kind| kind.parse().unwrap()).filter(|other| *other != expect) {
        assert!(!judge(other, seen).met, "also taken for {other}: {seen:#?}");
    }
}

pub(crate) fn by(seen: &[Observation], probe: Probe) -> impl Iterator<Item = &Observation> {
    seen.iter().filter(move |observation| observation.probe == probe)
}

/// Every probe ended in the same way and, if something ended it, after the same time within 50 ms or 5 %; connections
/// are in the same state.
#[track_caller]
pub(crate) fn assert_alike(what: &str, simulated: &[Observation], real: &[Observation]) {
    assert_eq!(simulated.len(), real.len());
    for (simulated, real) in simulated.iter().zip(real) {
        let both = format!("{what}: simulated {simulated:#?}\nreal {real:#?}");
        assert_eq!((simulated.target, simulated.probe), (real.target, real.probe));
        assert_eq!(simulated.outcome, real.outcome, "{both}");
        let ended = matches!(real.outcome, Outcome::Errno { .. } | Outcome::EndOfFile | Outcome::Answered);
        // How long the command takes to return once the failure is there (an engine waits for its container's end) is
        // not the client's to see: an open connection that has ended by then has ended at once.
        let was_open = matches!(real.probe, Probe::Idle | Probe::Writing);
        let took = |seen: &Observation| if was_open { seen.took_ms.max(0.0) } else { seen.took_ms };
        let apart = (took(simulated) - took(real)).abs();
        assert!(!ended || apart < f64::max(50.0, real.took_ms * 0.05), "{both}");
        let state = |seen: &Observation| seen.tcp.as_ref().map(|tcp| (tcp.state, tcp.unacked > 0, tcp.retransmits > 0));
        assert_eq!(state(simulated), state(real), "{both}");
    }
}
