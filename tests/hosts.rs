//! Nodes on other hosts: each is a network namespace with an sshd of its own, on one segment with whoever plays the
//! controller. A session is in the namespace of its sshd. Host b has a monotonic clock of its own, a day ahead.

mod hosts_rig;
mod own_etc;

use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use hosts_rig::{Hosts, ip, stderr_of};
use nix::sys::signal::Signal;

const THREE: [&str; 3] = ["a", "b", "c"];

#[test]
fn a_partition_cuts_three_hosts_at_one_instant_and_heals_by_itself() {
    let hosts = Hosts::up();
    let _listening = hosts.listen(&THREE);
    let nodes = hosts.nodes("");
    assert!(hosts.connects("a", "b").is_ok() && hosts.connects("c", "a").is_ok());
    let made = hosts.json("x", &format!("--nodes {nodes} partition a b,c --name split --for 8s"));
    let start = Instant::now();
    for (from, to) in [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")] {
        assert_eq!(hosts.connects(from, to).map_err(|error| error.kind()), Err(ErrorKind::TimedOut), "{from} {to}");
    }
    assert!(hosts.connects("b", "c").is_ok());
    assert_eq!((made["name"].as_str(), made["faults"].as_array().unwrap().len()), (Some("split"), 3), "{made}");
    assert_eq!(made["faults"][0]["peers"][0]["name"], "b", "{made}");
    let spread = made["spread_ms"].as_f64().unwrap();
    for host in made["hosts"].as_array().unwrap() {
        let (after, uncertain) = (host["committed_ms"].as_f64().unwrap(), host["uncertain_ms"].as_f64().unwrap());
        assert!(after > -uncertain && after < 500.0 && uncertain > 0.0 && uncertain < 250.0, "{made}");
    }
    assert!(spread < 500.0, "{made}");
    while hosts.connects("a", "b").is_err() {
        assert!(start.elapsed() < Duration::from_secs(16), "the lease has no end");
    }
}

#[test]
fn what_replaces_a_part_of_a_partition_replaces_all_of_it_on_other_hosts_too() {
    let hosts = Hosts::up();
    let _listening = hosts.listen(&THREE);
    let nodes = hosts.nodes("");
    hosts.done("x", &format!("--nodes {nodes} partition a b,c --for 60s"));
    hosts.done("x", &format!("--nodes {nodes} partition b a,c --for 60s --replace"));
    assert!(hosts.connects("a", "c").is_ok() && hosts.connects("c", "a").is_ok());
    assert!(hosts.connects("b", "c").is_err() && hosts.connects("a", "b").is_err());
    // A host that hears everybody now has nothing left.
    hosts.done("x", &format!("--nodes {nodes} partition a b --one-way --for 60s --replace"));
    assert!(hosts.connects("b", "c").is_ok() && hosts.connects("a", "b").is_err());
}

#[test]
fn nodes_of_one_namespace_have_one_fault_and_cannot_be_parted() {
    let hosts = Hosts::up();
    let _listening = hosts.listen(&THREE);
    ip(&format!("-n {} addr add 10.97.0.11/24 dev eth0", hosts.ns("a")));
    let node = |name: &str, host: &str, addresses: &str| {
        format!("[nodes.{name}]\nssh = \"root@{host}\"\nssh-config = \"CONFIG\"\naddresses = [\"{addresses}\"]\n")
    };
    let text = node("a", "a", "10.97.0.1") + &node("b", "b", "10.97.0.2") + &node("c", "c", "10.97.0.3");
    let nodes = hosts.write("twins.toml", &(text + &node("twin", "a", "10.97.0.11")));
    let line = |line: &str| format!("--nodes {nodes} {line} --for 60s");
    for parted in ["partition a twin,b", "partition a,twin b,twin c"] {
        let output = hosts.run("x", &line(parted));
        let said = stderr_of(&output);
        assert!(output.status.code() == Some(2) && said.contains("in one network namespace"), "{parted}: {said}");
    }
    let made = hosts.json("x", &line("partition a,twin b --name split"));
    assert_eq!(made["faults"].as_array().unwrap().len(), 2, "{made}");
    assert!(hosts.connects("a", "b").is_err() && hosts.connects("b", "a").is_err());
    hosts.heal(&["a", "b"]);
    let made = hosts.json("x", &line("--node a --node twin dead-host 10.97.0.3 --name gone"));
    assert_eq!(made["faults"].as_array().unwrap().len(), 1, "{made}");
    assert!(hosts.connects("a", "c").is_err());
}

#[test]
fn a_controller_that_is_cut_off_says_so_and_the_lease_heals() {
    let hosts = Hosts::up();
    let _listening = hosts.listen(&THREE);
    let nodes = hosts.nodes(&format!("[nodes.x]\nnetns = \"{}\"\n", hosts.ns("x")));
    let start = Instant::now();
    let output = hosts.run("x", &format!("--nodes {nodes} partition x,a b,c --for 6s"));
    let (said, text) = (stderr_of(&output), String::from_utf8_lossy(&output.stdout).into_owned());
    assert_eq!(output.status.code(), Some(0), "{said}");
    // One that is a moment earlier than this host may still be heard.
    let unheard = |node: &&&str| {
        said.contains(&format!("{node} was not heard of since the instant: its lease ends by itself at"))
    };
    let heard = 4 - ["b", "c"].iter().filter(unheard).count();
    let told = if heard == 4 { "all within".to_owned() } else { format!("the {heard} heard of within") };
    assert!(text.contains(&told), "{text}{said}");
    assert!(hosts.connects("x", "b").is_err() && hosts.connects("a", "c").is_err());
    assert!(hosts.connects("x", "a").is_ok());
    while hosts.connects("x", "b").is_err() || hosts.connects("a", "c").is_err() {
        assert!(start.elapsed() < Duration::from_secs(12), "the lease has no end");
    }
}

#[test]
fn whoever_cannot_take_part_is_named_and_nothing_changes_anywhere() {
    let hosts = Hosts::up();
    hosts.old("c");
    let more = "[nodes.gone]\nssh = \"gone\"\nssh-config = \"CONFIG\"\naddresses = [\"10.97.0.8\"]\n\
                [nodes.plain]\nssh = \"plain@b\"\nssh-config = \"CONFIG\"\naddresses = [\"10.97.0.7\"]\n";
    let nodes = hosts.nodes(more);
    let line = |groups: &str| format!("--nodes {nodes} partition {groups} --for 20s");

    let output = hosts.run("x", &line("a b,gone"));
    let said = stderr_of(&output);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 2), "{said}");
    assert!(said.contains("gone: ssh gone: cannot be reached: ssh: connect to host"), "{said}");
    assert!(said.contains("nothing was changed: 1 of 3 nodes cannot take part: gone"), "{said}");

    let output = hosts.run("x", &line("a b,c,gone,plain"));
    let said = stderr_of(&output);
    assert_eq!((output.status.code(), said.lines().count()), (Some(4), 4), "{said}");
    assert!(said.contains("c: ssh root@c: playdead 0.0.1 is there, which is not"), "{said}");
    assert!(said.contains("plain: ssh plain@b: its user may not change rules there"), "{said}");
    assert_eq!(THREE.map(|host| hosts.listed(host)), ["", "", ""]);
}

#[test]
fn killed_before_the_instant_or_after_it_nothing_is_left_but_leases() {
    let hosts = Hosts::up();
    let _listening = hosts.listen(&THREE);
    let nodes = hosts.nodes("");
    let line = format!("--nodes {nodes} partition a b,c --for 4s");
    // Before the first part is compiled, somewhere in between, and about when it is in force.
    for after in [100, 400, 700, 1000] {
        let controller = hosts.start("x", &line);
        std::thread::sleep(Duration::from_millis(after));
        controller.end(Signal::SIGKILL);
        // The instant may have been told already, and be still to come.
        std::thread::sleep(Duration::from_secs(1));
        let start = Instant::now();
        while hosts.connects("a", "b").is_err() || hosts.connects("c", "a").is_err() {
            assert!(start.elapsed() < Duration::from_secs(10), "left by one that was killed after {after} ms");
        }
        std::thread::sleep(Duration::from_millis(500));
        assert!(hosts.connects("a", "b").is_ok() && hosts.connects("c", "a").is_ok());
    }
}

#[test]
fn a_login_that_hangs_is_given_up_and_ends_with_who_waits_for_it() {
    let hosts = Hosts::up();
    hosts.hang("b");
    let nodes = hosts.nodes("");
    let start = Instant::now();
    let lines = ["--node b status", "--node b heal", "--node a --node b dead-host 10.97.0.9 --for 9s"];
    let waiting = lines.map(|line| hosts.start("x", &format!("--nodes {nodes} {line}")));
    for (line, waiting) in lines.iter().zip(waiting) {
        let output = waiting.ends();
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains("b: ssh root@b: no answer in 30 s\n"), "{line}: {said}");
    }
    assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
    let text = THREE.map(|host| {
        format!("[nodes.{host}]\nssh = \"root@{host}\"\nssh-config = \"CONFIG\"\ncheck = \"tcp\"\nclient-port = 9\n")
    });
    let nodes = hosts.write("checked.toml", &text.concat());
    // Whoever is killed can end no connection that is shared.
    for (signal, left) in [(Signal::SIGTERM, "ssh"), (Signal::SIGINT, "ssh"), (Signal::SIGKILL, "ssh\0")] {
        for line in
            ["--node b status", "partition a b --for 9s", "partition --isolate a --for 9s", "quorum --timeout 9s"]
        {
            let waiting = hosts.start("x", &format!("--nodes {nodes} {line}"));
            std::thread::sleep(Duration::from_secs(1));
            assert!(hosts.has_ssh("x", "ssh\0"), "{line}");
            let output = waiting.end(signal);
            assert_eq!(output.status.signal(), Some(signal as i32), "{line}: {output:?}");
            let start = Instant::now();
            while hosts.has_ssh("x", left) {
                assert!(start.elapsed() < Duration::from_secs(10), "ssh goes on after {signal} of {line}");
            }
        }
    }
}

/// What runs there is in nobody's hand: a disk that hangs, say.
#[test]
fn a_playdead_that_hangs_on_a_host_is_given_up_and_holds_up_no_other() {
    let hosts = Hosts::up();
    hosts.pretend("a", "exec sleep 4326\n");
    let nodes = hosts.nodes("");
    hosts.done("x", &format!("--nodes {nodes} --node c dead-host 10.97.0.9 --for 5m"));
    let verbs = ["--node a --node c status", "--node a --node c heal --wait 1s", "--node a --node c renew x --for 1m"];
    for (line, waiting) in verbs.map(|line| (line, hosts.start("x", &format!("--nodes {nodes} {line}")))) {
        let output = waiting.ends();
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains("a: no answer in 3"), "{line}: {said}");
    }
    assert_eq!(hosts.listed("c"), "");
}

#[test]
fn a_result_that_cannot_be_written_leaves_nothing_in_force() {
    let hosts = Hosts::up();
    let nodes = hosts.nodes("");
    for line in [
        "partition a b,c --for 60s",
        "--json partition a b --for 60s",
        "--node a --node b dead-host 10.97.0.9 --for 60s",
    ] {
        let mut command = hosts.playdead("x", &format!("--nodes {nodes} {line}"));
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command.stdout(full).output().unwrap();
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains("No space left on device") && said.contains("; healed on a, b"), "{line}: {said}");
        assert_eq!(THREE.map(|host| hosts.listed(host)), ["", "", ""], "{line}: {said}");
    }
}

/// As `doctor` does where something is missing.
#[test]
fn what_a_host_says_with_the_code_for_what_is_missing_is_shown() {
    let hosts = Hosts::up();
    let nodes = hosts.nodes("");
    hosts.pretend("a", "[ \"$3\" != --json ] || exec echo '{\"usable\":false}'; echo missing; exit 4\n");
    let output = hosts.run("x", &format!("--nodes {nodes} --node a --node b doctor"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(4) && said.starts_with("missing\n") && said.contains("kernel"), "{output:?}");
    assert!(!hosts.json("x", &format!("--nodes {nodes} --node a --node b doctor"))["usable"].as_bool().unwrap());
}

#[test]
fn what_a_host_prints_does_nothing_to_a_terminal() {
    let hosts = Hosts::up();
    let nodes = hosts.nodes("");
    hosts.pretend("a", "printf 'a\\033[31mb\\n'; printf 'c\\033[31md\\n' >&2\n");
    for line in ["status", "status --watch", "probe 10.97.0.9:9", "heal"] {
        let output = hosts.run("x", &format!("--nodes {nodes} --node a {line}"));
        assert!(output.status.success(), "{line}: {output:?}");
        let [said, noted] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert_eq!((&*said, &*noted), ("a\u{fffd}[31mb\n", "c\u{fffd}[31md\n"), "{line}");
    }
}

#[test]
fn what_the_users_configuration_runs_instead_of_a_shell_is_not_run() {
    let hosts = Hosts::up();
    hosts.configure("Match all\n  RemoteCommand false\n");
    let nodes = hosts.nodes("");
    assert_eq!(hosts.done("x", &format!("--nodes {nodes} --node a status")), "nothing is in force\n");
}

#[test]
fn interrupted_it_heals_what_it_reaches() {
    let hosts = Hosts::up();
    let nodes = hosts.nodes("");
    let line = format!("--nodes {nodes} partition a b,c --for 60s");
    for after in [200, 500, 800] {
        let controller = hosts.start("x", &line);
        std::thread::sleep(Duration::from_millis(after));
        let output = controller.end(Signal::SIGINT);
        let said = stderr_of(&output);
        if output.status.success() {
            // It was done before the signal came.
            hosts.heal(&THREE);
        } else {
            // Before all were ready it just ends.
            assert!(said.contains("interrupted") || output.status.signal() == Some(Signal::SIGINT as i32), "{said}");
            hosts.wait_for_parts();
        }
        assert_eq!(THREE.map(|host| hosts.listed(host)), ["", "", ""], "after {after} ms: {said}");
    }
}

/// Its part of the conversation is killed while it compiles, waits for the instant, or has just committed.
#[test]
fn if_one_host_fails_the_others_are_healed() {
    let hosts = Hosts::up();
    let nodes = hosts.nodes("");
    let line = format!("--nodes {nodes} partition a b,c --for 60s");
    let mut failed = 0;
    for after in [100, 200, 300, 400] {
        let controller = hosts.start("x", &line);
        let start = Instant::now();
        let part = loop {
            assert!(start.elapsed() < Duration::from_secs(60), "b has no part");
            if let Some(part) = hosts.process("b", "playdead --here b share") {
                break part;
            }
        };
        std::thread::sleep(Duration::from_millis(after));
        let _ = nix::sys::signal::kill(part, Signal::SIGKILL);
        let output = controller.ends();
        if output.status.success() {
            hosts.heal(&THREE);
        } else {
            failed += 1;
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            assert!(stderr_of(&output).contains("b: "), "{output:?}");
        }
        assert_eq!(THREE.map(|host| hosts.listed(host)), ["", "", ""], "after {after} ms: {output:?}");
    }
    assert!(failed > 1, "it was always too late");
}

/// By exactly the words that it may say with sudo.
#[test]
fn a_user_with_sudo_takes_part_and_an_address_that_all_have_is_nobodys() {
    let hosts = Hosts::up();
    hosts.share_address("172.17.0.1");
    let more = "[nodes.able]\nssh = \"able@b\"\nssh-config = \"CONFIG\"\n";
    let nodes = hosts.nodes(more);
    let made = hosts.json("x", &format!("--nodes {nodes} partition a able --for 60s --name split"));
    let peers = |index: usize| -> Vec<&str> {
        made["faults"][index]["peers"].as_array().unwrap().iter().map(|peer| peer["peer"].as_str().unwrap()).collect()
    };
    assert_eq!([peers(0), peers(1)], [vec!["10.97.0.2"], vec!["10.97.0.1"]], "{made}");
    let refused = hosts.run("x", &format!("--nodes {nodes} --node able heal"));
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    assert!(!hosts.listed("b").is_empty());
    hosts.heal(&THREE);
}

/// Without a directory that is its user's alone, nothing is shared.
#[test]
fn a_controller_needs_no_rights() {
    let hosts = Hosts::up();
    let nodes = hosts.nodes_for_nobody();
    let line = format!("--nodes {nodes} partition a b,c --for 60s");
    let output = hosts.run_as_nobody("x", &line);
    assert!(output.status.success(), "{output:?}");
    assert!(THREE.iter().all(|host| !hosts.listed(host).is_empty()));
    let output = hosts.run_as_nobody("x", &format!("--nodes {nodes} --node a --node b --node c heal"));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(THREE.map(|host| hosts.listed(host)), ["", "", ""]);
}

#[test]
fn what_needs_a_lease_or_cannot_be_parted_is_wrong_usage() {
    let hosts = Hosts::up();
    let nodes = hosts.nodes("[nodes.twin]\nssh = \"a\"\nssh-config = \"CONFIG\"\n");
    for (line, what) in [
        ("partition a b", "--for D"),
        ("partition a b --hold", "--for D"),
        ("partition a twin --for 9s", "one network namespace"),
        ("partition a nobody --for 9s", "no node is called"),
    ] {
        let output = hosts.run("x", &format!("--nodes {nodes} {line}"));
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(what), "{line}: {said}");
    }
    let dry = hosts.done("x", &format!("--nodes {nodes} partition a b --for 9s --dry-run"));
    assert!(dry.starts_with("# Who hears whom") && dry.contains(" in a\ntable") && dry.contains("10.97.0.2"), "{dry}");
    assert_eq!(THREE.map(|host| hosts.listed(host)), ["", "", ""]);
}

#[test]
fn verbs_are_done_on_the_hosts_of_their_nodes() {
    let hosts = Hosts::up();
    let _listening = hosts.listen(&THREE);
    let nodes = hosts.nodes("");
    let at = |line: &str| format!("--nodes {nodes} --node a --node b {line}");
    let made = hosts.json("x", &at("dead-host 10.97.0.3 --name gone --for 60s"));
    assert_eq!([0, 1].map(|index| made["faults"][index]["place"].as_str()), [Some("a"), Some("b")], "{made}");
    assert!(hosts.connects("a", "c").is_err() && hosts.connects("b", "c").is_err());
    assert!(hosts.connects("x", "c").is_ok() && hosts.connects("a", "b").is_ok());
    let status = hosts.json("x", &at("status"));
    assert_eq!([0, 1].map(|index| status["faults"][index]["place"].as_str()), [Some("a"), Some("b")], "{status}");
    assert!(status["faults"][0]["hits"]["to"]["packets"].as_u64() > Some(0), "{status}");

    let probe = |node: &str, expect: &str| {
        hosts.run("x", &format!("--nodes {nodes} --node {node} probe 10.97.0.3:7000 --only connect --expect {expect}"))
    };
    assert_eq!(probe("a", "dead-host").status.code(), Some(0));
    let line = format!("--nodes {nodes} --node a probe 10.97.0.3:7000 --only connect --expect dead-host");
    assert_eq!(hosts.json("x", &line)["verdict"]["met"], true);
    let verified = hosts.json("x", &at("verify gone"));
    let as_expected = [0, 1].map(|index| verified["faults"][index]["as_expected"].as_bool());
    assert_eq!(as_expected, [Some(true), Some(true)], "{verified}");
    let unlike = probe("c", "dead-host");
    assert_eq!(unlike.status.code(), Some(3), "{unlike:?}");
    assert!(hosts.done("x", &at("renew gone --for 90s")).contains("renewed gone in b"));
    let healed = hosts.done("x", &at("heal gone"));
    assert_eq!(healed, "healed gone in a\nhealed gone in b\n");
    assert!(hosts.connects("a", "c").is_ok() && hosts.connects("b", "c").is_ok());

    // On one it is refused, so it is made on none.
    let foreign = ["netns", "exec", &hosts.ns("b"), "nft", "add", "table", "inet", "playdead-taken"];
    assert!(std::process::Command::new("ip").args(foreign).status().unwrap().success());
    let output = hosts.run("x", &at("dead-host 10.97.0.3 --name taken --for 60s"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr_of(&output).contains("not playdead's"), "{output:?}");
    assert_eq!(hosts.listed("a"), "");

    for (line, code, what) in [
        ("dead-host 10.97.0.3", 2, "--for D"),
        ("dead-host 10.97.0.3 --hold", 2, "--for D"),
        ("dead-process 10.97.0.3 --for 9s", 2, "name its port"),
        ("hush 10.97.0.3:1 --for 9s --then true", 2, "--then"),
        ("flap dead-host 10.97.0.3 --up 1s --down 1s", 2, "not done on another host"),
        ("probe 10.97.0.3:7000 -- true", 2, "-- COMMAND runs here"),
        ("probe 10.97.0.3:7000", 2, "name one"),
        ("--netns x status", 2, "only nodes can be named"),
        ("renew nothing --for 9s", 1, "no fault is called nothing"),
        ("renew nothing", 2, "--for"),
    ] {
        let output = hosts.run("x", &at(line));
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains(what), "{line}: {said}");
    }
}

#[test]
fn what_a_script_reads_is_not_read_by_the_session() {
    let hosts = Hosts::up();
    let nodes = hosts.nodes("");
    let script = format!("{} --nodes {nodes} --node a status >&2; cat", env!("CARGO_BIN_EXE_playdead"));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &hosts.ns("x"), "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = command.spawn().unwrap();
    std::io::Write::write_all(&mut script.stdin.take().unwrap(), b"one\ntwo\n").unwrap();
    assert_eq!(String::from_utf8_lossy(&script.wait_with_output().unwrap().stdout), "one\ntwo\n");
}

#[test]
fn the_leader_of_a_cluster_on_three_hosts_is_found_and_isolated() {
    let hosts = Hosts::up();
    let _etcd = hosts.etcd();
    let text: String = THREE
        .map(|host| format!("[nodes.{host}]\nssh = \"{host}\"\nssh-config = \"CONFIG\"\ncheck = \"etcd\"\n"))
        .concat();
    let nodes = hosts.write("cluster.toml", &text);
    let quorum = || hosts.json("x", &format!("--nodes {nodes} quorum"));
    let until = |what: &str, so: &dyn Fn(&serde_json::Value) -> bool| {
        let start = Instant::now();
        loop {
            let seen = quorum();
            if so(&seen) {
                return seen;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "never {what}: {seen}");
        }
    };
    let through = |seen: &serde_json::Value| seen["quorum"]["through"].as_array().unwrap().len();
    let whole = until("whole", &|seen| through(seen) == 3 && seen["quorum"]["leader"].is_string());
    let old = whole["quorum"]["leader"].as_str().unwrap().to_owned();
    assert_eq!(whole["views"][0]["able"]["reaches"].as_array().unwrap().len(), 2, "{whole}");
    hosts.done("x", &format!("--nodes {nodes} partition --isolate leader --for 20s --name alone"));
    let during = until("another leader", &|seen| through(seen) == 2 && seen["quorum"]["leader"] != old.as_str());
    let alone = during["views"].as_array().unwrap().iter().find(|view| view["member"] == old.as_str()).unwrap();
    assert_eq!((&alone["live"]["answer"], &alone["able"]["able"]), (&"yes".into(), &false.into()), "{during}");
    let all = "--node a --node b --node c";
    assert_eq!(hosts.done("x", &format!("--nodes {nodes} {all} heal alone")).lines().count(), 3);
    until("whole again", &|seen| through(seen) == 3);
}

/// The commands of c tell by a file, and only if they are run on c, that its process is dead.
fn scenario(hosts: &Hosts, steps: &str) -> String {
    let flag = hosts.path("dead");
    let on_c = "ip -o addr show eth0 | grep -q 10.97.0.3";
    let node = |host: &str| format!("[nodes.{host}]\nssh = \"root@{host}\"\nssh-config = \"CONFIG\"\n");
    let commands = format!(
        "[nodes.c.commands]\nkill = \"{on_c} && touch {flag}\"\nstart = \"test $PLAYDEAD_NODE = c && rm -f {flag}\"\n"
    );
    let text = format!("seed = 1\n{}{commands}{steps}", THREE.map(node).concat());
    hosts.write("scenario.toml", &text.replace("FLAG", &flag))
}

const CONNECT: &str = "timeout 1 bash -c '</dev/tcp/10.97.0.3/7000'";

#[test]
fn a_scenario_is_played_on_other_hosts() {
    let hosts = Hosts::up();
    let _listening = hosts.listen(&THREE);
    hosts.done("x", &format!("--netns {} dead-host 10.97.0.3 --name before", hosts.ns("a")));
    let steps = format!(
        "
[[steps]]
run = {{ command = \"test $PLAYDEAD_NODE = b && ip -o addr show eth0\", node = \"b\", output = \"10.97.0.2\" }}
[[steps]]
run = {{ command = \"echo on $PLAYDEAD_NODE; sleep 4321\", node = \"b\", background = true, any-exit = true, output = \"on b\" }}
[[steps]]
expect = {{ command = \"{CONNECT}\", node = \"a\" }}
[[steps]]
kill = \"c\"
[[steps]]
expect = {{ command = \"test -e FLAG\" }}
[[steps]]
fault = \"dead-host c --node a --for 60s --name gone\"
[[steps]]
expect = {{ command = \"{CONNECT}\", node = \"a\", exit = 124 }}
[[steps]]
expect = {{ command = \"{CONNECT}\", node = \"b\" }}
[[steps]]
expect = {{ hits = \"gone\", at-least = 1 }}
[[steps]]
heal = \"gone\"
[[steps]]
expect = {{ command = \"{CONNECT}\", node = \"a\" }}
[[steps]]
partition = \"a,b c --for 60s --name split\"
[[steps]]
expect = {{ command = \"{CONNECT}\", node = \"b\", exit = 124 }}
"
    );
    let file = scenario(&hosts, &steps);
    let plan = hosts.done("x", &format!("run {file} --dry-run"));
    assert!(plan.contains("# gone in a\ntable") && plan.contains("# split in c\ntable"), "{plan}");
    let record = hosts.path("record");
    let played = hosts.run("x", &format!("run {file} --out {record}"));
    assert!(played.status.success(), "{} {}", String::from_utf8_lossy(&played.stdout), stderr_of(&played));
    assert_eq!(THREE.map(|host| hosts.listed(host)), ["", "", ""]);
    assert!(!std::path::Path::new(&hosts.path("dead")).exists(), "not started again");
    assert!(!hosts.has_process("b", "sleep 4321"), "left in the background");
    let events = std::fs::read_to_string(format!("{record}/events.jsonl")).unwrap();
    assert!(events.contains("healed before on a") && events.contains("hears nothing of a, b"), "{events}");
    assert!(events.contains("all within"), "{events}");
}

#[test]
fn a_scenario_that_is_interrupted_heals_on_other_hosts() {
    let hosts = Hosts::up();
    let steps = "[[steps]]\nkill = \"c\"\n[[steps]]\nfault = \"dead-host c --node a --node b --for 60s\"\n\
                 [[steps]]\nfault = \"lossy c --percent 5 --node a --for 60s --replace\"\n\
                 [[steps]]\nrun = { command = \"sleep 4323\", node = \"b\" }\n";
    let controller = hosts.start("x", &format!("run {}", scenario(&hosts, steps)));
    let start = Instant::now();
    while !hosts.has_process("b", "sleep 4323") {
        assert!(start.elapsed() < Duration::from_secs(60), "it never comes to that");
    }
    let kinds: [Vec<String>; 3] = THREE.map(|host| {
        let status = hosts.json("x", &format!("--netns {} status", hosts.ns(host)));
        status["faults"].as_array().unwrap().iter().map(|fault| fault["kind"].as_str().unwrap().to_owned()).collect()
    });
    assert_eq!(kinds.map(|kinds| kinds.join(" ")), ["lossy", "dead-host", ""]);
    let output = controller.end(Signal::SIGINT);
    assert!(stderr_of(&output).contains("interrupted by a signal; all is healed"), "{output:?}");
    assert_eq!(THREE.map(|host| hosts.listed(host)), ["", "", ""]);
    assert!(!hosts.has_process("b", "sleep 4323") && !std::path::Path::new(&hosts.path("dead")).exists());
}

#[test]
fn of_a_scenario_that_is_killed_only_leases_are_left() {
    let hosts = Hosts::up();
    let _listening = hosts.listen(&THREE);
    let steps = "[[steps]]\nkill = \"c\"\n[[steps]]\nfault = \"dead-host c --node a --node b --for 8s\"\n\
                 [[steps]]\nrun = { command = \"sleep 4322\", node = \"b\" }\n";
    let controller = hosts.start("x", &format!("run {}", scenario(&hosts, steps)));
    let start = Instant::now();
    while !hosts.has_process("b", "sleep 4322") {
        assert!(start.elapsed() < Duration::from_secs(60), "it never comes to that");
    }
    assert!(hosts.connects("a", "c").is_err() && hosts.connects("b", "c").is_err());
    controller.end(Signal::SIGKILL);
    let start = Instant::now();
    while hosts.has_process("b", "sleep 4322") || std::path::Path::new(&hosts.path("dead")).exists() {
        assert!(start.elapsed() < Duration::from_secs(5), "the command goes on, or c is not started");
    }
    while hosts.connects("a", "c").is_err() || hosts.connects("b", "c").is_err() {
        assert!(start.elapsed() < Duration::from_secs(16), "the lease has no end");
    }
}

#[test]
fn what_a_scenario_cannot_do_on_other_hosts_is_told_with_its_line() {
    let hosts = Hosts::up();
    for (step, what) in [
        ("fault = \"dead-host c --node a\"", "--for D"),
        ("fault = \"hush c:1 --node a --for 9s --then true\"", "--then"),
        ("fault = \"dead-host c --node a --netns x --for 9s\"", "only nodes can be named"),
        ("partition = \"a b\"", "--for D"),
        ("flap = \"dead-host c --node a --up 1s --down 1s\"", "cannot be done on another host"),
        ("probe = \"c:7000 --node a\"", "cannot be done on another host"),
        ("pause = \"c\"", "[nodes.c.commands] pause"),
        ("heal = \"nothing\"", "no step before this one"),
    ] {
        let file = scenario(&hosts, &format!("[[steps]]\n{step}\n"));
        let line = std::fs::read_to_string(&file).unwrap().lines().count();
        let output = hosts.run("x", &format!("run {file}"));
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(2), "{step}: {said}");
        assert!(said.contains(&format!("{file}:{line}:")) || said.contains(&format!("{file}:{}:", line - 1)), "{said}");
        assert!(said.contains(what), "{step}: {said}");
    }
    assert_eq!(THREE.map(|host| hosts.listed(host)), ["", "", ""]);
}

/// What one who is logged in on host a by ssh from x does there.
fn by_session(hosts: &Hosts, words: &str) -> Output {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &hosts.ns("x"), "ssh", "-F", &hosts.path("config"), "root@a", "--", words]);
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_fault_that_cuts_the_session_by_which_it_is_made_is_refused() {
    let hosts = Hosts::up();
    let a = hosts.ns("a");
    ip(&format!("-n {a} link add e1 type veth peer name e2"));
    ip(&format!("-n {a} addr add 10.96.0.1/24 dev e1"));
    ip(&format!("-n {a} link set e1 up"));
    ip(&format!("-n {a} link set e2 up"));
    ip(&format!("-n {a} route add default via 10.96.0.254 dev e1"));
    for (fault, whom) in [
        ("dead-host 10.97.0.4", "the SSH connection from 10.97.0.4:"),
        ("dead-host 10.97.0.1 --hold", "to 10.97.0.1:22 that you work by"),
        ("dead-process 10.97.0.1:20-30 --for 1s", "the SSH connection"),
        ("flap lossy 10.97.0.0/29 --percent 50 --up 1s --down 1s", "the SSH connection"),
        ("dead-host 10.96.0.0/24", "the default gateway 10.96.0.254"),
        // Neither the environment nor the parent tells of it: sudo forgets the one, a multiplexer's server the other.
        ("dead-host 10.97.0.4 --name forgotten", "the SSH connection"),
    ] {
        let without = if fault.ends_with("forgotten") { "env -u SSH_CONNECTION " } else { "" };
        let output = by_session(&hosts, &format!("{without}playdead {fault}"));
        let said = stderr_of(&output);
        assert!(output.status.code() == Some(2) && said.contains(whom) && said.contains("--allow-lockout"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let orphan = hosts.path("orphan");
    let script =
        format!("(setsid sh -c 'sleep 0.5; playdead dead-host 10.97.0.4 2>{orphan}; echo >>{orphan}' &) >&- 2>&-");
    assert!(by_session(&hosts, &script).status.success());
    let start = Instant::now();
    while !std::fs::read_to_string(&orphan).is_ok_and(|said| said.ends_with('\n')) {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing was said");
    }
    // The session has ended by then: there is nothing left to be cut.
    assert_eq!(std::fs::read_to_string(&orphan).unwrap().trim(), "");
    hosts.heal(&["a"]);
    // These do not cut it, or are meant.
    for fault in [
        "dead-host 10.97.0.2",
        "dead-process 10.97.0.1:7000",
        "hush 10.97.0.1:22",
        "dead-host 10.97.0.4 --with 10.97.0.3",
        "dead-host 10.97.0.4 --proto udp",
        "dead-host 10.96.0.254",
        "dead-host 10.97.0.4 --allow-lockout --for 1s",
        "dead-host 10.97.0.4 --dry-run",
    ] {
        let output = by_session(&hosts, &format!("playdead {fault}"));
        assert!(output.status.success(), "{fault}: {}", stderr_of(&output));
        hosts.heal(&["a"]);
    }
    assert_eq!(hosts.listed("a"), "");
}
