//! Wrong input of every sort: one line on standard error, the exit code of the contract, and nothing changed.

mod net;

use std::process::{Command, Output};

use net::cli::{playdead, words};
use net::{At, Segment};

/// The one line must say one of these words.
#[track_caller]
fn assert_refused(output: &Output, code: i32, says: &str, what: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{what}: {output:?}");
    assert_eq!(said.lines().count(), 1, "{what}: {said}");
    assert!(said.starts_with("playdead: ") && said.len() < 500, "{what}: {said}");
    assert!(said.contains(says), "{what} does not say {says:?}: {said}");
    assert_eq!(output.stdout, b"", "{what}: {output:?}");
}

#[test]
fn what_cannot_be_meant_is_wrong_usage() {
    let segment = Segment::new();
    let lines = [
        ("dead-host", "PEER"),
        ("no-such-verb 10.0.0.1", "no-such-verb"),
        ("dead-host 10.0.0.1 --no-such-flag", "--no-such-flag"),
        ("dead-host 10.0.0.256", "10.0.0.256"),
        ("dead-host 10.0.0", "10.0.0"),
        ("dead-host 1:2:3", "1:2:3"),
        ("dead-host [::1", "[::1"),
        ("dead-host ::g", "::g"),
        ("dead-host 10.0.0.1/33", "/33"),
        ("dead-host 10.0.0.1/-1", "/-1"),
        ("dead-host ::1/129", "/129"),
        ("dead-host 10.0.0.1:0", "10.0.0.1:0"),
        ("dead-host 10.0.0.1:65536", "65536"),
        ("dead-host 10.0.0.1:x", "10.0.0.1:x"),
        ("dead-host 10.0.0.1:", "10.0.0.1:"),
        ("dead-host 10.0.0.1:90-80", "90-80"),
        ("dead-host 10.0.0.1:80-", "80-"),
        ("dead-host [::1]:0", "[::1]:0"),
        ("dead-host [::1]:1-65536", "65536"),
        ("dead-host bad/na/me", "bad/na/me"),
        ("dead-host -bad.example", "-b"),
        ("dead-host exa..mple", "exa..mple"),
        ("dead-host etcd://", "etcd://HOST:PORT"),
        ("dead-host etcd://127.0.0.1", "etcd://127.0.0.1"),
        ("dead-host etcd://127.0.0.1:2379?everybody", "everybody"),
        ("dead-host 10.0.0.1 --", "nothing is behind `--`"),
        ("partition a b --", "nothing is behind `--`"),
        ("dead-process 10.0.0.1", "10.0.0.1:PORT"),
        ("flap dead-host 10.0.0.1 --up 1s --down 1s --percent 20", "--percent is of lossy, not of dead-host"),
        ("flap lossy 10.0.0.1 --percent 5 --up 1s --down 1s --backlog 2", "--backlog is of hung-process"),
        ("hush 10.0.0.1 10.0.0.2:80", "10.0.0.1:PORT"),
        ("hung-process ::1", ":PORT"),
        ("hung-process localhost", "localhost:PORT"),
        ("unreachable 10.0.0.1 --code teapot", "teapot"),
        ("lossy 10.0.0.1", "--percent"),
        ("lossy 10.0.0.1 --percent 0", "percent"),
        ("lossy 10.0.0.1 --percent 101", "101"),
        ("lossy 10.0.0.1 --percent nan", "nan"),
        ("lossy 10.0.0.1 --percent inf", "inf"),
        ("lossy 10.0.0.1 --percent -5", "-5"),
        ("lossy 10.0.0.1 --percent 0.001", "0.001"),
        ("lossy 10.0.0.1 --percent 99.999", "0.01"),
        ("lossy 10.0.0.1 --percent 5 --seed 1", "--per-connection"),
        ("lossy 10.0.0.1 --percent 5 --per-connection --seed 4294967296", "4294967296"),
        ("dead-host 10.0.0.1 --for 0", "0"),
        ("dead-host 10.0.0.1 --for 0s", "0s"),
        ("dead-host 10.0.0.1 --for=-1s", "-1s"),
        ("dead-host 10.0.0.1 --for -1s", "-1"),
        ("dead-host 10.0.0.1 --for soon", "soon"),
        ("dead-host 10.0.0.1 --for 10", "10"),
        ("dead-host 10.0.0.1 --for 99999999h", "99999999h"),
        ("dead-host 10.0.0.1 --for 1s --hold", "--hold"),
        ("dead-host 10.0.0.1 --for 1s -- true", "--for"),
        ("dead-host 10.0.0.1 --hold -- true", "--hold"),
        ("dead-host 10.0.0.1 --user nobody", "COMMAND"),
        ("dead-host 10.0.0.1 --user no-such-user -- true", "no-such-user"),
        ("dead-host 10.0.0.1 --direction sideways", "sideways"),
        ("dead-host 10.0.0.1 --proto sctp", "sctp"),
        ("dead-host 10.0.0.1 --with 10.0.0.2:80", "10.0.0.2:80"),
        ("dead-host 10.0.0.1 --with nonsense!", "nonsense!"),
        ("dead-host 10.0.0.1 --with fd00::1", "IPv4"),
        ("dead-host 10.0.0.1 fd00::2 --with 10.0.0.7", "fd00::2"),
        ("dead-host --with 10.0.0.7 10.0.0.1", "PEER"),
        ("dead-host 10.0.0.1/+24", "/+24"),
        ("dead-host 10.0.0.1/024", "/024"),
        ("dead-host 0x0a000001", "0x0a000001"),
        ("dead-host fe80::1%eth0", "scope"),
        ("dead-host 10.0.0.1 --name bad/name", "bad/name"),
        ("dead-host 10.0.0.1 --name ünsinn", "ünsinn"),
        ("renew", "NAME"),
        ("renew x", "--for"),
        ("renew x --for 0s", "0s"),
        ("heal bad/name", "bad/name"),
        ("heal x --all", "--all"),
        ("explain nothing", "nothing"),
        ("probe 10.0.0.1", "10.0.0.1:PORT"),
        ("probe 10.0.0.0/24:80", "10.0.0.0/24"),
        ("probe 10.0.0.1:80 --expect sadness", "sadness"),
    ];
    for (line, says) in lines {
        assert_refused(&segment.run(At::Client, line), 2, says, line);
    }
    for (name, says) in [("", "name"), (&*"x".repeat(101), "xxx")] {
        let output = in_place(&segment).args(["dead-host", "10.0.0.1", "--name", name]).output().unwrap();
        assert_refused(&output, 2, says, name);
    }
    for peer in ["", " ", "10.0.0.1 ", "a\nb", "10.0.0.1\u{0}"].into_iter().filter(|peer| !peer.contains('\0')) {
        assert_refused(&in_place(&segment).args(["dead-host", peer]).output().unwrap(), 2, "", &format!("{peer:?}"));
    }
    assert_refused(&in_place(&segment).args(["dead-host", "10.0.0.1", "--", ""]).output().unwrap(), 2, "empty", "");
    assert_eq!(segment.listed(At::Client), "");
}

fn in_place(segment: &Segment) -> Command {
    let mut command = playdead();
    command.args(["--netns", &segment.name(At::Client)]);
    command
}

#[test]
fn what_is_not_there_is_a_failure() {
    let segment = Segment::new();
    let lines = [
        ("dead-host no-such-host.invalid", "no-such-host.invalid"),
        ("dead-host 10.0.0.1 no-such-host.invalid:80", "no-such-host.invalid"),
        ("dead-host etcd://127.0.0.1:1", "127.0.0.1:1"),
        ("dead-process etcd://10.99.0.1:1?leader", "10.99.0.1:1"),
        ("renew nobody --for 5s", "nobody"),
    ];
    for (line, says) in lines {
        assert_refused(&segment.run(At::Client, line), 1, says, line);
    }
    assert_eq!(segment.listed(At::Client), "");
}

#[test]
fn a_place_that_is_none_is_a_failure() {
    let segment = Segment::new();
    let file = std::env::temp_dir().join(segment.name(At::Client));
    std::fs::write(&file, "plain").unwrap();
    let plain = file.to_str().unwrap().to_owned();
    let gone = format!("{}/gone", segment.name(At::Client));
    let places: [(&str, &str); 12] = [
        ("--netns", "no-such-namespace"),
        ("--netns", "../.."),
        ("--netns", ".."),
        ("--netns", "."),
        ("--netns", ""),
        ("--netns", &gone),
        ("--netns", "/no/such/file"),
        ("--netns", &plain),
        ("--netns", "/proc/self/ns/mnt"),
        ("--netns", "/dev/null"),
        ("--pid", "4194305"),
        // Whether a lab is up or not, the message tells of labs.
        ("--node", "no-such-node"),
    ];
    for (flag, place) in places {
        let says = if flag == "--node" { "lab" } else { place };
        let one = playdead().args([flag, place, "dead-host", "10.0.0.1"]).output().unwrap();
        assert_refused(&one, 1, says, place);
        // One that is none among others: the others stay as they were.
        let both = in_place(&segment).args([flag, place, "dead-host", "10.0.0.1"]).output().unwrap();
        assert_refused(&both, 1, says, place);
        let heal = playdead().args([flag, place, "heal"]).output().unwrap();
        assert_refused(&heal, 1, says, place);
    }
    assert_refused(&playdead().args(words("--pid x dead-host 10.0.0.1")).output().unwrap(), 2, "x", "--pid x");
    assert_eq!(segment.listed(At::Client), "");
    std::fs::remove_file(file).unwrap();
}

/// podman#8784, blockade#26: bare "operation not permitted". systemd#26859: no rights on the host's namespace.
#[test]
fn without_rights_it_says_which_and_exits_with_4() {
    let segment = Segment::new();
    let nobody = |line: &str| {
        let setpriv = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let mut command = Command::new("setpriv");
        command.args(setpriv).arg(playdead().get_program()).args(words(line)).output().unwrap()
    };
    let named = format!("--netns {}", segment.name(At::Client));
    for verb in
        ["dead-host 10.0.0.1", "dead-process 10.0.0.1:80 --hold", "dead-host 10.0.0.1 -- true", "status", "heal"]
    {
        assert_refused(&nobody(&format!("{named} {verb}")), 4, "CAP_", verb);
    }
    for verb in ["status", "up", "down", "kill etcd1"] {
        assert_refused(&nobody(&format!("lab {verb}")), 4, "CAP_SYS_ADMIN", verb);
    }
    let here = |line: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &segment.name(At::Client), "setpriv", "--reuid=65534", "--regid=65534"]);
        command.arg("--clear-groups").arg(playdead().get_program()).args(words(line)).output().unwrap()
    };
    for verb in ["dead-host 10.0.0.1", "dead-process 10.0.0.1:80 --for 5s", "lossy 10.0.0.1 --percent 5"] {
        assert_refused(&here(verb), 4, "CAP_NET_ADMIN", verb);
    }
    assert_eq!(segment.listed(At::Client), "");
}

/// etcd#21310: inside a user and network namespace no real root is needed.
#[test]
fn in_a_user_namespace_of_ones_own_no_other_rights_are_needed() {
    let script = "$0 dead-host 10.0.0.1 ::2 && $0 status --json && $0 heal && $0 status";
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Urn", "sh", "-ec", script]);
    let output = command.arg(playdead().get_program()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("\"active\":true") && said.contains("nothing is in force"), "{said}");
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for flag in ["--help", "--version"] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = playdead().arg(flag).stdout(full).output().unwrap();
        assert_refused(&output, 1, "No space left", flag);
    }
}

#[test]
fn help_says_with_which_codes_a_verb_ends() {
    for (verb, says) in [("flap", "Exits with 0 after a signal"), ("verify", "with 3 if something differs")] {
        let output = playdead().args([verb, "--help"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(says), "{text}");
    }
}
