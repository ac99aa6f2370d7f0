//! Names of devices that are no text.
//!
//! The kernel takes nearly any bytes (`dev_valid_name`), and the crate that reads its answers refuses all of one because of
//! a single such name: whoever may name a device in a namespace could keep others from looking into it.

use crate::encode::netlink::{HEADER, u16_at, u32_at};

/// `struct ifinfomsg`, in bytes.
const LINK: usize = 16;
const RTM_NEWLINK: u16 = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_IFALIAS: u16 = 20;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;

/// Puts a question mark in place of every byte that is not ASCII in names that are not UTF-8. No device is called so, so
/// that what is then meant for this one is refused by the kernel.
pub(super) fn make_text(datagram: &mut [u8]) {
    let mut at = 0;
    while let (Some(length), Some(kind)) = (u32_at(datagram, at), u16_at(datagram, at + 4)) {
        let end = at.saturating_add(length as usize).min(datagram.len());
        if kind == RTM_NEWLINK && at + HEADER + LINK <= end {
            in_attributes(&mut datagram[at + HEADER + LINK..end]);
        }
        at = at.saturating_add((length as usize).max(HEADER).next_multiple_of(4));
    }
}

fn in_attributes(bytes: &mut [u8]) {
    let mut at = 0;
    while let (Some(length), Some(kind)) = (u16_at(bytes, at), u16_at(bytes, at + 2)) {
        let length = usize::from(length);
        let Some(value) = bytes.get_mut(at + 4..at + length.max(4)) else { return };
        match kind & 0x3fff {
            IFLA_PROP_LIST => in_attributes(value),
            IFLA_IFNAME | IFLA_IFALIAS | IFLA_ALT_IFNAME if std::str::from_utf8(value).is_err() => {
                value.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'?');
            }
            _ => {}
        }
        at += length.max(4).next_multiple_of(4);
    }
}
