//! How long a fault lasts: with the process, with a command, by the kernel's clock, until healed; and what else is in
//! the namespace stays as it was.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use playdead::kernel::netns::NetNs;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A namespace with nothing but its loopback device, and a UDP socket on it that tells whether the fault bites.
struct Alone {
    name: String,
    receiver: UdpSocket,
    sender: UdpSocket,
}

const PEER: &str = "127.0.0.1";

impl Alone {
    fn new() -> Self {
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pdl{:x}{nanos:x}{number}", std::process::id());
        let ns = NetNs::create(&name).unwrap();
        run("ip", &["-n", &name, "link", "set", "lo", "up"]);
        let bind = || UdpSocket::bind((PEER, 0)).unwrap();
        let (receiver, sender) = ns.run(|| (bind(), bind())).unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        Self { name, receiver, sender }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_playdead"));
        // Who may have called sudo for the tests is none of its business.
        command.env_remove("SUDO_UID").args(["--netns", &self.name]).args(words);
        command
    }

    fn playdead(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn succeed(&self, words: &[&str]) -> String {
        let output = self.playdead(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a holder, and waits until it says that the fault is in force.
    fn hold(&self, words: &[&str]) -> Child {
        let mut child = self.command(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        self.wait_until(true, Duration::from_secs(60));
        assert!(child.try_wait().unwrap().is_none(), "{words:?} has ended already");
        child
    }

    /// Whether a datagram sent now is lost. The sender must not notice either way.
    fn bites(&self) -> bool {
        self.sender.send(b"?").expect("the sender sees no error");
        match self.receiver.recv(&mut [0; 8]) {
            Ok(_) => false,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
                true
            }
        }
    }

    /// Waits until it bites or not, and gives how long that took.
    fn wait_until(&self, bites: bool, patience: Duration) -> Duration {
        let start = Instant::now();
        while self.bites() != bites {
            assert!(start.elapsed() < patience, "after {patience:?} it is still not so that it bites: {bites}");
        }
        start.elapsed()
    }

    fn ruleset(&self) -> String {
        run("ip", &["netns", "exec", &self.name, "nft", "-s", "list", "ruleset"])
    }

    fn load(&self, rules: &str) {
        run("ip", &["netns", "exec", &self.name, "nft", rules]);
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = NetNs::delete(&self.name);
    }
}

fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn signal(child: &Child, signal: &str) {
    run("kill", &["-s", signal, &child.id().to_string()]);
}

#[test]
fn a_held_fault_is_gone_within_100_ms_of_sigkill() {
    let alone = Alone::new();
    let mut holder = alone.hold(&["dead-host", PEER, "--hold"]);
    holder.kill().unwrap();
    let healed = alone.wait_until(false, Duration::from_millis(100));
    holder.wait().unwrap();
    assert_eq!(alone.ruleset(), "", "healed after {healed:?}");
}

/// litmus-go#239: an abort did not restore.
#[test]
fn every_signal_that_ends_a_process_heals_a_held_fault() {
    for name in ["INT", "TERM", "HUP", "QUIT"] {
        let alone = Alone::new();
        let mut holder = alone.hold(&["dead-host", PEER, "--hold"]);
        signal(&holder, name);
        assert!(holder.wait().unwrap().success(), "{name}");
        assert!(!alone.bites(), "{name}");
        assert_eq!(alone.ruleset(), "", "{name}");
    }
}

/// chaosblade#702: a timeout did not fire.
#[test]
fn a_lease_of_two_seconds_ends_between_2_0_and_2_2_s_with_playdead_gone() {
    let alone = Alone::new();
    let before = Instant::now();
    alone.succeed(&["dead-host", PEER, "--for", "2s", "--name", "leased"]);
    let after = Instant::now();
    assert!(alone.bites());
    alone.wait_until(false, Duration::from_secs(3));
    assert!(before.elapsed() > Duration::from_secs(2) && after.elapsed() < Duration::from_millis(2200));
    assert!(alone.succeed(&["status"]).contains("expired"));
    alone.succeed(&["heal"]);
    assert_eq!(alone.ruleset(), "");
}

#[test]
fn a_renewed_lease_lasts_from_the_renewal_on() {
    let alone = Alone::new();
    alone.succeed(&["dead-host", PEER, "--for", "300ms", "--name", "leased"]);
    alone.succeed(&["renew", "leased", "--for", "1s"]);
    let renewed = Instant::now();
    std::thread::sleep(Duration::from_millis(500));
    assert!(alone.bites());
    alone.wait_until(false, Duration::from_secs(1));
    assert!(renewed.elapsed() > Duration::from_millis(950), "{:?}", renewed.elapsed());
    // It can be brought back to life, too.
    alone.succeed(&["renew", "leased", "--for", "1s"]);
    assert!(alone.bites());
}

#[test]
fn the_fault_lasts_as_long_as_the_command_whose_exit_code_comes_through() {
    let alone = Alone::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)] {
        let ran = alone.playdead(&["dead-host", PEER, "--", "sh", "-c", script]);
        assert_eq!(ran.status.code(), Some(code), "{script}: {ran:?}");
        assert!(!alone.bites(), "{script}");
    }
    assert_eq!(alone.playdead(&["dead-host", PEER, "--", "no-such-command-anywhere"]).status.code(), Some(127));
    assert_eq!(alone.playdead(&["dead-host", PEER, "--", "/etc/passwd"]).status.code(), Some(126));
    let mut running = alone.hold(&["dead-host", PEER, "--", "sleep", "0.4"]);
    assert!(running.wait().unwrap().success());
    assert!(!alone.bites());
    assert_eq!(alone.ruleset(), "");
}

#[test]
fn signals_are_passed_on_to_the_command_and_heal_at_once() {
    let alone = Alone::new();
    // It takes its time over the signal; the fault does not.
    let script = "trap 'sleep 0.5; exit 9' TERM; while :; do sleep 0.05; done";
    let mut running = alone.hold(&["dead-host", PEER, "--", "sh", "-c", script]);
    signal(&running, "TERM");
    alone.wait_until(false, Duration::from_millis(200));
    assert_eq!(running.wait().unwrap().code(), Some(9));
}

#[test]
fn a_command_runs_as_the_user_it_is_told() {
    let alone = Alone::new();
    let ran = alone.playdead(&["dead-host", PEER, "--user", "nobody", "--", "id", "-un"]);
    assert!(String::from_utf8_lossy(&ran.stdout).ends_with("nobody\n"), "{ran:?}");
    assert_eq!(alone.playdead(&["dead-host", PEER, "--user", "no-such-user", "--", "id"]).status.code(), Some(2));
}

#[test]
fn a_fault_that_another_process_holds_is_let_go_when_heal_asks() {
    let alone = Alone::new();
    let mut holder = alone.hold(&["dead-host", PEER, "--hold", "--name", "held"]);
    assert!(alone.succeed(&["status"]).contains(&format!("with process {}", holder.id())));
    let again = alone.playdead(&["dead-host", PEER, "--name", "held", "--replace"]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    alone.succeed(&["heal", "held"]);
    assert!(!alone.bites());
    assert!(holder.wait().unwrap().success());
}

#[test]
fn a_held_fault_survives_another_program_that_flushes_the_ruleset() {
    let alone = Alone::new();
    let mut holder = alone.hold(&["dead-host", PEER, "--hold"]);
    alone.load("flush ruleset");
    assert!(alone.bites());
    signal(&holder, "TERM");
    holder.wait().unwrap();
    assert!(!alone.bites());
}

/// chaos-mesh#763, chaosd#178: rules doubled, and one removal was not enough.
#[test]
fn applied_twice_and_healed_once_nothing_is_left() {
    let alone = Alone::new();
    alone.succeed(&["dead-host", PEER]);
    let once = alone.ruleset();
    alone.succeed(&["dead-host", PEER]);
    let mask = |rules: &str| rules.lines().filter(|line| !line.contains("since")).collect::<String>();
    assert_eq!(mask(&alone.ruleset()), mask(&once));
    alone.succeed(&["heal"]);
    assert_eq!(alone.ruleset(), "");
    // None there is success.
    alone.succeed(&["heal"]);
}

/// chaosd#207: the rules of one experiment were removed with another's.
#[test]
fn several_faults_are_healed_in_any_order() {
    for order in [["a", "b", "c"], ["b", "c", "a"], ["c", "b", "a"]] {
        let alone = Alone::new();
        alone.succeed(&["dead-host", PEER, "--name", "a"]);
        // So little that none of a few datagrams is lost by it.
        alone.succeed(&["lossy", PEER, "--percent", "0.01", "--name", "b"]);
        alone.succeed(&["hung-process", "127.0.0.1:9", "--name", "c"]);
        for (name, left) in order.iter().zip([2, 1, 0]) {
            alone.succeed(&["heal", name]);
            let status: serde_json::Value = serde_json::from_str(&alone.succeed(&["--json", "status"])).unwrap();
            let faults = status["faults"].as_array().unwrap();
            assert_eq!(faults.len(), left);
            assert_eq!(alone.bites(), faults.iter().any(|fault| fault["name"] == "a"));
        }
        assert_eq!(alone.ruleset(), "");
    }
}

/// ClickHouse#60217, jepsen#63: parallel runs collided.
#[test]
fn fifty_at_once_in_one_namespace_all_succeed() {
    let alone = Alone::new();
    std::thread::scope(|scope| {
        for number in 0..50 {
            let alone = &alone;
            scope.spawn(move || {
                alone.succeed(&["dead-host", &format!("10.50.0.{number}"), "--name", &format!("n{number}")])
            });
        }
    });
    let status: serde_json::Value = serde_json::from_str(&alone.succeed(&["--json", "status"])).unwrap();
    assert_eq!(status["faults"].as_array().unwrap().len(), 50);
    // The same fault from many sides is one fault.
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| alone.succeed(&["dead-host", "10.50.1.1", "--name", "same"]));
        }
    });
    alone.succeed(&["heal"]);
    assert_eq!(alone.ruleset(), "");
}

#[test]
fn tables_of_others_are_byte_for_byte_what_they_were() {
    let alone = Alone::new();
    alone.load(
        "table inet playdead-foo { comment \"not playdead's\"; chain c { type filter hook input priority -300; accept; }; }; \
         table inet firewall { chain in { type filter hook input priority 0; ct state established,related accept; accept; }; }",
    );
    let before = alone.ruleset();
    let taken = alone.playdead(&["dead-host", PEER, "--name", "foo"]);
    assert_eq!(taken.status.code(), Some(1), "{taken:?}");
    assert_eq!(alone.ruleset(), before);
    // A connection that the firewall has accepted already is cut too (sts#48).
    assert!(!alone.bites());
    alone.succeed(&["dead-host", PEER, "--name", "bar"]);
    assert!(alone.bites());
    alone.succeed(&["heal", "foo"]);
    alone.succeed(&["heal"]);
    assert_eq!(alone.ruleset(), before);
}
