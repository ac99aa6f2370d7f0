//! What rules cost traffic that they do not cut: TCP between two namespaces beside many cut peers.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::Extent;
use crate::contest::{Contest, Turn};
use crate::places::Places;
use crate::process::{self, PLAYDEAD, words};
use crate::report::Row;

/// Round trips in a turn.
const TRIPS: u32 = 2000;
/// Sent in a turn.
const MIB: usize = 64;

/// Two namespaces and two connections between them: one whose server sends every byte back, one whose server says when it
/// has got all.
struct Pair {
    places: Places,
    echo: TcpStream,
    sink: TcpStream,
}

impl Pair {
    fn new(of: &str) -> Result<Self> {
        let places = Places::pair(of)?;
        let listener = places.open(1)?.run(|| TcpListener::bind("10.99.0.2:9000"))??;
        let connect = || places.open(0)?.run(|| TcpStream::connect("10.99.0.2:9000"))?.map_err(anyhow::Error::from);
        let (echo, sink) = (connect()?, connect()?);
        let (echoing, sinking) = (listener.accept()?.0, listener.accept()?.0);
        echo.set_nodelay(true)?;
        echoing.set_nodelay(true)?;
        // They end with their connections.
        thread::spawn(move || send_back(echoing));
        thread::spawn(move || swallow(sinking));
        Ok(Self { places, echo, sink })
    }

    /// Microseconds a round trip, and for a mebibyte.
    fn measure(&mut self) -> Result<Vec<f64>> {
        let mut byte = [0];
        let start = Instant::now();
        for _ in 0..TRIPS {
            self.echo.write_all(&byte)?;
            self.echo.read_exact(&mut byte)?;
        }
        let trip = start.elapsed().as_secs_f64() * 1e6 / f64::from(TRIPS);
        let block = vec![0; 1 << 20];
        let start = Instant::now();
        (0..MIB).try_for_each(|_| self.sink.write_all(&block))?;
        self.sink.read_exact(&mut byte)?;
        #[expect(clippy::cast_precision_loss, reason = "a few dozen")]
        let mib = start.elapsed().as_secs_f64() * 1e6 / MIB as f64;
        Ok(vec![trip, mib])
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

fn others(count: u32) -> impl Iterator<Item = String> {
    (0..count).map(|number| std::net::Ipv4Addr::from(0x0a00_0001 + number).to_string())
}

fn send_back(mut stream: TcpStream) {
    let mut byte = [0];
    while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
}

fn swallow(mut stream: TcpStream) {
    let mut block = vec![0; 1 << 20];
    loop {
        for _ in 0..MIB {
            if stream.read_exact(&mut block).is_err() {
                return;
            }
        }
        if stream.write_all(&[0]).is_err() {
            return;
        }
    }
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
    let contest = Contest::hold(extent.rounds(100), &mut turns)?;
    drop(turns);
    let mut rows = Vec::new();
    for (figure, what) in [(0, "a round trip"), (1, "a MiB")] {
        let beside = [
            ("another pair without rules", 1, 0, "no rules", None),
            ("beside 1000 cut peers", 2, 0, "no rules", Some(1.03)),
            (&*format!("beside {many} cut peers"), 3, 0, "no rules", Some(1.03)),
            ("beside 1000 cut peers", 2, 4, "1000 peers by iptables (legacy)", None),
            ("beside 1000 cut peers", 2, 5, "1000 peers by iptables (nf_tables)", None),
        ]
        .map(|(how, who, other, name, goal)| {
            let row = Row::of(&contest, &format!("{what} of TCP, {how}"), figure, who, (name, other)).unit("µs");
            Row { goal, ..row }
        });
        rows.extend(beside);
    }
    Ok(rows)
}
