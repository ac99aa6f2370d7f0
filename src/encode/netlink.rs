//! What all of netlink has in common (`linux/netlink.h`): numbers in this machine's own order of bytes, the header of a
//! message, and attributes.

/// `struct nlmsghdr`, in bytes.
pub(crate) const HEADER: usize = 16;

pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;

/// What is listed has changed meanwhile.
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10;

/// The number that stands there, if all of it does.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The same of 32 bits.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Type and value of attributes that stand one behind the other, each value padded to words; up to one that does not fit.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (length, kind) = (u16_at(rest, 0)?, u16_at(rest, 2)?);
        let value = rest.get(4..usize::from(length))?;
        rest = rest.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
        // Without NLA_F_NESTED and NLA_F_NET_BYTEORDER.
        Some((kind & 0x3fff, value))
    })
}
