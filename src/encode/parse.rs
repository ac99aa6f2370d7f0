//! What the kernel says of tables, counters and sets, as plain values.

use super::object;

/// A table as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// `NFPROTO_*`.
    pub family: u8,
    /// Its name.
    pub name: String,
    /// Its comment.
    pub comment: Option<String>,
    /// The netlink port of the socket that owns it.
    pub owner: Option<u32>,
}

/// A named counter as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterInfo {
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Packets counted.
    pub packets: u64,
    /// Their bytes, from the network header on (at netdev hooks too).
    pub bytes: u64,
}

/// An element of a set as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElementInfo {
    /// Its key, every field padded to four bytes.
    pub key: Vec<u8>,
    /// The last key of a range in a concatenation; empty where there is none.
    pub key_end: Vec<u8>,
    /// It is the first value behind an interval.
    pub ends_interval: bool,
    /// Its comment.
    pub comment: Option<String>,
    /// Milliseconds until it stops matching.
    pub expires_ms: Option<u64>,
}

/// The table in a `NFT_MSG_NEWTABLE` message.
pub fn parse_table(message: &[u8]) -> Option<TableInfo> {
    object::read_table(message)
}

/// The counter in a `NFT_MSG_NEWOBJ` message.
pub fn parse_counter(message: &[u8]) -> Option<CounterInfo> {
    object::read_counter(message)
}

/// The type of the base chain in a `NFT_MSG_NEWCHAIN` message.
pub fn parse_chain_type(message: &[u8]) -> Option<String> {
    object::read_chain_type(message)
}

/// The elements in a `NFT_MSG_NEWSETELEM` message.
pub fn parse_elements(message: &[u8]) -> Vec<ElementInfo> {
    object::read_elements(message)
}

/// The comment in a table's or an element's user data: type 0, its length, and a C string.
pub(super) fn comment(userdata: &[u8]) -> Option<String> {
    let (&[0, len], rest) = userdata.split_first_chunk::<2>()? else { return None };
    let text = rest.get(..usize::from(len))?.strip_suffix(&[0])?;
    String::from_utf8(text.to_vec()).ok()
}
