//! `playdead quorum` on real etcd: three answers about every member that must not be mixed up.

mod labs;

use labs::Lab;
use labs::zookeeper::Ensemble;

const YES: [&str; 3] = ["yes", "yes", "yes"];

#[test]
fn a_dead_a_stopped_and_a_lonely_member_are_told_apart() {
    let lab = Lab::up(3);
    let seen = lab.quorum("");
    assert_eq!(["etcd1", "etcd2", "etcd3"].map(|member| seen.own(member)), [YES; 3]);
    assert!(seen.leader().is_some_and(|leader| leader.starts_with("etcd")) && seen.term().is_some());

    lab.done("lab pause LAB/etcd3");
    let seen = lab.quorum_until("a quorum of two", |seen| seen.through() == ["etcd1", "etcd2"]);
    // Its kernel takes connections, so to the others' machines it is there.
    assert_eq!(seen.own("etcd3"), ["no", "yes", "no"]);
    lab.done("lab kill LAB/etcd3");
    lab.done("lab kill LAB/etcd2");
    let seen = lab.quorum("");
    assert_eq!(seen.own("etcd1"), ["yes", "no", "no"]);
    assert_eq!(seen.own("etcd2")[0], "no");
    assert_eq!(seen.view("etcd1", None)["able"]["misses"][0]["why"], "Connection refused");
    assert_eq!((seen.through().len(), seen.leader()), (0, None));

    lab.done("lab kill LAB/etcd1");
    lab.done("lab start LAB/etcd1");
    let seen = lab.quorum_until("alone after a restart", |seen| seen.own("etcd1")[0] == "peer-port");
    assert_eq!(seen.own("etcd1"), ["peer-port", "no", "no"]);

    lab.done("lab start LAB/etcd2");
    lab.done("lab start LAB/etcd3");
    lab.done("quorum --lab LAB --wait 20s");
    assert_eq!(lab.quorum("").own("etcd1"), YES);
}

#[test]
fn wrong_usage_gives_2_and_a_place_is_asked_from_once() {
    let lab = Lab::up(1);
    let (none, client) =
        (lab.file("none.toml", "[nodes]\n"), lab.file("client.toml", "[nodes.a]\nnode = \"LAB/agent\"\n"));
    for (line, says) in [
        ("quorum --lab LAB --from nope", "no node is called \"nope\": there are agent, etcd1"),
        (&format!("--nodes {none} quorum"), "is a member of the cluster"),
        (&format!("--nodes {client} quorum"), "is a member of the cluster"),
    ] {
        let output = lab.run(line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(says), "{line}: {output:?}");
    }
    let seen = lab.quorum("--from agent --from agent");
    assert_eq!(seen.0["views"].as_array().unwrap().len(), 2, "{}", seen.0);
}

#[test]
fn a_member_whose_process_is_dead_is_no_quorum_of_one() {
    let lab = Lab::up(1);
    lab.done("lab kill LAB/etcd1");
    assert_eq!(lab.quorum("").own("etcd1"), ["no", "no", "no"]);
    let text = lab.done("quorum --lab LAB");
    assert!(text.contains("no: reaches 0 of 0, and does not answer itself"), "{text}");
    let file = lab.file("nodes.toml", "[nodes.a]\nnode = \"LAB/etcd1\"\ncheck.command = \"true\"\n");
    let text = lab.done(&format!("--nodes {file} quorum"));
    assert!(text.contains("not asked: no client-port"), "{text}");
}

#[test]
fn a_machine_that_is_cut_off_lives_for_itself_and_is_gone_for_the_others() {
    let lab = Lab::up(3);
    lab.done("lab unplug LAB/etcd2");
    let is_cut_off = |seen: &labs::Seen| seen.through() == ["etcd1", "etcd3"];
    lab.quorum_until("a quorum without it", is_cut_off);
    let seen = lab.quorum("--from agent");
    assert_eq!(seen.own("etcd2"), ["yes", "no", "no"]);
    let from_agent = seen.view("etcd2", Some("agent"));
    assert_eq!(from_agent["live"]["answer"], "no");
    assert!(from_agent["able"].is_null(), "{from_agent}");
    assert_eq!(seen.view("etcd1", Some("agent"))["quorum"]["answer"], "yes");

    let output = lab.run("--json quorum --lab LAB --wait 300ms");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    lab.done("lab plug LAB/etcd2");
    lab.done("quorum --lab LAB --wait 20s");
}

#[test]
fn a_live_cluster_is_asked_from_one_place_by_its_own_member_list() {
    let lab = Lab::up(1);
    let seen = labs::Seen(lab.json("--node LAB/agent quorum etcd://etcd1:2379"));
    let place = format!("{}-agent", lab.name);
    let view = seen.view("etcd1", Some(&place));
    assert_eq!((&view["quorum"]["answer"], &view["leader"]), (&"yes".into(), &"etcd1".into()));
}

#[test]
fn a_zookeeper_ensemble_is_asked_by_its_four_letter_word() {
    let lab = Lab::up(3);
    let mut ensemble = Ensemble::start(&lab);
    let node = |number| format!("[nodes.zk{number}]\nnode = \"LAB/etcd{number}\"\ncheck = \"zookeeper\"\n");
    let file = lab.file("nodes.toml", &[1, 2, 3].map(node).concat());
    let line = format!("--nodes {file} quorum");
    let seen = lab.until(&line, "an ensemble of three", |seen| seen.through() == ["zk1", "zk2", "zk3"]);
    assert_eq!(["zk1", "zk2", "zk3"].map(|member| seen.own(member)), [YES; 3]);
    assert!(seen.leader().is_some_and(|leader| leader.starts_with("zk")), "{}", seen.0);

    // Whoever is cut off finds that out after a few ticks.
    let cut_off = seen.leader().unwrap().to_owned();
    lab.done(&format!("--nodes {file} partition --isolate leader --name split"));
    let seen = lab.until(&line, "a leader of the majority", |seen| {
        seen.through().len() == 2 && seen.leader().is_some_and(|leader| leader != cut_off)
    });
    assert_eq!(seen.own(&cut_off), ["yes", "no", "no"], "{}", seen.0);
    lab.done("--node LAB/etcd1 --node LAB/etcd2 --node LAB/etcd3 heal split");
    lab.until(&line, "whole again", |seen| seen.through().len() == 3);

    ensemble.kill(2);
    ensemble.kill(3);
    let seen = lab.until(&line, "no quorum", |seen| seen.through().is_empty());
    assert_eq!(seen.own("zk1"), ["yes", "no", "no"], "{}", seen.0);
    assert_eq!(seen.own("zk2")[0], "no");
}

#[test]
fn nodes_of_a_file_are_places_and_may_be_checked_by_anything() {
    let lab = Lab::up(1);
    let file = lab.file(
        "nodes.toml",
        "[nodes]\nlab.node = \"LAB/etcd1\"\n\
         http = { netns = \"LAB-etcd1\", client-port = 2379, check = { http = \"/health\" } }\n\
         missing = { netns = \"LAB-etcd1\", client-port = 2379, check = { http = \"/nothing\" } }\n\
         tcp = { netns = \"LAB-etcd1\", addresses = [\"10.77.0.11\"], client-port = 2380, check = \"tcp\" }\n\
         closed = { addresses = [\"10.77.0.11\"], client-port = 1, check = \"tcp\" }\n\
         command = { netns = \"LAB-etcd1\", check.command = \"ping -c1 $PLAYDEAD_NODE-$PLAYDEAD_ADDRESS; ping -c1 etcd1\" }\n\
         slow = { netns = \"LAB-etcd1\", check.command = \"sleep 61 & sleep 61\" }\n\
         client = { node = \"LAB/agent\" }\n",
    );
    let seen = labs::Seen(lab.json(&format!("--nodes {file} quorum --from client --timeout 700ms")));
    for (member, live, quorum) in [
        ("lab", "yes", "yes"),
        ("http", "yes", "yes"),
        ("missing", "yes", "no"),
        ("tcp", "yes", "unknown"),
        ("closed", "no", "unknown"),
        ("command", "unknown", "yes"),
        ("slow", "unknown", "no"),
    ] {
        let view = seen.view(member, Some("client"));
        assert_eq!((&view["live"]["answer"], &view["quorum"]["answer"]), (&live.into(), &quorum.into()), "{member}");
    }
    assert!(seen.0["took_ms"].as_f64().unwrap() < 1400.0, "{}", seen.0);
    // The name of a node is a place for every verb.
    let text = lab.done(&format!("--nodes {file} --node http dead-host 192.0.2.1 --for 10s"));
    assert!(text.contains(&format!("in {}-etcd1, for 10.0 s", lab.name)), "{text}");
    assert!(lab.listed("etcd1").contains("192.0.2.1"));
}

#[test]
fn a_wrong_file_is_told_with_file_line_and_field() {
    let lab = Lab { name: format!("c{}-none", std::process::id()) };
    let file = lab.file("wrong.toml", "[nodes.a]\nnetns = \"x\"\nclient-port = 99999\n");
    for verb in ["quorum", "--node a status"] {
        let output = lab.run(&format!("--nodes {file} {verb}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(&format!("{file}:3: nodes.a.client-port: ")), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

/// What playdead itself has no room for is nobody's death.
#[test]
fn without_room_for_files_no_member_is_called_dead() {
    let lab = Lab::up(1);
    for most in 8..30 {
        let mut command = std::process::Command::new("prlimit");
        command.arg(format!("--nofile={most}")).arg(env!("CARGO_BIN_EXE_playdead"));
        let output = command.args(["quorum", "--lab", &lab.name]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let whole =
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("quorum through etcd1;");
        let refused = output.status.code() == Some(1) && said.contains("Too many open files");
        assert!(whole || (refused && said.lines().count() == 1 && output.stdout.is_empty()), "{most}: {output:?}");
    }
}

#[test]
fn without_room_for_threads_it_says_so_in_a_line() {
    let node = |number: u16| {
        let (pid, port) = (std::process::id(), 2000 + number);
        format!("[nodes.n{number}]\npid = {pid}\naddresses = [\"127.0.0.1\"]\nclient-port = {port}\ncheck = \"tcp\"\n")
    };
    let nodes = std::env::temp_dir().join(format!("playdead-threads-{}.toml", std::process::id()));
    std::fs::write(&nodes, (0..40).map(node).collect::<String>()).unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -v 40000; exec \"$0\" --nodes \"$1\" quorum", env!("CARGO_BIN_EXE_playdead")]);
    let output = command.arg(&nodes).output().unwrap();
    std::fs::remove_file(&nodes).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.starts_with("playdead: cannot make a thread: "), "{said}");
}
