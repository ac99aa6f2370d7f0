//! What the kernel says of sockets, and who holds one.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname, socket};
use playdead::kernel::forge::How;
use playdead::kernel::owner::holder;
use playdead::kernel::sockets::{Connection, State, as_killed, connections, listeners, udp_receivers};
use std::os::fd::AsRawFd;

use crate::net::{Net, PORT};

fn find(all: &[Connection], local: SocketAddr, remote: SocketAddr) -> Connection {
    all.iter().find(|c| c.local == local && c.remote == remote).unwrap_or_else(|| panic!("not in {all:?}")).clone()
}

#[test]
fn a_connection_is_listed_with_what_is_unread_and_whether_it_was_accepted() {
    let net = Net::wire();
    let address: SocketAddr = ([10, 77, 0, 2], PORT).into();
    let wildcard = net.listen("[::]:2379".parse().unwrap());
    let mut client = net.connect(address);
    let local = client.local_addr().unwrap();
    client.write_all(b"hello").unwrap();
    let seen = |ns| find(&connections(ns).unwrap(), address, local);

    let waiting = seen(&net.peer);
    assert_eq!((waiting.state, waiting.unread, waiting.accepted), (State::Established, 5, false));
    assert_eq!(as_killed(&waiting), Some(How::Reset));

    let (mut server, _) = wildcard.accept().unwrap();
    assert_eq!(as_killed(&seen(&net.peer)), Some(How::Reset), "five bytes are unread");
    server.read_exact(&mut [0; 5]).unwrap();
    let idle = seen(&net.peer);
    assert_eq!((idle.unread, idle.accepted, as_killed(&idle)), (0, true, Some(How::Fin)));
    let other = find(&connections(&net.client).unwrap(), local, address);
    assert_eq!(other.heard_window, idle.sent_window);

    client.shutdown(Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let half = seen(&net.peer);
    assert_eq!((half.state, half.unread, as_killed(&half)), (State::CloseWait, 0, Some(How::Fin)));
}

#[test]
fn after_its_own_fin_a_process_has_nothing_left_to_say() {
    let net = Net::wire();
    let address: SocketAddr = ([10, 77, 0, 2], PORT).into();
    let listener = net.listen(address);
    let client = net.connect(address);
    let (server, _) = listener.accept().unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let seen = find(&connections(&net.peer).unwrap(), address, client.local_addr().unwrap());
    assert_eq!((seen.state, as_killed(&seen)), (State::FinWait2, None));
}

#[test]
fn listeners_are_listed_with_their_wildcards() {
    let net = Net::wire();
    let _both = net.listen("[::]:2379".parse().unwrap());
    let _one = net.listen("10.77.0.2:2380".parse().unwrap());
    let _udp = net.peer.run(|| UdpSocket::bind("[fd77::2]:53")).unwrap().unwrap();
    let expected = ["0.0.0.0:2379", "10.77.0.2:2380", "[::]:2379"].map(|a| a.parse().unwrap());
    assert_eq!(listeners(&net.peer).unwrap(), expected);
    assert_eq!(udp_receivers(&net.peer).unwrap(), ["[fd77::2]:53".parse().unwrap()]);
    assert_eq!(listeners(&net.client).unwrap(), []);
}

#[test]
fn the_holder_of_a_netfilter_socket_is_found_by_its_inode_alone() {
    let net = Net::wire();
    // A port id that is the id of another process, and a socket of another protocol with the same port id.
    let port = 1;
    let open = |protocol| {
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).unwrap();
        bind(socket.as_raw_fd(), &NetlinkAddr::new(port, 0)).unwrap();
        socket
    };
    let _route = net.peer.run(|| open(SockProtocol::NetlinkRoute)).unwrap();
    assert_eq!(holder(&net.peer, port).unwrap(), None);
    let held = net.peer.run(|| open(SockProtocol::NetlinkNetFilter)).unwrap();
    assert_eq!(getsockname::<NetlinkAddr>(held.as_raw_fd()).unwrap().pid(), port);
    assert_eq!(holder(&net.peer, port).unwrap(), Some(std::process::id()));
    assert_eq!(holder(&net.client, port).unwrap(), None, "port ids belong to a namespace");
    drop(held);
    assert_eq!(holder(&net.peer, port).unwrap(), None);
}
