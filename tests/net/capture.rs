//! Listens on every device of a namespace, lo included: what playdead steals shows there.

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use etherparse::{NetSlice, SlicedPacket, TcpSlice, TransportSlice};
use nix::sys::socket::{ControlMessageOwned, LinkAddr, MsgFlags, recvmsg};
use playdead::kernel::netns::NetNs;
use socket2::{Domain, Protocol, Socket, Type};

/// `PACKET_OUTGOING`: what a device is given to send.
const OUTGOING: u8 = 4;

/// A capture of what is sent. It has room for what short tests send.
pub(crate) struct Capture {
    socket: Socket,
}

impl Capture {
    pub(crate) fn start(ns: &NetNs) -> Self {
        let all = Protocol::from(i32::from(3_u16.to_be()));
        let socket = ns.run(|| Socket::new(Domain::PACKET, Type::DGRAM, Some(all))).unwrap().unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.set_recv_buffer_size(4 << 20).unwrap();
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::ReceiveTimestampns, &true).unwrap();
        Self { socket }
    }

    /// When the SYNs to each of these were sent, counted from the first, in the kernel's time.
    pub(crate) fn syns<const N: usize>(&self, targets: [SocketAddr; N]) -> [Vec<Duration>; N] {
        let mut times = [const { Vec::new() }; N];
        let mut buffer = [0; 2048];
        while let Some((length, time)) = self.next_sent(&mut buffer) {
            let Ok(packet) = SlicedPacket::from_ip(&buffer[..length]) else { continue };
            let Some(TransportSlice::Tcp(tcp)) = &packet.transport else { continue };
            let target = targets.iter().position(|target| destination(&packet) == Some(target.ip()));
            if let Some(target) = target.filter(|_| tcp.syn() && !tcp.ack()) {
                times[target].push(time);
            }
        }
        times.map(|times| times.iter().map(|time| time.saturating_sub(times[0])).collect())
    }

    /// Every RST that was received from a peer: what of it is the same each time.
    pub(crate) fn resets(&self) -> Vec<String> {
        let mut resets = Vec::new();
        let mut buffer = [0; 2048];
        while let Some((length, kind, _)) = self.next(&mut buffer) {
            let Ok(packet) = SlicedPacket::from_ip(&buffer[..length]) else { continue };
            let Some(TransportSlice::Tcp(tcp)) = &packet.transport else { continue };
            if tcp.rst() && kind != OUTGOING {
                resets.push(describe(&packet, tcp));
            }
        }
        resets
    }

    fn next_sent(&self, buffer: &mut [u8]) -> Option<(usize, Duration)> {
        loop {
            let (length, kind, time) = self.next(buffer)?;
            if kind == OUTGOING {
                return Some((length, time));
            }
        }
    }

    /// Length, packet type and time.
    fn next(&self, buffer: &mut [u8]) -> Option<(usize, u8, Duration)> {
        let mut parts = [IoSliceMut::new(buffer)];
        let mut space = nix::cmsg_space!(nix::sys::time::TimeSpec);
        let got = recvmsg::<LinkAddr>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()).ok()?;
        let time = got.cmsgs().unwrap().find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
            _ => None,
        });
        Some((got.bytes, got.address.unwrap().pkttype(), time.unwrap()))
    }
}

/// Everything but checksums, ports and the acknowledged number, which is random.
fn describe(packet: &SlicedPacket, tcp: &TcpSlice) -> String {
    let ip = match packet.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let ip = ip.header();
            let (id, df) = (ip.identification(), ip.dont_fragment());
            format!("{} ttl {} id {id} df {df} tos {}", ip.source_addr(), ip.ttl(), ip.dcp().value())
        }
        NetSlice::Ipv6(ip) => {
            let ip = ip.header();
            format!("{} hops {} class {}", ip.source_addr(), ip.hop_limit(), ip.traffic_class())
        }
        NetSlice::Arp(_) => unreachable!("TCP does not come in ARP"),
    };
    let (port, seq, window, ack) = (tcp.source_port(), tcp.sequence_number(), tcp.window_size(), tcp.ack());
    format!("{ip} port {port} seq {seq} ack {ack} window {window} options {:?}", tcp.options())
}

fn destination(packet: &SlicedPacket) -> Option<std::net::IpAddr> {
    match packet.net.as_ref()? {
        NetSlice::Ipv4(ip) => Some(ip.header().destination_addr().into()),
        NetSlice::Ipv6(ip) => Some(ip.header().destination_addr().into()),
        NetSlice::Arp(_) => None,
    }
}
