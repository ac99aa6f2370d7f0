//! etcd, asked over the JSON gateway of its version 3 API.
//!
//! Its status is the member's own knowledge and is told without a quorum, and so is a serializable read; only a
//! linearizable read proves that a majority takes part. A member that is alone after a restart opens its client port
//! only once it has heard from the others, but serves them on its peer port all the time.

use std::fmt::Display;
use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use anyhow::Result;
use serde_json::Value;

use super::ask::{Answer, Live, Quorum, Target, http, reach};
use crate::kernel::thread::start_in;

/// One key, `"\0"`; nobody has it, and the answer is short.
const READ: &str = r#"{"key":"AA=="}"#;

pub(super) fn ask(target: Target, until: Instant) -> Result<Answer> {
    let ports = [target.at(target.client_port), target.at(target.peer_port)];
    let mut reached = reach(&ports, until).into_iter();
    let mut next = || reached.next().unwrap_or_else(|| Err("no address".into()));
    let (client, peer) = (next(), next());
    // All at once: without a quorum the read takes all the time there is, and alone after a restart a member lets
    // clients connect, but does not answer them.
    thread::scope(|scope| {
        let serves_peers = start_in(scope, || peer.is_ok_and(|peer| serves_peers(peer, until)))?;
        let read = start_in(scope, || client.clone().and_then(|client| read(client, until)))?;
        let status = || client.clone().and_then(|client| question(client, "maintenance/status", "{}", until));
        let mut told = status();
        let quorum = match read.join().unwrap_or_else(|_| Err("the read panicked".into())) {
            Ok(()) => Quorum::Yes,
            Err(why) => Quorum::No(why),
        };
        // The read may have waited for the end of an election that the status was told in.
        if quorum == Quorum::Yes && told.as_ref().is_ok_and(|told| member(&told["leader"]).is_none()) {
            told = status();
        }
        Ok(match told {
            Ok(status) => understand(&status, quorum),
            Err(_) if serves_peers.join().unwrap_or(false) => Answer::only(Live::PeerPort, quorum),
            Err(why) => Answer::only(Live::No(why), quorum),
        })
    })
}

fn understand(status: &Value, quorum: Quorum) -> Answer {
    Answer {
        live: Live::Yes,
        quorum,
        id: member(&status["header"]["member_id"]),
        leader: member(&status["leader"]),
        term: number(&status["raftTerm"]),
    }
}

fn serves_peers(peer: SocketAddr, until: Instant) -> bool {
    matches!(http(&format!("http://{peer}/version"), None, until), Ok((200, _)))
}

/// A linearizable read. One that an election has interrupted is made again: that says nothing about the quorum.
fn read(client: SocketAddr, until: Instant) -> Result<(), String> {
    loop {
        match question(client, "kv/range", READ, until) {
            Err(why) if why == "leader changed" && Instant::now() < until => {}
            other => return other.map(drop),
        }
    }
}

/// Asks a member's client port, `HOST:PORT`.
///
/// # Errors
/// Why there is no answer, or what it says instead of one.
pub fn question(client: impl Display, path: &str, body: &str, until: Instant) -> Result<Value, String> {
    let (status, text) = http(&format!("http://{client}/v3/{path}"), Some(body), until)?;
    let answer: Value =
        serde_json::from_str(&text).map_err(|_| "what answers is not etcd's gateway (v3)".to_owned())?;
    if status == 200 {
        return Ok(answer);
    }
    let why = answer["message"].as_str().or(answer["error"].as_str()).unwrap_or("an error without a text");
    Err(why.trim_start_matches("etcdserver: ").to_owned())
}

/// The gateway writes 64-bit numbers as text.
fn number(value: &Value) -> Option<u64> {
    value.as_str().and_then(|text| text.parse().ok()).or(value.as_u64())
}

/// As etcd's own programs print it. Zero is nobody.
fn member(value: &Value) -> Option<String> {
    number(value).filter(|id| *id != 0).map(|id| format!("{id:x}"))
}
