//! Where a stopped process's connections stand.
//!
//! A process that only seems to hang goes on to answer, and its answers are dropped. Its kernel acknowledges with the
//! sequence number behind them; that of a stopped process with the one that it stood at. That is the number of the
//! first segment that was dropped, and it is written into the acknowledgements that pass.

use super::super::key::{FIN, SYN};
use super::super::value::Entry;
use super::fates::{carries_data, has_flags, is_ip, is_tcp};
use super::{Base, FRESH_LIFE, Ip, Key, Order, Rule, Set, Stmt, filled, rule};

/// The sequence number that a stopped process's kernel would stand at, by connection.
const SAID: [&str; 2] = ["said4", "said6"];

/// Both ports.
const PORTS: Key = Key::Raw(Base::Transport, 0, 32);
/// Both addresses.
const ADDRESSES4: Key = Key::Raw(Base::Network, 96, 64);
/// The half of the destination's that is its own, not its network's.
const INTERFACE6: Key = Key::Raw(Base::Network, 256, 64);
/// Of the size of a hash, for the declaration of the map: nft declares no field by an expression that is a hash.
const HASHED6: Key = Key::Raw(Base::Network, 64, 32);
/// The longest TCP header that has no option but timestamps, in the upper half of its byte, is of 8 words.
const LONG_HEADER: u8 = 0x90;

/// The map. It is as big, and its entries live as long, as that of the connections made since a reboot.
pub(super) fn said(ip: Ip) -> Set {
    let key = match ip {
        Ip::V4 => vec![PORTS, ADDRESSES4],
        Ip::V6 => vec![PORTS, HASHED6, INTERFACE6],
    };
    Set { data: Some(Key::TcpSequence), ..filled(ip.name(SAID), key, FRESH_LIFE) }
}

/// IPv6 addresses are longer than a key may be: a hash of both stands for what is left out of them.
fn entry(ip: Ip) -> Entry {
    let key = match ip {
        Ip::V4 => vec![PORTS, ADDRESSES4],
        Ip::V6 => vec![PORTS, Key::Hash(vec![Key::Saddr6, Key::Daddr6], u32::MAX, 1), INTERFACE6],
    };
    Entry { map: ip.name(SAID), key, data: Key::TcpSequence }
}

/// Before anything is dropped: what takes up a sequence number is learned, the first for good. A SYN begins anew.
///
/// Bare acknowledgements teach nothing: a keepalive's is one less than where the kernel stands.
pub(super) fn learned() -> Vec<Rule> {
    let of = |ip: Ip| {
        let learn =
            |what: Vec<Stmt>| rule([is_ip(ip)].into_iter().chain(what).chain([Stmt::Learn(entry(ip), FRESH_LIFE)]));
        let forget = rule([is_ip(ip), has_flags(SYN), Stmt::Forget(entry(ip))]);
        [forget, learn(vec![has_flags(FIN)]), learn(carries_data())]
    };
    Ip::BOTH.into_iter().flat_map(of).collect()
}

/// What is left are bare acknowledgements. One that selects (SACK) stays as it is: it says that something was sent
/// twice, perhaps since the client could not take the last one. That is so if what was learned had been sent before,
/// and the client has it.
pub(super) fn recalled() -> Vec<Rule> {
    let short = || Stmt::Is(Key::Raw(Base::Transport, 96, 8), Order::Lt, vec![LONG_HEADER]);
    let of = |ip: Ip| rule([is_ip(ip), is_tcp(), short(), Stmt::Recall(entry(ip))]);
    Ip::BOTH.into_iter().map(of).collect()
}
