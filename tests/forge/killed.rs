//! Side by side with a real `kill -9`: what comes over the wire to the client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use etherparse::{NetSlice, SlicedPacket, TcpOptionElement, TcpSlice, TransportSlice};
use playdead::kernel::forge::{Ending, end};
use playdead::kernel::sockets::{as_killed, connections};
use socket2::{Domain, Protocol, Socket, Type};

use crate::net::{MARK, Net, PORT};
use crate::{LIMIT, at};

const ADDRESS: &str = "PLAYDEAD_TEST_ADDRESS";
const READS: &str = "PLAYDEAD_TEST_READS";

/// How the peer dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    Real,
    ForgedAtClient,
    ForgedAtPeer,
}

/// One segment as far as a real one and a forged one must agree.
#[derive(Debug, PartialEq, Eq)]
struct Last {
    flags: String,
    /// Behind the initial sequence numbers of the two ends.
    seq: u32,
    ack: u32,
    window: u16,
    ttl: u8,
    tos: u8,
    /// IPv4 only: not to be fragmented, and numbered.
    dont_fragment: bool,
    numbered: bool,
    options: Vec<&'static str>,
}

/// The peer: the same program started again, in the peer's namespace, as this "test".
#[test]
#[ignore = "it is the process that the other tests kill"]
fn serve_until_killed() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let listener = TcpListener::bind(address).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"hello").unwrap();
    let mut bytes = [0; 64];
    while std::env::var(READS).is_ok() {
        let length = stream.read(&mut bytes).unwrap();
        stream.write_all(&bytes[..length]).unwrap();
    }
    loop {
        thread::park();
    }
}

fn start(net: &Net, address: SocketAddr, reads: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "killed::serve_until_killed"]).stdout(Stdio::null());
    command.env(ADDRESS, address.to_string());
    if reads {
        command.env(READS, "1");
    }
    net.peer.run(|| command.spawn()).unwrap().unwrap()
}

fn connect(net: &Net, address: SocketAddr) -> TcpStream {
    for _ in 0..200 {
        if let Ok(stream) = net.client.run(|| TcpStream::connect(address)).unwrap() {
            return stream;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("nobody serves {address}");
}

fn capture(net: &Net) -> Socket {
    let all = Protocol::from(i32::from(3_u16.to_be()));
    let socket = net.client.run(|| Socket::new(Domain::PACKET, Type::DGRAM, Some(all))).unwrap().unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// What the client gets at the end of a connection whose peer is killed, or seems to be.
fn last_segment(peer: &str, reads: bool, death: Death) -> Last {
    let net = Net::wire();
    let mut child = start(&net, at(peer), reads);
    // The first attempts may be refused: their numbers are not this connection's.
    thread::sleep(Duration::from_millis(300));
    let tap = capture(&net);
    let mut client = connect(&net, at(peer));
    client.read_exact(&mut [0; 5]).unwrap();
    client.write_all(b"some request").unwrap();
    if reads {
        client.read_exact(&mut [0; 12]).unwrap();
    }
    thread::sleep(Duration::from_millis(100));
    if death != Death::Real {
        play_dead(&net, &client, death);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    thread::sleep(Duration::from_millis(50));
    last(&tap)
}

fn play_dead(net: &Net, client: &TcpStream, death: Death) {
    let (peer, client) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
    let all = connections(&net.peer).unwrap();
    let connection = all.iter().find(|c| c.local == peer && c.remote == client).unwrap();
    let how = as_killed(connection).unwrap();
    let ns = if death == Death::ForgedAtClient {
        net.silence_at_client(peer.ip());
        &net.client
    } else {
        net.silence_at_peer();
        &net.peer
    };
    end(ns, &[Ending { peer, client, how }], MARK, LIMIT).unwrap();
}

/// The first FIN or RST from the peer.
fn last(tap: &Socket) -> Last {
    let (mut bytes, mut client_start, mut peer_start) = ([0; 2048], 0, 0);
    while let Ok(length) = (&*tap).read(&mut bytes) {
        let Ok(packet) = SlicedPacket::from_ip(&bytes[..length]) else { continue };
        let Some(TransportSlice::Tcp(tcp)) = &packet.transport else { continue };
        if tcp.syn() && tcp.destination_port() == PORT {
            client_start = tcp.sequence_number();
        } else if tcp.syn() {
            peer_start = tcp.sequence_number();
        } else if tcp.source_port() == PORT && (tcp.fin() || tcp.rst()) {
            return describe(&packet, tcp, peer_start, client_start);
        }
    }
    panic!("the peer ended nothing");
}

fn describe(packet: &SlicedPacket, tcp: &TcpSlice, peer_start: u32, client_start: u32) -> Last {
    let (ttl, tos, dont_fragment, numbered) = match packet.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            (header.ttl(), header.dcp().value(), header.dont_fragment(), header.identification() != 0)
        }
        NetSlice::Ipv6(ip) => (ip.header().hop_limit(), ip.header().traffic_class(), true, true),
        NetSlice::Arp(_) => unreachable!("TCP does not come in ARP"),
    };
    let flags = [("F", tcp.fin()), ("R", tcp.rst()), ("P", tcp.psh()), ("A", tcp.ack())];
    Last {
        flags: flags.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect(),
        seq: tcp.sequence_number().wrapping_sub(peer_start),
        ack: tcp.acknowledgment_number().wrapping_sub(client_start),
        window: tcp.window_size(),
        ttl,
        tos,
        dont_fragment,
        numbered,
        options: tcp.options_iterator().map(|option| name(&option.unwrap())).collect(),
    }
}

fn name(option: &TcpOptionElement) -> &'static str {
    match option {
        TcpOptionElement::Noop => "nop",
        TcpOptionElement::Timestamp(..) => "timestamps",
        _ => "other",
    }
}

#[test]
fn a_forged_fin_is_that_of_a_killed_process() {
    for peer in ["10.77.0.2", "fd77::2"] {
        let real = last_segment(peer, true, Death::Real);
        assert_eq!(real.flags, "FA");
        assert_eq!(last_segment(peer, true, Death::ForgedAtClient), real);
        assert_eq!(last_segment(peer, true, Death::ForgedAtPeer), real);
    }
}

#[test]
fn a_forged_reset_is_that_of_a_killed_process_with_unread_data() {
    for peer in ["10.77.0.2", "fd77::2"] {
        let real = last_segment(peer, false, Death::Real);
        assert_eq!(real.flags, "RA");
        assert_eq!(last_segment(peer, false, Death::ForgedAtClient), real);
        assert_eq!(last_segment(peer, false, Death::ForgedAtPeer), real);
    }
}
