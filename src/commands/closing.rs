//! Ends the connections that were open when a process seems to die.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;

use crate::kernel::forge::{self, Ending, How, Outcome};
use crate::kernel::netns::NetNs;
use crate::kernel::sockets::{self, Connection};
use crate::kernel::{conntrack, route};
use crate::model::{Fault, Kind, OpenConnections, Proto};
use crate::rules::FORGED_MARK;

/// The kernel answers a challenge at once; on a slow path it takes a round trip.
const PATIENCE: Duration = Duration::from_secs(2);
/// A connection that was accepted while others were ended is ended in the next round.
const ROUNDS: usize = 3;

/// What became of the open connections.
#[derive(Debug, Default)]
pub(super) struct Closed {
    /// How many were ended.
    pub(super) ended: usize,
    challenged: usize,
    silent: usize,
}

impl Closed {
    pub(super) fn add(&mut self, more: &Self) {
        self.ended += more.ended;
        self.challenged += more.challenged;
        self.silent += more.silent;
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        let Self { challenged, silent, .. } = self;
        let texts = [
            (
                *challenged,
                format!(
                    "of {challenged} open connections the peer told no numbers: these heard a segment outside their window before their end"
                ),
            ),
            (*silent, format!("{silent} open connections did not answer: each ends with its next packet")),
        ];
        texts.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect()
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ended {
            0 => Ok(()),
            1 => f.write_str(", 1 open connection ended"),
            ended => write!(f, ", {ended} open connections ended"),
        }
    }
}

/// Ends them as the kind says; kinds other than a dead process have none to end.
pub(super) fn close(ns: &NetNs, fault: &Fault) -> Result<Closed> {
    let mut closed = Closed::default();
    let Kind::DeadProcess(open) = fault.kind else { return Ok(closed) };
    if open == OpenConnections::Keep || fault.proto == Proto::Udp || !fault.direction.from() {
        return Ok(closed);
    }
    let mut known = HashSet::new();
    for _ in 0..ROUNDS {
        let mut endings = open_now(ns, fault, open)?;
        endings.retain(|ending| known.insert((ending.peer, ending.client)));
        if endings.is_empty() {
            break;
        }
        for (_, outcome) in forge::end(ns, &endings, FORGED_MARK, PATIENCE)? {
            match outcome {
                Outcome::Ended => closed.ended += 1,
                Outcome::EndedByChallenge => {
                    closed.ended += 1;
                    closed.challenged += 1;
                }
                Outcome::NoAnswer => closed.silent += 1,
                Outcome::AlreadyGone => {}
            }
        }
    }
    Ok(closed)
}

/// The connections of the peers that have an end here, or pass through and are tracked, each once.
fn open_now(ns: &NetNs, fault: &Fault, open: OpenConnections) -> Result<Vec<Ending>> {
    let mut endings: BTreeMap<(SocketAddr, SocketAddr), How> = BTreeMap::new();
    // Only the peer's own socket tells what it has not read.
    let elsewhere = if open == OpenConnections::Reset { How::Reset } else { How::Fin };
    for connection in sockets::connections(ns)? {
        if fault.is_between(connection.local, connection.remote) {
            // The peer's own end tells what its kernel would send; where both ends are here it decides.
            if let Some(how) = as_told(sockets::as_killed(&connection), open) {
                endings.insert((connection.local, connection.remote), how);
            }
        } else if fault.is_between(connection.remote, connection.local) && is_open(&connection) {
            endings.entry((connection.remote, connection.local)).or_insert(elsewhere);
        }
    }
    for (peer, client) in passing_through(ns)? {
        if fault.is_between(peer, client) {
            endings.entry((peer, client)).or_insert(elsewhere);
        }
    }
    Ok(endings.into_iter().map(|((peer, client), how)| Ending { peer, client, how }).collect())
}

/// Both ends of what is tracked, each as the peer and as the client. Of its own connections a host knows more.
fn passing_through(ns: &NetNs) -> Result<Vec<(SocketAddr, SocketAddr)>> {
    let tracked = conntrack::established(ns)?;
    if tracked.is_empty() {
        return Ok(Vec::new());
    }
    let own: HashSet<_> = route::addresses(ns)?.into_iter().map(|(_, net)| net.addr()).collect();
    let foreign =
        tracked.iter().filter(|passing| ![passing.from, passing.to].iter().any(|end| own.contains(&end.ip())));
    Ok(foreign.flat_map(|passing| [(passing.to, passing.from), (passing.from, passing.to)]).collect())
}

fn as_told(killed: Option<How>, open: OpenConnections) -> Option<How> {
    killed.map(|how| if open == OpenConnections::Reset { How::Reset } else { how })
}

/// A client in CLOSE-WAIT has heard the end of it already.
fn is_open(connection: &Connection) -> bool {
    connection.state != sockets::State::CloseWait
}
