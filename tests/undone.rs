//! What fails leaves nothing behind, what was there before comes back, and nothing in force is overlooked.

mod net;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use net::cli::{playdead, words};
use net::{At, Segment};
use playdead::kernel::netns::NetNs;

/// A standard output or error that is always full.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

fn command(segment: &Segment, line: &str) -> Command {
    let mut command = playdead();
    command.args(["--netns", &segment.name(At::Client)]).args(words(line));
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn whoever_cannot_be_told_that_a_fault_is_in_force_has_none() {
    let segment = Segment::new();
    for line in ["dead-host 10.99.0.2", "--json dead-host 10.99.0.2 --for 1m", "dead-process 10.99.0.2:2379 --hold"] {
        let output = command(&segment, line).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {output:?}");
        assert!(said(&output).contains("nothing was changed"), "{line}: {output:?}");
        assert_eq!(segment.listed(At::Client), "", "{line}");
    }
}

#[test]
fn what_made_room_comes_back_with_what_is_left_of_its_time() {
    let segment = Segment::new();
    segment.playdead(At::Client, "dead-host 10.99.0.2 --name a --for 60s");
    segment.playdead(At::Client, "lossy 10.99.0.2 --percent 3 --name b");
    segment.playdead(At::Client, "hung-process 10.99.0.77:80 --name c");
    let before = sorted(&segment.listed(At::Client));
    for line in ["dead-host 10.99.0.2 --name a --for 90s", "unreachable 10.99.0.2 --name d --replace"] {
        let output = command(&segment, line).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {output:?}");
        assert_eq!(sorted(&segment.listed(At::Client)), before, "{line}");
        let faults = segment.status(At::Client);
        let left = faults.iter().find(|fault| fault["name"] == "a").unwrap()["left_ms"].as_u64().unwrap();
        assert!((1..=60_000).contains(&left), "{left} ms");
    }
}

/// What was put back stands behind what was never gone, and its lease is what was left of it.
fn sorted(listing: &str) -> Vec<String> {
    let timed = |line: &&str| line.contains("timeout") || line.contains("comment");
    let table = |text: &str| text.lines().filter(|line| !timed(line)).collect::<Vec<_>>().join("\n");
    let mut tables: Vec<_> = listing.split("table ").map(table).collect();
    tables.sort();
    tables
}

#[test]
fn a_full_standard_error_is_no_panic() {
    let segment = Segment::new();
    let output = command(&segment, "dead-host 10.99.0.999").stderr(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = command(&segment, "lossy 10.99.0.2 --percent 5 --per-connection").stderr(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    segment.heal(At::Client);
}

#[test]
fn a_fault_that_lost_a_table_shows_as_incomplete_and_can_be_healed() {
    let segment = Segment::new();
    segment.playdead(At::Client, "dead-host 10.99.0.2 fd99::2 --name broken");
    assert!(segment.status(At::Client)[0]["damage"].is_null());
    segment.nft(At::Client, "delete table netdev playdead-broken");
    let shown = segment.playdead(At::Client, "status");
    assert!(shown.contains("INCOMPLETE: only 3 of its 4 tables are left"), "{shown}");
    assert!(segment.status(At::Client)[0]["damage"].is_string());
    segment.playdead(At::Client, "dead-host 10.99.0.2 fd99::2 --name broken");
    assert!(segment.status(At::Client)[0]["damage"].is_null());
    segment.heal(At::Client);
}

/// As a heal does that is killed between its two transactions.
#[test]
fn a_fault_that_lost_its_rules_shows_as_incomplete_and_can_be_healed() {
    let segment = Segment::new();
    segment.playdead(At::Client, "dead-host 10.99.0.2 fd99::2 --name emptied");
    for family in ["inet", "netdev", "bridge", "arp"] {
        segment.nft(At::Client, &format!("flush table {family} playdead-emptied"));
    }
    let shown = segment.playdead(At::Client, "status");
    assert!(shown.contains("INCOMPLETE: its rules were taken away"), "{shown}");
    segment.playdead(At::Client, "heal emptied");
    assert!(segment.status(At::Client).is_empty());
}

/// A host has more processes than a process may have files open.
#[test]
fn no_fault_is_overlooked_for_want_of_open_files() {
    let segment = Segment::new();
    let in_it = |_| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &segment.name(At::Client), "sleep", "60"]).stdin(Stdio::null()).spawn().unwrap()
    };
    let mut others: Vec<_> = (0..40).map(in_it).collect();
    let name = format!("files-{}", segment.name(At::Client));
    segment.playdead(At::Client, &format!("dead-host 10.99.0.2 --name {name}"));
    let with_files = |number: usize| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={number}:")).arg(playdead().get_program()).args(["status", "--json"]);
        command.output().unwrap()
    };
    // Enough for every namespace, and fewer than there are processes: the namespaces of this machine are few.
    let namespaces = std::fs::read_dir("/run/netns").unwrap().count();
    let enough = with_files(namespaces * 2 + 60);
    assert!(String::from_utf8_lossy(&enough.stdout).contains(&name), "{enough:?}");
    // Too few: it says so.
    let too_few = with_files(6);
    assert_eq!(too_few.status.code(), Some(1), "{too_few:?}");
    for child in &mut others {
        child.kill().and_then(|()| child.wait()).unwrap();
    }
    segment.playdead(At::Client, &format!("heal {name}"));
}

#[test]
fn a_holder_that_is_not_playdead_is_named_and_left_alone() {
    let segment = Segment::new();
    segment.playdead(At::Client, "dead-host 10.99.0.2 --name real");
    let listed = segment.listed(At::Client);
    let comment = listed.lines().find(|line| line.contains("comment \"playdead")).unwrap().trim().to_owned();
    segment.heal(At::Client);
    let mut nft = Command::new("ip");
    nft.args(["netns", "exec", &segment.name(At::Client), "nft", "-i"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut nft = nft.spawn().unwrap();
    let table = format!("add table inet playdead-real {{ flags owner; {comment}; }}\n");
    nft.stdin.as_mut().unwrap().write_all(table.as_bytes()).unwrap();
    let start = Instant::now();
    while segment.status(At::Client).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "the table of nft never came");
    }
    let heal = segment.run(At::Client, "heal");
    assert_eq!(heal.status.code(), Some(1), "{heal:?}");
    assert!(said(&heal).contains(&format!("process {}", nft.id())) && said(&heal).contains("not playdead"), "{heal:?}");
    assert!(nft.try_wait().unwrap().is_none(), "it was ended");
    nft.kill().unwrap();
    nft.wait().unwrap();
}

#[test]
fn of_two_who_hold_one_name_the_later_is_told_who_was_first() {
    let segment = Segment::new();
    for round in 0..10 {
        let hold = |_| {
            let mut command = command(&segment, "dead-host 10.99.0.2 --name one --hold");
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut both: Vec<_> = (0..2).map(hold).collect();
        let loser = loop {
            if let Some(index) = both.iter_mut().position(|child| child.try_wait().unwrap().is_some()) {
                break both.remove(index).wait_with_output().unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(loser.status.code(), Some(1), "round {round}: {loser:?}");
        assert!(said(&loser).contains(&format!("held by process {}", both[0].id())), "round {round}: {loser:?}");
        segment.playdead(At::Client, "heal one");
        assert!(both[0].wait().unwrap().success());
    }
}

#[test]
fn a_fault_does_not_change_its_lifetime_by_accident() {
    let segment = Segment::new();
    let lifetimes = ["", "--for 60s", "--hold", "-- true"];
    for (before, refused) in [("", &lifetimes[1..]), ("--for 60s", &["", "--hold", "-- true"])] {
        segment.playdead(At::Client, &format!("dead-host 10.99.0.2 {before}"));
        for line in refused {
            let output = segment.run(At::Client, &format!("dead-host 10.99.0.2 {line}"));
            assert_eq!(output.status.code(), Some(1), "{before} then {line}: {output:?}");
            assert!(said(&output).contains("--replace"), "{output:?}");
        }
        segment.playdead(At::Client, &format!("dead-host 10.99.0.2 {before}"));
        segment.playdead(At::Client, "dead-host 10.99.0.2 --replace -- true");
        assert_eq!(segment.listed(At::Client), "");
    }
}

/// An expired lease is in nobody's way.
#[test]
fn what_has_expired_makes_room() {
    let segment = Segment::new();
    segment.playdead(At::Client, "dead-host 10.99.0.2 --name a --for 50ms");
    std::thread::sleep(Duration::from_millis(150));
    segment.playdead(At::Client, "unreachable 10.99.0.3 --name a");
    assert_eq!(segment.status(At::Client)[0]["kind"], "unreachable");
}

/// In a user namespace of one's own the buffer of a capture stays small: that is no reason to fail.
#[test]
fn open_connections_end_in_a_user_namespace_of_ones_own() {
    let mut inside = Command::new("unshare")
        .args(["-Urn", "sh", "-c", "ip link set lo up && echo up && exec sleep 60"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    inside.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    let connect = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0, listener)
    };
    let (mut client, _server, listener) = NetNs::of_pid(inside.id()).unwrap().run(connect).unwrap();
    let peer = listener.local_addr().unwrap().to_string();
    let mut command = Command::new("nsenter");
    command.args(["-t", &inside.id().to_string(), "-U", "-n", "--preserve-credentials"]);
    let output = command.arg(playdead().get_program()).args(["dead-process", &peer]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 open connection ended"), "{output:?}");
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "end of file");
    inside.kill().unwrap();
    inside.wait().unwrap();
}

/// A runner can be killed, by want of memory say, while it tells its helper of something.
#[test]
fn half_a_word_of_a_runner_that_was_killed_keeps_nothing_from_being_undone() {
    let directory = std::env::temp_dir().join(format!("playdead-half-a-word-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let mut guard = playdead().arg("guard").stdin(Stdio::piped()).spawn().unwrap();
    let told = format!("{{\"Add\":[1,{{\"Remove\":{{\"directory\":{directory:?}}}}}]}}\n{{\"Add\":[2,{{\"Shell\":{{");
    guard.stdin.take().unwrap().write_all(told.as_bytes()).unwrap();
    assert!(guard.wait().unwrap().success());
    assert!(!directory.exists());
}
