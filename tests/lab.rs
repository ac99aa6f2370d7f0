//! `playdead lab`, as its users run it: real namespaces, real etcd. Needs root and etcd, and fails without.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A lab with a name that no other run has; gone with the value, whatever the test does.
struct Lab {
    name: String,
}

impl Lab {
    fn new() -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        Self { name: format!("t{}-{nanos:x}-{number}", std::process::id()) }
    }

    fn up(more: &[&str]) -> Self {
        let lab = Self::new();
        let output = lab.run(&[&["up", "--heartbeat-interval", "50"], more].concat());
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output.stdout).contains("quorum after "), "{output:?}");
        lab
    }

    fn run(&self, words: &[&str]) -> Output {
        let lab = ["--json", "lab", "--lab", &self.name];
        let lab = if words.first() == Some(&"up") { &lab[1..] } else { &lab[..] };
        Command::new(env!("CARGO_BIN_EXE_playdead")).args(lab).args(words).output().unwrap()
    }

    fn done(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        text(&output.stdout)
    }

    fn agent(&self, command: &[&str]) -> Output {
        self.run(&[&["exec", "agent", "--"], command].concat())
    }

    fn connects(&self, node: &str) -> Result<(), String> {
        let script = "import socket, sys\n\
            try: socket.create_connection((sys.argv[1], 2379), 1).close()\n\
            except Exception as e: sys.exit(type(e).__name__)";
        let output = self.agent(&["python3", "-c", script, node]);
        if output.status.success() { Ok(()) } else { Err(text(&output.stderr).trim().to_owned()) }
    }

    fn node(&self, name: &str) -> Value {
        let status: Value = serde_json::from_str(&self.done(&["status"])).unwrap();
        let nodes = status["labs"][0]["nodes"].as_array().unwrap().clone();
        nodes.into_iter().find(|node| node["name"] == name).unwrap()
    }

    fn wait_for(&self, what: &str, so: impl Fn(&Value) -> bool, name: &str) {
        let start = Instant::now();
        while !so(&self.node(name)) {
            assert!(start.elapsed() < Duration::from_secs(60), "{name} never {what}: {}", self.node(name));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Everything on the machine that bears the lab's name.
    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for directory in ["/run/netns", "/etc/netns", "/var/lib/playdead"] {
            let Ok(entries) = fs::read_dir(directory) else { continue };
            left.extend(entries.flatten().map(|entry| entry.path().display().to_string()));
        }
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            left.push(text(&words).replace('\0', " "));
        }
        left.retain(|thing| thing.contains(&format!("/{}", self.name)));
        left
    }

    fn down(&self) {
        self.done(&["down", "--purge"]);
        assert_eq!(self.left(), [""; 0], "something is left of the lab");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.run(&["down", "--purge"]);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn serves(node: &Value) -> bool {
    node["etcd"]["health"]["answer"] == "healthy"
}

#[test]
fn a_client_on_the_agent_reaches_every_member_by_name_in_both_families() {
    let lab = Lab::up(&[]);
    for node in ["etcd1", "etcd3", "10.77.0.12", "fd77::12"] {
        assert_eq!(lab.connects(node), Ok(()), "{node}");
    }
    lab.down();
}

#[test]
fn the_three_real_deaths_look_different_to_a_client_and_all_heal() {
    let lab = Lab::up(&[]);
    lab.done(&["kill", "etcd1"]);
    assert_eq!(lab.connects("etcd1"), Err("ConnectionRefusedError".to_owned()));
    assert_eq!(lab.node("etcd1")["etcd"]["state"], "dead");
    lab.done(&["start", "etcd1"]);
    lab.wait_for("serves again", serves, "etcd1");

    lab.done(&["pause", "etcd2"]);
    assert_eq!(lab.connects("etcd2"), Ok(()), "the kernel of a hung process still answers");
    assert_eq!(lab.node("etcd2")["etcd"]["state"], "paused");
    lab.done(&["resume", "etcd2"]);
    lab.wait_for("serves again", serves, "etcd2");

    lab.done(&["unplug", "etcd3"]);
    assert_eq!(lab.connects("10.77.0.13"), Err("TimeoutError".to_owned()));
    let carrier = lab.run(&["exec", "etcd3", "--", "ip", "link", "show", "eth0"]);
    assert!(text(&carrier.stdout).contains("LOWER_UP"), "an unplugged node keeps its own carrier: {carrier:?}");
    assert_eq!(lab.node("etcd3")["plugged"], false);
    lab.done(&["unplug", "etcd3"]);
    lab.done(&["plug", "etcd3"]);
    lab.wait_for("serves again", serves, "etcd3");
    lab.down();
}

#[test]
fn an_unplugged_machine_on_the_same_segment_becomes_unreachable_as_arp_stays_unanswered() {
    let lab = Lab::up(&["--etcd", "1"]);
    lab.done(&["unplug", "etcd1"]);
    lab.agent(&["ip", "neigh", "flush", "all"]);
    for address in ["10.77.0.11", "fd77::11"] {
        let start = Instant::now();
        let script = "import socket, sys\ns = socket.create_connection((sys.argv[1], 2379))";
        let output = lab.agent(&["python3", "-c", script, address]);
        assert!(text(&output.stderr).contains("[Errno 113]"), "EHOSTUNREACH for {address}: {output:?}");
        assert!((1..6).contains(&start.elapsed().as_secs()), "{address} after {:?}", start.elapsed());
    }
    lab.down();
}

#[test]
fn behind_a_router_the_agent_is_on_another_subnet_and_reaches_the_members() {
    let lab = Lab::up(&["--routed", "--etcd", "1"]);
    for node in ["10.77.0.11", "fd77::11"] {
        assert_eq!(lab.connects(node), Ok(()), "{node}");
    }
    let refused = lab.run(&["unplug", "agent"]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("unplug the router"), "{refused:?}");
    lab.done(&["unplug", "router"]);
    assert!(lab.connects("etcd1").is_err());
    lab.down();
}

#[test]
fn a_member_stopped_with_sigterm_comes_back_with_its_data() {
    let lab = Lab::up(&["--etcd", "1"]);
    let etcdctl = |words: &[&str]| {
        lab.agent(&[&["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", "etcd1:2379"], words].concat())
    };
    assert!(etcdctl(&["put", "a", "b"]).status.success());
    lab.done(&["stop", "etcd1"]);
    assert_eq!(lab.connects("etcd1"), Err("ConnectionRefusedError".to_owned()));
    lab.done(&["start", "etcd1"]);
    lab.wait_for("serves again", serves, "etcd1");
    assert_eq!(text(&etcdctl(&["get", "a"]).stdout), "a\nb\n");
    lab.down();
}

#[test]
fn exec_gives_the_exit_code_of_the_command_as_a_shell_does() {
    let lab = Lab::up(&["--etcd", "1"]);
    let code = |command: &[&str]| lab.agent(command).status.code();
    assert_eq!(code(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["/nowhere/at/all"]), Some(127));
    assert_eq!(code(&["/etc/passwd"]), Some(126));
    let shell = format!("{} lab exec {}/agent -- sh -c 'kill -9 $$'", env!("CARGO_BIN_EXE_playdead"), lab.name);
    // The trailing command keeps the shell from becoming playdead itself.
    let output = Command::new("sh").args(["-c", &format!("{shell}; exit $?")]).output().unwrap();
    assert_eq!(output.status.code(), Some(128 + 9));
    lab.down();
}

#[test]
fn a_second_up_changes_nothing_and_a_second_down_is_success() {
    let lab = Lab::up(&["--etcd", "1"]);
    let pid = lab.node("etcd1")["etcd"]["pid"].clone();
    let again = lab.run(&["up"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("is there already"), "{again:?}");
    assert_eq!(lab.node("etcd1")["etcd"]["pid"], pid);
    lab.done(&["down"]);
    assert!(Path::new("/var/lib/playdead").join(&lab.name).join("etcd1/log").exists(), "the logs are kept");
    lab.done(&["down"]);
    lab.down();
}

#[test]
fn a_namespace_of_somebody_elses_is_neither_used_nor_removed() {
    let lab = Lab::new();
    let foreign = format!("{}-etcd2", lab.name);
    assert!(Command::new("ip").args(["netns", "add", &foreign]).status().unwrap().success());
    let up = lab.run(&["up"]);
    lab.done(&["down"]);
    let survived = Path::new("/run/netns").join(&foreign).exists();
    assert!(Command::new("ip").args(["netns", "del", &foreign]).status().unwrap().success());
    assert!(!up.status.success() && text(&up.stderr).contains("did not make"), "{up:?}");
    assert!(survived);
    lab.down();
}

#[test]
fn a_killed_up_leaves_what_down_can_remove_and_an_interrupted_one_nothing() {
    for (signal, ms) in [("KILL", 15), ("KILL", 40), ("KILL", 200), ("INT", 20), ("INT", 300), ("TERM", 300)] {
        let lab = Lab::new();
        let words = ["lab", "--lab", &lab.name, "up"];
        let mut up = Command::new(env!("CARGO_BIN_EXE_playdead")).args(words).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(ms));
        Command::new("kill").args(["-s", signal, &up.id().to_string()]).status().unwrap();
        assert!(!up.wait().unwrap().success());
        if signal == "KILL" {
            lab.done(&["down", "--purge"]);
        }
        assert_eq!(lab.left(), [""; 0], "after SIG{signal} at {ms} ms");
    }
}

#[test]
fn labs_side_by_side_have_the_same_addresses_and_do_not_meet() {
    let (one, two) = (Lab::up(&["--etcd", "1"]), Lab::up(&["--etcd", "1"]));
    one.done(&["kill", "etcd1"]);
    assert!(one.connects("10.77.0.11").is_err());
    assert_eq!(two.connects("10.77.0.11"), Ok(()));
    one.down();
    assert_eq!(two.connects("etcd1"), Ok(()));
    two.down();
}

#[test]
fn what_cannot_be_made_is_refused_in_one_line_before_anything_is() {
    let lab = Lab::new();
    let unknown = lab.run(&["up", "--etcd-flag=--no-such-flag"]);
    assert!(text(&unknown.stderr).contains("no-such-flag"), "{unknown:?}");
    let missing = Command::new(env!("CARGO_BIN_EXE_playdead"))
        .args(["lab", "--lab", &lab.name, "up"])
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    assert!(text(&missing.stderr).contains("install the Debian package etcd-server"), "{missing:?}");
    for output in [unknown, missing] {
        assert_eq!((output.status.code(), text(&output.stderr).lines().count()), (Some(1), 1), "{output:?}");
    }
    assert_eq!(lab.left(), [""; 0]);
}
