//! How faults end at every place, as the client sees it, and what is left when playdead is interrupted.

mod net;

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use net::cli::{playdead, timeless, words};
use net::{At, OTHER_PORT, Segment, at_port, ip};
use nix::sys::signal::Signal;

const DEAD: &str = "dead-host 10.99.0.2 fd99::2";
const SOON: Duration = Duration::from_secs(5);

/// Asks the peer again and again until it answers on both families.
fn time_of_first_answer(segment: &Segment, limit: Duration) -> Instant {
    let start = Instant::now();
    let sockets = at_port(OTHER_PORT).map(|target| {
        let any: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { "[::]:0".parse().unwrap() };
        let socket = segment.client().run(|| UdpSocket::bind(any)).unwrap().unwrap();
        socket.connect(target).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    });
    let mut answered = [false; 2];
    while answered != [true; 2] {
        assert!(start.elapsed() < limit, "no answer: {answered:?}");
        for (socket, answered) in sockets.iter().zip(&mut answered) {
            let _ = socket.send(b"?");
            *answered |= socket.recv(&mut [0; 64]).is_ok();
        }
        sleep(Duration::from_millis(2));
    }
    Instant::now()
}

/// chaosblade#702: the timeout did not fire. xk6-disruptor#295, litmus#2359, netavark#1223: the tool was gone.
#[test]
fn a_lease_ends_by_itself_with_no_playdead_left() {
    for at in [At::Client, At::Peer, At::Switch] {
        let segment = Segment::new();
        let _server = segment.serve();
        let start = Instant::now();
        segment.playdead(at, &format!("{DEAD} --for 2s --name lease"));
        let applied = Instant::now();
        assert_eq!(segment.status(at)[0]["active"], true);
        let answer = time_of_first_answer(&segment, SOON);
        assert!(answer - start >= Duration::from_secs(2), "{at:?}: {:?} after the start", answer - start);
        assert!(answer - applied <= Duration::from_millis(2200), "{at:?}: {:?} after it was applied", answer - applied);
        // chaos-mesh#1401: whether a fault is active can be told.
        let status = segment.status(at);
        assert_eq!((&status[0]["active"], &status[0]["left_ms"]), (&false.into(), &0.into()), "{status:?}");
        assert!(segment.playdead(at, "status").contains("expired"));
        segment.heal(at);
    }
}

#[test]
fn what_has_no_lease_is_not_renewed() {
    let segment = Segment::new();
    segment.playdead(At::Client, &format!("{DEAD} --name open"));
    for line in ["renew open --for 1s", "renew nobody --for 1s"] {
        assert_eq!(segment.run(At::Client, line).status.code(), Some(1), "{line}");
    }
    assert_eq!(segment.status(At::Client)[0]["active"], true);
    // In one place it has none: then it is renewed in no other either.
    segment.playdead(At::Peer, &format!("{DEAD} --name open --for 1m"));
    let mut both = playdead();
    both.args(["--netns", &segment.name(At::Peer), "--netns", &segment.name(At::Client)]);
    assert_eq!(both.args(words("renew open --for 1h")).output().unwrap().status.code(), Some(1));
    assert!(segment.status(At::Peer)[0]["left_ms"].as_u64() <= Some(60_000));
    // One that comes and goes has a lease for each time, which is its process's.
    segment.heal(At::Client);
    let _flapping = segment.hold(At::Client, "flap dead-host 10.99.0.2 --up 1m --down 1m --name comes");
    let refused = segment.run(At::Client, "renew comes --for 1h");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("the process that holds it"), "{said}");
}

#[test]
fn a_held_fault_is_gone_within_100_ms_of_sigkill() {
    for at in [At::Client, At::Peer, At::Switch] {
        let segment = Segment::new();
        let held = segment.hold(at, &format!("{DEAD} --hold"));
        held.send(Signal::SIGKILL);
        segment.time_to_heal(at, Duration::from_millis(100));
    }
}

/// litmus-go#239: abort did not restore.
#[test]
fn signals_that_end_a_hold_heal_it_and_are_success() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        let segment = Segment::new();
        let held = segment.hold(At::Client, &format!("{DEAD} --hold"));
        held.send(signal);
        segment.time_to_heal(At::Client, Duration::from_millis(100));
        assert_eq!(held.end(SOON).code(), Some(0), "{signal}");
    }
}

/// The terminal went, and `nohup` said that this shall not matter.
#[test]
fn a_hold_under_nohup_outlives_the_terminal() {
    let segment = Segment::new();
    let mut nohup = Command::new("nohup");
    nohup.arg(playdead().get_program()).args(["--netns", &segment.name(At::Client)]).args(words(DEAD)).arg("--hold");
    let held = segment.hold_by(At::Client, nohup);
    held.send(Signal::SIGHUP);
    sleep(Duration::from_millis(200));
    assert!(segment.listed(At::Client).contains("playdead"), "it ended");
    held.send(Signal::SIGTERM);
    segment.time_to_heal(At::Client, Duration::from_millis(100));
    assert_eq!(held.end(SOON).code(), Some(0));
}

/// comcast#37: "destroyed", but still there.
#[test]
fn healing_what_another_process_holds_returns_when_it_is_gone() {
    let segment = Segment::new();
    for (lifetime, code) in [("--hold", 0), ("-- sleep 100", 128 + 15)] {
        let held = segment.hold(At::Client, &format!("{DEAD} --name held {lifetime}"));
        let other = segment.run(At::Client, "heal somebody-else");
        assert!(other.status.success() && !segment.listed(At::Client).is_empty(), "{other:?}");
        segment.playdead(At::Client, "heal held");
        assert_eq!(segment.listed(At::Client), "");
        assert_eq!(held.end(SOON).code(), Some(code), "{lifetime}");
    }
}

#[test]
fn signals_are_passed_on_to_the_command() {
    for (signal, healed) in [(Signal::SIGTERM, true), (Signal::SIGINT, true), (Signal::SIGUSR1, false)] {
        let segment = Segment::new();
        let mut command = playdead();
        command.args(["--netns", &segment.name(At::Client)]).args(words(DEAD)).args(["--", "sh", "-c"]);
        // It takes its time over it, but who ends playdead wants the fault gone now.
        command.arg("trap 'sleep 0.5; exit 42' TERM INT USR1; echo ready; while :; do sleep 0.02; done");
        let mut held = segment.hold_by(At::Client, command);
        held.wait_until_it_says("ready");
        held.send(signal);
        if healed {
            segment.time_to_heal(At::Client, Duration::from_millis(200));
        } else {
            sleep(Duration::from_millis(100));
            assert_ne!(segment.listed(At::Client), "", "{signal} does not end it");
        }
        assert_eq!(held.end(SOON).code(), Some(42), "{signal}");
        assert_eq!(segment.listed(At::Client), "");
    }
}

/// xk6-disruptor#295, litmus#2359, netavark#1223; comcast#41: half-made rules. chaos-mesh#310: heal needs no file.
#[test]
fn killed_at_any_moment_it_leaves_the_whole_fault_or_none() {
    let segment = Segment::new();
    let line = format!("{DEAD} --name torn");
    let start = Instant::now();
    segment.playdead(At::Client, &line);
    let usual = start.elapsed();
    let whole = timeless(&segment.listed(At::Client));
    segment.heal(At::Client);
    let mut seen = [0, 0];
    for turn in 0..60_u32 {
        let mut command = playdead();
        let mut child = command.args(["--netns", &segment.name(At::Client)]).args(words(&line)).spawn().unwrap();
        sleep(usual * (turn % 30) / 25);
        child.kill().unwrap();
        child.wait().unwrap();
        let left = timeless(&segment.listed(At::Client));
        seen[usize::from(left.is_empty())] += 1;
        assert!(left.is_empty() || left == whole, "{left}\n---\n{whole}");
        assert_eq!(segment.status(At::Client).len(), usize::from(!left.is_empty()));
        segment.heal(At::Client);
    }
    assert!(seen[0] > 5 && seen[1] > 5, "{} whole, {} none: killed at the wrong moments", seen[0], seen[1]);
}

/// A namespace that goes takes its faults with it, and heal says nothing of it.
#[test]
fn a_held_fault_of_a_namespace_that_is_deleted_goes_with_it() {
    let segment = Segment::new();
    let held = segment.hold(At::Switch, &format!("{DEAD} --hold"));
    ip(&["netns", "del", &segment.name(At::Switch)]);
    held.send(Signal::SIGTERM);
    assert_eq!(held.end(SOON).code(), Some(0));
}
