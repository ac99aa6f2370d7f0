//! What COMMAND and the commands of a scenario are given, and what playdead itself starts.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use super::{Scratch, assert_refused, at, done};
use crate::net::cli::{playdead, stdout_of};
use crate::net::{At, Segment};
use crate::own_etc::OwnEtc;

/// Prints what the kernel says of the process that reads it, and who it is.
const SHOW: &str =
    "cat /proc/self/status; echo HOME: $HOME; echo USER: $USER; echo PATH: $PATH; echo PRELOAD: $LD_PRELOAD";
const NONE: &str = "0000000000000000";

/// The lines `Name: value` in it.
fn shown(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

#[track_caller]
fn assert_has_none(has: &BTreeMap<String, String>) {
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(has[set], NONE, "{set}: {has:?}");
    }
}

fn under(segment: &Segment, verb: &str, options: &[&str], script: &str) -> Output {
    let mut command = at(segment, At::Client);
    command.args(verb.split(' ')).args(options).args(["--", "sh", "-c", script]).output().unwrap()
}

#[test]
fn a_command_has_no_capabilities_and_gets_none() {
    let segment = Segment::new();
    let mine = shown(&std::fs::read_to_string("/proc/self/status").unwrap());
    for verb in ["dead-host 10.99.0.2", "flap dead-host 10.99.0.2 --up 1h --down 1h"] {
        let has = shown(&stdout_of(&under(&segment, verb, &[], SHOW)));
        assert_has_none(&has);
        // What is not taken away, so that a program with capabilities of its own can be started (and gets none).
        assert_eq!(has["CapBnd"], mine["CapBnd"]);
        assert_eq!((has["Uid"].as_str(), has["NoNewPrivs"].as_str()), ("0 0 0 0", "1"), "{has:?}");
        // Not by a program that another user owns, nor by one with capabilities, nor by root's own id.
        let tries = "ping -c1 127.0.0.1 >/dev/null 2>&1; sudo -n true 2>&1; cat /proc/self/status";
        assert_has_none(&shown(&stdout_of(&under(&segment, verb, &[], tries))));
        for forbidden in
            ["nft list ruleset", "unshare -n true", "chown nobody /proc/self/comm", "mount -t tmpfs x /mnt"]
        {
            let output = under(&segment, verb, &[], forbidden);
            assert!(output.status.code() > Some(0), "{forbidden}: {output:?}");
        }
    }
    assert_eq!(segment.listed(At::Client), "");
}

#[test]
fn a_command_keeps_everything_when_asked_and_is_who_it_is_told() {
    let segment = Segment::new();
    let mine = shown(&std::fs::read_to_string("/proc/self/status").unwrap());
    let verb = "dead-host 10.99.0.2";
    let has = shown(&stdout_of(&under(&segment, verb, &["--privileged"], SHOW)));
    for name in ["CapEff", "CapPrm", "CapBnd", "Uid", "NoNewPrivs", "Groups"] {
        assert_eq!(has[name], mine[name], "{name}");
    }
    let has = shown(&stdout_of(&under(&segment, verb, &["--user", "nobody"], SHOW)));
    assert_has_none(&has);
    assert_eq!((has["Uid"].as_str(), has["Groups"].as_str()), ("65534 65534 65534 65534", "65534"), "{has:?}");
    assert_eq!((has["HOME"].as_str(), has["USER"].as_str()), ("/nonexistent", "nobody"), "{has:?}");
    let has = shown(&stdout_of(&under(&segment, verb, &["--user", "root"], SHOW)));
    assert_has_none(&has);
    assert_eq!((has["Uid"].as_str(), has["NoNewPrivs"].as_str()), ("0 0 0 0", "1"), "{has:?}");
    let both = under(&segment, verb, &["--user", "nobody", "--privileged"], "true");
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}

#[test]
fn who_needs_rights_inside_of_a_command_is_told_how_to_get_them() {
    let segment = Segment::new();
    let inner = format!("{} --netns {} status", playdead().get_program().display(), segment.name(At::Peer));
    let output = under(&segment, "dead-host 10.99.0.2", &[], &inner);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(4) && said.contains("--privileged"), "{output:?}");
}

/// A user who may run playdead by sudo, and is nobody where /etc is this machine's.
struct User {
    name: String,
    home: String,
    etc: OwnEtc,
}

impl User {
    fn new(segment: &Segment, scratch: &Scratch) -> Self {
        let (name, home) = (segment.name(At::Client), scratch.path("home"));
        let user = Self { name, home, etc: OwnEtc::within(&scratch.0) };
        let words = ["--create-home", "--user-group", "--groups", "games", "--home-dir", &user.home, &user.name];
        let made = user.etc.command("useradd").args(words).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let rule = format!("{} ALL=(root) NOPASSWD: {}\n", user.name, playdead().get_program().display());
        let file = user.etc.path("sudoers.d/playdead");
        std::fs::write(&file, rule).unwrap();
        done("chmod", &["0440", file.to_str().unwrap()]);
        user
    }

    fn id(&self, flag: &str) -> String {
        stdout_of(&self.etc.command("id").args([flag, &self.name]).output().unwrap()).trim().to_owned()
    }

    fn sudo(&self, words: &[&str]) -> Output {
        let mut command = self.etc.command("runuser");
        command.args(["-u", &self.name, "--", "env", "LD_PRELOAD=/nonexistent.so", "LANG=de_DE.UTF-8", "PLAYDEAD_X=1"]);
        command.args(["sudo", "-n"]).arg(playdead().get_program()).args(words).output().unwrap()
    }
}

#[test]
fn by_sudo_a_command_is_the_callers_own() {
    let segment = Segment::new();
    let (scratch, client) = (Scratch::new(&segment), segment.name(At::Client));
    let user = User::new(&segment, &scratch);
    let place = ["--netns", &client, "dead-host", "10.99.0.2"];
    let run = |options: &[&str], script: &str| user.sudo(&[&place[..], options, &["--", "sh", "-c", script]].concat());
    let has = shown(&stdout_of(&run(&[], SHOW)));
    assert_has_none(&has);
    let (uid, gid) = (user.id("-u"), user.id("-g"));
    assert_eq!((has["Uid"].clone(), has["Gid"].clone()), ([&*uid; 4].join(" "), [&*gid; 4].join(" ")), "{has:?}");
    let (mut groups, all) = (has["Groups"].split(' ').collect::<Vec<_>>(), user.id("-G"));
    let mut all: Vec<_> = all.split(' ').collect();
    groups.sort_unstable();
    all.sort_unstable();
    assert_eq!(groups, all);
    assert_eq!((has["HOME"].clone(), has["USER"].clone()), (user.home.clone(), user.name.clone()));
    // What sudo keeps from root it keeps from the command as well, and its path is root's.
    assert_eq!(has["PRELOAD"], "");
    assert!(has["PATH"].contains("/usr/sbin"), "{has:?}");
    // It may do again what the user may do anyway.
    assert_eq!(has["NoNewPrivs"], "0");
    let script = format!("touch {0}/mine && stat -c %U {0}/mine; cat /etc/shadow", user.home);
    let output = run(&[], &script);
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stdout).lines().last()),
        (Some(1), Some(&*user.name))
    );
    let has = shown(&stdout_of(&run(&["--privileged"], SHOW)));
    assert_eq!((has["Uid"].as_str(), has["CapEff"] == NONE), ("0 0 0 0", false), "{has:?}");
    assert_eq!(segment.listed(At::Client), "");
}

#[test]
fn by_sudo_the_steps_of_a_scenario_are_the_callers_own_and_its_record_is_roots() {
    let segment = Segment::new();
    let scratch = Scratch::new(&segment);
    let user = User::new(&segment, &scratch);
    let (what, done_to) = (scratch.path("what"), scratch.path("done-to"));
    let text = format!(
        "[nodes.a]\nnetns = \"{}\"\ncommands = {{ pause = \"id -un >{done_to}\", resume = \"true\" }}\n\
         [[steps]]\nrun.command = \"grep Cap /proc/self/status; id -un; touch $PLAYDEAD_WORK/x; stat -c %a $PLAYDEAD_WORK\"\n\
         [[steps]]\nrun = {{ node = \"a\", command = \"grep Cap /proc/self/status; id -un\" }}\n\
         [[steps]]\npause = \"a\"\n[[steps]]\nresume = \"a\"\n",
        segment.name(At::Client)
    );
    let file = scratch.file("scenario.toml", text);
    let output = user.sudo(&["run", &file, "--seed", "1", "--out", &what]);
    assert!(output.status.success(), "{output:?}");
    for step in ["1", "2"] {
        let said = std::fs::read_to_string(format!("{what}/output/{step}.txt")).unwrap();
        assert_has_none(&shown(&said));
        assert!(said.lines().any(|line| line == user.name), "{said}");
        assert!(step == "2" || said.ends_with("700\n"), "{said}");
    }
    assert_eq!(std::fs::read_to_string(&done_to).unwrap(), "root\n");
    assert_eq!(stdout_of(&Command::new("stat").args(["-c", "%U", &what]).output().unwrap()), "root\n");
    let output = user.sudo(&["run", &file, "--seed", "1", "--privileged", "--out", &format!("{what}2")]);
    let said = std::fs::read_to_string(format!("{what}2/output/1.txt")).unwrap();
    assert!(output.status.success() && said.contains("root"), "{output:?} {said}");
}

/// In a user namespace of one's own there is nobody else to become, whoever once called sudo.
#[test]
fn in_a_user_namespace_a_command_stays_who_it_is() {
    let script = format!("$0 dead-host 127.0.0.9 -- sh -c '{SHOW}'");
    let mut command = Command::new("unshare");
    command.args(["-Urn", "sh", "-c", &script]).arg(playdead().get_program()).env("SUDO_UID", "65534");
    let has = shown(&stdout_of(&command.output().unwrap()));
    assert_has_none(&has);
    assert_eq!(has["Uid"], "0 0 0 0");
}

/// Rather than root, whose files are of more worth than those of whoever was meant.
#[test]
fn who_called_sudo_is_not_guessed() {
    let segment = Segment::new();
    for named in ["", "x", "-1", "1000x", "99999999999", "4000000000"] {
        let mut command = at(&segment, At::Client);
        command.args("dead-host 10.99.0.2 -- true".split(' ')).env("SUDO_UID", named);
        let said = assert_refused(&command.output().unwrap(), &[1], named);
        assert!(said.contains(&format!("SUDO_UID={named}: there is no such user")), "{said}");
        let mut asked = at(&segment, At::Client);
        asked.args("dead-host 10.99.0.2 --user nobody -- true".split(' ')).env("SUDO_UID", named);
        assert!(asked.output().unwrap().status.success(), "{asked:?}");
    }
    assert_eq!(segment.listed(At::Client), "");
}

/// Whatever a name looks like: with an empty PATH nothing could be started, and what it does needs nobody.
#[test]
fn faults_start_no_other_program() {
    let segment = Segment::new();
    let scratch = Scratch::new(&segment);
    let _server = segment.serve();
    for line in [
        "dead-host 10.99.0.2 --name x",
        "status",
        "status --json",
        "renew y --for 9s",
        "verify --json",
        "dead-process 10.99.0.2:2379 --name y --for 9s --replace",
        "renew y --for 9s",
        "probe 10.99.0.2:2379 --timeout 300ms",
        "explain hush",
        "doctor",
        "heal",
    ] {
        let output = at(&segment, At::Client).env("PATH", &scratch.0).args(line.split(' ')).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("cannot run") && output.status.code().is_some(), "{line}: {output:?}");
    }
    assert_eq!(segment.listed(At::Client), "");
}
