//! Open connections are ended as their peer would, seen from the client. Needs root and a kernel with nftables.

mod killed;
mod net;
mod sockets;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use playdead::kernel::forge::{Ending, How, Outcome, end};
use playdead::kernel::netns::NetNs;
use socket2::SockRef;

use crate::net::{MARK, Net, PORT};

const PEERS: [&str; 2] = ["10.77.0.2", "fd77::2"];
const LIMIT: Duration = Duration::from_secs(2);

fn at(peer: &str) -> SocketAddr {
    SocketAddr::new(peer.parse().unwrap(), PORT)
}

fn ending(client: &TcpStream, how: How) -> Ending {
    Ending { peer: client.peer_addr().unwrap(), client: client.local_addr().unwrap(), how }
}

/// Reads until something else than data comes; gives that and when it came.
fn watch(stream: &TcpStream) -> JoinHandle<(Result<usize, ErrorKind>, Instant)> {
    let mut stream = stream.try_clone().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    thread::spawn(move || {
        loop {
            match stream.read(&mut [0; 4096]) {
                Ok(length) if length > 0 => {}
                last => return (last.map_err(|error| error.kind()), Instant::now()),
            }
        }
    })
}

/// Ends one connection and checks what its client sees; gives the time from the call to the client's end of file.
fn check(ns: &NetNs, client: &mut TcpStream, how: How) -> Duration {
    let watcher = watch(client);
    thread::sleep(Duration::from_millis(20));
    let start = Instant::now();
    let outcomes = end(ns, &[ending(client, how)], MARK, LIMIT).unwrap();
    let returned = start.elapsed();
    assert_eq!(outcomes[0].1, Outcome::Ended);
    let (last, when) = watcher.join().unwrap();
    let expected = if how == How::Fin { Ok(0) } else { Err(ErrorKind::ConnectionReset) };
    assert_eq!(last, expected);
    let time = when - start;
    eprintln!("{how:?}: client saw it after {time:?}, call returned after {returned:?}");
    time
}

/// After a FIN of a dead process one write still succeeds, and what it draws fails the next.
fn check_writes(client: &mut TcpStream) {
    client.write_all(b"first").unwrap();
    thread::sleep(Duration::from_millis(50));
    let error = client.write_all(b"second").unwrap_err().kind();
    assert!(matches!(error, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error:?}");
}

#[test]
fn from_the_clients_namespace_an_idle_client_reads_end_of_file() {
    for peer in PEERS {
        let net = Net::wire();
        let (mut client, _server) = net.pair(at(peer));
        net.silence_at_client(at(peer).ip());
        assert!(check(&net.client, &mut client, How::Fin) < Duration::from_millis(50));
        check_writes(&mut client);
    }
}

#[test]
fn from_the_peers_namespace_an_idle_client_reads_end_of_file() {
    for peer in PEERS {
        let net = Net::wire();
        let (mut client, _server) = net.pair(at(peer));
        net.silence_at_peer();
        assert!(check(&net.peer, &mut client, How::Fin) < Duration::from_millis(50));
        check_writes(&mut client);
    }
}

#[test]
fn from_a_router_an_idle_client_reads_end_of_file() {
    for peer in ["10.77.2.1", "fd77:2::1"] {
        let net = Net::routed();
        let (mut client, _server) = net.pair(at(peer));
        check(net.router.as_ref().unwrap(), &mut client, How::Fin);
    }
}

#[test]
fn a_reset_is_a_reset_from_either_side() {
    for peer in PEERS {
        let net = Net::wire();
        let listener = net.listen(at(peer));
        for ns in [&net.client, &net.peer] {
            let mut client = net.connect(at(peer));
            let _server = listener.accept().unwrap();
            check(ns, &mut client, How::Reset);
        }
    }
}

#[test]
fn link_local_ends_are_told_apart_by_their_scope() {
    let net = Net::wire();
    let index = net.client.run(|| nix::net::if_::if_nametoindex("eth0")).unwrap().unwrap();
    let peers = net.peer.run(|| nix::net::if_::if_nametoindex("eth0")).unwrap().unwrap();
    let address = |scope| std::net::SocketAddrV6::new("fe80::2".parse().unwrap(), PORT, 0, scope).into();
    let listener = net.listen(address(peers));
    for (ns, scope) in [(&net.client, index), (&net.peer, peers)] {
        let client = net.connect(address(index));
        let _server = listener.accept().unwrap();
        let watcher = watch(&client);
        let mut ending = ending(&client, How::Fin);
        let SocketAddr::V6(end_of_client) = &mut ending.client else { unreachable!() };
        end_of_client.set_scope_id(scope);
        assert_eq!(end(ns, &[ending], MARK, LIMIT).unwrap()[0].1, Outcome::Ended);
        assert_eq!(watcher.join().unwrap().0, Ok(0));
    }
}

#[test]
fn both_ends_may_be_on_loopback() {
    for peer in ["127.0.0.1", "::1"] {
        let net = Net::wire();
        let listener = net.client.run(|| std::net::TcpListener::bind(at(peer))).unwrap().unwrap();
        let mut client = net.connect(at(peer));
        let _server = listener.accept().unwrap();
        check(&net.client, &mut client, How::Fin);
    }
}

#[test]
fn a_firewall_that_drops_invalid_segments_does_not_help_the_client() {
    for peer in PEERS {
        let net = Net::wire();
        net.drop_invalid_at_client();
        let listener = net.listen(at(peer));
        for ns in [&net.client, &net.peer] {
            let mut client = net.connect(at(peer));
            let _server = listener.accept().unwrap();
            check(ns, &mut client, How::Fin);
        }
    }
}

#[test]
fn nor_does_it_help_a_server_that_was_called() {
    for (peer, here) in [("10.77.0.2", "10.77.0.1:2379"), ("fd77::2", "[fd77::1]:2379")] {
        let net = Net::wire();
        net.drop_invalid_at_client();
        let listener = net.client.run(|| std::net::TcpListener::bind(here)).unwrap().unwrap();
        for ns in [&net.client, &net.peer] {
            let other = net.peer.run(|| TcpStream::connect(here)).unwrap().unwrap();
            assert_eq!(other.local_addr().unwrap().ip(), at(peer).ip());
            let mut client = listener.accept().unwrap().0;
            check(ns, &mut client, How::Fin);
        }
    }
}

#[test]
fn a_client_that_is_read_to_reads_all_that_came_and_then_end_of_file() {
    for (peer, at_client) in PEERS.iter().flat_map(|peer| [(peer, true), (peer, false)]) {
        let net = Net::wire();
        let (mut client, mut server) = net.pair(at(peer));
        thread::spawn(move || while server.write_all(&[7; 4096]).is_ok() {});
        let reader = watch(&client);
        thread::sleep(Duration::from_millis(100));
        if at_client {
            net.silence_at_client(at(peer).ip());
        } else {
            net.silence_at_peer();
        }
        check(if at_client { &net.client } else { &net.peer }, &mut client, How::Fin);
        assert_eq!(reader.join().unwrap().0, Ok(0));
    }
}

#[test]
fn a_client_that_writes_is_cut_off_whether_the_refusal_or_the_end_comes_first() {
    let net = Net::wire();
    let (mut client, mut server) = net.pair(at(PEERS[0]));
    thread::spawn(move || while server.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {});
    let ending = ending(&client, How::Fin);
    let writing = thread::spawn(move || {
        loop {
            if let Err(error) = client.write_all(&[7; 64]) {
                return (error.kind(), Instant::now());
            }
            thread::sleep(Duration::from_micros(200));
        }
    });
    thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    net.silence_at_client(at(PEERS[0]).ip());
    let outcome = end(&net.client, &[ending], MARK, LIMIT).unwrap()[0].1;
    let (error, when) = writing.join().unwrap();
    eprintln!("{outcome:?}: writer got {error:?} {:?} after the rules went in", when - start);
    assert_ne!(outcome, Outcome::NoAnswer);
    assert!(matches!(error, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error:?}");
}

#[test]
fn a_peer_that_tells_nothing_is_not_waited_for_and_the_client_is_asked() {
    for peer in PEERS {
        let net = Net::wire();
        let (mut client, _server) = net.pair(at(peer));
        net.silence_at_client(at(peer).ip());
        net.deafen_peer();
        let watcher = watch(&client);
        let start = Instant::now();
        assert_eq!(
            end(&net.client, &[ending(&client, How::Fin)], MARK, LIMIT).unwrap()[0].1,
            Outcome::EndedByChallenge
        );
        let (last, when) = watcher.join().unwrap();
        assert_eq!(last, Ok(0));
        assert!(when - start < Duration::from_millis(150), "{:?}", when - start);
        check_writes(&mut client);
    }
}

#[test]
fn a_thousand_connections_end_in_one_go() {
    for peer in PEERS {
        let net = Net::wire();
        let listener = net.listen(at(peer));
        let mut pairs = Vec::new();
        for _ in 0..1000 {
            let (client, server) = (net.connect(at(peer)), listener.accept().unwrap().0);
            // Closed, they would go on to repeat their FINs to a silent peer for a minute, a thousand at one instant, which is
            // more than the processor's backlog takes (`net.core.netdev_max_backlog`): other tests would lose packets.
            for end in [&client, &server] {
                SockRef::from(end).set_linger(Some(Duration::ZERO)).unwrap();
            }
            pairs.push((client, server));
        }
        let endings: Vec<_> = pairs.iter().map(|(client, _)| ending(client, How::Fin)).collect();
        net.silence_at_client(at(peer).ip());
        let start = Instant::now();
        let outcomes = end(&net.client, &endings, MARK, LIMIT).unwrap();
        eprintln!("1000 connections: {:?}", start.elapsed());
        assert!(outcomes.iter().all(|(_, outcome)| *outcome == Outcome::Ended));
        for (mut client, _) in pairs {
            client.set_nonblocking(true).unwrap();
            assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
        }
    }
}

#[test]
fn a_connection_that_is_gone_or_was_ended_before_is_told_from_one_that_does_not_answer() {
    let net = Net::wire();
    let (half, server) = net.pair(at(PEERS[0]));
    server.shutdown(Shutdown::Write).unwrap();
    let strange = |client: &str| Ending { peer: at(PEERS[0]), client: client.parse().unwrap(), how: How::Fin };
    let endings = [strange("10.77.0.1:9"), ending(&half, How::Fin), strange("10.77.0.99:9")];
    let outcomes = end(&net.client, &endings, MARK, Duration::from_millis(600)).unwrap();
    let outcomes: Vec<_> = outcomes.iter().map(|(_, outcome)| *outcome).collect();
    // A client ignores a second FIN without a word; who has sent one before is known by its socket.
    assert_eq!(outcomes, [Outcome::AlreadyGone, Outcome::Ended, Outcome::NoAnswer]);
}
