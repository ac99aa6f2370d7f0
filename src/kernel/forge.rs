//! Ends open TCP connections as their peer would, without the peer.
//!
//! Only a segment with the exact sequence number ends a connection for certain, and nobody but the two ends knows
//! it. But an end tells both of its numbers to whoever sends it a segment that lies outside its window (RFC 9293,
//! 3.10.7.4; RFC 5961). So the peer gets such a question in the client's name; its answer, which must not reach the
//! client, is captured on its way, and a FIN or RST is forged from it as the peer's kernel would send it next. A
//! client that cannot take it objects at once. A peer that does not answer, since it is gone or cannot be reached,
//! tells nothing: then the client is asked in the peer's name, which it hears, and a second time to see whether the
//! end was taken.

mod pursuit;
mod segment;
mod wire;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;

use self::pursuit::{Packet, Pursuit};
use self::segment::Heard;
use self::wire::Wire;
use super::netns::NetNs;
use super::sockets::{self, Connection};

/// Connections that are asked about before answers are looked for, so that these do not overrun the capture.
const BATCH: usize = 64;

/// How the peer ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// With FIN, as when its process dies: the client reads end of file.
    Fin,
    /// With RST, as when its process dies with unread data: the client gets `ECONNRESET`.
    Reset,
}

/// A connection that is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ending {
    /// The end that seems to act.
    pub peer: SocketAddr,
    /// The end that sees it. A link-local address needs its scope, here or in `peer`.
    pub client: SocketAddr,
    /// What it sees.
    pub how: How,
}

/// What became of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The client's kernel took the FIN or RST, or at least did not object to it, and heard nothing else.
    Ended,
    /// The same, but the peer did not tell its numbers, and the client has heard a challenge before.
    EndedByChallenge,
    /// The client's kernel did not answer, or could not be reached, in time.
    NoAnswer,
    /// The client's kernel had no such connection any more, or had heard the end of it from the peer before.
    AlreadyGone,
}

/// Ends the connections, each named once, from within `ns`: the client's namespace, the peer's, or that of a router
/// between them. Every packet that is sent bears `mark`, by which rules can tell it from the peer's own.
///
/// The peer should be silenced before: what it still sends moves the numbers on, an RST of it can come first, and the
/// client would hear what it answers.
/// Returns, in the given order, once every outcome is known, at the latest after `timeout`.
/// Fails if the raw sockets cannot be opened (`CAP_NET_RAW` and `CAP_NET_ADMIN`) or the capture breaks.
pub fn end(ns: &NetNs, endings: &[Ending], mark: u32, timeout: Duration) -> Result<Vec<(Ending, Outcome)>> {
    if endings.is_empty() {
        return Ok(Vec::new());
    }
    let start = Instant::now();
    let windows = windows(&sockets::connections(ns)?);
    let wire = ns.run(|| Wire::open(endings, mark))??;
    let mut chase = Chase::new(endings, &windows, start);
    chase.run(&wire, start + timeout)?;
    Ok(chase.pursuits.iter().map(Pursuit::result).collect())
}

/// Peer and client of a connection, without scopes: captured packets have none.
type Ends = (SocketAddr, SocketAddr);

fn ends(peer: SocketAddr, client: SocketAddr) -> Ends {
    (segment::bare(peer), segment::bare(client))
}

/// The window field that the peer's next segment would have, as far as the sockets in this namespace tell.
fn windows(connections: &[Connection]) -> HashMap<Ends, u16> {
    let heard = connections.iter().map(|c| (ends(c.remote, c.local), c.heard_window));
    let sent = connections.iter().map(|c| (ends(c.local, c.remote), c.sent_window));
    // The client's view wins where both ends are here: the peer's last word is what the client knows.
    sent.chain(heard).filter(|(_, window)| *window > 0).collect()
}

struct Chase {
    pursuits: Vec<Pursuit>,
    by_ends: HashMap<Ends, usize>,
}

impl Chase {
    fn new(endings: &[Ending], windows: &HashMap<Ends, u16>, now: Instant) -> Self {
        let keys = endings.iter().map(|ending| ends(ending.peer, ending.client));
        let pursue =
            |ending: &Ending| Pursuit::new(*ending, windows.get(&ends(ending.peer, ending.client)).copied(), now);
        Self { pursuits: endings.iter().map(pursue).collect(), by_ends: keys.zip(0..).collect() }
    }

    fn run(&mut self, wire: &Wire, deadline: Instant) -> Result<()> {
        loop {
            let now = Instant::now();
            let Some(due) = self.pursuits.iter().filter_map(Pursuit::due).min() else { return Ok(()) };
            if now >= deadline {
                self.pursuits.iter_mut().for_each(Pursuit::give_up);
                return Ok(());
            }
            self.act(wire, now)?;
            wire.wait(due.min(deadline).saturating_duration_since(now))?;
            // A flood of other segments must not keep it here.
            while Instant::now() < deadline
                && let Some(heard) = wire.hear()?
            {
                self.answer(wire, &heard)?;
            }
        }
    }

    fn act(&mut self, wire: &Wire, now: Instant) -> Result<()> {
        let due = self.pursuits.iter_mut().filter(|pursuit| pursuit.due().is_some_and(|due| due <= now));
        for pursuit in due.take(BATCH) {
            send(wire, &pursuit.act(now)?)?;
        }
        Ok(())
    }

    fn answer(&mut self, wire: &Wire, heard: &Heard) -> Result<()> {
        let keys = [ends(heard.to, heard.from), ends(heard.from, heard.to)];
        let index = keys.iter().find_map(|ends| self.by_ends.get(ends));
        let Some(pursuit) = index.and_then(|index| self.pursuits.get_mut(*index)) else { return Ok(()) };
        send(wire, &pursuit.hear(heard, Instant::now())?)
    }
}

fn send(wire: &Wire, packets: &[Packet]) -> Result<()> {
    packets.iter().try_for_each(|(packet, to)| wire.send(packet, *to))
}
