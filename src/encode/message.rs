//! The kinds of netlink messages, and those that ask for what is there.

use nftnl::nftnl_sys as sys;

use super::netlink::{HEADER, u32_at};
use super::object::{self, Rule};
use super::sets::named_set;
use crate::rules::Family;

/// `NFNL_SUBSYS_NFTABLES`.
pub(super) const NFTABLES: u16 = 10;

/// Constants of `linux/netfilter/nfnetlink.h` and `nf_tables.h`.
pub(super) mod nft {
    pub(in crate::encode) const BATCH_BEGIN: u16 = 0x10;
    pub(in crate::encode) const BATCH_END: u16 = 0x11;
    pub(in crate::encode) const NEWTABLE: u16 = 0;
    pub(in crate::encode) const GETTABLE: u16 = 1;
    pub(in crate::encode) const DELTABLE: u16 = 2;
    pub(in crate::encode) const NEWCHAIN: u16 = 3;
    pub(in crate::encode) const GETCHAIN: u16 = 4;
    pub(in crate::encode) const NEWRULE: u16 = 6;
    pub(in crate::encode) const GETRULE: u16 = 7;
    pub(in crate::encode) const DELRULE: u16 = 8;
    pub(in crate::encode) const NEWSET: u16 = 9;
    pub(in crate::encode) const NEWSETELEM: u16 = 12;
    pub(in crate::encode) const GETSETELEM: u16 = 13;
    pub(in crate::encode) const DELSETELEM: u16 = 14;
    pub(in crate::encode) const NEWOBJ: u16 = 18;
    pub(in crate::encode) const GETGEN: u16 = 16;
    pub(in crate::encode) const GETOBJ: u16 = 19;
    pub(in crate::encode) const GETFLOWTABLE: u16 = 23;
    pub(in crate::encode) const OBJECT_COUNTER: u32 = 1;
    pub(in crate::encode) const TABLE_OWNER: u32 = 2;
}

/// `NLM_F_*` of `linux/netlink.h`.
pub(super) const REQUEST: u16 = 0x1;
pub(super) const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
pub(super) const CREATE: u16 = 0x400;
pub(super) const EXCL: u16 = 0x200;
pub(super) const APPEND: u16 = 0x800;

/// A request for all tables of the namespace.
pub fn request_tables() -> Vec<u8> {
    object::bare((NFTABLES << 8) | nft::GETTABLE, 0, REQUEST | DUMP, 1, 0)
}

/// A request for all chains of the namespace.
pub fn request_chains() -> Vec<u8> {
    object::bare((NFTABLES << 8) | nft::GETCHAIN, 0, REQUEST | DUMP, 1, 0)
}

/// A request for all flowtables of the namespace.
pub fn request_flowtables() -> Vec<u8> {
    object::bare((NFTABLES << 8) | nft::GETFLOWTABLE, 0, REQUEST | DUMP, 1, 0)
}

/// A request for all named counters of a family.
pub fn request_counters(family: Family) -> Vec<u8> {
    object::bare((NFTABLES << 8) | nft::GETOBJ, number(family), REQUEST | DUMP, 1, 0)
}

/// A request for the generation of the ruleset, which each transaction of the namespace makes a new one.
pub fn request_generation() -> Vec<u8> {
    object::bare((NFTABLES << 8) | nft::GETGEN, 0, REQUEST, 1, 0)
}

/// A request for the rules of a table.
pub fn request_rules(family: Family, table: &str) -> Vec<u8> {
    rules_of(table).message(nft::GETRULE, number(family), REQUEST | DUMP, 1)
}

/// All rules of a table, for messages about them.
pub(super) fn rules_of(table: &str) -> Rule {
    let mut all = Rule::new();
    all.str(sys::NFTNL_RULE_TABLE, table);
    all
}

/// A request for the elements of a set.
pub fn request_elements(family: Family, table: &str, set: &str) -> Vec<u8> {
    named_set(table, set).elements_message(nft::GETSETELEM, number(family), REQUEST | DUMP, 1)
}

/// `NFPROTO_*` of a family.
pub(super) fn number(family: Family) -> u8 {
    match family {
        Family::Inet => 1,
        Family::Ip => 2,
        Family::Ip6 => 10,
        Family::Arp => 3,
        Family::Netdev => 5,
        Family::Bridge => 7,
    }
}

/// The family with that `NFPROTO_*`, if it is one that playdead writes.
pub fn family(number_of: u8) -> Option<Family> {
    Family::ALL.into_iter().find(|f| number(*f) == number_of)
}

/// The messages in a datagram; what does not fit into it by its own length is left out.
pub fn split(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some(len) = u32_at(bytes, 0).map(|len| len as usize) {
        if len < HEADER || len > bytes.len() {
            break;
        }
        messages.push(bytes[..len].to_vec());
        bytes = &bytes[len.next_multiple_of(4).min(bytes.len())..];
    }
    messages
}

/// Whether these bytes are one message with room for what `nf_tables` puts behind the header (`struct nfgenmsg`).
pub(super) fn is_whole(message: &[u8]) -> bool {
    u32_at(message, 0).is_some_and(|len| len as usize == message.len()) && message.len() >= HEADER + 4
}
