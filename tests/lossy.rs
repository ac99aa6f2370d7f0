//! `lossy`: how many packets, or which connections, are lost.

mod net;

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use net::places::at_all;
use net::server::roomy;
use net::{At, OTHER_PORT, Segment, at_port};

const HOST: &str = "10.99.0.2 fd99::2";

/// etcd#17737: count per direction. comcast#67: a loss that the sender is told of is none.
#[test]
fn a_fifth_of_the_packets_is_lost_each_way_and_no_sender_hears_of_it() {
    at_all(|segment, at| {
        let _server = segment.serve();
        segment.playdead(at, &format!("lossy {HOST} --percent 20"));
        for target in at_port(OTHER_PORT) {
            let sent = 2000;
            let (arrived, back) = exchange(segment, target, sent);
            // Five standard deviations of 2000 packets of which 80 % arrive are 90.
            assert!((1510..=1690).contains(&arrived), "{at:?} {target}: {arrived} of {sent} arrived");
            let expected = arrived * 8 / 10;
            assert!(back.abs_diff(expected) < 90, "{at:?} {target}: {back} of {arrived} came back");
        }
    });
}

/// Sends datagrams that are sent back with their count; gives how many arrived at least, and how many came back.
fn exchange(segment: &Segment, target: SocketAddr, number: u32) -> (u32, u32) {
    let any: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { "[::]:0".parse().unwrap() };
    let socket = segment.client().run(|| UdpSocket::bind(any)).unwrap().unwrap();
    roomy(&socket);
    // The peer may get its turn late on a busy machine: to stop listening early would look like a loss, too.
    socket.connect(target).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let (mut first, mut last, mut back) = (u32::MAX, 0, 0);
    let mut receive = |wait: bool| {
        socket.set_nonblocking(!wait).unwrap();
        let mut buffer = [0; 64];
        while let Ok(length) = socket.recv(&mut buffer) {
            assert_eq!(length, 8);
            let count = u32::from_be_bytes(buffer[..4].try_into().unwrap());
            (first, last, back) = (first.min(count), last.max(count), back + 1);
        }
    };
    for i in 0..number {
        socket.send(&i.to_be_bytes()).unwrap();
        if i % 20 == 0 {
            receive(false);
            thread::sleep(Duration::from_millis(1));
        }
    }
    receive(true);
    (last + 1 - first, back)
}

/// xk6-disruptor#154: whole connections are lost, for as long as they live. scylla-cluster-tests#2191: and again.
#[test]
fn the_same_seed_loses_the_same_connections_everywhere_and_for_their_whole_life() {
    let lost: Vec<_> = thread::scope(|scope| {
        let run = |at| scope.spawn(move || lost_ports(at, 7));
        let threads = [At::Client, At::Peer, At::Switch, At::Client].map(run);
        threads.map(|thread| thread.join().unwrap()).into()
    });
    assert!((5..=45).contains(&lost[0].len()), "{:?} of 50", lost[0]);
    assert!(lost.iter().all(|other| *other == lost[0]), "{lost:?}");
    assert_ne!(lost_ports(At::Client, 8), lost[0], "another seed");
}

/// Of fifty sockets those whose every datagram is lost; the others must lose none.
fn lost_ports(at: At, seed: u32) -> BTreeSet<u16> {
    let segment = Segment::new();
    let _server = segment.serve();
    segment.playdead(at, &format!("lossy {HOST} --percent 50 --per-connection --seed {seed}"));
    let lost = |port: &u16| {
        let socket = segment.client().run(|| UdpSocket::bind(("10.99.0.1", *port))).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
        socket.connect(at_port(OTHER_PORT)[0]).unwrap();
        (0..5).for_each(|_| assert_eq!(socket.send(b"?").unwrap(), 1));
        let answered = (0..5).take_while(|_| socket.recv(&mut [0; 64]).is_ok()).count();
        assert!(answered == 0 || answered == 5, "port {port}: {answered} of 5 answered");
        answered == 0
    };
    (40_000..40_050).filter(lost).collect()
}
