//! What `doctor` finds, each in a place that was made to have it, and that looking changes nothing.

mod net;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use net::cli::{playdead, stdout_of};
use net::{At, Segment, ip};
use playdead::model::verb;
use serde_json::Value;

const ALL: [At; 3] = [At::Client, At::Peer, At::Switch];

/// The document of `doctor` in a place.
fn findings(segment: &Segment, at: At) -> Vec<Value> {
    document(&segment.run(at, "--json doctor"))["findings"].as_array().unwrap().clone()
}

#[track_caller]
fn document(output: &Output) -> Value {
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(document["format"], 1);
    assert_eq!(document["usable"], output.status.success(), "{output:?}");
    assert_eq!(output.stderr, b"", "{output:?}");
    document
}

#[track_caller]
fn about<'a>(findings: &'a [Value], what: &str) -> &'a Value {
    findings.iter().find(|finding| finding["what"] == what).unwrap_or_else(|| panic!("no {what} in {findings:#?}"))
}

#[track_caller]
fn assert_state(findings: &[Value], what: &str, state: &str, found: &str) {
    let finding = about(findings, what);
    assert_eq!(finding["state"], state, "{finding}");
    assert!(finding["found"].as_str().unwrap().contains(found), "{finding}");
    assert!(state == "ok" || state == "unknown" || !finding["costs"].is_null(), "{finding}");
}

/// Python that makes something, says so, and keeps it until its input ends.
struct Keeper(Child);

impl Keeper {
    fn start(segment: &Segment, at: At, script: &str) -> Self {
        let waits = format!("{script}\nprint('made', flush=True)\nsys.stdin.read()");
        let mut python = Command::new("ip");
        python.args(["netns", "exec", &segment.name(at), "python3", "-c", &waits]);
        let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "made\n");
        Self(child)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn on_a_kernel_that_has_all_every_kind_is_ok_and_looking_changes_nothing() {
    let segment = Segment::new();
    let before = ALL.map(|at| segment.listed(at));
    let places = ALL.map(|at| segment.name(at));
    let output = playdead().args(places.iter().flat_map(|name| ["--netns", name])).arg("doctor").output().unwrap();
    let text = stdout_of(&output);
    for place in &places {
        for what in verb::ALL.into_iter().chain(["rules", "egress hook", "fwd", "set timeouts", "tables with an owner"])
        {
            let line = |line: &&str| line.starts_with(&format!("ok       {place}  {what} "));
            assert_eq!(text.lines().filter(line).count(), 1, "{what} in {place}:\n{text}");
        }
    }
    assert!(text.contains("bridges                 br0"), "{text}");
    assert_eq!(ALL.map(|at| segment.listed(at)), before);
}

#[test]
fn who_judges_earlier_is_named_and_who_judges_beside_or_later_is_no_worry() {
    let segment = Segment::new();
    let at = At::Client;
    segment.nft(
        at,
        "table inet early { chain pre { type filter hook prerouting priority -301; }; }
         table netdev thief { chain out { type filter hook egress device eth0 priority -400; }; }
         table arp early { chain in { type filter hook input priority -301; }; }
         table ip beside { chain out { type route hook output priority -300; }; }
         table inet late { chain pre { type filter hook prerouting priority -299; }; }
         table inet input { chain in { type filter hook input priority -400; }; }",
    );
    segment.playdead(at, "dead-host 10.99.0.2");
    let found = findings(&segment, at);
    assert_state(&found, "table inet early", "limited", "chain pre, prerouting, priority -301");
    assert_state(&found, "table netdev thief", "limited", "chain out, egress, priority -400");
    assert_state(&found, "table arp early", "limited", "chain in, input, priority -301");
    assert_state(&found, "table ip beside", "ok", "chain out, output, priority -300");
    assert_eq!(about(&found, "table inet early")["mend"], "nft list chain inet early pre");
    let tables: Vec<_> = found.iter().filter_map(|f| f["what"].as_str()).filter(|w| w.starts_with("table ")).collect();
    assert_eq!(tables.len(), 4, "neither ours nor those that come later: {tables:?}");
}

/// What `doctor` says of a chain at our priority.
#[test]
fn of_two_chains_at_one_priority_the_one_that_was_made_last_judges_first() {
    let segment = Segment::new();
    let at = At::Client;
    let rival = "table inet rival { chain pre { type filter hook prerouting priority -300; \
                 ip saddr 10.99.0.2 counter; }; }";
    let ping = || {
        let from_peer = ["netns", "exec", &segment.name(At::Peer), "ping", "-q", "-c1", "-W1", "10.99.0.1"];
        assert!(!Command::new("ip").args(from_peer).output().unwrap().status.success());
    };
    let counted = || segment.inside(at, &["nft", "list", "table", "inet", "rival"]).contains("packets 1 ");
    segment.nft(at, rival);
    segment.playdead(at, "dead-host 10.99.0.2");
    ping();
    assert!(!counted(), "a fault that came later judges first");
    segment.nft(at, "delete table inet rival");
    segment.nft(at, rival);
    ping();
    assert!(counted(), "a table that was loaded again judges before the fault");
}

#[test]
fn a_device_with_an_xdp_program_is_named() {
    let segment = Segment::new();
    assert_state(&findings(&segment, At::Client), "XDP", "ok", "no programs");
    // Two instructions (r0 = XDP_PASS; exit) for BPF_PROG_LOAD (5, type XDP is 6), and BPF_LINK_CREATE (28, at BPF_XDP,
    // 37): the kernel takes the program off with its last descriptor.
    let script = "
import ctypes, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def bpf(command, attributes):
    room = ctypes.create_string_buffer(attributes, 128)
    fd = libc.syscall(BPF, command, room, 128)
    assert fd >= 0, ctypes.get_errno()
    return fd
code = ctypes.create_string_buffer(struct.pack('=BBhiBBhi', 0xb7, 0, 0, 2, 0x95, 0, 0, 0))
licence = ctypes.create_string_buffer(b'GPL')
program = bpf(5, struct.pack('=IIQQ', 6, 2, ctypes.addressof(code), ctypes.addressof(licence)))
link = bpf(28, struct.pack('=IIII', program, socket.if_nametoindex('eth0'), 37, 0))
";
    let script = script.replace("BPF,", &format!("{},", nix::libc::SYS_bpf));
    let _program = Keeper::start(&segment, At::Client, &script);
    let found = findings(&segment, At::Client);
    assert_state(&found, "XDP on eth0", "limited", "a program");
    assert_eq!(about(&found, "XDP on eth0")["mend"], "ip link set dev eth0 xdp off");
}

#[test]
fn a_table_of_the_old_iptables_is_named() {
    let segment = Segment::new();
    assert_state(&findings(&segment, At::Client), "legacy iptables", "ok", "no tables");
    // IPT_SO_GET_INFO (64 at SOL_IP) makes the table that it asks for.
    let script = "
import ctypes, socket, sys
asked = ctypes.create_string_buffer(b'raw', 84)
size = ctypes.c_uint32(84)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
assert ctypes.CDLL(None).getsockopt(raw.fileno(), 0, 64, asked, ctypes.byref(size)) == 0
";
    let _table = Keeper::start(&segment, At::Client, script);
    assert_state(&findings(&segment, At::Client), "legacy iptables", "ok", "ip:raw");
}

#[test]
fn how_long_a_connect_waits_is_told_for_the_place() {
    let segment = Segment::new();
    segment.syn_retries(2);
    assert_state(&findings(&segment, At::Client), "connect to a dead host", "ok", "ETIMEDOUT after 7.0 s");
}

#[test]
fn a_device_without_ethernet_is_named() {
    let segment = Segment::new();
    ip(&["-n", &segment.name(At::Client), "tuntap", "add", "mode", "tun", "name", "tun9"]);
    assert_state(&findings(&segment, At::Client), "devices", "limited", "tun9");
    assert_state(&findings(&segment, At::Peer), "devices", "ok", "Ethernet");
}

#[test]
fn without_rights_it_tells_what_is_missing_and_does_not_guess_at_the_rest() {
    let segment = Segment::new();
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let doctor = |place: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &segment.name(At::Client)]).args(nobody).arg(playdead().get_program());
        document(&command.args(["--json", "doctor"]).args(place).output().unwrap())["findings"].clone()
    };
    for place in [vec![], vec!["--netns", &segment.name(At::Peer)]] {
        let found = doctor(&place);
        let found = found.as_array().unwrap();
        assert_state(found, "CAP_NET_ADMIN", "missing", "65534");
        assert_eq!(about(found, "rules")["state"], "missing", "{found:#?}");
        for what in verb::ALL.into_iter().chain(["egress hook", "fwd", "reject, bridges"]) {
            assert_state(found, what, "unknown", "needs root to know");
        }
    }
    let output = Command::new("ip")
        .args(["netns", "exec", &segment.name(At::Client)])
        .args(nobody)
        .arg(playdead().get_program())
        .arg("doctor")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
}

#[test]
fn in_a_user_namespace_of_ones_own_every_kind_is_ok_and_the_limits_are_told() {
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Urn"])
        .arg(playdead().get_program())
        .args(["--json", "doctor"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found = document(&output)["findings"].clone();
    let found = found.as_array().unwrap();
    assert_state(found, "user namespace", "limited", "not the first");
    assert_state(found, "rules", "ok", "");
    for kind in verb::ALL {
        assert_state(found, kind, "ok", "");
    }
    assert!(about(found, "net.core.wmem_max")["found"].as_str().is_some());
}

#[test]
fn a_right_that_root_was_deprived_of_is_named() {
    let segment = Segment::new();
    let run = |dropped: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &segment.name(At::Client), "setpriv", "--bounding-set", dropped]);
        command.args(["--inh-caps", dropped]).arg(playdead().get_program()).args(["--json", "doctor"]);
        let output = command.output().unwrap();
        (output.status.code(), document(&output)["findings"].as_array().unwrap().clone())
    };
    let (code, found) = run("-net_raw");
    assert_eq!(code, Some(4));
    assert_state(&found, "CAP_NET_RAW", "missing", "not for user 0");
    assert_state(&found, "dead-host", "ok", "");
    let (code, found) = run("-sys_admin");
    assert_eq!(code, Some(0));
    assert_state(&found, "CAP_SYS_ADMIN", "limited", "not for user 0");
}

#[test]
fn a_place_that_is_not_there_is_one_line_and_no_document() {
    let output = playdead().args(["--netns", "no-such-place", "doctor"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-place"));
}
