//! Several faults in one place, one fault in several places, and many playdeads at once.

mod net;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use net::cli::{playdead, timeless, words};
use net::view::{BRIEF, assert_met};
use net::{At, Segment, other_port, targets};
use playdead::kernel::netns::NetNs;
use playdead::model::signature::Expect;

const DEAD_HOST: &str = "dead-host 10.99.0.2 fd99::2";
const DEAD_PROCESS: &str = "dead-process 10.99.0.2:2379 [fd99::2]:2379";

/// chaosd#207: the rules of one experiment were removed with another's.
#[test]
fn several_faults_are_healed_in_any_order_and_each_alone() {
    let faults = [
        ("a", "dead-process 10.99.0.2:2379 [fd99::2]:2379 --name a"),
        ("b", "dead-host 10.99.0.2:2380 [fd99::2]:2380 --name b"),
        ("c", "lossy 10.99.0.7 --percent 50 --name c"),
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let segment = Segment::new();
        let _server = segment.serve();
        for (_, line) in faults {
            segment.playdead(At::Client, line);
        }
        let mut left = vec!["a", "b", "c"];
        for index in order {
            let port = |name, dead, port: &[SocketAddr; 2]| {
                let expect = if left.contains(&name) { dead } else { Expect::Alive };
                let tcp = segment.look(Duration::from_millis(300), port);
                let tcp: Vec<_> =
                    tcp.into_iter().filter(|seen| seen.probe == playdead::probe::Probe::Connect).collect();
                assert_met(expect, &tcp);
            };
            port("a", Expect::DeadProcess, &targets());
            port("b", Expect::DeadHost, &other_port());
            segment.playdead(At::Client, &format!("heal {}", faults[index].0));
            left.retain(|name| *name != faults[index].0);
            let status = segment.status(At::Client);
            let names: Vec<_> = status.iter().map(|fault| fault["name"].as_str().unwrap()).collect();
            assert_eq!(names, left);
        }
        assert_eq!(segment.listed(At::Client), "");
    }
}

/// chaos-mesh#763, chaosd#178, litmus-go#285: doubled rules; "exists" blocked delete and retry.
#[test]
fn applied_twice_and_healed_once_nothing_is_left() {
    let segment = Segment::new();
    for at in [At::Client, At::Peer, At::Switch] {
        for line in [DEAD_HOST, DEAD_PROCESS, "hush 10.99.0.2:2379", "lossy 10.99.0.2 --percent 3 --for 1h"] {
            segment.playdead(at, line);
            let once = timeless(&segment.listed(at));
            segment.playdead(at, line);
            assert_eq!(timeless(&segment.listed(at)), once, "{line} at {at:?}");
            segment.heal(at);
            assert!(segment.playdead(at, "heal").contains("nothing to heal"));
        }
    }
}

#[test]
fn a_name_that_another_fault_has_needs_replace() {
    let segment = Segment::new();
    segment.playdead(At::Client, &format!("{DEAD_HOST} --name n"));
    let before = segment.listed(At::Client);
    let output = segment.run(At::Client, &format!("{DEAD_PROCESS} --name n"));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "{output:?}");
    assert_eq!(segment.listed(At::Client), before);
    segment.playdead(At::Client, &format!("{DEAD_PROCESS} --name n --replace"));
    let status = segment.status(At::Client);
    assert_eq!((status.len(), &status[0]["kind"]), (1, &"dead-process".into()));
}

#[test]
fn what_is_not_about_the_same_packets_makes_no_room() {
    for (one, other) in [
        ("dead-process 10.99.0.2:2379", "dead-process 10.99.0.2:2380"),
        ("dead-host 10.99.0.2 --proto tcp", "dead-host 10.99.0.2 --proto udp"),
        ("dead-host 10.99.0.2 --with 10.99.0.1", "dead-host 10.99.0.2 --with 10.5.5.5"),
        ("dead-host 10.99.0.2", "dead-host fd99::2"),
    ] {
        let segment = Segment::new();
        segment.playdead(At::Client, &format!("{one} --name one"));
        segment.playdead(At::Client, &format!("{other} --name other --replace"));
        assert_eq!(segment.status(At::Client).len(), 2, "{other} takes the place of {one}");
    }
}

#[test]
fn what_else_is_healed_by_a_replacement_is_said() {
    for (one, other, said) in [
        (
            "dead-host 10.99.0.2 10.99.0.7",
            "dead-process 10.99.0.2:2379",
            "one made room: dead-host 10.99.0.7 has ended\n",
        ),
        ("dead-host 10.99.0.0/24", "dead-host 10.99.0.2", "one made room: dead-host 10.99.0.0/24 has ended\n"),
        (
            "dead-host 10.99.0.2:2379-2380",
            "hush 10.99.0.2:2379",
            "one made room: dead-host 10.99.0.2:2379-2380 has ended\n",
        ),
        ("dead-host 10.99.0.2", "dead-host 10.99.0.2 --with 10.99.0.1", "has ended where it was not --with these\n"),
        ("dead-host 10.99.0.2", "dead-process 10.99.0.2:2379", ""),
        ("dead-process 10.99.0.2:2379", "dead-host 10.99.0.2", ""),
    ] {
        let segment = Segment::new();
        segment.playdead(At::Client, &format!("{one} --name one"));
        let output = segment.run(At::Client, &format!("{other} --replace --json"));
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains(said) && said.is_empty() != told.contains("made room"), "{other}: {told}");
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["faults"][0]["replaced"], serde_json::json!(["one"]), "{document}");
    }
}

/// coreos/fleet#715, #1501, #1628: between the two kinds of death nothing leaks in.
#[test]
fn in_fifty_switches_between_dead_host_and_dead_process_no_connect_succeeds() {
    for at in [At::Client, At::Peer] {
        let segment = Segment::new();
        let _server = segment.serve();
        segment.playdead(at, DEAD_HOST);
        let done = AtomicBool::new(false);
        let tries: u32 = thread::scope(|scope| {
            let hammer = |target: SocketAddr| {
                let (segment, done) = (&segment, &done);
                scope.spawn(move || hammer(segment, target, done))
            };
            let hammers: Vec<_> = [targets(), targets()].concat().into_iter().map(hammer).collect();
            for turn in 0..50 {
                let line = if turn % 2 == 0 { DEAD_PROCESS } else { DEAD_HOST };
                segment.playdead(at, &format!("{line} --replace"));
                assert_eq!(segment.status(at).len(), 1);
            }
            done.store(true, Ordering::Relaxed);
            hammers.into_iter().map(|hammer| hammer.join().unwrap()).sum()
        });
        assert!(tries > 100, "only {tries} attempts");
        segment.heal(at);
        segment.assert_alive();
    }
}

/// Connects again and again; never may it succeed.
fn hammer(segment: &Segment, target: SocketAddr, done: &AtomicBool) -> u32 {
    let mut tries = 0;
    while !done.load(Ordering::Relaxed) {
        let connect = || std::net::TcpStream::connect_timeout(&target, Duration::from_millis(20));
        let kind = segment.client().run(connect).unwrap().map_err(|error| error.kind());
        assert!(matches!(kind, Err(ErrorKind::ConnectionRefused | ErrorKind::TimedOut)), "{target}: {kind:?}");
        tries += 1;
    }
    tries
}

fn in_parallel(number: usize, run: impl Fn(usize) -> Output + Sync) {
    let run = &run;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..number).map(|i| scope.spawn(move || run(i))).collect();
        for thread in threads {
            let output = thread.join().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
    });
}

/// ClickHouse#60217; jepsen#63, #64; chaos-mesh#771: parallel runs collided on a lock.
#[test]
fn fifty_at_once_in_one_namespace_all_succeed_and_all_heal() {
    let segment = Segment::new();
    let at = At::Client;
    in_parallel(50, |i| segment.run(at, &format!("dead-host 10.1.0.{i} fd01::{i} --name n{i}")));
    assert_eq!(segment.status(at).len(), 50);
    in_parallel(50, |i| segment.run(at, &format!("heal n{i}")));
    assert_eq!(segment.listed(at), "");
    // The same fault by all.
    in_parallel(50, |_| segment.run(at, DEAD_HOST));
    assert_eq!(segment.status(at).len(), 1);
    in_parallel(20, |_| segment.run(at, "heal"));
    assert_eq!(segment.listed(at), "");
}

/// Fifty namespaces, and what is left of them when the test ends.
struct Many(Vec<String>);

impl Many {
    fn new(segment: &Segment) -> Self {
        let names = (0..50).map(|i| format!("{}{i}", segment.name(At::Client)));
        Self(names.inspect(|name| drop(NetNs::create(name).unwrap())).collect())
    }

    fn everywhere(&self, line: &str) -> Output {
        let places = self.0.iter().flat_map(|name| ["--netns", name]);
        playdead().args(places).args(words(line)).output().unwrap()
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| drop(NetNs::delete(name)));
    }
}

#[test]
fn fifty_namespaces_by_fifty_playdeads_and_by_one() {
    let segment = Segment::new();
    let many = Many::new(&segment);
    let one = |i: usize, line: &str| playdead().args(["--netns", &many.0[i]]).args(words(line)).output().unwrap();
    in_parallel(50, |i| one(i, "dead-host 10.1.0.1 --name n"));
    let status = many.everywhere("status --json");
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["faults"].as_array().unwrap().len(), 50);
    in_parallel(50, |i| one(i, "heal n"));
    in_parallel(1, |_| many.everywhere("dead-host 10.1.0.1 --name n"));
    let healed = many.everywhere("heal");
    assert_eq!(String::from_utf8_lossy(&healed.stdout).lines().count(), 50, "{healed:?}");
}

/// comcast#41: failed half-way. Over several places it is all or nothing, whichever is the bad one.
#[test]
fn one_place_that_fails_leaves_all_others_as_they_were() {
    let segment = Segment::new();
    segment.nft(At::Peer, "table inet playdead-n { comment \"mine\"; }");
    segment.playdead(At::Client, "dead-host 10.77.0.1 --name n");
    let line = "dead-host 10.99.0.2 --name n --replace";
    let names = [At::Client, At::Switch, At::Peer].map(|at| segment.name(at));
    let before = [At::Client, At::Switch, At::Peer].map(|at| segment.listed(at));
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let places = order.iter().flat_map(|i| ["--netns", &names[*i]]);
        let output = playdead().args(places).args(words(line)).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&names[2]) && said.contains("playdead-n") && said.lines().count() == 1, "{said}");
        assert_eq!([At::Client, At::Switch, At::Peer].map(|at| segment.listed(at)), before);
    }
    assert_met(Expect::DeadProcess, &segment.look(BRIEF, &targets()));
}
