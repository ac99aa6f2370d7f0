//! The client's link: what passed it, told without what is random.
//!
//! What leaves the client is seen at the far end of its cable, or, if playdead takes it away on the client before its
//! device sends it, on the client's `lo`. What the client hears is what its stack is given: it is logged at the first
//! hook behind playdead's own. Elsewhere than on the client that is what passes its cable.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use etherparse::{
    Icmpv4Type, Icmpv6Type, LaxNetSlice, LaxSlicedPacket, NetSlice, SlicedPacket, TcpOptionElement, TcpSlice,
    TransportSlice,
};
use nix::net::if_::if_nametoindex;

use crate::log::Log;
use crate::net::At;
use crate::net::capture::Capture;
use crate::places::{Family, Location, Rig};
use crate::probes::Probe;

/// Times in milliseconds and what was seen then.
pub(crate) type Timed = Vec<(f64, String)>;
/// By family and probe: what the client sent, and what it heard.
pub(crate) type Wire = BTreeMap<(Family, Probe), (Timed, Timed)>;

/// Captures at the far end of the client's cable and on its `lo`, and the log of what its stack is given.
pub(crate) struct Taps {
    sent: Vec<(Capture, usize, bool)>,
    heard: Log,
    peers: [IpAddr; 2],
}

impl Taps {
    pub(crate) fn start(rig: &Rig) -> Self {
        let far = match rig.location {
            Location::Segment => Some((At::Switch, "c")),
            Location::Routed => Some((At::Router, "eth1")),
            Location::Loopback => None,
        };
        let tap = |(at, device): (At, &str)| {
            let ns = rig.segment.netns(at);
            let index = ns.run(|| if_nametoindex(device).unwrap()).unwrap();
            (Capture::start(&ns), usize::try_from(index).unwrap(), device == "lo")
        };
        let sent = far.into_iter().chain([(At::Client, "lo")]).map(tap).collect();
        let peers = Family::ALL.map(|family| rig.location.address(family));
        Self { sent, heard: Log::start(&rig.segment), peers }
    }

    /// What passed until so long after the event, which was complete at `clock`.
    pub(crate) fn read(self, clock: Duration, until: Duration) -> Wire {
        let sent = self.sent.iter().flat_map(|(tap, device, lo)| {
            // What passes lo is seen twice: when it is sent, and when it arrives.
            let frames = tap.frames().into_iter().filter(move |frame| frame.device == *device);
            frames.filter(move |frame| !(*lo && frame.outgoing)).map(|frame| (frame.time, true, frame.packet))
        });
        let heard = self.heard.read().into_iter().map(|(time, packet)| (time, false, packet));
        let mut packets: Vec<_> = sent.chain(heard).filter(|(time, ..)| *time <= clock + until).collect();
        packets.sort_by_key(|(time, ..)| *time);
        let mut reader = Reader { peers: self.peers, clock, flows: HashMap::new(), wire: Wire::new() };
        for (time, sent, packet) in &packets {
            reader.take(*time, *sent, packet);
        }
        reader.wire
    }
}

/// One connection, by the client's port.
#[derive(Default)]
struct Flow {
    client_start: Option<u32>,
    peer_start: Option<u32>,
    /// The first SYN.
    began: Option<Duration>,
    /// When each segment of the client was first sent, by its relative number.
    first_sent: HashMap<u32, Duration>,
    /// Behind the last byte that the client sent.
    next: u32,
}

struct Reader {
    peers: [IpAddr; 2],
    clock: Duration,
    flows: HashMap<(bool, u16, u16), Flow>,
    wire: Wire,
}

impl Reader {
    /// Takes a packet of those that were sent, or of those that were heard.
    fn take(&mut self, time: Duration, sent: bool, packet: &[u8]) {
        let Ok(packet) = SlicedPacket::from_ip(packet) else { return };
        let Some((from, to, ip)) = ip_header(&packet) else { return };
        let family = if from.is_ipv4() { Family::V4 } else { Family::V6 };
        match &packet.transport {
            Some(TransportSlice::Tcp(tcp)) => {
                let Some((probe, outward)) = self.probe_of(from, to, tcp.source_port(), tcp.destination_port()) else {
                    return;
                };
                let client_port = if outward { tcp.source_port() } else { tcp.destination_port() };
                let key = (from.is_ipv4(), client_port, probe.port());
                let flow = self.flows.entry(key).or_default();
                let entry = self.wire.entry((family, probe)).or_default();
                if outward && sent {
                    entry.0.extend(flow.sent(tcp, time));
                } else if !outward && !sent {
                    let at = since(time, flow.began.map_or(self.clock, |began| began.max(self.clock)));
                    entry.1.push((at, format!("{} {ip}", flow.heard(tcp))));
                }
            }
            _ if sent => {}
            Some(TransportSlice::Udp(udp)) => {
                let probe = self.probe_of(from, to, udp.source_port(), udp.destination_port());
                if let Some((probe, false)) = probe {
                    self.hear(family, probe, time, format!("UDP of {} bytes {ip}", udp.payload().len()));
                }
            }
            Some(TransportSlice::Icmpv4(icmp)) => match icmp.icmp_type() {
                Icmpv4Type::EchoReply(_) if self.is_peer(from) => {
                    let text = format!("echo reply of {} bytes {ip}", icmp.payload().len());
                    self.hear(family, Probe::Ping, time, text);
                }
                Icmpv4Type::EchoRequest(_) => {}
                _ => {
                    let kind = format!("ICMP {}/{} from {from}", icmp.type_u8(), icmp.code_u8());
                    self.hear_error(family, time, icmp.payload(), &format!("{kind} {ip}"));
                }
            },
            Some(TransportSlice::Icmpv6(icmp)) => match icmp.icmp_type() {
                Icmpv6Type::EchoReply(_) if self.is_peer(from) => {
                    let text = format!("echo reply of {} bytes {ip}", icmp.payload().len());
                    self.hear(family, Probe::Ping, time, text);
                }
                Icmpv6Type::DestinationUnreachable(_)
                | Icmpv6Type::TimeExceeded(_)
                | Icmpv6Type::ParameterProblem(_)
                | Icmpv6Type::PacketTooBig { .. } => {
                    let kind = format!("ICMPv6 {}/{} from {from}", icmp.type_u8(), icmp.code_u8());
                    self.hear_error(family, time, icmp.payload(), &format!("{kind} {ip}"));
                }
                _ => {}
            },
            None => {}
        }
    }

    fn is_peer(&self, address: IpAddr) -> bool {
        self.peers.contains(&address)
    }

    /// The probe by the peer's port, and whether the packet is on its way to it. On loopback both ends have one
    /// address: there the port alone tells them apart.
    fn probe_of(&self, from: IpAddr, to: IpAddr, source: u16, destination: u16) -> Option<(Probe, bool)> {
        let to_peer = Probe::at_port(destination).filter(|_| self.is_peer(to)).map(|probe| (probe, true));
        to_peer.or_else(|| Probe::at_port(source).filter(|_| self.is_peer(from)).map(|probe| (probe, false)))
    }

    /// No datagram and no ping is sent before the event by a probe.
    fn hear(&mut self, family: Family, probe: Probe, time: Duration, what: String) {
        if time < self.clock {
            return;
        }
        let at = since(time, self.clock);
        self.wire.entry((family, probe)).or_default().1.push((at, what));
    }

    /// An ICMP error is about what it quotes.
    fn hear_error(&mut self, family: Family, time: Duration, quoted: &[u8], what: &str) {
        let Ok((to, ip, ports)) = quote(quoted) else { return };
        if !self.is_peer(to) {
            return;
        }
        let (probe, about) = match ports {
            Some((kind, port)) => (Probe::at_port(port), kind),
            None => (Some(Probe::Ping), "ICMP"),
        };
        let Some(probe) = probe else { return };
        let text = format!("{what} quotes {} bytes: {about} to {to} {ip}", quoted.len());
        self.hear(family, probe, time, text);
    }
}

impl Flow {
    /// SYNs and what is sent again, with the time since the first of its kind.
    fn sent(&mut self, tcp: &TcpSlice, time: Duration) -> Option<(f64, String)> {
        if tcp.syn() {
            self.client_start = Some(tcp.sequence_number());
            self.next = 1;
            let began = *self.began.get_or_insert(time);
            return Some((since(time, began), format!("SYN {}", options(tcp, None))));
        }
        let number = tcp.sequence_number().wrapping_sub(self.client_start?);
        let length = u32::try_from(tcp.payload().len()).unwrap();
        let is_probe = length <= 1 && number.wrapping_add(1) == self.next && !tcp.rst() && !tcp.fin();
        if is_probe && length == 0 {
            let first = *self.first_sent.entry(u32::MAX).or_insert(time);
            return Some((since(time, first), "keepalive".to_owned()));
        }
        if length == 0 {
            return None;
        }
        self.next = self.next.max(number.wrapping_add(length));
        let first = *self.first_sent.entry(number).or_insert(time);
        (first != time).then(|| (since(time, first), format!("again seq {number}")))
    }

    fn heard(&mut self, tcp: &TcpSlice) -> String {
        if tcp.syn() && tcp.ack() {
            self.peer_start = Some(tcp.sequence_number());
        }
        let relative = |number: u32, start: Option<u32>| number.wrapping_sub(start.unwrap_or_default());
        let seq = relative(tcp.sequence_number(), self.peer_start);
        let ack = if tcp.ack() {
            relative(tcp.acknowledgment_number(), self.client_start).to_string()
        } else {
            "none".to_owned()
        };
        let (length, window) = (tcp.payload().len(), tcp.window_size());
        format!(
            "TCP {} seq {seq} ack {ack} length {length} window {window} {}",
            flags(tcp),
            options(tcp, self.client_start)
        )
    }
}

fn flags(tcp: &TcpSlice) -> String {
    let flags = [("S", tcp.syn()), ("F", tcp.fin()), ("R", tcp.rst()), ("P", tcp.psh()), ("A", tcp.ack())];
    flags.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect()
}

/// The options in their order; the values of timestamps are the time of day of two machines.
fn options(tcp: &TcpSlice, acknowledged: Option<u32>) -> String {
    let relative = |(from, to): (u32, u32)| {
        let start = acknowledged.unwrap_or_default();
        format!("{}-{}", from.wrapping_sub(start), to.wrapping_sub(start))
    };
    let name = |option: TcpOptionElement| match option {
        TcpOptionElement::Timestamp(..) => "timestamps".to_owned(),
        TcpOptionElement::SelectiveAcknowledgement(first, more) => {
            let all = std::iter::once(first).chain(more.into_iter().flatten());
            format!("sack {}", all.map(relative).collect::<Vec<_>>().join(" "))
        }
        other => format!("{other:?}"),
    };
    let options: Vec<_> = tcp.options_iterator().map(|option| name(option.unwrap())).collect();
    format!("[{}]", options.join(" "))
}

/// Who sent it to whom, and what of the header must agree.
fn ip_header(packet: &SlicedPacket) -> Option<(IpAddr, IpAddr, String)> {
    match packet.net.as_ref()? {
        NetSlice::Ipv4(ip) => {
            let ip = ip.header();
            let text = header4(ip.ttl(), ip.dont_fragment(), ip.identification(), ip.dcp().value());
            Some((ip.source_addr().into(), ip.destination_addr().into(), text))
        }
        NetSlice::Ipv6(ip) => {
            let ip = ip.header();
            let text = format!("hops {} class {}", ip.hop_limit(), ip.traffic_class());
            Some((ip.source_addr().into(), ip.destination_addr().into(), text))
        }
        NetSlice::Arp(_) => None,
    }
}

fn header4(ttl: u8, df: bool, id: u16, tos: u8) -> String {
    let numbered = if id == 0 { "no id" } else { "id" };
    format!("ttl {ttl}{} {numbered} tos {tos}", if df { " DF" } else { "" })
}

/// Of the packet that an error quotes: to whom it went, its header, and its protocol and port.
type Quote = (IpAddr, String, Option<(&'static str, u16)>);

fn quote(bytes: &[u8]) -> Result<Quote, ()> {
    // ICMPv4's own "unused" word and ICMPv6's are part of the header for etherparse.
    let packet = LaxSlicedPacket::from_ip(bytes).map_err(drop)?;
    let (to, header) = match packet.net.as_ref().ok_or(())? {
        LaxNetSlice::Ipv4(ip) => {
            let ip = ip.header();
            let text = header4(ip.ttl(), ip.dont_fragment(), ip.identification(), ip.dcp().value());
            (ip.destination_addr().into(), text)
        }
        LaxNetSlice::Ipv6(ip) => {
            let ip = ip.header();
            (ip.destination_addr().into(), format!("hops {} class {}", ip.hop_limit(), ip.traffic_class()))
        }
        LaxNetSlice::Arp(_) => return Err(()),
    };
    let ports = match packet.transport {
        Some(TransportSlice::Tcp(tcp)) => Some(("TCP", tcp.destination_port())),
        Some(TransportSlice::Udp(udp)) => Some(("UDP", udp.destination_port())),
        _ => None,
    };
    Ok((to, header, ports))
}

fn since(time: Duration, origin: Duration) -> f64 {
    time.saturating_sub(origin).as_secs_f64() * 1e3
}
