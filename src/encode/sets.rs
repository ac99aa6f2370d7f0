//! Sets and their elements, as the kernel keeps them and as nft's user data describes them.

use nftnl::nftnl_sys as sys;

use super::object;
use crate::rules::{Element, Key, Set, Span};

/// Flags of sets and elements, from `linux/netfilter/nf_tables.h`.
const SET_INTERVAL: u32 = 0x4;
const SET_MAP: u32 = 0x8;
const SET_TIMEOUT: u32 = 0x10;
const SET_EVAL: u32 = 0x20;
const SET_CONCAT: u32 = 0x80;
const INTERVAL_END: u32 = 1;

/// User data that `nft list` prints as a comment, of which it takes no more than this.
pub(super) fn comment(text: &str) -> Vec<u8> {
    let mut text = text.as_bytes().to_vec();
    text.truncate(126);
    text.push(0);
    tlv(0, &text)
}

/// A type-length-value triple of nft's user data.
fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    [&[kind, u8::try_from(value.len()).unwrap_or(u8::MAX)], value].concat()
}

/// A set by its name, as messages about its elements have it.
pub(super) fn named_set(table: &str, name: &str) -> object::Set {
    let mut object = object::Set::new();
    object.str(sys::NFTNL_SET_TABLE, table).str(sys::NFTNL_SET_NAME, name);
    object
}

/// A set as it is declared; `id` tells it from the others of its batch.
pub(super) fn set_object(table: &str, set: &Set, id: u32) -> object::Set {
    let kinds: Vec<_> = set.key.iter().map(Key::kind).collect();
    let concat = kinds.len() > 1;
    let flags = [
        (set.interval, SET_INTERVAL),
        (set.data.is_some(), SET_MAP),
        (set.timeout, SET_TIMEOUT),
        (set.dynamic.is_some(), SET_EVAL),
        (concat, SET_CONCAT),
    ];
    let len = if concat { kinds.iter().map(|kind| kind.padded()).sum() } else { kinds[0].size() };
    let mut object = named_set(table, set.name);
    object.u32(sys::NFTNL_SET_FLAGS, flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
    object.u32(sys::NFTNL_SET_KEY_TYPE, kinds.iter().fold(0, |sum, kind| sum << 6 | kind.datatype()));
    object.u32(sys::NFTNL_SET_KEY_LEN, u32::try_from(len).unwrap_or(0));
    if let Some(data) = set.data.as_ref().map(Key::kind) {
        object.u32(sys::NFTNL_SET_DATA_TYPE, data.datatype());
        object.u32(sys::NFTNL_SET_DATA_LEN, u32::try_from(data.size()).unwrap_or(0));
    }
    object.u32(sys::NFTNL_SET_ID, id);
    if concat {
        let lens: Vec<_> = kinds.iter().map(|kind| u8::try_from(kind.size()).unwrap_or(u8::MAX)).collect();
        object.data(sys::NFTNL_SET_DESC_CONCAT, &lens);
    }
    if let Some(size) = set.size() {
        object.u32(sys::NFTNL_SET_DESC_SIZE, size);
    }
    if let Some((_, timeout)) = set.dynamic {
        object.data(sys::NFTNL_SET_TIMEOUT, &u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).to_ne_bytes());
    }
    object.data(sys::NFTNL_SET_USERDATA, &set_userdata(set));
    object
}

/// What `nft list` needs to print a set as it was declared: the byte order of its key, and the expressions of a
/// `typeof` (`EXPR_PAYLOAD` is 7, `EXPR_CONCAT` 13).
fn set_userdata(set: &Set) -> Vec<u8> {
    let number = |kind, value: u32| tlv(kind, &value.to_ne_bytes());
    let host_order = matches!(set.key[0], Key::Oif);
    let order = if set.key.len() > 1 { 0 } else { 2 - u32::from(host_order) };
    let mut userdata = number(0, order);
    if !set.is_typeof() {
        return userdata;
    }
    let payload = |key: &Key| match key {
        Key::Raw(base, bit, bits) => {
            let fields = [0, 0, *base as u32 + 1, u32::from(*bit), u32::from(*bits)];
            fields.iter().zip(0..).flat_map(|(value, kind)| number(kind, *value)).collect()
        }
        // PROTO_DESC_TCP, TCPHDR_SEQ, and its bits.
        Key::TcpSequence => [(0, 8), (1, 3), (4, 32)].iter().flat_map(|(kind, value)| number(*kind, *value)).collect(),
        _ => Vec::new(),
    };
    let of = |key: &Key| [number(0, 7), tlv(1, &payload(key))].concat();
    let expression = match set.key.as_slice() {
        [key] => of(key),
        keys => {
            let parts: Vec<u8> = keys.iter().zip(0..).flat_map(|(key, i)| tlv(i, &of(key))).collect();
            [number(0, 13), tlv(1, &parts)].concat()
        }
    };
    userdata.extend(tlv(3, &expression));
    // Of what a map finds: the byte order is that of packets.
    userdata.extend(set.data.iter().flat_map(|data| [number(1, 2), tlv(4, &of(data))].concat()));
    userdata
}

/// Usually one; a plain interval is kept by the kernel as its first value and the first value behind it.
pub(super) fn element_objects(set: &Set, element: &Element) -> Vec<object::Element> {
    let first = padded(&element.key, |span| &span.first, set.key.len() > 1);
    let mut object = object::Element::new().data(sys::NFTNL_SET_ELEM_KEY, &first);
    if let Some(timeout) = element.timeout {
        let timeout = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        object = object.data(sys::NFTNL_SET_ELEM_TIMEOUT, &timeout.to_ne_bytes());
    }
    if let Some(text) = &element.comment {
        object = object.data(sys::NFTNL_SET_ELEM_USERDATA, &comment(text));
    }
    if !set.interval {
        return vec![object];
    }
    let last = padded(&element.key, |span| &span.last, set.key.len() > 1);
    if set.key.len() > 1 {
        return vec![object.data(sys::NFTNL_SET_ELEM_KEY_END, &last)];
    }
    let end = successor(&last).map(|behind| {
        let flags = INTERVAL_END.to_ne_bytes();
        object::Element::new().data(sys::NFTNL_SET_ELEM_KEY, &behind).data(sys::NFTNL_SET_ELEM_FLAGS, &flags)
    });
    [object].into_iter().chain(end).collect()
}

fn padded(spans: &[Span], value: impl Fn(&Span) -> &Vec<u8>, concat: bool) -> Vec<u8> {
    let mut key = Vec::new();
    for span in spans {
        key.extend(value(span));
        if concat {
            key.resize(key.len().next_multiple_of(4), 0);
        }
    }
    key
}

/// The next number of as many bytes; `None` behind the last.
fn successor(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut next = bytes.to_vec();
    for byte in next.iter_mut().rev() {
        let (sum, carry) = byte.overflowing_add(1);
        *byte = sum;
        if !carry {
            return Some(next);
        }
    }
    None
}
