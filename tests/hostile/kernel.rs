//! What others have written into the kernel: tables, comments, names of devices.

use super::{assert_plain, at};
use crate::net::cli::stdout_of;
use crate::net::{At, Segment, ip};

const ESCAPE: &str = "\u{1b}[31m";
/// A byte that stands for a control sequence by itself, and DEL.
const OTHERS: &str = "\u{9b}31m\u{7f}";

/// Runs it, also with --json; what is printed must be plain. Gives both.
#[track_caller]
fn both(segment: &Segment, line: &str) -> [String; 2] {
    [line.to_owned(), format!("{line} --json")].map(|line| {
        let output = at(segment, At::Client).args(line.split_whitespace()).output().unwrap();
        assert_plain(&output.stdout, &line);
        assert_plain(&output.stderr, &line);
        stdout_of(&output)
    })
}

#[test]
fn a_comment_that_only_looks_like_ours_is_somebody_elses() {
    let segment = Segment::new();
    for (name, since) in [("a", ESCAPE), ("b", "x"), ("c", "2026-11-30T05:00:00Z\n"), ("d", OTHERS)] {
        let comment = format!("playdead 1 dead-host both all 00000000 since {since} of 1");
        segment.nft(At::Client, &format!("table inet playdead-{name} {{ comment \"{comment}\"; }}"));
    }
    let before = segment.listed(At::Client);
    let [text, _] = both(&segment, "status");
    assert!(text.contains("nothing is in force"), "{text}");
    segment.playdead(At::Client, "heal");
    assert_eq!(segment.listed(At::Client), before);
}

#[test]
fn what_somebody_wrote_into_a_table_of_ours_is_printed_plainly() {
    let segment = Segment::new();
    segment.playdead(At::Client, "dead-host 10.99.0.2 --name x");
    let label = format!("a{ESCAPE}{OTHERS}");
    segment.nft(At::Client, "delete element inet playdead-x hosts4 { 10.99.0.2 }");
    segment.nft(At::Client, &format!("add element inet playdead-x hosts4 {{ 10.99.0.2 comment \"{label}\" }}"));
    let [_, json] = both(&segment, "status");
    let document: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(document.to_string().contains("10.99.0.2"), "{document}");
    segment.heal(At::Client);
}

/// The kernel takes any byte but `/`, `:` and blanks (`dev_valid_name`).
#[test]
fn a_device_may_be_called_anything() {
    let segment = Segment::new();
    let client = segment.name(At::Client);
    for name in ["e\u{1b}[31m", "a\";drop;\"", "$(reboot)", "-rf", "..x", "\u{9b}m", "a\\b", "a*", "\u{e9}\u{7f}"] {
        ip(&["-n", &client, "link", "add", "name", name, "type", "bridge"]);
        ip(&["-n", &client, "link", "set", "dev", name, "up"]);
    }
    for line in ["dead-host 10.99.0.2 fd99::2", "dead-process 10.99.0.2:80", "lossy 10.99.0.2 --percent 5"] {
        let [text, _] = both(&segment, &format!("{line} --dry-run"));
        // nft must not find more in it than rules about devices that it does not know.
        assert!(!text.contains(";drop;\"\""), "{text}");
        both(&segment, line);
        let listed = segment.listed(At::Client);
        assert!(listed.contains("playdead"), "{listed}");
        both(&segment, "status");
        segment.heal(At::Client);
    }
    both(&segment, "doctor");
    // One that came later is named.
    segment.playdead(At::Client, "dead-host 10.99.0.2 --name x");
    ip(&["-n", &client, "link", "add", "name", "late\u{1b}[1m", "type", "bridge"]);
    let [text, _] = both(&segment, "status");
    assert!(text.contains("late\u{fffd}[1m"), "{text}");
    segment.heal(At::Client);
}

#[test]
fn a_device_whose_name_is_no_text_is_covered_or_the_fault_is_refused() {
    let segment = Segment::new();
    let client = segment.name(At::Client);
    segment.playdead(At::Client, "dead-host 10.99.0.2 --name before");
    let script = format!("ip -n {client} link add name \"$(printf 'e\\377\\376')\" type bridge");
    super::done("bash", &["-c", &script]);
    for line in ["status", "doctor", "heal"] {
        both(&segment, line);
    }
    assert_eq!(segment.listed(At::Client), "");
    let output = at(&segment, At::Client).args(["dead-host", "10.99.0.2"]).output().unwrap();
    if output.status.success() {
        segment.heal(At::Client);
    } else {
        super::assert_refused(&output, &[1, 4], "a name that is no text");
        assert_eq!(segment.listed(At::Client), "");
    }
}
