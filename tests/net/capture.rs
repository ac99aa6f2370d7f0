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

/// A packet, from its IP header on, as a device was given it.
pub(crate) struct Frame {
    /// The kernel's time, since 1970.
    pub(crate) time: Duration,
    /// The number of the device.
    pub(crate) device: usize,
    /// The device was given it to send.
    pub(crate) outgoing: bool,
    pub(crate) packet: Vec<u8>,
}

/// A capture of what is sent. It has room for what short tests send.
pub(crate) struct Capture {
    socket: Socket,
}

impl Capture {
    pub(crate) fn start(ns: &NetNs) -> Self {
        let all = Protocol::from(i32::from(3_u16.to_be()));
        let socket = ns.run(|| Socket::new(Domain::PACKET, Type::DGRAM, Some(all))).unwrap().unwrap();
        socket.set_nonblocking(true).unwrap();
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &(32 << 20)).unwrap();
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::ReceiveTimestampns, &true).unwrap();
        Self { socket }
    }

    /// All that came since the last call, with what of it is needed to tell the devices and directions apart.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut buffer = [0; 2048];
        while let Some((length, kind, time, device)) = self.next_of_any(&mut buffer) {
            frames.push(Frame { time, device, outgoing: kind == OUTGOING, packet: buffer[..length].to_vec() });
        }
        frames
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
        self.next_of_any(buffer).map(|(length, kind, time, _)| (length, kind, time))
    }

    /// Length, packet type, time and the number of the device.
    fn next_of_any(&self, buffer: &mut [u8]) -> Option<(usize, u8, Duration, usize)> {
        let mut parts = [IoSliceMut::new(buffer)];
        let mut space = nix::cmsg_space!(nix::sys::time::TimeSpec);
        let got = recvmsg::<LinkAddr>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()).ok()?;
        let time = got.cmsgs().unwrap().find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
            _ => None,
        });
        let from = got.address.unwrap();
        Some((got.bytes, from.pkttype(), time.unwrap(), from.ifindex()))
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
