//! What rules cost traffic that they do not cut: TCP between two namespaces beside many cut peers.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use socket2::SockRef;

use crate::Extent;
use crate::contest::{Contest, Turn};
use crate::places::Places;
use crate::process::{self, PLAYDEAD, words};
use crate::report::Row;

/// Round trips in a turn.
const TRIPS: u32 = 2000;
/// Sent in a turn.
const MIB: u32 = 64;
/// Sent at a time: what TCP gives to a device in one piece, and no more than a socket takes before anybody reads.
const PART: usize = 1 << 16;

/// Two namespaces and two connections between them: one whose server sends every byte back from a thread of its own, and
/// one with both ends in one thread, which nobody waits for: what is sent has arrived when the call that sends it returns,
/// so all of its time is the kernel's work.
struct Pair {
    places: Places,
    echo: TcpStream,
    both: [TcpStream; 2],
}

impl Pair {
    fn new(of: &str) -> Result<Self> {
        let places = Places::pair(of)?;
        let listener = places.open(1)?.run(|| TcpListener::bind("10.99.0.2:9000"))??;
        let connect = || -> Result<[TcpStream; 2]> {
            let client = places.open(0)?.run(|| TcpStream::connect("10.99.0.2:9000"))??;
            let both = [client, listener.accept()?.0];
            for end in &both {
                end.set_nodelay(true)?;
                SockRef::from(end).set_recv_buffer_size(4 * PART)?;
            }
            Ok(both)
        };
        let ([echo, echoing], both) = (connect()?, connect()?);
        // It ends with its connection. On another processor than who asks: on the same, a round trip has no wake-up.
        let there = *PROCESSORS.last().context("no processor")?;
        thread::spawn(move || allow(&[there]).map(|()| send_back(echoing)));
        Ok(Self { places, echo, both })
    }

    /// Microseconds a round trip between two processors, a round trip within one, and for a mebibyte within one.
    fn measure(&mut self) -> Result<Vec<f64>> {
        let mut byte = [0];
        let trip = time(TRIPS, || {
            self.echo.write_all(&byte)?;
            self.echo.read_exact(&mut byte)
        })?;
        let [client, server] = &mut self.both;
        let bare_trip = time(TRIPS, || {
            client.write_all(&byte)?;
            server.read_exact(&mut byte)?;
            server.write_all(&byte)?;
            client.read_exact(&mut byte)
        })?;
        let mut part = vec![0; PART];
        let mib = time(MIB, || {
            (0..(1 << 20) / PART).try_for_each(|_| {
                client.write_all(&part)?;
                server.read_exact(&mut part)
            })
        })?;
        Ok(vec![trip, bare_trip, mib])
    }

    /// Cuts so many peers on the client, none of which is the server.
    fn cut(&self, count: u32) -> Result<()> {
        let mut apply = words("dead-host --name bench");
        apply.extend(others(count));
        self.places.open(0)?.run(|| process::run(PLAYDEAD, &apply))?.map(drop)
    }

    /// The same with two rules a peer, which every packet passes.
    fn cut_by_iptables(&self, program: &str, count: u32) -> Result<()> {
        let mut rules = String::from("*filter\n");
        for other in others(count) {
            let _ = writeln!(rules, "-A INPUT -s {other} -j DROP\n-A OUTPUT -d {other} -j DROP");
        }
        rules.push_str("COMMIT\n");
        self.places.open(0)?.run(|| -> Result<()> {
            let mut restore = Command::new(program).stdin(Stdio::piped()).spawn()?;
            restore.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(rules.as_bytes()))?;
            ensure!(restore.wait()?.success(), "{program} failed");
            Ok(())
        })?
    }
}

/// Microseconds that each of so many times took.
fn time(times: u32, mut act: impl FnMut() -> io::Result<()>) -> Result<f64> {
    let start = Instant::now();
    (0..times).try_for_each(|_| act())?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(times))
}

/// Those that this process may run on.
static PROCESSORS: LazyLock<Vec<usize>> = LazyLock::new(|| {
    let all = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count()).filter(|number| all.is_set(*number) == Ok(true)).collect()
});

/// Lets this thread run on these.
fn allow(processors: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    processors.iter().try_for_each(|number| set.set(*number))?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

fn others(count: u32) -> impl Iterator<Item = String> {
    (0..count).map(|number| std::net::Ipv4Addr::from(0x0a00_0001 + number).to_string())
}

fn send_back(mut stream: TcpStream) {
    let mut byte = [0];
    while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
}

pub(crate) fn rows(extent: Extent) -> Result<Vec<Row>> {
    let many = if extent == Extent::Full { 100_000 } else { 10_000 };
    let names = ["none", "same", "few", "many", "legacy", "nft"];
    let mut pairs = names.iter().map(|of| Pair::new(&format!("tr-{of}"))).collect::<Result<Vec<_>>>()?;
    pairs[2].cut(1000)?;
    pairs[3].cut(many)?;
    pairs[4].cut_by_iptables("iptables-legacy-restore", 1000)?;
    pairs[5].cut_by_iptables("iptables-nft-restore", 1000)?;
    let mut turns: Vec<Turn> = pairs.iter_mut().map(|pair| -> Turn { Box::new(|| pair.measure()) }).collect();
    ensure!(PROCESSORS.len() > 1, "a round trip between two processors needs two");
    allow(&PROCESSORS[..1])?;
    let contest = Contest::hold(extent.rounds(100), &mut turns);
    allow(&PROCESSORS)?;
    let contest = contest?;
    drop(turns);
    let mut rows = Vec::new();
    for (figure, what) in [
        (0, "a round trip between two processors"),
        (1, "a round trip within one thread"),
        (2, "a MiB within one thread"),
    ] {
        let beside = [
            ("another pair without rules", 1, 0, "no rules", None),
            ("beside 1000 cut peers", 2, 0, "no rules", Some(1.03)),
            (&*format!("beside {many} cut peers"), 3, 0, "no rules", Some(1.03)),
            ("beside 1000 cut peers", 2, 4, "1000 peers by iptables (legacy)", None),
            ("beside 1000 cut peers", 2, 5, "1000 peers by iptables (nf_tables)", None),
        ]
        .map(|(how, who, other, name, goal)| {
            let row = Row::of(&contest, &format!("{what}, {how}"), figure, who, (name, other)).unit("µs");
            Row { goal, ..row }
        });
        rows.extend(beside);
    }
    Ok(rows)
}
