//! ZooKeeper, asked by its four-letter word `srvr`, the one that is allowed unless the configuration forbids it.
//!
//! What it answers is the server's own knowledge, not a read: one that was cut off says for up to `syncLimit` ticks
//! that it follows.

use std::time::Instant;

use super::ask::{Answer, Live, Quorum, Target, reach, word};

pub(super) fn ask(target: Target, until: Instant) -> Answer {
    let ports = [target.at(target.client_port), target.at(target.peer_port)];
    let mut reached = reach(&ports, until).into_iter();
    let said = match reached.next().unwrap_or_else(|| Err("no address".into())) {
        Ok(client) => word(client, "srvr", until),
        Err(why) => {
            let live =
                if reached.next().is_some_and(|peer| peer.is_ok()) { Live::PeerPort } else { Live::No(why.clone()) };
            return Answer::only(live, Quorum::No(format!("client port: {why}")));
        }
    };
    match said {
        Ok(said) => understand(target.name, &said),
        Err(why) => Answer::only(Live::No(why.clone()), Quorum::No(why)),
    }
}

fn understand(name: &str, said: &str) -> Answer {
    let field = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let Some(mode) = field("Mode:") else {
        let first = said.lines().next().unwrap_or_default().trim();
        let quorum = match first {
            "" => Quorum::Unknown("it closed the connection without an answer".into()),
            text if text.contains("whitelist") => {
                Quorum::Unknown("srvr is not in 4lw.commands.whitelist of its configuration".into())
            }
            text => Quorum::No(text.trim_end_matches('.').to_owned()),
        };
        return Answer::only(Live::Yes, quorum);
    };
    let zxid = field("Zxid:").and_then(|zxid| u64::from_str_radix(zxid.trim_start_matches("0x"), 16).ok());
    Answer {
        live: Live::Yes,
        quorum: Quorum::Yes,
        id: Some(name.to_owned()),
        // The others do not say whom they follow.
        leader: ["leader", "standalone"].contains(&mode).then(|| name.to_owned()),
        // The upper half of a transaction's number is the epoch of the leader that made it.
        term: zxid.map(|zxid| zxid >> 32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_of_srvr_are_understood() {
        let leader = "Zookeeper version: 3.8.0--1, built on 2022-02-25 08:49 UTC\nLatency min/avg/max: 0/0.0/0\n\
                      Received: 1\nSent: 0\nConnections: 1\nOutstanding: 0\nZxid: 0x300000002\nMode: leader\nNode count: 5\n";
        let answer = understand("zk2", leader);
        assert_eq!((answer.quorum, answer.leader.as_deref(), answer.term), (Quorum::Yes, Some("zk2"), Some(3)));
        let follower = understand("zk1", &leader.replace("leader", "follower"));
        assert_eq!((follower.quorum, follower.leader), (Quorum::Yes, None));
        let alone = understand("zk1", "This ZooKeeper instance is not currently serving requests\n");
        assert_eq!((alone.live, alone.quorum), {
            (Live::Yes, Quorum::No("This ZooKeeper instance is not currently serving requests".into()))
        });
        let closed = understand("zk1", "srvr is not executed because it is not in the whitelist.\n");
        assert!(matches!((closed.live, closed.quorum), (Live::Yes, Quorum::Unknown(_))));
    }
}
