//! What a client saw in one run: by each probe, and on its link.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::failures::Failure;
use crate::net::At;
use crate::pace;
use crate::places::{Family, Rig};
use crate::probes::Probe;
use crate::wire::Taps;

/// From the event to the probes: what the event sends by itself has arrived.
const SETTLE: Duration = Duration::from_millis(20);

/// What one probe saw by one family. Times are milliseconds since the event was complete, or since the probe began if
/// that was later.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) outcome: String,
    /// When it was known; nothing if only the end of the watch decided it.
    pub(crate) took_ms: Option<f64>,
    /// The error queue: type, code and sender.
    pub(crate) errors: Vec<String>,
    /// What happened on the way.
    pub(crate) steps: Vec<(f64, String)>,
    /// The kernel's view of the connection.
    pub(crate) kernel: Option<String>,
    /// Of what the client sent: SYNs, and what it sent again.
    pub(crate) sent: Vec<(f64, String)>,
    /// Every packet that came from the peer, or about what was sent to it.
    pub(crate) heard: Vec<(f64, String)>,
}

/// What happens so long after the event.
pub(crate) type Later<'a> = (Duration, &'a dyn Fn(&Rig));

/// What one run showed.
pub(crate) type Record = BTreeMap<(Family, Probe), Seen>;

/// Opens what is to be open, lets the event happen, looks, and gives what was seen.
pub(crate) fn record(rig: &mut Rig, failure: &Failure, event: impl FnOnce(&mut Rig), later: Option<Later>) -> Record {
    let (probes, timeout) = (failure.probes, failure.timeout + pace::longer());
    let client = rig.segment.netns(At::Client);
    let taps = Taps::start(rig);
    let mut open: Vec<_> = probes.iter().map(|probe| (*probe, probe.open(rig, &client, timeout))).collect();
    rig.wait_until_quiet();
    (failure.before)(rig);
    for (_, open) in &mut open {
        open.event();
    }
    let (zero, began) = (Instant::now(), since_1970());
    event(rig);
    let (happened, clock) = (Instant::now(), since_1970());
    let rig = &*rig;
    let seen: Vec<_> = thread::scope(|scope| {
        thread::sleep(SETTLE);
        let threads: Vec<_> =
            open.into_iter().map(|(probe, open)| (probe, scope.spawn(move || open.finish(zero, happened)))).collect();
        if let Some((after, change)) = later {
            thread::sleep((happened + after).saturating_duration_since(Instant::now()));
            change(rig);
        }
        threads.into_iter().map(|(probe, thread)| (probe, thread.join().unwrap())).collect()
    });
    let wire = taps.read([began, clock], timeout + SETTLE, later.map(|(after, _)| after));
    let mut record = Record::new();
    for (probe, seen) in seen {
        for (family, mut seen) in seen {
            if let Some((sent, heard)) = wire.get(&(family, probe)) {
                (seen.sent, seen.heard) = (sent.clone(), heard.clone());
            }
            if let Some((after, _)) = later {
                until_it_resumes(&mut seen.heard, after);
            }
            record.insert((family, probe), seen);
        }
    }
    record
}

/// The clock by which packets are stamped.
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Whether the peer's kernel or its process is first to say something about what comes in a heap after a repair is
/// chance, and differs from one real repair to the next. So is all that follows: only the time of the first is compared.
fn until_it_resumes(heard: &mut Vec<(f64, String)>, repair: Duration) {
    let repair_ms = repair.as_secs_f64() * 1e3;
    if let Some(first) = heard.iter().position(|(at, _)| *at > repair_ms) {
        heard.truncate(first + 1);
        "something".clone_into(&mut heard[first].1);
    }
}
