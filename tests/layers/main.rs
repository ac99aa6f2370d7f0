//! The arrows that are never drawn, read from every path that the sources write, and the few other things that only
//! certain files may do.

mod paths;

use paths::{Found, Source, blank, sources};

/// Each layer, and those of the others that it may use. `commands` is where all of them meet.
const LAYERS: [(&str, &[&str]); 10] = [
    ("model", &[]),
    ("rules", &["model"]),
    ("encode", &["rules"]),
    ("kernel", &["encode"]),
    ("probe", &["kernel", "model"]),
    ("lab", &["kernel"]),
    ("cluster", &["kernel", "lab"]),
    ("scenario", &["cluster", "model"]),
    ("record", &[]),
    ("commands", &["cluster", "encode", "kernel", "lab", "model", "probe", "record", "rules", "scenario"]),
];

/// What reads, writes, starts or waits for something outside the process.
const EFFECTS: [&str; 18] = [
    "indicatif",
    "libc",
    "nftnl",
    "nix",
    "rtnetlink",
    "signal_hook",
    "socket2",
    "std::env",
    "std::fs",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::UdpSocket",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "ureq",
];

#[test]
fn a_layer_uses_only_the_layers_before_it() {
    let mut wrong = Vec::new();
    for source in sources() {
        let Some(layer) = source.layer() else { continue };
        let Some((_, may_use)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
            wrong.push(format!("{}: the layer {layer} is not in tests/layers/main.rs", source.name));
            continue;
        };
        for path in source.paths() {
            let other = path.words.strip_prefix(&["crate".to_owned()]).and_then(<[_]>::first);
            if let Some((other, _)) = LAYERS.iter().find(|(name, _)| other.is_some_and(|other| other == name))
                && *other != layer
                && !may_use.contains(other)
            {
                wrong.push(path.shown(&source, &format!("{layer} does not use {other}")));
            }
        }
    }
    none(&wrong);
}

#[test]
fn the_model_and_the_rules_have_no_effects_and_no_clock() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| matches!(source.layer(), Some("model" | "rules" | "scenario"))) {
        for path in source.paths() {
            if let Some(effect) = EFFECTS.iter().find(|effect| path.reaches(effect)) {
                wrong.push(path.shown(source, &format!("{effect} is an effect")));
            }
            if path.words.last().is_some_and(|last| last == "now") {
                wrong.push(path.shown(source, "reads a clock"));
            }
        }
    }
    none(&wrong);
}

#[test]
fn the_encoder_has_no_effects() {
    // libnftnl, and the constants that it is called with, are what it is there for.
    let effects = || EFFECTS.iter().filter(|effect| !["libc", "nftnl"].contains(effect));
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| source.layer() == Some("encode")) {
        let paths = source.paths();
        let bad = paths.iter().filter(|path| effects().any(|effect| path.reaches(effect)));
        wrong.extend(bad.map(|path| path.shown(source, "is an effect")));
    }
    none(&wrong);
}

#[test]
fn namespaces_are_entered_in_one_file() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| source.name != "src/kernel/netns.rs") {
        let paths = source.paths();
        let enters = |path: &&Found| matches!(path.last(), "setns" | "unshare" | "SYS_setns" | "SYS_unshare");
        wrong.extend(paths.iter().filter(enters).map(|path| path.shown(source, "only in src/kernel/netns.rs")));
    }
    none(&wrong);
}

#[test]
fn unsafe_code_stands_in_exactly_these_files() {
    let expected = ["src/encode/object.rs", "src/kernel/netns.rs", "src/kernel/privilege.rs"];
    let has_unsafe = |source: &Source| source.paths().iter().any(|path| path.words == ["unsafe"]);
    let found: Vec<_> = sources().into_iter().filter(has_unsafe).map(|source| source.name).collect();
    assert_eq!(found, expected);
}

#[test]
fn no_other_program_writes_rules_or_links_for_us() {
    let programs = ["nft", "ip", "tc", "iptables", "ip6tables", "ebtables", "arptables", "conntrack", "ipset"];
    let mut wrong = Vec::new();
    for source in sources() {
        let text = blank(&source.text, false);
        for (line, text) in text.lines().enumerate() {
            for started in text.split("Command::new(\"").skip(1) {
                let program = started.split('"').next().unwrap_or_default();
                if programs.contains(&program.rsplit('/').next().unwrap_or_default()) {
                    wrong.push(format!("{}:{}: starts {program}", source.name, line + 1));
                }
            }
            if text.contains("flush ruleset") {
                wrong.push(format!("{}:{}: flushes what is not ours", source.name, line + 1));
            }
        }
    }
    none(&wrong);
}

/// `--then`, the commands of scenarios and of nodes, and checks: what people wrote for a shell, in their words alone.
#[test]
fn a_shell_is_started_only_for_what_was_written_for_one() {
    let expected = ["cluster/command.rs", "commands/apply.rs", "commands/run/guard.rs"];
    let expected = expected.map(|file| format!("src/{file}"));
    let starts = |source: &Source| blank(&source.text, false).contains("Command::new(\"sh\")");
    let mut found: Vec<_> = sources().into_iter().filter(starts).map(|source| source.name).collect();
    found.sort();
    assert_eq!(found, expected);
}

/// Where there may be no more threads, `std::thread::spawn` and `Scope::spawn` panic; a `Builder` tells.
#[test]
fn no_thread_is_made_in_a_way_that_panics() {
    let mut wrong = Vec::new();
    for source in sources() {
        let text = blank(&source.text, true);
        let own = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (line, text) in own.lines().enumerate() {
            if text.contains("thread::spawn") || text.contains("scope.spawn(") {
                wrong.push(format!("{}:{}: use kernel::thread", source.name, line + 1));
            }
        }
    }
    none(&wrong);
}

fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}
