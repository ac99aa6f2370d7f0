//! Listens on every device of a namespace, lo included: what playdead steals shows there.

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
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
        times.map(|times| times.iter().map(|time| *time - times[0]).collect())
    }

    fn next_sent(&self, buffer: &mut [u8]) -> Option<(usize, Duration)> {
        loop {
            let mut parts = [IoSliceMut::new(buffer)];
            let mut space = nix::cmsg_space!(nix::sys::time::TimeSpec);
            let got =
                recvmsg::<LinkAddr>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()).ok()?;
            let time = got.cmsgs().unwrap().find_map(|message| match message {
                ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
                _ => None,
            });
            if got.address.is_some_and(|address| address.pkttype() == OUTGOING) {
                return Some((got.bytes, time.unwrap()));
            }
        }
    }
}

fn destination(packet: &SlicedPacket) -> Option<std::net::IpAddr> {
    match packet.net.as_ref()? {
        NetSlice::Ipv4(ip) => Some(ip.header().destination_addr().into()),
        NetSlice::Ipv6(ip) => Some(ip.header().destination_addr().into()),
        NetSlice::Arp(_) => None,
    }
}
