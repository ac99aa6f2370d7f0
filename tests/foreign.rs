//! What is not playdead's stays byte for byte as it was, and cannot stand in its way.

mod net;

use net::cli::playdead;
use net::view::{BRIEF, assert_only};
use net::{At, Segment};
use playdead::model::signature::Expect;

/// Also a table that is called as ours are, one at our priority in every family, and one that keeps state.
const FOREIGN: &str = "
table inet playdead-foo {
	comment \"not of playdead\";
	set s { type ipv4_addr; elements = { 10.99.0.2 }; }
	chain c { type filter hook input priority 0; policy accept; ip saddr @s counter accept; }
}
table ip playdead-bar { chain c { tcp dport 1 drop; }; }
table inet stateful {
	chain in { type filter hook input priority 0; policy accept; ct state established,related accept; accept; }
	chain out { type filter hook output priority 0; policy accept; ct state established,related accept; accept; }
	chain pass { type filter hook forward priority 0; policy accept; ct state established,related accept; accept; }
}
table inet first {
	chain pre { type filter hook prerouting priority -300; policy accept; accept; }
	chain out { type route hook output priority -300; policy accept; accept; }
}
table arp first { chain in { type filter hook input priority -300; policy accept; accept; }; }
table bridge first { chain pre { type filter hook prerouting priority -300; policy accept; accept; }; }
table netdev first { chain lo { type filter hook ingress device lo priority -300; policy accept; accept; }; }
";

const KINDS: [(&str, Expect); 4] = [
    ("dead-host 10.99.0.2 fd99::2", Expect::DeadHost),
    ("dead-process 10.99.0.2:2379 [fd99::2]:2379", Expect::DeadProcess),
    ("hung-process 10.99.0.2:2379 [fd99::2]:2379", Expect::HungProcess),
    ("rebooted 10.99.0.2 fd99::2", Expect::Rebooted),
];

#[test]
fn foreign_tables_are_byte_for_byte_what_they_were_and_do_not_blunt_a_fault() {
    std::thread::scope(|scope| {
        for at in [At::Client, At::Peer, At::Switch] {
            scope.spawn(move || {
                let segment = Segment::new();
                let _server = segment.serve();
                segment.nft(at, FOREIGN);
                let before = segment.listed(at);
                for (line, expect) in KINDS {
                    // In between, an idle connection is not known: that is told, and tested elsewhere.
                    if at == At::Switch && expect == Expect::DeadProcess {
                        continue;
                    }
                    let seen = segment.watch_fault(BRIEF, at, line);
                    assert_only(expect, &seen);
                    let during = segment.listed(at);
                    before
                        .split("\ntable ")
                        .for_each(|table| assert!(during.contains(table.trim()), "{table}\n{during}"));
                    segment.playdead(at, "heal");
                    assert_eq!(segment.listed(at), before, "{line} at {at:?}");
                }
            });
        }
    });
}

#[test]
fn a_table_with_our_name_but_not_our_mark_is_neither_touched_nor_taken_for_a_fault() {
    let segment = Segment::new();
    let at = At::Client;
    segment.nft(at, FOREIGN);
    let before = segment.listed(at);
    for name in ["foo", "bar"] {
        for more in ["", " --replace", " --for 5s"] {
            let output = segment.run(at, &format!("dead-host 10.99.0.2 --name {name}{more}"));
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            assert!(said.lines().count() == 1 && said.contains(&format!("playdead-{name}")), "{said}");
            assert_eq!(segment.listed(at), before);
        }
        segment.playdead(at, &format!("heal {name}"));
        assert_eq!(segment.listed(at), before);
    }
    assert!(segment.status(at).is_empty());
    assert!(segment.playdead(at, "heal --all").contains("nothing to heal"));
    assert_eq!(segment.listed(at), before);
}

/// A table that only begins as ours do, or whose comment is nearly ours.
#[test]
fn a_comment_that_is_nearly_ours_is_not_ours() {
    let segment = Segment::new();
    let comments = [
        "playdead",
        "playdead 1 ",
        "playdead 2 dead-host both all 00000000 since 2026-01-01T00:00:00Z of 3",
        "playdead 1 dead-cat both all 00000000 since 2026-01-01T00:00:00Z of 3",
        "playdead 1 dead-host both all 00000000 since 2026-01-01T00:00:00Z of 3 for ever",
    ];
    for comment in comments {
        segment.nft(At::Client, &format!("table inet playdead-x {{ comment \"{comment}\"; }}"));
        let before = segment.listed(At::Client);
        assert!(segment.status(At::Client).is_empty(), "{comment}");
        let output = playdead().args(["--netns", &segment.name(At::Client), "heal", "x"]).output().unwrap();
        assert!(output.status.success());
        assert_eq!(segment.listed(At::Client), before, "{comment}");
        segment.nft(At::Client, "flush ruleset");
    }
}
