//! Ends the connections that were open when a process seems to die.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;

use crate::kernel::forge::{self, Ending, How, Outcome};
use crate::kernel::netns::NetNs;
use crate::kernel::sockets::{self, Connection};
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
    silent: usize,
}

impl Closed {
    pub(super) fn add(&mut self, more: &Self) {
        self.ended += more.ended;
        self.silent += more.silent;
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        let silent = self.silent;
        let text = format!("{silent} open connections did not answer: each ends with its next packet");
        (silent > 0).then_some(text).into_iter().collect()
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
                Outcome::NoAnswer => closed.silent += 1,
                Outcome::AlreadyGone => {}
            }
        }
    }
    Ok(closed)
}

/// The connections of the peers that have an end here, each once.
fn open_now(ns: &NetNs, fault: &Fault, open: OpenConnections) -> Result<Vec<Ending>> {
    let mut endings: BTreeMap<(SocketAddr, SocketAddr), How> = BTreeMap::new();
    for connection in sockets::connections(ns)? {
        if is_peer(fault, connection.local) && is_with(fault, connection.remote) {
            // The peer's own end tells what its kernel would send; where both ends are here it decides.
            if let Some(how) = as_told(sockets::as_killed(&connection), open) {
                endings.insert((connection.local, connection.remote), how);
            }
        } else if is_peer(fault, connection.remote) && is_with(fault, connection.local) && is_open(&connection) {
            let how = if open == OpenConnections::Reset { How::Reset } else { How::Fin };
            endings.entry((connection.remote, connection.local)).or_insert(how);
        }
    }
    Ok(endings.into_iter().map(|((peer, client), how)| Ending { peer, client, how }).collect())
}

fn as_told(killed: Option<How>, open: OpenConnections) -> Option<How> {
    killed.map(|how| if open == OpenConnections::Reset { How::Reset } else { how })
}

/// A client in CLOSE-WAIT has heard the end of it already.
fn is_open(connection: &Connection) -> bool {
    connection.state != sockets::State::CloseWait
}

fn is_peer(fault: &Fault, end: SocketAddr) -> bool {
    fault.peers.iter().any(|peer| peer.names(end.ip(), end.port()))
}

fn is_with(fault: &Fault, end: SocketAddr) -> bool {
    fault.with.is_empty() || fault.with.iter().any(|net| net.contains(&end.ip()))
}
