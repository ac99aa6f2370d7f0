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

/// A chain with a hook as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseChainInfo {
    /// `NFPROTO_*`.
    pub family: u8,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// The number of its hook, which means another one in each family.
    pub hook: u32,
    /// Its priority.
    pub priority: i32,
}

/// A flowtable as the kernel shows it: it forwards the packets of known connections by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowtableInfo {
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Its devices.
    pub devices: Vec<String>,
    /// Whether the devices themselves forward (`flags offload`).
    pub hardware: bool,
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

/// The chain in a `NFT_MSG_NEWCHAIN` message, if it has a hook.
pub fn parse_base_chain(message: &[u8]) -> Option<BaseChainInfo> {
    object::read_base_chain(message)
}

/// The flowtable in a `NFT_MSG_NEWFLOWTABLE` message.
pub fn parse_flowtable(message: &[u8]) -> Option<FlowtableInfo> {
    object::read_flowtable(message)
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

#[cfg(test)]
mod tests {
    use super::{FlowtableInfo, parse_flowtable};

    /// An attribute of netlink: length, type, and the value padded to words.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(value.len() + 4).unwrap();
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// By `linux/netfilter/nf_tables.h`: table 1, name 2, hook 3 (number 1, priority 2, devices 3 of names 1), flags 7.
    #[test]
    fn a_flowtable_is_read_with_its_devices_and_whether_they_forward_by_themselves() {
        const NESTED: u16 = 0x8000;
        let devices = [attribute(1, b"eth0\0"), attribute(1, b"eth1\0")].concat();
        let hook = [attribute(1, &[0; 4]), attribute(2, &[0; 4]), attribute(3 | NESTED, &devices)].concat();
        let attributes = [
            attribute(1, b"filter\0"),
            attribute(2, b"fast\0"),
            attribute(3 | NESTED, &hook),
            attribute(7, &1u32.to_be_bytes()),
        ]
        .concat();
        let family_and_version = [1, 0, 0, 0];
        let len = u32::try_from(16 + 4 + attributes.len()).unwrap();
        // NFNL_SUBSYS_NFTABLES and NFT_MSG_NEWFLOWTABLE.
        let header = [&len.to_ne_bytes()[..], &0x0a16u16.to_ne_bytes(), &[0; 10]].concat();
        let message = [header, family_and_version.to_vec(), attributes].concat();
        let expected = FlowtableInfo {
            table: "filter".into(),
            name: "fast".into(),
            devices: vec!["eth0".into(), "eth1".into()],
            hardware: true,
        };
        assert_eq!(parse_flowtable(&message), Some(expected));
    }
}
