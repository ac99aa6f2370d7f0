//! `playdead flap`: a machine or a process that comes and goes, as its client sees it, and at which times.

mod labs;

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use labs::{Lab, playdead};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use playdead::kernel::netns::NetNs;
use playdead::kernel::timer;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_millis(100);

fn etcd1() -> SocketAddr {
    SocketAddr::new([10, 77, 0, 11].into(), 2379)
}

fn agent(lab: &Lab) -> NetNs {
    NetNs::named(&format!("{}-agent", lab.name)).unwrap()
}

fn start(lab: &Lab, line: &str) -> Child {
    let line = format!("--json --node {}/agent flap {line}", lab.name);
    playdead().args(line.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[track_caller]
fn document(child: Child) -> Value {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Milliseconds of `CLOCK_MONOTONIC`.
fn now() -> f64 {
    timer::now().unwrap().as_secs_f64() * 1e3
}

struct Sample {
    from: f64,
    to: f64,
    outcome: Result<(), ErrorKind>,
}

/// Connects from the agent again and again while it flaps.
fn sample(lab: &Lab, child: &mut Child) -> Vec<Sample> {
    agent(lab)
        .run(|| {
            let mut samples = Vec::new();
            while child.try_wait().unwrap().is_none() {
                let from = now();
                let outcome = TcpStream::connect_timeout(&etcd1(), PATIENCE).map(drop).map_err(|error| error.kind());
                samples.push(Sample { from, to: now(), outcome });
                sleep(Duration::from_millis(5));
            }
            samples
        })
        .unwrap()
}

/// The outcomes of the samples that fall wholly between two edges; those while it was down come first.
fn between_edges(document: &Value, samples: &[Sample]) -> [Vec<Result<(), ErrorKind>>; 2] {
    let start = document["start_monotonic_ms"].as_f64().unwrap();
    let edges = document["edges"].as_array().unwrap();
    let time = |edge: &Value, when: &str| start + edge[when].as_f64().unwrap();
    let mut outcomes = [Vec::new(), Vec::new()];
    for pair in edges.windows(2) {
        let within =
            |sample: &&Sample| sample.from > time(&pair[0], "done_ms") && sample.to < time(&pair[1], "planned_ms");
        let down = pair[0]["edge"] == "down";
        outcomes[usize::from(!down)].extend(samples.iter().filter(within).map(|sample| sample.outcome));
    }
    outcomes
}

#[test]
fn a_machine_and_a_process_come_and_go_and_a_client_sees_each_state_as_that_failure() {
    let lab = Lab::up(1);
    for (what, failure) in
        [("dead-host etcd1", ErrorKind::TimedOut), ("dead-process etcd1:2379", ErrorKind::ConnectionRefused)]
    {
        let mut child = start(&lab, &format!("{what} --down 300ms --up 400ms --cycles 4"));
        let samples = sample(&lab, &mut child);
        let document = document(child);
        assert_eq!(document["edges"].as_array().unwrap().len(), 8, "{document}");
        let [down, up] = between_edges(&document, &samples);
        assert!(down.len() >= 4 && down.iter().all(|outcome| *outcome == Err(failure)), "{what}: {down:?}");
        assert!(up.len() >= 4 && up.iter().all(Result::is_ok), "{what}: {up:?}");
        assert!(document["places"][0]["hits"]["to"]["packets"].as_u64() > Some(3), "{document}");
        assert_eq!(lab.listed("agent"), "");
    }
}

#[test]
fn each_death_of_the_process_ends_the_connections_that_are_open_then() {
    let lab = Lab::up(1);
    let connect = || agent(&lab).run(|| TcpStream::connect(etcd1()).unwrap()).unwrap();
    let ends = |mut stream: TcpStream| {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.read(&mut [0]).unwrap()
    };
    let before = connect();
    let child = start(&lab, "dead-process etcd1:2379 --down 300ms --up 1500ms --cycles 2");
    assert_eq!(ends(before), 0, "end of file");
    sleep(Duration::from_millis(700));
    assert_eq!(ends(connect()), 0, "end of file");
    let document = document(child);
    assert!(document["connections_ended"].as_u64() >= Some(2), "{document}");
}

/// A thread that has ended and is not joined keeps its stack, and a process has room for 32,000 of them.
#[test]
fn a_process_that_dies_again_and_again_takes_no_more_room() {
    let lab = Lab::up(1);
    let child = start(&lab, "dead-process etcd1:9 --down 2ms --up 2ms");
    let mappings = || std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap().lines().count();
    sleep(Duration::from_secs(1));
    let before = mappings();
    sleep(Duration::from_secs(2));
    let after = mappings();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    document(child);
    assert!(after < before + 100, "{before} mappings, and {after} two seconds later");
}

#[test]
fn ten_edges_a_second_are_where_they_were_planned() {
    let lab = Lab::up(1);
    let document = document(start(&lab, "dead-host etcd1 --down 100ms --up 100ms --for 6s"));
    let edges = document["edges"].as_array().unwrap();
    assert_eq!(edges.len(), 60);
    for (number, edge) in (0u32..).zip(edges) {
        assert!((edge["planned_ms"].as_f64().unwrap() - f64::from(number) * 100.0).abs() < 1e-6, "{edge}");
        assert_eq!(edge["edge"], if number % 2 == 0 { "down" } else { "up" });
    }
    let median = |which: &str| document[which]["median"].as_f64().unwrap();
    // What the transaction adds to the timer's own error.
    assert!(median("late_ms") < median("timer_ms") + 1.0, "{document}");
    // If lateness added up, the last would be late by sixty times the transaction.
    assert!(document["drift_ms"].as_f64().unwrap() < 6.0, "{document}");
}

#[test]
fn the_seed_repeats_the_jitter() {
    let lab = Lab::up(1);
    let line = "dead-host etcd1 --down 20ms --up 20ms --jitter 50 --cycles 10 --seed";
    let planned = |seed: u32| {
        let document = document(start(&lab, &format!("{line} {seed}")));
        document["edges"].as_array().unwrap().iter().map(|edge| edge["planned_ms"].clone()).collect::<Vec<_>>()
    };
    let first = planned(1);
    assert_eq!(planned(1), first);
    assert_ne!(planned(2), first);
}

#[test]
fn it_ends_with_its_process_with_heal_and_with_its_command() {
    let lab = Lab::up(1);
    let long = "dead-host etcd1 --down 1h --up 1h";
    let in_force = || {
        let until = Instant::now() + Duration::from_secs(60);
        while lab.pings("agent", "etcd1") {
            assert!(Instant::now() < until, "it never came");
        }
    };
    let gone = || {
        let until = Instant::now() + Duration::from_secs(3);
        while !lab.listed("agent").is_empty() {
            assert!(Instant::now() < until, "it is still there");
        }
        assert!(lab.pings("agent", "etcd1"));
    };
    let mut killed = start(&lab, long);
    in_force();
    killed.kill().unwrap();
    killed.wait().unwrap();
    gone();

    let healed = start(&lab, long);
    in_force();
    assert!(lab.done("--node LAB/agent heal").starts_with("healed flap-dead-host-etcd1-"));
    gone();
    assert_eq!(document(healed)["edges"].as_array().unwrap().len(), 1);

    let output = lab.run("--node LAB/agent flap dead-host etcd1 --down 1h --up 1h -- false");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    gone();
}

#[test]
fn the_kernel_ends_what_a_stopped_process_does_not() {
    let lab = Lab::up(1);
    let mut child = start(&lab, "dead-host etcd1 --down 1500ms --up 1h");
    let until = Instant::now() + Duration::from_secs(60);
    while lab.pings("agent", "etcd1") {
        assert!(Instant::now() < until, "it never came");
    }
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGSTOP).unwrap();
    sleep(Duration::from_secs(3));
    assert!(lab.pings("agent", "etcd1"), "still in force");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let lab = Lab::up(1);
    for line in [
        "dead-process etcd1 --down 1s --up 1s",
        "lossy etcd1 --down 1s --up 1s",
        "dead-host etcd1 --down 0s --up 1s",
        "dead-host etcd1 --down 1s",
        "dead-host etcd1 --down 1s --up 1s --jitter 91",
        "dead-host etcd1 --down 1s --up 1s --cycles 0",
        "nothing etcd1 --down 1s --up 1s",
    ] {
        let output = lab.run(&format!("--node LAB/agent flap {line}"));
        assert_eq!(output.status.code(), Some(2), "{line}: {output:?}");
    }
    let bad = lab.run("--node LAB/agent flap lossy etcd1 --down 1s --up 1s --per-connection");
    assert_eq!(bad.status.code(), Some(2), "{bad:?}");
    let text = lab.done("--node LAB/agent flap rebooted etcd1 --down 1s --up 2s --cycles 1 --dry-run");
    assert!(text.starts_with("# down at 0.000 s\n# up at 1.000 s\n"), "{text}");
    assert_eq!(lab.listed("agent"), "");
}

#[test]
fn the_options_of_the_kinds_are_those_of_a_flap_too() {
    let lab = Lab::up(1);
    let dry = |line: &str| lab.json(&format!("--node LAB/agent flap {line} --down 1s --up 2s --cycles 1 --dry-run"));
    let lossy = dry("lossy etcd1 --percent 20 --per-connection --seed 7");
    let same = lab.json("--node LAB/agent lossy etcd1 --percent 20 --per-connection --seed 7 --dry-run");
    assert_eq!(lossy["dry_run"][0]["detail"], same["dry_run"][0]["detail"], "{lossy}");
    assert!(lossy["dry_run"][0]["rules"].as_str().unwrap().contains("jhash"), "{lossy}");
    let edges = serde_json::json!([{ "edge": "down", "planned_ms": 0.0 }, { "edge": "up", "planned_ms": 1000.0 }]);
    assert_eq!(lossy["edges"], edges);
    let hung = dry("hung-process etcd1:2379 --backlog 3");
    assert_eq!(hung["dry_run"][0]["detail"], "3", "{hung}");
    for (kind, option) in [
        ("dead-process", "--open-connections"),
        ("hung-process", "--backlog"),
        ("unreachable", "--code"),
        ("lossy", "--per-connection"),
        ("dead-host", "--replace"),
    ] {
        let help = |line: &str| lab.done(&format!("{line} --help"));
        assert!(help(kind).contains(option) && help("flap").contains(option), "{option}");
    }
    assert_eq!(lab.listed("agent"), "");
}

#[test]
fn it_takes_the_place_of_what_breaks_the_same_peers() {
    let lab = Lab::up(1);
    lab.done("--node LAB/agent dead-host etcd1 --name old");
    let replaced = document(start(&lab, "dead-host etcd1 --down 50ms --up 50ms --cycles 2 --replace"));
    assert_eq!(replaced["edges"].as_array().unwrap().len(), 4);
    assert_eq!(lab.listed("agent"), "");
}
