//! The client's link: what passed it, told without what is random.
//!
//! What leaves the client is seen at the far end of its cable, or, if playdead takes it away on the client before its
//! device sends it, on the client's `lo`. What the client hears is what its stack is given: it is logged at the first
//! hook behind playdead's own. Elsewhere than on the client that is what passes its cable.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use etherparse::{
    Icmpv4Type, Icmpv6Type, Ipv4HeaderSlice, Ipv6HeaderSlice, LaxNetSlice, LaxSlicedPacket, NetSlice, SlicedPacket,
    TcpOptionElement, TcpSlice, TransportSlice,
};
use nix::net::if_::if_nametoindex;

use crate::log::Log;
use crate::net::At;
use crate::net::capture::Capture;
use crate::places::{Family, Location, Rig};
use crate::probes::Probe;

/// Before a keepalive of etcd's client can have been sent.
const AT_ONCE: Duration = Duration::from_secs(5);

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

    /// What passed until so long after the event, which began at `zero`, was complete at `clock`, and was mended later.
    pub(crate) fn read(self, [zero, clock]: [Duration; 2], until: Duration, mended: Option<Duration>) -> Wire {
        let mended = clock + mended.unwrap_or(until);
        let sent = self.sent.iter().flat_map(|(tap, device, lo)| {
            // What passes lo is seen twice: when it is sent, and when it arrives.
            let frames = tap.frames().into_iter().filter(move |frame| frame.device == *device);
            frames.filter(move |frame| !(*lo && frame.outgoing)).map(|frame| (frame.time, true, frame.packet))
        });
        let heard = self.heard.read().into_iter().map(|(time, packet)| (time, false, packet));
        let mut packets: Vec<_> = sent.chain(heard).filter(|(time, ..)| *time <= clock + until).collect();
        packets.sort_by_key(|(time, ..)| *time);
        let mut reader = Reader {
            peers: self.peers,
            zero,
            clock,
            flows: HashMap::new(),
            echoes: Vec::new(),
            last_of_etcd: HashMap::new(),
            mended,
            wire: Wire::new(),
        };
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
    /// The number of the client's FIN, and one more; and what it acknowledges.
    closed: Option<(u32, u32)>,
    /// The last that was heard is an acknowledgment without data.
    last_was_bare: bool,
}

struct Reader {
    peers: [IpAddr; 2],
    zero: Duration,
    clock: Duration,
    flows: HashMap<(Family, u16, u16), Flow>,
    /// The identifiers of echo requests, in the order of their coming.
    echoes: Vec<(Family, u16, Duration)>,
    /// The last packet of etcd's client before the event.
    last_of_etcd: HashMap<Family, Duration>,
    /// After it, what is sent again depends on chance.
    mended: Duration,
    wire: Wire,
}

impl Reader {
    /// Takes a packet of those that were sent, or of those that were heard.
    fn take(&mut self, time: Duration, sent: bool, packet: &[u8]) {
        let Ok(packet) = SlicedPacket::from_ip(packet) else { return };
        let Some((from, to, ip)) = ip_header(&packet) else { return };
        let family = Family::of(from);
        // The client's own kernel tells itself that it found no neighbour: of which packet is chance.
        if from == to && !self.is_peer(from) {
            return;
        }
        match &packet.transport {
            Some(TransportSlice::Tcp(tcp)) => self.take_tcp(time, sent, (from, to, &ip), tcp),
            Some(transport) if sent => {
                if let Some(id) = echo_request(transport) {
                    self.pinged(family, id, time);
                }
            }
            Some(TransportSlice::Udp(udp)) => {
                let probe = self.probe_of(from, to, udp.source_port(), udp.destination_port());
                if let Some((probe, false)) = probe {
                    self.hear(family, probe, time, format!("UDP of {} bytes {ip}", udp.payload().len()));
                }
            }
            Some(TransportSlice::Icmpv4(icmp)) => match icmp.icmp_type() {
                Icmpv4Type::EchoReply(echo) if self.is_peer(from) => {
                    self.hear_echo(family, echo.id, time, icmp.payload().len(), &ip);
                }
                Icmpv4Type::EchoRequest(_) => {}
                _ => {
                    let kind = format!("ICMP {}/{} from {from}", icmp.type_u8(), icmp.code_u8());
                    self.hear_error(family, time, icmp.payload(), &format!("{kind} {ip}"));
                }
            },
            Some(TransportSlice::Icmpv6(icmp)) => match icmp.icmp_type() {
                Icmpv6Type::EchoReply(echo) if self.is_peer(from) => {
                    self.hear_echo(family, echo.id, time, icmp.payload().len(), &ip);
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

    fn take_tcp(&mut self, time: Duration, sent: bool, (from, to, ip): (IpAddr, IpAddr, &str), tcp: &TcpSlice) {
        let ports = (tcp.source_port(), tcp.destination_port());
        let Some((probe, outward)) = self.probe_of(from, to, ports.0, ports.1) else { return };
        let family = Family::of(from);
        if probe.needs_etcd() {
            self.take_of_etcd(family, probe, sent && outward && tcp.syn(), time);
            return;
        }
        let client_port = if outward { ports.0 } else { ports.1 };
        let flow = self.flows.entry((family, client_port, probe.port())).or_default();
        let entry = self.wire.entry((family, probe)).or_default();
        if outward && sent {
            entry.0.extend(flow.sent(tcp, time).filter(|_| time < self.mended));
        } else if !outward && !sent && !flow.is_about_closing(tcp) {
            // What a keepalive draws counts from when the connection was made, its end by the process from the event.
            let began = flow.began.unwrap_or(self.clock);
            let origin = if probe == Probe::Keepalive && !tcp.fin() { began } else { began.max(self.clock) };
            let text = format!("{} {ip}", flow.heard(tcp));
            let is_bare = is_bare(tcp);
            // How many segments one acknowledgment is about depends on when the peer's kernel runs.
            if flow.last_was_bare && is_bare && tcp.options().len() <= TIMESTAMPS {
                entry.1.last_mut().unwrap().1 = text;
            } else {
                entry.1.push((since(time, origin), text));
            }
            flow.last_was_bare = is_bare;
        }
    }

    /// Of etcd's client only when it gives its connection up and connects anew: how the frames of HTTP/2 fall into
    /// segments is chance, and so are the times of what it tries after that (gRPC draws lots). What it notices at once
    /// counts from the event, what its keepalive notices from the last packet before it.
    fn take_of_etcd(&mut self, family: Family, probe: Probe, is_new: bool, time: Duration) {
        if time <= self.zero {
            self.last_of_etcd.insert(family, time);
        } else if is_new {
            let last = self.last_of_etcd.get(&family).copied().unwrap_or_default();
            let origin = if time < self.zero + AT_ONCE { self.zero } else { last };
            let (sent, _) = self.wire.entry((family, probe)).or_default();
            if sent.is_empty() {
                sent.push((since(time, origin), "connects anew".to_owned()));
            }
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

    fn pinged(&mut self, family: Family, id: u16, time: Duration) {
        if time > self.clock && !self.echoes.iter().any(|(of, known, _)| (*of, *known) == (family, id)) {
            self.echoes.push((family, id, time));
        }
    }

    /// The probe `ping` begins first.
    fn pinger(&self, family: Family, id: u16) -> Option<Probe> {
        let mut of_family = self.echoes.iter().filter(|(of, ..)| *of == family);
        let number = of_family.position(|(_, known, _)| *known == id)?;
        [Probe::Ping, Probe::RawPing].get(number).copied()
    }

    /// It counts from the first question: when a probe begins to ask is no part of the failure.
    fn hear_echo(&mut self, family: Family, id: u16, time: Duration, length: usize, ip: &str) {
        let asked = self.echoes.iter().find(|(of, known, _)| (*of, *known) == (family, id));
        if let Some((probe, (.., asked))) = self.pinger(family, id).zip(asked.copied()) {
            let text = format!("echo reply of {length} bytes {ip}");
            self.wire.entry((family, probe)).or_default().1.push((since(time, asked), text));
        }
    }

    /// An ICMP error is about what it quotes.
    fn hear_error(&mut self, family: Family, time: Duration, quoted: &[u8], what: &str) {
        let Some((to, ip, about)) = quote(quoted) else { return };
        if !self.is_peer(to) {
            return;
        }
        let (probe, about) = match about {
            About::Port(kind, port) => (Probe::at_port(port), kind),
            About::Echo(id) => (self.pinger(family, id), "echo"),
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
        if tcp.fin() {
            self.closed = Some((number.wrapping_add(length).wrapping_add(1), tcp.acknowledgment_number()));
        }
        if length == 0 {
            return None;
        }
        self.next = self.next.max(number.wrapping_add(length));
        let first = *self.first_sent.entry(number).or_insert(time);
        (first != time).then(|| (since(time, first), format!("again seq {number}")))
    }

    /// The client has ended it, which is no part of the failure.
    fn is_about_closing(&self, tcp: &TcpSlice) -> bool {
        let Some(((closed, heard), start)) = self.closed.zip(self.client_start) else { return false };
        if tcp.ack() {
            tcp.acknowledgment_number().wrapping_sub(start) == closed
        } else {
            tcp.rst() && tcp.sequence_number() == heard
        }
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

/// The length of the timestamps' option with its padding.
const TIMESTAMPS: usize = 12;

fn is_bare(tcp: &TcpSlice) -> bool {
    tcp.ack() && tcp.payload().is_empty() && !(tcp.syn() || tcp.fin() || tcp.rst())
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
            Some((ip.source_addr().into(), ip.destination_addr().into(), header4(&ip)))
        }
        NetSlice::Ipv6(ip) => {
            let ip = ip.header();
            Some((ip.source_addr().into(), ip.destination_addr().into(), header6(&ip)))
        }
        NetSlice::Arp(_) => None,
    }
}

fn header4(ip: &Ipv4HeaderSlice) -> String {
    let numbered = if ip.identification() == 0 { "no id" } else { "id" };
    let tos = ip.dcp().value() << 2 | ip.ecn().value();
    format!("ttl {}{} {numbered} tos {tos}", ip.ttl(), if ip.dont_fragment() { " DF" } else { "" })
}

fn header6(ip: &Ipv6HeaderSlice) -> String {
    format!("hops {} class {}", ip.hop_limit(), ip.traffic_class())
}

/// The identifier of an echo request.
fn echo_request(transport: &TransportSlice) -> Option<u16> {
    match transport {
        TransportSlice::Icmpv4(icmp) => match icmp.icmp_type() {
            Icmpv4Type::EchoRequest(echo) => Some(echo.id),
            _ => None,
        },
        TransportSlice::Icmpv6(icmp) => match icmp.icmp_type() {
            Icmpv6Type::EchoRequest(echo) => Some(echo.id),
            _ => None,
        },
        _ => None,
    }
}

/// What a quoted packet was.
enum About {
    /// TCP or UDP, and the port that it went to.
    Port(&'static str, u16),
    /// An echo request, by its identifier.
    Echo(u16),
}

/// Of the packet that an error quotes: to whom it went, its header, and what it was.
fn quote(bytes: &[u8]) -> Option<(IpAddr, String, About)> {
    let packet = LaxSlicedPacket::from_ip(bytes).ok()?;
    let (to, header) = match packet.net.as_ref()? {
        LaxNetSlice::Ipv4(ip) => {
            let ip = ip.header();
            (ip.destination_addr().into(), header4(&ip))
        }
        LaxNetSlice::Ipv6(ip) => {
            let ip = ip.header();
            (ip.destination_addr().into(), header6(&ip))
        }
        LaxNetSlice::Arp(_) => return None,
    };
    let about = match packet.transport? {
        TransportSlice::Tcp(tcp) => About::Port("TCP", tcp.destination_port()),
        TransportSlice::Udp(udp) => About::Port("UDP", udp.destination_port()),
        icmp => About::Echo(echo_request(&icmp)?),
    };
    Some((to, header, about))
}

fn since(time: Duration, origin: Duration) -> f64 {
    time.saturating_sub(origin).as_secs_f64() * 1e3
}
