//! What the kernel says of tables, counters and sets, as plain values.

use super::message::{is_whole, nft::OBJECT_COUNTER};
use super::netlink::{self, HEADER};

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

/// The generation in a `NFT_MSG_NEWGEN` message.
pub fn parse_generation(message: &[u8]) -> Option<u32> {
    object(message)?.1.u32(1)
}

/// The table in a `NFT_MSG_NEWTABLE` message.
pub fn parse_table(message: &[u8]) -> Option<TableInfo> {
    let (family, table) = object(message)?;
    Some(TableInfo { family, name: table.text(1)?, comment: table.get(6).and_then(comment), owner: table.u32(7) })
}

/// The counter in a `NFT_MSG_NEWOBJ` message; other objects are none.
pub fn parse_counter(message: &[u8]) -> Option<CounterInfo> {
    let (_, object) = object(message)?;
    if object.u32(3)? != OBJECT_COUNTER {
        return None;
    }
    let counted = object.inside(4);
    let (bytes, packets) = (counted.u64(1)?, counted.u64(2)?);
    Some(CounterInfo { table: object.text(1)?, name: object.text(2)?, packets, bytes })
}

/// The type of the base chain in a `NFT_MSG_NEWCHAIN` message.
pub fn parse_chain_type(message: &[u8]) -> Option<String> {
    object(message)?.1.text(7)
}

/// The chain in a `NFT_MSG_NEWCHAIN` message, if it has a hook.
pub fn parse_base_chain(message: &[u8]) -> Option<BaseChainInfo> {
    let (family, chain) = object(message)?;
    let hook = chain.inside(4);
    let priority = hook.u32(2).unwrap_or(0).cast_signed();
    Some(BaseChainInfo { family, table: chain.text(1)?, name: chain.text(3)?, hook: hook.u32(1)?, priority })
}

/// The flowtable in a `NFT_MSG_NEWFLOWTABLE` message.
pub fn parse_flowtable(message: &[u8]) -> Option<FlowtableInfo> {
    let (_, flowtable) = object(message)?;
    let devices = flowtable.inside(3).inside(3);
    Some(FlowtableInfo {
        table: flowtable.text(1)?,
        name: flowtable.text(2)?,
        devices: devices.each().filter(|(kind, _)| *kind == 1).map(|(_, name)| string(name)).collect(),
        // NFT_FLOWTABLE_HW_OFFLOAD
        hardware: flowtable.u32(7).is_some_and(|flags| flags & 1 != 0),
    })
}

/// The elements in a `NFT_MSG_NEWSETELEM` message.
pub fn parse_elements(message: &[u8]) -> Vec<ElementInfo> {
    let Some((_, list)) = object(message) else { return Vec::new() };
    list.inside(3).each().map(|(_, element)| read_element(Attributes(element))).collect()
}

fn read_element(element: Attributes) -> ElementInfo {
    let key = |kind: u16| element.inside(kind).get(1).unwrap_or_default().to_vec();
    ElementInfo {
        key: key(1),
        key_end: key(10),
        // NFT_SET_ELEM_INTERVAL_END
        ends_interval: element.u32(3).is_some_and(|flags| flags & 1 != 0),
        comment: element.get(6).and_then(comment),
        expires_ms: element.u64(5),
    }
}

/// The family of the object that a message is about, and its attributes, whose numbers are those of
/// `linux/netfilter/nf_tables.h` (`NFTA_TABLE_*` and so on). libnftnl is not asked: it ends the whole process when it does
/// not like the length of an attribute.
fn object(message: &[u8]) -> Option<(u8, Attributes<'_>)> {
    let body = is_whole(message).then(|| message.get(HEADER..)).flatten()?;
    Some((*body.first()?, Attributes(body.get(4..)?)))
}

#[derive(Clone, Copy)]
struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    fn each(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        netlink::attributes(self.0)
    }

    fn get(self, kind: u16) -> Option<&'a [u8]> {
        self.each().find(|(other, _)| *other == kind).map(|(_, value)| value)
    }

    /// Those in the value of another; none where there is no such one.
    fn inside(self, kind: u16) -> Self {
        Self(self.get(kind).unwrap_or_default())
    }

    fn u32(self, kind: u16) -> Option<u32> {
        Some(u32::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }

    fn u64(self, kind: u16) -> Option<u64> {
        Some(u64::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }

    fn text(self, kind: u16) -> Option<String> {
        self.get(kind).map(string)
    }
}

/// Up to the zero byte that ends it.
fn string(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// The comment in a table's or an element's user data: type 0, its length, and a C string.
fn comment(userdata: &[u8]) -> Option<String> {
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
