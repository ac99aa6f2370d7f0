//! Files of scenarios and nodes that are none.

use std::time::Duration;

use super::{Scratch, assert_refused, in_time};
use crate::net::cli::{playdead, stdout_of};
use crate::net::{At, Segment};

/// A pipe into which nobody writes is given up after 10 s.
const LIMIT: Duration = Duration::from_secs(30);
/// So much memory is enough for any file (bytes; the program under test is large itself).
const MEMORY: &str = "--as=1000000000";

fn good(segment: &Segment) -> String {
    format!("[nodes.a]\nnetns = \"{}\"\n[[steps]]\nsleep = \"1ms\"\n", segment.name(At::Client))
}

#[test]
fn what_is_no_file_of_ours_is_refused_soon_and_in_one_line() {
    let segment = Segment::new();
    let scratch = Scratch::new(&segment);
    let good = good(&segment);
    let huge = scratch.path("huge");
    std::fs::File::create(&huge).unwrap().set_len(1 << 30).unwrap();
    let socket = scratch.path("socket");
    let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let nested = |open: &str, close: &str| format!("steps = {}{}\n", open.repeat(50_000), close.repeat(50_000));
    let mut files = vec![
        (scratch.fifo("fifo"), "pipe"),
        (scratch.path("."), "a directory"),
        (scratch.path("none"), "No such file"),
        ("/dev/zero".into(), "a device"),
        ("/dev/full".into(), "a device"),
        ("/dev/null".into(), "a device"),
        ("/proc/self/mem".into(), ""),
        ("/proc/kmsg".into(), ""),
        (huge, "1024 KiB"),
        (socket, ""),
    ];
    for (name, content, says) in [
        ("zero", [good.as_bytes(), b"\0"].concat(), "zero byte"),
        ("latin", [good.as_bytes(), b"# \xe9\n"].concat(), "UTF-8"),
        ("long", [good.as_bytes(), &b"#".repeat(1 << 20)].concat(), "1024 KiB"),
        ("escape", format!("{good}[nodes.\"\u{1b}[31m\"]\nnetns = \"x\"").into(), ""),
        ("quoted", format!("{good}[nodes.\"\\u001B[31m\"]\nnetns = \"x\"").into(), "not a node's name"),
        ("newline", format!("{good}[nodes.\"a\\nb\"]\nnetns = \"x\"").into(), "not a node's name"),
        ("key", format!("\"a\\nb\\u001b[31m\" = 1\n{good}").into(), ""),
        ("ssh", format!("{good}[nodes.b]\nssh = \"-oProxyCommand=touch x\"\n").into(), "HOST or USER@HOST"),
        ("port", format!("{good}[nodes.b]\nnetns = \"x\"\nclient-port = 99999999999\n").into(), "client-port"),
        ("lists", nested("[", "]").into(), ""),
        ("tables", nested("{ a = ", "}").into(), ""),
        ("dotted", format!("{}z = 1\n", "a.".repeat(50_000)).into(), ""),
    ] {
        files.push((scratch.file(name, content), says));
    }
    std::thread::scope(|scope| {
        for (file, says) in &files {
            scope.spawn(move || {
                for words in [vec!["run", file, "--dry-run"], vec!["--nodes", file, "--node", "a", "status"]] {
                    // A part of a scenario file that is not about nodes is nothing to --nodes.
                    if words[0] == "--nodes" && file.ends_with("key") {
                        continue;
                    }
                    let mut command = std::process::Command::new("prlimit");
                    command.arg(MEMORY).arg(playdead().get_program()).args(&words);
                    let said = assert_refused(&in_time(&mut command, LIMIT), &[2], file);
                    assert!(said.contains(says), "{file} does not say {says:?}: {said}");
                }
            });
        }
    });
}

#[test]
fn plans_without_measure_are_refused() {
    let segment = Segment::new();
    let scratch = Scratch::new(&segment);
    let nodes = format!("[nodes.a]\nnetns = \"{}\"\n", segment.name(At::Client));
    for (name, steps, says) in [
        ("times", "[[steps]]\nrepeat = { times = 4294967295, steps = [{ sleep = \"1ms\" }] }\n", "100000 steps"),
        (
            "nested",
            "[[steps]]\nrepeat = { times = 99999, steps = [{ repeat = { times = 99999, steps = [{ sleep = \"0s\" }] } }] }\n",
            "100000 steps",
        ),
        ("more", "[[steps]]\nrepeat = { times = 4294967296, steps = [{ sleep = \"1ms\" }] }\n", "repeat.times"),
        ("sleep", "[[steps]]\nsleep = \"99999999999999999999h\"\n", "steps[0].sleep"),
        ("at", "[[steps]]\nat = \"P9999Y\"\nsleep = \"1s\"\n", "steps[0].at"),
        ("percent", "[[steps]]\nfault = \"lossy 10.0.0.1 --percent 1e300 --node a\"\n", "percent"),
        ("words", "[[steps]]\nfault = \"dead-host '10.0.0.1\"\n", "steps[0].fault"),
        ("escape", "[[steps]]\nfault = \"dead-host \\u001b[31m\\n\"\n", "steps[0].fault"),
        ("command", "[[steps]]\nfault = \"dead-host 10.0.0.1 --node a -- touch x\"\n", "steps[0].fault"),
    ] {
        let file = scratch.file(name, format!("{nodes}{steps}"));
        let said = assert_refused(&in_time(playdead().args(["run", &file]), LIMIT), &[2], name);
        assert!(said.contains(says), "{name}: {said}");
    }
    assert_eq!(segment.listed(At::Client), "");
}

/// `<(COMMAND)` of a shell, and `run /dev/stdin` behind a pipe.
#[test]
fn a_pipe_with_a_writer_is_a_file() {
    let segment = Segment::new();
    let scratch = Scratch::new(&segment);
    let file = scratch.file("good.toml", good(&segment));
    let program = playdead().get_program().to_str().unwrap().to_owned();
    for script in [
        format!("{program} run <(sleep 0.3; cat {file}) --dry-run --seed 1"),
        format!("(head -c 20 {file}; sleep 0.3; tail -c +21 {file}) | {program} run /dev/stdin --dry-run --seed 1"),
    ] {
        let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
        assert!(!stdout_of(&output).is_empty(), "{script}: {output:?}");
    }
}
