//! Many playdeads at once, and others beside them who flush the ruleset or commit transactions of their own: nothing
//! fails that could be done, and nothing is told to be in force that the kernel does not have.
//!
//! `PLAYDEAD_PARALLEL=10` goes ten times as many rounds. Once through took 48 s on two processors beside a load of 30.

mod labs;
mod net;

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use labs::Lab;
use net::cli::{playdead, stdout_of, words};
use net::{At, Segment};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use playdead::kernel::netns::NetNs;

const ROUNDS: &str = "PLAYDEAD_PARALLEL";

fn rounds(usual: u32) -> u32 {
    usual * std::env::var(ROUNDS).map_or(1, |times| times.parse::<u32>().unwrap())
}

/// Starts all before it waits for the first.
fn at_once(commands: Vec<Command>) -> Vec<Output> {
    let start = |mut command: Command| command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let children: Vec<Child> = commands.into_iter().map(start).collect();
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

fn command(segment: &Segment, line: &str) -> Command {
    let mut command = playdead();
    command.args(["--netns", &segment.name(At::Client)]).args(words(line));
    command
}

/// One line of the error, and its exit code.
#[track_caller]
fn refusal(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.lines().count() == 1, "{output:?}");
    said
}

fn succeeded(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| output.status.success()).count()
}

/// The names of the faults of which the kernel has all tables with rules, by nft.
fn there(segment: &Segment, tables: usize) -> BTreeSet<String> {
    let listed = segment.listed(At::Client);
    let of =
        |line: &str| Some(line.strip_prefix("table ")?.split_once(" playdead-")?.1.trim_end_matches(" {").to_owned());
    let names: Vec<_> = listed.lines().filter_map(of).collect();
    let whole = |name: &&String| names.iter().filter(|other| other == name).count() == tables;
    names.iter().filter(whole).cloned().collect()
}

fn status_names(segment: &Segment) -> BTreeSet<String> {
    segment.status(At::Client).iter().map(|fault| fault["name"].as_str().unwrap().to_owned()).collect()
}

/// How many tables a dead host has on the client.
const TABLES: usize = 4;

fn line(number: usize) -> String {
    format!("dead-host 10.1.0.{number} fd01::{number} --name n{number}")
}

#[test]
fn fifty_distinct_faults_at_once_are_all_told_and_all_there() {
    let segment = Segment::new();
    for round in 0..rounds(2) {
        let applied = at_once((0..50).map(|i| command(&segment, &line(i))).collect());
        assert_eq!(succeeded(&applied), 50, "round {round}: {applied:?}");
        let (told, there) = (status_names(&segment), there(&segment, TABLES));
        assert_eq!((told.len(), &told), (50, &there));
        let healed = at_once((0..50).map(|i| command(&segment, &format!("heal n{i}"))).collect());
        assert_eq!(succeeded(&healed), 50, "{healed:?}");
        assert!(healed.iter().all(|output| stdout_of(output).starts_with("healed n")), "{healed:?}");
        assert_eq!(segment.listed(At::Client), "");
    }
    println!("{} x 50 distinct faults and their heals at once: 0 failed, 0 lost", rounds(2));
}

#[test]
fn of_fifty_different_faults_with_one_name_exactly_one_wins() {
    let segment = Segment::new();
    for _ in 0..rounds(2) {
        let line = |i| format!("dead-host 10.1.0.{i} --name one");
        let applied = at_once((0..50).map(|i| command(&segment, &line(i))).collect());
        assert_eq!(succeeded(&applied), 1, "{applied:?}");
        for output in applied.iter().filter(|output| !output.status.success()) {
            let said = refusal(output);
            assert!(said.contains("a different fault is called one"), "{said}");
        }
        let winner = applied.iter().position(|output| output.status.success()).unwrap();
        let status = segment.status(At::Client);
        let address = status[0]["peers"][0]["address"].as_str().unwrap().to_owned();
        assert_eq!((status.len(), address), (1, format!("10.1.0.{winner}/32")), "{status:?}");
        segment.heal(At::Client);
    }
}

/// What replaces makes room: at the end one of them is in force, whichever.
#[test]
fn of_thirty_that_replace_each_other_on_one_peer_exactly_one_is_left() {
    let segment = Segment::new();
    for round in 0..rounds(4) {
        let kinds = ["dead-host 10.1.0.1", "unreachable 10.1.0.1", "lossy 10.1.0.1 --percent 5"];
        let line = |i: usize| format!("{} --replace --name r{i}", kinds[i % 3]);
        let applied = at_once((0..30).map(|i| command(&segment, &line(i))).collect());
        assert_eq!(succeeded(&applied), 30, "{applied:?}");
        let told = status_names(&segment);
        assert_eq!(told.len(), 1, "round {round}: {told:?}");
        segment.heal(At::Client);
    }
}

/// Another program that works in the client's namespace for as long as this lives.
struct Other {
    child: Child,
}

impl Other {
    fn run(segment: &Segment, script: &str) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &segment.name(At::Client), "sh", "-c", script]);
        Self { child: command.spawn().unwrap() }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// It stands still meanwhile, and so does the transaction that it had begun.
    fn pause<T>(&self, quiet: impl FnOnce() -> T) -> T {
        self.signal(Signal::SIGSTOP);
        thread::sleep(Duration::from_millis(200));
        let result = quiet();
        self.signal(Signal::SIGCONT);
        result
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the kernel tells of its transactions, until this is asked for it.
struct Monitor {
    child: Child,
}

impl Monitor {
    fn start(segment: &Segment) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &segment.name(At::Client), "nft", "monitor", "new", "tables"]);
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        // It hears what comes after its first sign of life only, which is a table of our own.
        thread::sleep(Duration::from_millis(300));
        Self { child }
    }

    /// The names of the faults of which it has seen the table in `inet`.
    fn end(mut self) -> BTreeSet<String> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        let mut told = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        self.child.wait().unwrap();
        assert!(!told.contains("lost"), "the monitor has lost events");
        told.lines().filter_map(|line| Some(line.strip_prefix("create table inet playdead-")?.to_owned())).collect()
    }
}

/// How often each verb was run, and how often the fault was gone before.
#[derive(Default)]
struct Count {
    commands: AtomicU32,
    gone: AtomicU32,
}

/// Applies, looks, renews and heals, always other names; whatever is done must succeed, but a fault may be `gone`.
/// Gives the names of those that were told to be in force.
fn work(segment: &Segment, worker: usize, rounds: u32, may_be_gone: bool, count: &Count) -> Vec<String> {
    let run = |line: &str| {
        count.commands.fetch_add(1, Ordering::Relaxed);
        command(segment, line).output().unwrap()
    };
    let round = |round| {
        let name = format!("w{worker}-{round}");
        let peer = format!("10.1.{worker}.{}", round % 250);
        for line in [
            format!("dead-host {peer} --name {name} --for 60s"),
            "status --json".to_owned(),
            format!("dead-host {peer} --name {name} --for 60s"),
            format!("dead-process {peer}:80 --replace --name {name} --for 60s"),
        ] {
            stdout_of(&run(&line));
        }
        let renewed = run(&format!("renew {name} --for 90s"));
        if !renewed.status.success() {
            assert!(may_be_gone && refusal(&renewed).contains("no fault is called"), "{renewed:?}");
            count.gone.fetch_add(1, Ordering::Relaxed);
        }
        let healed = stdout_of(&run(&format!("heal {name}")));
        assert!(may_be_gone || healed == format!("healed {name} in {}\n", segment.name(At::Client)), "{healed}");
        name
    };
    (0..rounds).map(round).collect()
}

/// Four work at once beside another program.
fn work_beside(segment: &Segment, may_be_gone: bool) -> String {
    let (monitor, count, rounds) = (Monitor::start(segment), Count::default(), rounds(5));
    let told: Vec<_> = thread::scope(|scope| {
        let (count, segment) = (&count, &segment);
        let worker = |worker| scope.spawn(move || work(segment, worker, rounds, may_be_gone, count));
        let workers: Vec<_> = (0..4).map(worker).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let committed = monitor.end();
    let missing: Vec<_> = told.iter().filter(|name| !committed.contains(*name)).collect();
    assert!(missing.is_empty(), "told to be in force, but never committed: {missing:?}");
    let Count { commands, gone } = count;
    let (commands, gone, told) = (commands.into_inner(), gone.into_inner(), told.len());
    format!(
        "{commands} commands: 0 failed, {gone} times a flushed fault was told to be gone; {told} faults: 0 uncommitted"
    )
}

#[test]
fn beside_somebody_who_flushes_the_ruleset_nothing_fails_and_nothing_lost_is_told_to_be_present() {
    let segment = Segment::new();
    let flusher = Other::run(&segment, "while :; do nft flush ruleset; sleep 0.02; done");
    let done = work_beside(&segment, true);
    for round in 0..rounds(5) {
        segment.playdead(At::Client, &format!("dead-host 10.1.0.1 fd01::1 --name q{round}"));
        flusher.pause(|| assert_eq!(status_names(&segment), there(&segment, TABLES)));
    }
    drop(flusher);
    segment.heal(At::Client);
    println!("beside nft flush ruleset: {done}");
}

#[test]
fn beside_somebody_who_commits_transactions_of_his_own_nothing_fails() {
    let segment = Segment::new();
    let elements = (0..200).map(|i| format!("10.9.0.{i}")).collect::<Vec<_>>().join(", ");
    let script = format!(
        "while :; do nft -f - <<END\n\
         add table inet other\n\
         add set inet other s {{ type ipv4_addr; }}\n\
         add chain inet other c {{ type filter hook input priority 0; }}\n\
         add rule inet other c ip saddr @s accept\n\
         add element inet other s {{ {elements} }}\n\
         END\n\
         nft delete table inet other; done"
    );
    let other = Other::run(&segment, &script);
    let done = work_beside(&segment, false);
    for round in 0..rounds(5) {
        segment.playdead(At::Client, &format!("dead-host 10.1.0.{round} fd01::{round} --name q{round}"));
        assert_eq!(status_names(&segment).len(), round as usize + 1);
    }
    other.pause(|| assert_eq!(status_names(&segment), there(&segment, TABLES)));
    segment.playdead(At::Client, "heal");
    assert!(status_names(&segment).is_empty());
    drop(other);
    println!("beside another program's transactions: {done}");
}

/// In namespaces of their own for processes, mounts and networks, so that "everywhere" is nobody else's.
#[test]
fn heals_of_everything_beside_applies_everywhere_all_succeed_and_the_last_leaves_nothing() {
    let script = r#"
        set -e
        mount -t tmpfs tmpfs /run/netns
        ip netns add one; ip netns add two
        for i in $(seq 10); do
            for place in one two; do
                "$PLAYDEAD" --netns "$place" dead-host "10.1.0.$i" --name "n$i" & pids="$pids $!"
            done
            "$PLAYDEAD" heal --all & pids="$pids $!"
            "$PLAYDEAD" status --json >/run/netns/status & pids="$pids $!"
        done
        for pid in $pids; do wait "$pid"; done
        "$PLAYDEAD" heal --all
        for place in one two; do
            [ -z "$(ip netns exec $place nft list tables)" ]
            ip netns del "$place"
        done
        echo all done
    "#;
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script]);
    let output = unshare.env("PLAYDEAD", playdead().get_program()).output().unwrap();
    assert!(stdout_of(&output).ends_with("all done\n"), "{output:?}");
}

/// As on a machine that has just been booted, where the directory of names is no mount yet.
#[test]
fn sixteen_first_namespaces_at_once_share_one_mount() {
    let private = || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_PRIVATE | MsFlags::MS_REC, none).unwrap();
        mount(none, "/run", Some("tmpfs"), MsFlags::empty(), none).unwrap();
        let before = shared_names();
        let start = Barrier::new(16);
        let create = |number: usize| {
            start.wait();
            NetNs::create(&format!("first{number}")).map(drop)
        };
        let made: Vec<_> = thread::scope(|scope| {
            let create = &create;
            let threads: Vec<_> = (0..16).map(|number| scope.spawn(move || create(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(Result::is_ok), "{made:?}");
        shared_names() - before
    };
    // What it mounts is gone with its thread.
    let mounts: Vec<_> = (0..20).map(|_| thread::spawn(private).join().unwrap()).collect();
    assert_eq!(mounts, [1; 20]);
}

/// How often the directory of names is mounted; one that is hidden below another mount counts as well.
fn shared_names() -> usize {
    let mounts = std::fs::read_to_string("/proc/thread-self/mounts").unwrap();
    mounts.lines().filter(|line| line.split(' ').nth(1) == Some("/run/netns")).count()
}

fn lab_up(name: &str) -> Command {
    let mut command = playdead();
    command.args(["lab", "--lab", name, "up", "--etcd", "1"]);
    command
}

#[test]
fn two_labs_at_once_are_both_made_and_of_two_with_one_name_one_is() {
    let names = ["a", "b"].map(|letter| format!("par{letter}{}", std::process::id()));
    // Gone when dropped.
    let _labs = names.clone().map(|name| Lab { name });
    let made = at_once(names.iter().map(|name| lab_up(name)).collect());
    assert_eq!(succeeded(&made), 2, "{made:?}");
    let lab = Lab { name: format!("parc{}", std::process::id()) };
    let made = at_once((0..2).map(|_| lab_up(&lab.name)).collect());
    assert_eq!(succeeded(&made), 1, "{made:?}");
    let loser = made.iter().find(|output| !output.status.success()).unwrap();
    assert!(refusal(loser).contains(&lab.name), "{loser:?}");
    let status = lab.json("lab status --lab LAB");
    assert_eq!(status["labs"][0]["nodes"].as_array().unwrap().len(), 3, "{status}");
}
