//! The segments that are forged and heard: bytes to values and back, without any effect.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail};
use etherparse::{
    IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, LaxNetSlice, LaxSlicedPacket, TcpHeader, TcpOptionElement,
    TransportSlice,
};

/// Linux's own default for both IPv4's time to live and IPv6's hop limit.
const TTL: u8 = 64;

/// The value and the echo of the timestamp option (RFC 7323).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamps {
    pub(super) value: u32,
    pub(super) echo: u32,
}

/// By what one packet of a connection is told from the next, below TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Labels {
    /// IPv4's identification: Linux counts it up for connected sockets, and fills in one of its own for a zero.
    pub(super) id: u16,
    /// IPv6's flow label.
    pub(super) flow: u32,
}

/// What matters of a TCP segment that was captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) reset: bool,
    /// A segment of an opened connection: it acknowledges and opens nothing.
    pub(super) plain: bool,
    /// It carries nothing and ends nothing: its sequence number is the next one.
    pub(super) bare: bool,
    pub(super) window: u16,
    pub(super) labels: Labels,
    pub(super) stamps: Option<Stamps>,
}

/// Reads a packet that starts with its IP header and may be cut off behind the TCP header.
pub(super) fn parse(packet: &[u8]) -> Option<Heard> {
    let sliced = LaxSlicedPacket::from_ip(packet).ok()?;
    let (from, to, length, labels): (IpAddr, IpAddr, _, _) = match sliced.net? {
        LaxNetSlice::Ipv4(ip) => {
            let header = ip.header();
            let labels = Labels { id: header.identification(), flow: 0 };
            (header.source_addr().into(), header.destination_addr().into(), header.payload_len().ok()?, labels)
        }
        LaxNetSlice::Ipv6(ip) => {
            let header = ip.header();
            let labels = Labels { id: 0, flow: header.flow_label().value() };
            (header.source_addr().into(), header.destination_addr().into(), header.payload_length(), labels)
        }
        LaxNetSlice::Arp(_) => return None,
    };
    let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { return None };
    Some(Heard {
        from: SocketAddr::new(from, tcp.source_port()),
        to: SocketAddr::new(to, tcp.destination_port()),
        seq: tcp.sequence_number(),
        ack: tcp.acknowledgment_number(),
        reset: tcp.rst(),
        plain: tcp.ack() && !tcp.syn() && !tcp.rst(),
        bare: !tcp.fin() && length == 4 * u16::from(tcp.data_offset()),
        window: tcp.window_size(),
        labels,
        stamps: tcp.options_iterator().flatten().find_map(|option| match option {
            TcpOptionElement::Timestamp(value, echo) => Some(Stamps { value, echo }),
            _ => None,
        }),
    })
}

/// A TCP header with nothing but ports, numbers and window; the flags are the caller's.
pub(super) fn header(from: SocketAddr, to: SocketAddr, seq: u32, ack: u32, window: u16) -> TcpHeader {
    let mut tcp = TcpHeader::new(from.port(), to.port(), seq, window);
    tcp.ack = true;
    tcp.acknowledgment_number = ack;
    tcp
}

/// Adds the timestamps the way Linux lays them out: two NOPs before, to align them.
pub(super) fn stamp(tcp: &mut TcpHeader, stamps: Stamps) {
    let option = TcpOptionElement::Timestamp(stamps.value, stamps.echo);
    let written = tcp.set_options(&[TcpOptionElement::Noop, TcpOptionElement::Noop, option]);
    debug_assert!(written.is_ok(), "12 bytes of options always fit");
}

/// An address as captured packets have it: without a scope.
pub(super) fn bare(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The whole packet with its checksums. Fails if the ends are of two families.
pub(super) fn packet(from: IpAddr, to: IpAddr, labels: Labels, mut tcp: TcpHeader, data: &[u8]) -> Result<Vec<u8>> {
    let length = u16::try_from(tcp.header_len() + data.len())?;
    let mut bytes = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip = Ipv4Header::new(length, TTL, IpNumber::TCP, from.octets(), to.octets())?;
            ip.identification = labels.id;
            ip.dont_fragment = true;
            ip.header_checksum = ip.calc_header_checksum();
            tcp.checksum = tcp.calc_checksum_ipv4(&ip, data)?;
            ip.to_bytes().to_vec()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let ip = Ipv6Header {
                flow_label: Ipv6FlowLabel::try_new(labels.flow)?,
                payload_length: length,
                next_header: IpNumber::TCP,
                hop_limit: TTL,
                source: from.octets(),
                destination: to.octets(),
                ..Ipv6Header::default()
            };
            tcp.checksum = tcp.calc_checksum_ipv6(&ip, data)?;
            ip.to_bytes().to_vec()
        }
        _ => bail!("{from} and {to} cannot be the ends of one connection"),
    };
    bytes.extend(tcp.to_bytes());
    bytes.extend(data);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_read_back_also_when_cut_off() {
        for (from, to) in [("10.0.0.1:2379", "10.0.0.2:40000"), ("[fd00::1]:2379", "[fd00::2]:40000")] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let mut tcp = header(from, to, 7, 9, 63);
            let stamps = Stamps { value: 3, echo: 4 };
            stamp(&mut tcp, stamps);
            let labels = Labels { id: if from.is_ipv4() { 5 } else { 0 }, flow: if from.is_ipv4() { 0 } else { 6 } };
            for (data, bare) in [(&[0; 500][..], false), (&[], true)] {
                let bytes = packet(from.ip(), to.ip(), labels, tcp.clone(), data).unwrap();
                let heard = parse(&bytes[..bytes.len().min(100)]).unwrap();
                let (stamps, reset, plain) = (Some(stamps), false, true);
                assert_eq!(heard, Heard { from, to, seq: 7, ack: 9, reset, plain, bare, window: 63, labels, stamps });
            }
        }
    }

    #[test]
    fn two_families_make_no_packet() {
        let (from, to): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "fd00::2".parse().unwrap());
        assert!(
            packet(from, to, Labels { id: 1, flow: 0 }, header((from, 1).into(), (to, 2).into(), 0, 0, 0), &[])
                .is_err()
        );
    }
}
