//! ICMP and ICMPv6 echo as packets: what is sent, and what of the received is about it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use etherparse::{IcmpEchoHeader, Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, icmpv4, icmpv6};

const PAYLOAD: &[u8] = b"playdead";

static NEXT_ID: AtomicU16 = AtomicU16::new(0);

/// The errors of RFC 792 about a packet that was not delivered.
const ERRORS_V4: [u8; 3] = [icmpv4::TYPE_DEST_UNREACH, icmpv4::TYPE_TIME_EXCEEDED, icmpv4::TYPE_PARAMETER_PROBLEM];
/// Every type below is an error (RFC 4443, 2.1).
const FIRST_INFORMATION_V6: u8 = 128;

/// A series of echo requests.
pub(super) struct Echo {
    pub(super) v6: bool,
    id: u16,
}

impl Echo {
    /// With an identifier that differs in every probe of this process, and most likely in other processes.
    pub(super) fn to(target: SocketAddr) -> Self {
        let [.., high, low] = std::process::id().to_be_bytes();
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed).wrapping_add(u16::from_be_bytes([high, low]));
        Self { v6: target.is_ipv6(), id }
    }

    /// The kernel fills in the checksum for ICMPv6 and for ping sockets, and for these the identifier.
    pub(super) fn request(&self, turn: u32) -> Vec<u8> {
        let echo = IcmpEchoHeader { id: self.id, seq: u16::try_from(turn).unwrap_or(u16::MAX) };
        let mut packet = if self.v6 {
            Icmpv6Header::new(Icmpv6Type::EchoRequest(echo)).to_bytes().to_vec()
        } else {
            Icmpv4Header::with_checksum(Icmpv4Type::EchoRequest(echo), PAYLOAD).to_bytes().to_vec()
        };
        packet.extend(PAYLOAD);
        packet
    }

    /// Whether an ICMP packet is a reply, to whomever.
    pub(super) fn is_any_reply(&self, icmp: &[u8]) -> bool {
        icmp.first() == Some(if self.v6 { &icmpv6::TYPE_ECHO_REPLY } else { &icmpv4::TYPE_ECHO_REPLY })
    }

    /// Whether an echo packet bears our identifier.
    pub(super) fn is_ours(&self, icmp: &[u8]) -> bool {
        icmp.get(4..6) == Some(&self.id.to_be_bytes())
    }

    /// Type and code of an ICMP error about a request of ours.
    pub(super) fn error_about_ours(&self, icmp: &[u8]) -> Option<(u8, u8)> {
        let (kind, code, quoted) = (*icmp.first()?, *icmp.get(1)?, icmp.get(8..)?);
        let is_error = if self.v6 { kind < FIRST_INFORMATION_V6 } else { ERRORS_V4.contains(&kind) };
        let about = if self.v6 { quoted.get(IPV6_HEADER..)? } else { behind_ipv4_header(quoted) };
        (is_error && self.is_ours(about)).then_some((kind, code))
    }
}

/// Ours are sent without extension headers.
const IPV6_HEADER: usize = 40;

/// A raw IPv4 socket, and an ICMP error, give the IP header too.
pub(super) fn behind_ipv4_header(packet: &[u8]) -> &[u8] {
    let length = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    packet.get(length..).unwrap_or_default()
}
