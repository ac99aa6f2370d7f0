//! Names that are none, in every place where one is typed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::{Scratch, assert_refused, at, exists, in_time};
use crate::net::{At, Segment};

const LIMIT: Duration = Duration::from_secs(30);

/// Where `{}` is, the name goes. The first `@` ones name their place themselves.
const SLOTS: [&str; 22] = [
    "@ --netns {} status",
    "@ --netns {} dead-host 10.0.0.1",
    "@ --pid {} status",
    "@ --container {} status",
    "@ --node {} status",
    "@ partition {} b",
    "@ run FILE --dry-run --lab {}",
    "@ lab up --lab {}",
    "@ lab exec {} -- true",
    "@ lab kill {}",
    "dead-host {}",
    "dead-host 10.0.0.1 --name {}",
    "dead-host 10.0.0.1 --with {}",
    "dead-host 10.0.0.1 --for {}",
    "dead-host 10.0.0.1 --user {} -- true",
    "lossy 10.0.0.1 --percent {}",
    "flap dead-host {} --up 1s --down 1s",
    "heal {}",
    "renew {} --for 5s",
    "verify {}",
    "probe {}:80",
    "explain {}",
];

fn hostile(flag: &str) -> Vec<OsString> {
    let mut names: Vec<OsString> = [
        "",
        "a\nb",
        "a\r\nplaydead: all is well",
        "\u{1b}[31mred\u{1b}[0m",
        "\u{1b}]0;title\u{7}",
        "\u{9b}31mred",
        "..",
        "../../etc/passwd",
        "a/../b/c/d",
        "%s%n",
        "\u{202e}dlo",
    ]
    .map(OsString::from)
    .into();
    names.push("x".repeat(10_000).into());
    names.push("a b ".repeat(2_500).into());
    names.push("\u{1b}[2J".repeat(2_500).into());
    names.push(OsStr::from_bytes(b"\xff\xfe\x80").into());
    names
        .extend([format!("$(touch {flag})"), format!(";touch {flag};"), format!("`touch {flag}`")].map(OsString::from));
    names
}

#[test]
fn a_name_that_is_none_is_refused_in_one_plain_line_and_nothing_happens() {
    let segment = Segment::new();
    let scratch = Scratch::new(&segment);
    let (flag, nodes) = (scratch.path("flag"), format!("[nodes.a]\nnetns = \"{}\"\n", segment.name(At::Client)));
    let file = scratch.file("good.toml", format!("{nodes}[[steps]]\nsleep = \"1ms\"\n"));
    std::thread::scope(|scope| {
        for slot in SLOTS {
            let (segment, flag, file) = (&segment, &flag, &file);
            scope.spawn(move || {
                for name in hostile(flag) {
                    // Two dots are a name for a fault: they lead nowhere.
                    let of_fault =
                        ["--name {}", "heal {}", "renew {}", "verify {}"].iter().any(|end| slot.contains(end));
                    if of_fault && name == ".." {
                        continue;
                    }
                    let names_place = slot.starts_with('@');
                    let mut command = if names_place { crate::net::cli::playdead() } else { at(segment, At::Client) };
                    for word in slot.split_whitespace().filter(|word| *word != "@") {
                        let mut parts = word.split("{}");
                        let mut typed = OsString::from(parts.next().unwrap().replace("FILE", file));
                        if let Some(rest) = parts.next() {
                            typed.push(&name);
                            typed.push(rest);
                        }
                        command.arg(typed);
                    }
                    let what = format!("{slot} with {:.60}", format!("{name:?}"));
                    // What no engine is asked for, and what may not be done, are no other failures.
                    assert_refused(&in_time(&mut command, LIMIT), &[1, 2, 4], &what);
                }
            });
        }
    });
    assert!(!exists(&flag), "a shell has read a name");
    assert_eq!(segment.listed(At::Client), "");
}

#[test]
fn numbers_without_measure_are_refused_in_one_line() {
    let segment = Segment::new();
    let big = "9".repeat(10_000);
    for line in [
        "lossy 10.0.0.1 --percent {}",
        "lossy 10.0.0.1 --percent 1e400",
        "lossy 10.0.0.1 --percent 5 --per-connection --seed {}",
        "dead-host 10.0.0.1 --for {}s",
        "dead-host 10.0.0.1 --for 1{}ms",
        "dead-host 10.0.0.1:{}",
        "dead-host 10.0.0.1:1-{}",
        "dead-host 10.0.0.1/{}",
        "hung-process 10.0.0.1:80 --backlog {}",
        "flap dead-host 10.0.0.1 --up 1s --down 1s --cycles {}",
        "flap dead-host 10.0.0.1 --up {}s --down 1s",
        "probe 10.0.0.1:{}",
        "probe 10.0.0.1:80 --timeout {}s",
    ] {
        let mut command = at(&segment, At::Client);
        command.args(line.split_whitespace().map(|word| word.replace("{}", &big)));
        assert_refused(&in_time(&mut command, LIMIT), &[2], line);
    }
    assert_eq!(segment.listed(At::Client), "");
}
