//! `playdead run`: plans, checks, healing and the record, on real etcd. Needs root and etcd, and fails without.

mod labs;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use labs::{Lab, playdead};

/// A scenario of a lab, and the directory of its record.
struct Play<'a> {
    lab: &'a Lab,
    file: String,
    out: PathBuf,
}

impl<'a> Play<'a> {
    fn new(lab: &'a Lab, name: &str, text: &str) -> Self {
        let file = lab.file(&format!("{name}.toml"), text);
        let out = Path::new(&file).with_file_name(name);
        Self { lab, file, out }
    }

    fn run(&self, more: &str) -> Output {
        self.lab.run(&format!("run {} --lab LAB --out {} {more}", self.file, self.out.display()))
    }

    /// It must end with this code; gives the events of the record.
    #[track_caller]
    fn ends_with(&self, code: i32) -> Vec<Value> {
        let output = self.run("");
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        self.events()
    }

    fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.out.join("events.jsonl")).unwrap();
        assert!(text.ends_with('\n'), "half a line: {text}");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Runs it in the background until it says so.
    fn start_until(&self, said: &str) -> Child {
        let words = ["run", &self.file, "--lab", &self.lab.name, "--out"];
        let mut child = playdead().args(words).arg(&self.out).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(said)), "it never said {said}");
        child
    }
}

fn of<'a>(events: &'a [Value], event: &str) -> Vec<&'a Value> {
    events.iter().filter(|one| one["event"] == event).collect()
}

fn node_state(lab: &Lab, node: &str) -> String {
    let status = lab.json("lab status --lab LAB");
    let nodes = status["labs"][0]["nodes"].as_array().unwrap();
    let node = nodes.iter().find(|one| one["name"] == node).unwrap();
    format!("{} {}", node["etcd"]["state"].as_str().unwrap(), node["plugged"])
}

#[test]
fn a_scenario_plays_heals_and_leaves_a_record_of_every_kind() {
    let lab = Lab::up(3);
    let play = Play::new(
        &lab,
        "whole",
        r#"
        about = "One member is dead, hangs, and is healed."
        seed = 7
        telemetry = { from = "agent" }
        [[steps]]
        fault = "dead-host etcd1 --node agent --name cut"
        [[steps]]
        at = "300ms"
        probe = "etcd1:2379 --node agent --only connect --timeout 300ms --expect dead-host"
        [[steps]]
        fault = "hung-process etcd1:2379 --node agent --name cut2 --replace"
        [[steps]]
        expect = { probe = "etcd1:2379 --node agent --only connect --timeout 300ms --expect hung-process" }
        [[steps]]
        expect = { hits = "cut2", at-least = 2 }
        [[steps]]
        expect = { no-quorum = "etcd1", quorum = ["etcd2", "etcd3"], from = "agent" }
        [[steps]]
        pause = "etcd2"
        [[steps]]
        run = { command = "echo from $(hostname -I); cat /etc/hosts", node = "agent", output = "etcd3" }
        [[steps]]
        heal = "all"
        [[steps]]
        resume = "etcd2"
        [[steps]]
        wait = { steady = "500ms" }
        "#,
    );
    let events = play.ends_with(0);
    assert_eq!(events[0]["format"], "playdead-record/1");
    assert_eq!(of(&events, "end").len(), 11);
    assert_eq!(of(&events, "finish")[0]["outcome"], "passed");
    let healed: Vec<_> = of(&events, "healed").iter().map(|one| one["name"].clone()).collect();
    assert_eq!(healed, ["cut", "cut2"], "the first is gone when it is replaced");
    let place = |event: &str, name: &str| events.iter().position(|one| one["event"] == event && one["name"] == name);
    assert!(place("healed", "cut") < place("fault", "cut2"), "the first is gone before the second is there");
    assert!(of(&events, "member").iter().any(|one| one["node"] == "etcd1" && one["from"] == "agent"));
    assert!(events.is_sorted_by(|one, next| one["ms"].as_f64() <= next["ms"].as_f64()));

    assert!(play.read("rules/3.cut2.agent.nft").contains("table inet playdead-cut2"));
    assert!(play.read("output/8.txt").contains("etcd3"));
    assert!(play.read("summary.md").contains("| cut | etcd1 | dead-host etcd1"));
    assert!(play.read("timeline.svg").contains("hung-process etcd1:2379"));
    let junit = play.read("junit.xml");
    assert!(junit.contains("tests=\"12\"") && junit.contains("failures=\"0\""), "{junit}");
    assert!(play.out.join("logs/etcd1.log").is_file());
    assert_eq!(lab.listed("agent"), "");

    let again = play.run("");
    assert!(String::from_utf8_lossy(&again.stderr).contains("is not empty"), "{again:?}");
    let file = lab.run(&format!("run {} --lab LAB --out /dev/null", play.file));
    assert!(String::from_utf8_lossy(&file.stderr).contains("/dev/null is not a directory"), "{file:?}");
}

#[test]
fn an_unmet_expectation_gives_3_and_the_rest_still_plays() {
    let lab = Lab::up(1);
    let text = r#"
        [[steps]]
        expect = { probe = "etcd1:2379 --node agent --only connect --timeout 300ms --expect dead-host" }
        [[steps]]
        run = { command = "exit 5", exit = 5 }
        [[steps]]
        expect = { command = "echo no", output = "yes" }
        "#;
    let events = Play::new(&lab, "unmet", text).ends_with(3);
    let failed: Vec<_> = of(&events, "end").iter().map(|end| end["failed"].is_string()).collect();
    assert_eq!(failed, [true, false, true]);
}

#[test]
fn what_is_waited_for_in_vain_ends_the_scenario() {
    let lab = Lab::up(1);
    let text = "[[steps]]\nwait = { no-quorum = \"all\", within = \"300ms\" }\n[[steps]]\nsleep = \"1s\"";
    assert_eq!(of(&Play::new(&lab, "vain", text).ends_with(3), "begin").len(), 1);
}

#[test]
fn a_command_that_is_expected_has_no_more_time_than_the_expectation() {
    let lab = Lab::up(1);
    let play = Play::new(&lab, "hangs", "[[steps]]\nexpect = { command = \"sleep 30\", within = \"1s\" }\n");
    let events = play.ends_with(3);
    let took = of(&events, "expect")[0]["took_ms"].as_f64().unwrap();
    assert!((1000.0..5000.0).contains(&took), "{took}");
}

#[test]
fn a_full_disk_under_the_record_is_nothing_to_a_command() {
    let lab = Lab::up(1);
    let tiny = Tiny::mount(&lab);
    let steps = "[[steps]]\nrun = { command = \"head -c 100000 /dev/zero\" }\n";
    let play = Play { out: tiny.0.join("out"), ..Play::new(&lab, "full", steps) };
    let output = play.run("");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(String::from_utf8_lossy(&output.stdout).contains("/dev/zero: ok ["), "{output:?}");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("the record is not whole: "), "{said}");
}

#[test]
fn a_fault_that_hits_nothing_is_told_and_fails_where_hits_are_required() {
    let lab = Lab::up(1);
    let steps = "[[steps]]\nfault = \"dead-process 192.0.2.1:1 --node agent --name idle\"\n[[steps]]\nheal = \"idle\"";
    let events = Play::new(&lab, "told", steps).ends_with(0);
    assert!(of(&events, "note").iter().any(|note| note["text"] == "idle met no packet"));
    Play::new(&lab, "required", &format!("require-hits = true\n{steps}")).ends_with(3);
}

#[test]
fn what_is_wrong_with_a_file_is_one_line_with_its_place_before_anything_starts() {
    let lab = Lab::up(1);
    for (steps, place, what) in [
        ("fault = \"dead-hots etcd1 --node agent\"", ":4: steps[1].fault: ", "dead-hots"),
        ("fault = \"dead-host etcd1\"", ":4: steps[1].fault: ", "--node NODE"),
        ("fault = \"dead-host etcd1 --node agnt\"", ":4: steps[1].fault: ", "agnt"),
        ("fault = \"dead-host nobody.invalid --node agent\"", ":4: steps[1].fault: ", "nobody.invalid"),
        ("fault = \"dead-process etcd1 --node agent\"", ":4: steps[1].fault: ", "name its port"),
        ("fault = \"dead-host etcd1 --node agent --hold\"", ":4: steps[1].fault: ", "--hold"),
        ("kill = \"etcd7\"", ":4: steps[1].kill: ", "etcd7"),
        ("kill = \"agent\"", ":4: steps[1].kill: ", "agent"),
        ("heal = \"x\"", ":4: steps[1].heal: ", "\"x\""),
        ("partition = \"etcd1 etcd9\"", ":4: steps[1].partition: ", "etcd9"),
        ("expect = { hits = \"x\" }", ":4: steps[1].expect: ", "\"x\""),
        ("expect = { probe = \"etcd1:2379 --node agent\" }", ":4: steps[1].expect: ", "--expect KIND"),
        ("run = { command = \"true\", node = \"x\" }", ":4: steps[1].run: ", "\"x\""),
        ("wait = { quorum = \"agent\" }", ":4: steps[1].wait: ", "no member"),
        ("sleep = 3", ":5: steps[1].sleep: ", "expected a string"),
    ] {
        let text = format!("[[steps]]\nkill = \"etcd1\"\n\n[[steps]]\n{steps}");
        let output = Play::new(&lab, "wrong", &text).run("");
        let said = String::from_utf8_lossy(&output.stderr);
        let said: Vec<_> = said.lines().collect();
        assert_eq!((output.status.code(), said.len()), (Some(2), 1), "{steps}: {output:?}");
        assert!(said[0].contains(place) && said[0].contains(what), "{steps}: {said:?}");
    }
    let text = "[[steps]]\nfault = \"lossy etcd1 --percent 5 --per-connection --node agent\"\n[[steps]]\nkill = \"x\"";
    let output = Play::new(&lab, "late", text).run("");
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "{output:?}");
    let text = "[telemetry]\nfrom = [\"agent\", \"nope\"]\n[[steps]]\nsleep = \"1s\"";
    let output = Play::new(&lab, "telemetry", text).run("");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("telemetry.toml:2: telemetry.from: no node"), "{said}");
    let text = "[nodes.a]\nnetns = \"LAB-etcd1\"\ncheck.command = \"true\"\n[[steps]]\nwait = { not-live = \"a\" }";
    let output = Play::new(&lab, "port", text).run("");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && said.contains("port.toml:4: steps[0].wait: a has no client-port"),
        "{said}"
    );
    let nodes = lab.file("nodes.toml", "[nodes.a]\nnetns = \"x\"\nport = 1");
    let output = Play::new(&lab, "others", "[[steps]]\nsleep = \"1s\"").run(&format!("--nodes {nodes}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("nodes.toml:3: nodes.a.port: unknown field"), "{said}");
    assert_eq!(node_state(&lab, "etcd1"), "runs true", "nothing was started");
}

#[test]
fn a_dry_run_prints_times_and_rules_the_same_for_the_same_seed_and_changes_nothing() {
    let lab = Lab::up(2);
    let text = r#"
        [[steps]]
        pick = { as = "victim", of = ["etcd1", "etcd2"] }
        [[steps]]
        at = "1s"
        fault = "lossy {{victim}} --percent 20 --per-connection --node agent"
        [[steps]]
        repeat.times = 5
        [[steps.repeat.steps]]
        sleep = "1s..9s"
        [[steps]]
        partition = "etcd1 etcd2 --name split"
        [[steps]]
        kill = "etcd1"
        "#;
    let play = Play::new(&lab, "dry", text);
    let dry = |seed: u32| {
        let printed = lab.done(&format!("run {} --lab LAB --dry-run --seed {seed}", play.file));
        let timeless = |line: &&str| !line.contains("comment \"playdead");
        printed.lines().filter(timeless).collect::<Vec<_>>().join("\n")
    };
    let printed = dry(1);
    assert!(printed.contains("  at   1.00 s  2 "), "{printed}");
    assert!(printed.contains("in agent\ntable inet playdead-lossy-etcd"), "{printed}");
    assert!(printed.contains("# split in LAB-etcd2".replace("LAB", &lab.name).as_str()), "{printed}");
    assert_eq!(printed, dry(1));
    assert_ne!(printed, dry(2));
    assert!(!play.out.exists());
    assert_eq!(node_state(&lab, "etcd1"), "runs true");
    assert_eq!(lab.listed("agent"), "");
}

/// In the middle of every kind of step that leaves something.
const BUSY: &str = r#"
    telemetry = { on = false }
    [[steps]]
    fault = "dead-host etcd1 --node agent"
    [[steps]]
    partition = "etcd1 etcd2"
    [[steps]]
    pause = "etcd2"
    [[steps]]
    unplug = "etcd1"
    [[steps]]
    run = { command = "exec sleep 1000.LAB", background = true }
    [[steps]]
    kill = "etcd1"
    [[steps]]
    sleep = "100s"
    "#;

fn sleepers(lab: &Lab) -> usize {
    let words = format!("sleep\x001000.{}\0", lab.name);
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.filter(|one| fs::read(one.path().join("cmdline")).is_ok_and(|line| line == words.as_bytes())).count()
}

#[track_caller]
fn all_is_right(lab: &Lab) {
    let start = Instant::now();
    let state = || [node_state(lab, "etcd1"), node_state(lab, "etcd2")];
    while state() != ["runs true", "runs true"] || sleepers(lab) > 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}, {} sleepers", state(), sleepers(lab));
    }
    for node in ["agent", "etcd1", "etcd2"] {
        assert_eq!(lab.listed(node), "", "{node}");
    }
}

#[test]
fn a_runner_that_is_killed_leaves_no_fault_at_once_and_no_deed_soon() {
    let lab = Lab::up(2);
    let play = Play::new(&lab, "killed", BUSY);
    let mut child = play.start_until("kill etcd1: ok");
    assert_eq!(node_state(&lab, "etcd2"), "paused true");
    assert_ne!(lab.listed("agent"), "");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(lab.listed("agent"), "", "the kernel deletes them when the process ends");
    all_is_right(&lab);
    // What had happened is in the record.
    assert_eq!(of(&play.events(), "end").len(), 6);
}

#[test]
fn wherever_a_runner_is_killed_all_is_right_soon() {
    let lab = Lab::up(2);
    let steps = BUSY.replace("sleep = \"100s\"", "restart = { nodes = \"all\", ready = \"live\" }");
    for ms in [150, 250, 350, 500, 700, 1000] {
        let play = Play::new(&lab, &format!("at-{ms}"), &steps);
        let words = ["run", &play.file, "--lab", &lab.name];
        let mut child = playdead().args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(ms));
        child.kill().unwrap();
        child.wait().unwrap();
        for node in ["agent", "etcd1", "etcd2"] {
            assert_eq!(lab.listed(node), "", "{node} after {ms} ms");
        }
        all_is_right(&lab);
        let mut entries = std::env::temp_dir().read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        let of_this = format!("playdead-run-{}-", child.id());
        let left = entries.find(|name| name.to_string_lossy().starts_with(&of_this));
        assert_eq!(left, None, "after {ms} ms");
    }
}

#[test]
fn a_signal_heals_everything_and_is_told() {
    let lab = Lab::up(2);
    for (signal, name) in [(Signal::SIGTERM, "term"), (Signal::SIGINT, "int"), (Signal::SIGHUP, "hup")] {
        let play = Play::new(&lab, name, BUSY);
        let mut child = play.start_until("kill etcd1: ok");
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1));
        all_is_right(&lab);
        assert_eq!(of(&play.events(), "finish")[0]["outcome"], "interrupted");
        assert!(play.read("junit.xml").contains("interrupted"));
    }
}

#[test]
fn what_cannot_be_put_right_is_named_and_a_second_signal_gives_it_up() {
    let lab = Lab::up(1);
    let nodes: String = ["a", "b"]
        .map(|name| {
            format!("[nodes.{name}]\nnetns = \"LAB-agent\"\ncommands = {{ kill = \"true\", start = \"sleep 1001\" }}\n")
        })
        .concat();
    let text = format!("{nodes}[[steps]]\nkill = [\"a\", \"b\"]\n[[steps]]\nsleep = \"60s\"\n");
    let mut run = playdead();
    run.args(["run", &lab.file("hangs.toml", &text)]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = run.spawn().unwrap();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    let tell = || kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    tell();
    std::thread::sleep(Duration::from_millis(1500));
    let start = Instant::now();
    tell();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    for node in ["a", "b"] {
        assert!(said.contains(&format!("node {node}: `sleep 1001` did not end at a signal")), "{said}");
    }
    assert!(said.contains("not restored: ") && !said.contains("all is healed"), "{said}");
}

/// Whatever step it comes in, the end is that somebody wanted it.
#[test]
fn a_signal_in_the_middle_of_a_look_or_a_command_is_no_result_of_it() {
    let lab = Lab::up(1);
    for (name, last) in [
        ("look", "probe = \"10.77.0.99:1 --node agent --only connect --timeout 30s\""),
        ("expectation", "probe = \"10.77.0.99:1 --node agent --only connect --timeout 30s --expect alive\""),
        ("command", "run = { command = \"sleep 20\" }"),
        ("wait", "wait = { no-quorum = \"all\" }"),
        ("name", "pick = { as = \"x\", command = \"sleep 20\" }"),
        ("restart", "restart = { nodes = \"etcd1\", ready.command = \"sleep 20\" }"),
        ("silent", "pause = \"etcd1\"\n[[steps]]\nwait = { quorum = \"all\" }"),
    ] {
        let steps = format!(
            "telemetry = {{ patience = \"30s\" }}\n[[steps]]\nrun = {{ command = \"true\" }}\n\n[[steps]]\n{last}"
        );
        let play = Play::new(&lab, name, &steps);
        let mut child = play.start_until("true: ok");
        std::thread::sleep(Duration::from_millis(300));
        let start = Instant::now();
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{name}");
        assert!(start.elapsed() < Duration::from_secs(2), "{name}: {:?}", start.elapsed());
        assert_eq!(node_state(&lab, "etcd1"), "runs true", "{name}");
        assert_eq!(of(&play.events(), "finish")[0]["outcome"], "interrupted", "{name}");
    }
}

#[test]
fn what_an_earlier_run_or_anybody_left_is_put_right_before() {
    let lab = Lab::up(1);
    lab.done("--node LAB/agent dead-host etcd1");
    lab.done("lab pause --lab LAB etcd1");
    lab.done("lab unplug --lab LAB agent");
    let text = "[[steps]]\nwait = { quorum = \"all\", from = \"agent\", within = \"10s\" }";
    let events = Play::new(&lab, "before", text).ends_with(0);
    let notes: Vec<_> = of(&events, "note").iter().map(|note| note["text"].to_string()).collect();
    assert_eq!(notes.iter().filter(|note| note.contains("before the start")).count(), 3, "{notes:?}");
}

#[test]
fn nodes_of_a_file_are_broken_by_name_and_handled_by_its_commands() {
    let lab = Lab::up(1);
    let text = r#"
        [nodes.db]
        netns = "LAB-etcd1"
        addresses = ["10.77.0.11"]
        check = "etcd"
        [nodes.db.commands]
        pause = "echo paused >> $PWD_OF_TEST"
        resume = "echo resumed >> $PWD_OF_TEST"
        [nodes.client]
        netns = "LAB-agent"
        [[steps]]
        fault = "dead-host db --node client --name gone"
        [[steps]]
        probe = "db:2379 --node client --only connect --timeout 300ms --expect dead-host"
        [[steps]]
        pause = "db"
        "#;
    let marks = lab.file("marks", "");
    let events = Play::new(&lab, "nodes", &text.replace("$PWD_OF_TEST", &marks)).ends_with(0);
    assert_eq!(of(&events, "fault")[0]["nodes"], serde_json::json!(["db"]));
    assert_eq!(fs::read_to_string(marks).unwrap(), "paused\nresumed\n");
}

#[test]
fn a_capture_is_taken_on_every_node() {
    let lab = Lab::up(1);
    let text = "[[steps]]\nprobe = \"etcd1:2379 --node agent --only connect --expect alive\"";
    let play = Play::new(&lab, "pcap", text);
    let output = play.run("--pcap");
    assert!(output.status.success(), "{output:?}");
    for node in ["agent", "etcd1"] {
        let file = play.out.join(format!("pcap/{node}.pcap"));
        let read = std::process::Command::new("tcpdump").args(["-n", "-r"]).arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&read.stdout);
        assert!(text.contains("10.77.0.11.2379: Flags [S]"), "{node}: {text}");
    }
    let none = Play::new(&lab, "none", text);
    let words = ["run", &none.file, "--pcap", "--lab", &lab.name, "--out", none.out.to_str().unwrap()];
    let output = playdead().args(words).env("PATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(!none.out.exists());
}

/// A file system of three pages.
struct Tiny(PathBuf);

impl Tiny {
    fn mount(lab: &Lab) -> Self {
        let at = Path::new(&lab.file("tiny/file", "")).with_file_name("");
        let mounted =
            std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=12k", "tmpfs"]).arg(&at).status();
        assert!(mounted.unwrap().success());
        Self(at)
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_record_on_a_full_disk_has_no_half_of_a_file_and_the_end_says_so() {
    let lab = Lab::up(1);
    let tiny = Tiny::mount(&lab);
    let steps: String = (0..20).map(|_| "[[steps]]\nrun = { command = \"echo x\" }\n").collect();
    let play = Play { out: tiny.0.join("out"), ..Play::new(&lab, "full", &steps) };
    let output = play.run("");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("the record is not whole: cannot write ") && said.contains("No space left"), "{said}");
    for event in play.events() {
        assert!(event["event"].is_string(), "{event}");
    }
    for (name, end) in [("junit.xml", "</testsuites>\n"), ("summary.md", "\n"), ("timeline.svg", "</svg>\n")] {
        match fs::read_to_string(play.out.join(name)) {
            Ok(text) => assert!(text.ends_with(end), "half of {name}: {text}"),
            Err(_) => assert!(said.contains(&format!("/{name}: ")), "{name} is not named: {said}"),
        }
    }
    let names = fs::read_dir(&play.out).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(!names.into_iter().any(|name| name.starts_with('.')), "{:?}", fs::read_dir(&play.out));
}

#[test]
fn a_flap_goes_on_while_the_scenario_does_and_each_edge_is_in_the_record() {
    let lab = Lab::up(1);
    let text = r#"
        telemetry = { from = "agent", every = "50ms", patience = "100ms" }
        [[steps]]
        flap = "dead-process etcd1:2379 --node agent --up 200ms --down 200ms --name shaky"
        [[steps]]
        at = "1s"
        heal = "shaky"
        [[steps]]
        flap = "dead-host etcd1 --node agent --up 50ms --down 50ms --cycles 3 --name short"
        [[steps]]
        sleep = "500ms"
        [[steps]]
        expect = { quorum = "etcd1", from = "agent", within = "5s" }
        "#;
    let play = Play::new(&lab, "flap", text);
    let events = play.ends_with(0);
    let edges = |name: &str| of(&events, "edge").iter().filter(|edge| edge["name"] == name).count();
    assert!((4..=6).contains(&edges("shaky")), "{}", edges("shaky"));
    assert_eq!(edges("short"), 6);
    let met = of(&events, "healed").into_iter().find(|one| one["name"] == "shaky").unwrap();
    assert!(met["packets"][0].as_u64().unwrap() > 0, "{met}");
    assert!(play.read("timeline.svg").contains("comes and goes"));
    let over: Vec<_> = of(&events, "over").iter().map(|one| one["name"].clone()).collect();
    assert_eq!(over, ["short"], "the other was healed");
    assert_eq!(lab.listed("agent"), "");
}
