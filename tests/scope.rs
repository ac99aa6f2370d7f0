//! Which packets a fault is about: `--direction`, `--with`, `--proto`, ports.

mod net;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use net::places::at_all;
use net::view::BRIEF;
use net::{At, OTHER_PORT, PORT, Segment, ip, targets};
use playdead::probe::{Options, Outcome, Probe, look};

const HOST: &str = "10.99.0.2 fd99::2";
fn client_addresses(segment: &Segment) -> [IpAddr; 2] {
    let near = ["10.99.0.1", "fd99::1"];
    let far = ["10.98.0.1", "fd98::1"];
    (if segment.has(At::Router) { far } else { near }).map(|address| address.parse().unwrap())
}

fn bind(segment: &Segment, at: At, address: IpAddr) -> UdpSocket {
    let socket = segment.netns(at).run(|| UdpSocket::bind((address, 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    socket
}

/// Whether datagrams arrive that are sent to the peer, and that are sent from it.
fn passes(segment: &Segment, client: IpAddr, peer: IpAddr) -> (bool, bool) {
    let [here, there] = [bind(segment, At::Client, client), bind(segment, At::Peer, peer)];
    let arrives = |from: &UdpSocket, to: &UdpSocket| {
        from.send_to(b"!", to.local_addr().unwrap()).unwrap();
        to.recv(&mut [0; 8]).is_ok()
    };
    (arrives(&here, &there), arrives(&there, &here))
}

/// toxiproxy#121, #479; litmus#3589: directions misled users. Here they are seen from the peer.
#[test]
fn one_direction_is_cut_and_the_other_is_not() {
    at_all(|segment, at| {
        for (direction, expected) in [("to", (false, true)), ("from", (true, false)), ("both", (false, false))] {
            segment.playdead(at, &format!("dead-host {HOST} --direction {direction}"));
            for (client, peer) in client_addresses(segment).into_iter().zip(targets()) {
                assert_eq!(passes(segment, client, peer.ip()), expected, "{direction} at {at:?}, {peer}");
            }
            segment.heal(at);
        }
        for (client, peer) in client_addresses(segment).into_iter().zip(targets()) {
            assert_eq!(passes(segment, client, peer.ip()), (true, true), "healed at {at:?}");
        }
    });
}

/// etcd#17737: count per direction.
#[test]
fn hits_are_counted_by_direction() {
    at_all(|segment, at| {
        segment.playdead(at, &format!("dead-host {HOST} --direction to --name to"));
        segment.playdead(at, &format!("dead-host {HOST} --direction from --name from"));
        let before = hits(segment, at);
        for (client, peer) in client_addresses(segment).into_iter().zip(targets()) {
            assert_eq!(passes(segment, client, peer.ip()), (false, false));
        }
        let after = hits(segment, at);
        for (way, hits) in [("to", after.0 - before.0), ("from", after.1 - before.1)] {
            // One datagram a family, and a question for a neighbour now and then.
            assert!((2..=6).contains(&hits), "{hits} {way} at {at:?}");
        }
    });
}

fn hits(segment: &Segment, at: At) -> (u64, u64) {
    let status = segment.status(at);
    let of = |way: &str| {
        let fault = status.iter().find(|fault| fault["name"] == way).unwrap();
        fault["hits"][way]["packets"].as_u64().unwrap()
    };
    (of("to"), of("from"))
}

/// cockroach#92991, #94614: partial partitions are missed.
#[test]
fn only_the_named_other_ends_are_cut_off() {
    at_all(|segment, at| {
        let second: [IpAddr; 2] =
            if segment.has(At::Router) { ["10.98.0.3", "fd98::3"] } else { ["10.99.0.3", "fd99::3"] }
                .map(|address| address.parse().unwrap());
        let name = segment.name(At::Client);
        for (address, bits) in second.into_iter().zip([24, 64]) {
            let flag = if address.is_ipv6() { "nodad" } else { "noprefixroute" };
            ip(&["-n", &name, "addr", "add", &format!("{address}/{bits}"), "dev", "eth0", flag]);
        }
        let first = client_addresses(segment);
        for (client, peer) in second.into_iter().zip(targets()) {
            segment.ping_until_answered(&["-I", &client.to_string()], peer);
        }
        segment.playdead(at, &format!("dead-host {HOST} --with {} {}", first[0], first[1]));
        for (family, peer) in targets().into_iter().enumerate() {
            assert_eq!(passes(segment, first[family], peer.ip()), (false, false), "{at:?}, {peer}");
            assert_eq!(passes(segment, second[family], peer.ip()), (true, true), "{at:?}, {peer} {second:?}");
        }
    });
}

#[test]
fn only_the_named_protocol_is_cut() {
    at_all(|segment, at| {
        let _server = segment.serve();
        for proto in ["tcp", "udp"] {
            segment.playdead(at, &format!("dead-host {HOST} --proto {proto}"));
            let other = targets().map(|target| SocketAddr::new(target.ip(), OTHER_PORT));
            let how =
                Options { timeout: BRIEF, probes: vec![Probe::Connect, Probe::Udp, Probe::Ping], ..Options::default() };
            for seen in look(&segment.client(), &other, &how).unwrap() {
                let cut = matches!((proto, seen.probe), ("tcp", Probe::Connect) | ("udp", Probe::Udp));
                let expected = if cut { Outcome::Silence } else { Outcome::Answered };
                assert_eq!(seen.outcome, expected, "{proto} at {at:?}: {seen:#?}");
            }
            segment.heal(at);
        }
    });
}

/// chaos-mesh#2272; pumba#130, #57: ports, ranges, several targets.
#[test]
fn only_the_named_ports_are_cut() {
    at_all(|segment, at| {
        let _server = segment.serve();
        let before = PORT - 1;
        segment.playdead(at, &format!("dead-host 10.99.0.2:{before}-{PORT} [fd99::2]:{PORT} 10.99.0.77:1-65535"));
        let how = |probes| Options { timeout: BRIEF, probes, ..Options::default() };
        for seen in look(&segment.client(), &targets(), &how(vec![Probe::Connect, Probe::Udp])).unwrap() {
            assert_eq!(seen.outcome, Outcome::Silence, "{at:?}: {seen:#?}");
        }
        let all = how(vec![Probe::Connect, Probe::Udp, Probe::Ping]);
        for seen in look(&segment.client(), &net::other_port(), &all).unwrap() {
            assert_eq!(seen.outcome, Outcome::Answered, "{at:?}: {seen:#?}");
        }
    });
}
