//! Devices that came, went or were renamed since the fault was made, and datagrams that do not fit through one.

mod net;

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use net::view::{BRIEF, assert_alike, assert_met, assert_only, by};
use net::{At, PORT, Segment, ip, targets};
use playdead::model::signature::Expect;
use playdead::probe::{Outcome, Probe};

const HOST: &str = "10.99.0.2 fd99::2";
const PROCESS: &str = "10.99.0.2:2379 [fd99::2]:2379";

/// What happens to the device by which the client reaches the peer.
#[derive(Debug, Clone, Copy)]
enum Change {
    Renamed,
    MadeAgain,
    Other,
}

const CHANGES: [Change; 3] = [Change::Renamed, Change::MadeAgain, Change::Other];

impl Change {
    fn happen(self, segment: &Segment) {
        let (client, switch) = (segment.name(At::Client), segment.name(At::Switch));
        let plug_in = |device: &str, port: &str| {
            // The peer knows its neighbour by this address.
            let made = ["link", "add", device, "address", "02:00:00:00:00:01", "type", "veth", "peer", "name", port];
            ip(&[&["-n", &client][..], &made, &["netns", &switch]].concat());
            ip(&["-n", &switch, "link", "set", port, "master", "br0", "up"]);
            ip(&["-n", &client, "link", "set", device, "up"]);
            ip(&["-n", &client, "addr", "add", "10.99.0.1/24", "dev", device]);
            ip(&["-n", &client, "addr", "add", "fd99::1/64", "dev", device, "nodad"]);
            segment.pin_neighbours_on(device);
        };
        match self {
            Self::Renamed => segment.rename("eth0", "wan0"),
            Self::MadeAgain => {
                ip(&["-n", &client, "link", "del", "eth0"]);
                plug_in("eth0", "c");
            }
            Self::Other => {
                ip(&["-n", &client, "link", "del", "eth0"]);
                plug_in("eth7", "c7");
            }
        }
    }
}

fn for_each_change(run: impl Fn(&Segment, Change) + Sync) {
    let run = &run;
    thread::scope(|scope| {
        for change in CHANGES {
            scope.spawn(move || run(&Segment::new(), change));
        }
    });
}

#[test]
fn a_dead_host_stays_silent_whatever_becomes_of_the_device() {
    for_each_change(|segment, change| {
        let _server = segment.serve();
        segment.playdead(At::Client, &format!("dead-host {HOST}"));
        let late = || segment.status(At::Client)[0]["late_devices"].as_array().unwrap().len();
        assert_eq!(late(), 0);
        change.happen(segment);
        assert_eq!(late(), 1, "{change:?}");
        assert!(segment.playdead(At::Client, "status").contains("apply it again"));
        let seen = segment.look(BRIEF, &targets());
        assert_met(Expect::DeadHost, &seen);
        for seen in &seen {
            assert_eq!(seen.outcome, Outcome::Silence, "{change:?}: {seen:#?}");
        }
    });
}

#[test]
fn a_dead_process_refuses_by_the_same_errors_whatever_becomes_of_the_device() {
    let real = {
        let segment = Segment::new();
        segment.look(BRIEF, &targets())
    };
    assert_met(Expect::DeadProcess, &real);
    for_each_change(|segment, change| {
        let _server = segment.serve();
        segment.playdead(At::Client, &format!("dead-process {PROCESS}"));
        change.happen(segment);
        let seen = segment.look(BRIEF, &targets());
        assert_alike(&format!("{change:?}"), &seen, &real);
        for (seen, real) in seen.iter().zip(&real) {
            // Type, code, and whom the error comes from.
            assert_eq!(format!("{:?}", seen.errors), format!("{:?}", real.errors), "{change:?}: {seen:#?}");
        }
    });
}

/// The device is renamed between the end of the connections and what is written then.
#[test]
fn connections_over_a_device_that_is_renamed_end_as_by_kill_9() {
    let segment = Segment::new();
    let _server = segment.serve();
    let seen = segment.watch(BRIEF, || {
        segment.playdead(At::Client, &format!("dead-process {PROCESS}"));
        Change::Renamed.happen(&segment);
    });
    assert_only(Expect::DeadProcess, &seen);
}

#[test]
fn a_router_that_says_no_is_heard_whatever_becomes_of_the_device() {
    for_each_change(|segment, change| {
        let _server = segment.serve();
        segment.playdead(At::Client, &format!("unreachable {HOST} --code host"));
        change.happen(segment);
        // TCP over IPv6 gives up with its first retransmission.
        let seen = segment.look(Duration::from_millis(1500), &targets());
        assert_met("unreachable:host".parse().unwrap(), &seen);
        for datagram in by(&seen, Probe::UdpRecverr) {
            assert_eq!(datagram.outcome, Outcome::errno("EHOSTUNREACH"), "{change:?}: {datagram:#?}");
        }
    });
}

/// How a datagram of so many bytes ends for its sender; a refusal comes with the next call.
fn fate_of_datagram(segment: &Segment, target: SocketAddr, length: usize) -> Result<usize, ErrorKind> {
    let any: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { "[::]:0".parse().unwrap() };
    let socket = segment.client().run(|| UdpSocket::bind(any)).unwrap().unwrap();
    socket.connect(target).unwrap();
    socket.set_read_timeout(Some(BRIEF)).unwrap();
    assert_eq!(socket.send(&vec![0; length]).unwrap(), length);
    socket.recv(&mut [0; 8]).map_err(|error| error.kind())
}

/// A killed process's kernel refuses a datagram once its fragments are together again.
#[test]
fn datagrams_in_fragments_are_refused_as_by_the_kernel_of_a_killed_process() {
    let lengths = [1000, 1252, 1253, 1472, 1473, 4000, 60_000];
    let fates = |segment: &Segment| {
        segment.unlimited_errors();
        let each = |target| lengths.map(|length| fate_of_datagram(segment, target, length));
        targets().map(each)
    };
    for (routed, at) in [(false, At::Client), (false, At::Peer), (false, At::Switch), (true, At::Router)] {
        let segment = Segment::of(routed);
        let real = fates(&segment);
        assert!(real.iter().flatten().all(|fate| *fate == Err(ErrorKind::ConnectionRefused)), "{real:?}");
        // Somebody listens there, so a datagram that came through would be seen to.
        let _listeners = targets()
            .map(|target| segment.netns(At::Peer).run(|| UdpSocket::bind((target.ip(), PORT)).unwrap()).unwrap());
        segment.playdead(at, &format!("dead-process {PROCESS}"));
        // The limit of ICMP errors of this kind allows six at once.
        assert_eq!(fates(&segment).map(|fates| fates[..6].to_vec()), real.map(|fates| fates[..6].to_vec()), "{at:?}");
        thread::sleep(Duration::from_secs(1));
        for target in targets() {
            assert_eq!(
                fate_of_datagram(&segment, target, 60_000),
                Err(ErrorKind::ConnectionRefused),
                "{at:?} {target}"
            );
        }
    }
}

/// The kernel refuses a chain that is hooked to 256 devices (`NFT_NETDEVICE_MAX`).
#[test]
fn three_hundred_devices_and_ports_are_hooked_all() {
    let segment = Segment::new();
    let _server = segment.serve();
    // Behind the first of each pair there is nobody; the second is a port of a bridge.
    let link = |i| format!("link add a{i} type veth peer name b{i}\nlink set b{i} master br9\n");
    let links: Vec<_> = (0..300).map(link).collect();
    let client = segment.name(At::Client);
    let batch = format!("link add br9 type bridge\n{}", links.concat());
    let mut child = std::process::Command::new("ip")
        .args(["-n", &client, "-batch", "-"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), batch.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    for (kind, expect) in
        [(format!("dead-host {HOST}"), Expect::DeadHost), (format!("dead-process {PROCESS}"), Expect::DeadProcess)]
    {
        segment.playdead(At::Client, &kind);
        assert_met(expect, &segment.look(BRIEF, &targets()));
        let listed = segment.listed(At::Client);
        for i in 0..300 {
            assert!(listed.contains(&format!("\"a{i}\"")), "{kind}: a{i}");
        }
        segment.heal(At::Client);
    }
}

/// nft cannot quote such a name, so no rule can be about the device.
#[test]
fn a_device_whose_name_nft_cannot_write_is_judged_like_one_that_came_later() {
    let segment = Segment::new();
    let _server = segment.serve();
    for name in ["a\"b", "a*"] {
        segment.rename("eth0", name);
        // Nobody listens for UDP there, with or without a process.
        let killed = format!("dead-process {PROCESS} --proto tcp");
        for (kind, expect) in [(format!("dead-host {HOST}"), Expect::DeadHost), (killed, Expect::DeadProcess)] {
            let dry = segment.run(At::Client, &format!("{kind} --dry-run"));
            let said = String::from_utf8_lossy(&dry.stderr);
            assert!(said.contains(&format!("note: {name}: nft cannot write such a name")), "{said}");
            segment.nft(At::Client, &String::from_utf8(dry.stdout).unwrap());
            assert_met(expect, &segment.look(BRIEF, &targets()));
            segment.heal(At::Client);
        }
        segment.rename(name, "eth0");
    }
}

/// A router between two machines is never asked about what one of them sends to itself.
#[test]
fn a_machine_that_a_router_calls_unreachable_still_reaches_itself() {
    let segment = Segment::new();
    let _server = segment.serve();
    segment.playdead(At::Peer, &format!("unreachable {HOST}"));
    let options = playdead::probe::Options { timeout: BRIEF, ..Default::default() };
    assert_met(Expect::Alive, &playdead::probe::look(&segment.netns(At::Peer), &targets(), &options).unwrap());
    let seen = segment.look(Duration::from_millis(1500), &targets());
    assert_met("unreachable:host".parse().unwrap(), &seen);
}
