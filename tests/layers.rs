//! The arrows that are never drawn: read from the `use` lines and paths of the sources.

use std::fs;
use std::path::{Path, PathBuf};

/// Every source file under a folder, with its lines of code (comments left out).
fn sources(folder: &str) -> Vec<(PathBuf, Vec<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found = Vec::new();
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code =
                    |line: &str| if line.trim_start().starts_with("//") { String::new() } else { line.to_owned() };
                found.push((path, text.lines().map(code).collect()));
            }
        }
    }
    found
}

/// Fails with file and line for every forbidden word in the files of a folder, those of `but` left out.
fn forbid(folder: &str, words: &[&str], but: &[&str]) {
    let mut found = Vec::new();
    for (path, lines) in sources(folder) {
        if but.iter().any(|exempt| path.ends_with(exempt)) {
            continue;
        }
        for (number, line) in lines.iter().enumerate() {
            let bad = words.iter().filter(|word| line.contains(**word));
            found.extend(bad.map(|word| format!("{}:{}: {word}", path.display(), number + 1)));
        }
    }
    assert!(found.is_empty(), "forbidden here:\n{}", found.join("\n"));
}

const EFFECTS: [&str; 12] = [
    "std::fs",
    "std::process",
    "std::thread",
    "TcpStream",
    "UdpSocket",
    "Instant",
    "SystemTime",
    "nix::",
    "nftnl",
    "rtnetlink",
    "crate::kernel",
    "crate::commands",
];

#[test]
fn the_model_and_the_rules_have_no_effects_and_no_clock() {
    forbid("src/model", &EFFECTS, &[]);
    forbid("src/model", &["crate::rules", "crate::encode", "crate::probe", "crate::lab"], &[]);
    forbid("src/rules", &EFFECTS, &[]);
    forbid("src/rules", &["crate::encode", "crate::probe", "crate::lab"], &[]);
}

#[test]
fn the_kernel_layer_knows_no_kinds_of_fault() {
    forbid("src/kernel", &["crate::model", "crate::rules", "crate::lab", "crate::probe", "crate::commands"], &[]);
}

#[test]
fn the_lab_knows_nothing_of_faults() {
    forbid("src/lab", &["crate::model", "crate::rules", "crate::encode", "crate::probe", "crate::commands"], &[]);
}

#[test]
fn the_encoder_touches_no_socket() {
    forbid("src/encode", &["crate::kernel", "crate::commands", "crate::model", "std::fs", "nix::"], &[]);
}

#[test]
fn namespaces_are_entered_in_one_file() {
    forbid("src", &["setns(", "unshare("], &["kernel/netns.rs"]);
}

#[test]
fn unsafe_code_stands_in_few_files() {
    forbid("src", &["unsafe "], &["encode/object.rs", "kernel/netns.rs", "commands/hold.rs"]);
}

#[test]
fn no_other_program_writes_rules_or_links_for_us() {
    let programs = ["nft", "ip", "tc", "iptables", "ip6tables"].map(|program| format!("Command::new(\"{program}\")"));
    forbid("src", &programs.each_ref().map(String::as_str), &[]);
    forbid("src", &["flush ruleset"], &[]);
}
