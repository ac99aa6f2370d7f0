//! Many peers: addresses, prefixes, and ranges of ports.

use std::fmt::Write;
use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use playdead::kernel::netns::NetNs;

use crate::Extent;
use crate::contest::{Contest, Turn};
use crate::one::{Same, tempfile};
use crate::places::Places;
use crate::process::{self, PLAYDEAD, words};
use crate::report::Row;

/// How peers are written.
#[derive(Debug, Clone, Copy)]
enum Form {
    Address,
    Prefix,
    Range,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Address => "addresses",
            Self::Prefix => "prefixes",
            Self::Range => "ranges of ports",
        }
    }

    /// As playdead takes it, and as an element of nft's set.
    fn peer(self, number: u32) -> (String, String) {
        let first = u32::from(Ipv4Addr::new(10, 0, 0, 0));
        let address = |number: u32| Ipv4Addr::from(first + number);
        match self {
            Self::Address => (address(number + 1).to_string(), address(number + 1).to_string()),
            Self::Prefix => (format!("{}/29", address(number * 16)), format!("{}/29", address(number * 16))),
            Self::Range => {
                let at = address(number + 1);
                (format!("{at}:80-90"), format!("{at} . tcp . 80-90, {at} . udp . 80-90"))
            }
        }
    }

    /// The set's type, and what is looked up in it of packets from the peer and to it.
    fn set(self) -> (&'static str, [&'static str; 2]) {
        match self {
            Self::Address => ("type ipv4_addr;", ["ip saddr", "ip daddr"]),
            Self::Prefix => ("type ipv4_addr; flags interval;", ["ip saddr", "ip daddr"]),
            Self::Range => (
                "type ipv4_addr . inet_proto . inet_service; flags interval;",
                ["ip saddr . meta l4proto . th sport", "ip daddr . meta l4proto . th dport"],
            ),
        }
    }

    /// As nft text: silence in both directions.
    fn by_nft(self, count: u32) -> String {
        let (kind, [from, to]) = self.set();
        let mut text = format!("table inet cut {{\n  set dead {{ {kind} elements = {{ ");
        (0..count).for_each(|number| {
            let _ = write!(text, "{}, ", self.peer(number).1);
        });
        let _ = write!(
            text,
            "}} }}
  chain in {{ type filter hook input priority -300; {from} @dead drop; }}
  chain out {{ type filter hook output priority -300; {to} @dead drop; }}
}}
"
        );
        text
    }
}

pub(crate) fn rows(extent: Extent) -> Result<Vec<Row>> {
    let mut sizes = vec![
        (Form::Address, 10, 20),
        (Form::Address, 1000, 20),
        (Form::Address, 10_000, 10),
        (Form::Prefix, 10_000, 5),
        (Form::Range, 10_000, 5),
    ];
    if extent == Extent::Full {
        sizes.insert(3, (Form::Address, 100_000, 5));
    }
    let mut rows = Vec::new();
    for (form, count, rounds) in sizes {
        rows.extend(compare(form, count, extent.rounds(rounds))?);
    }
    Ok(rows)
}

fn compare(form: Form, count: u32, rounds: usize) -> Result<Vec<Row>> {
    let places = ["peers-a", "peers-b", "peers-c"].map(Places::pair).into_iter().collect::<Result<Vec<_>>>()?;
    let [here, there, beside] = [places[0].open(0)?, places[1].open(0)?, places[2].open(0)?];
    let file = tempfile("peers", &form.by_nft(count))?;
    let mut apply = words("dead-host --name bench");
    apply.extend((0..count).map(|number| form.peer(number).0));
    check(&here, &apply, form, count)?;
    let same = Same::as_by(&here, "peers", &apply)?;
    let mut turns: Vec<Turn> = vec![
        Box::new(|| {
            let heal = words("--netns /proc/self/ns/net heal");
            turn(&here, [(PLAYDEAD, &apply), (PLAYDEAD, &words("--netns /proc/self/ns/net status")), (PLAYDEAD, &heal)])
        }),
        Box::new(|| {
            let [apply, list, heal] =
                [&format!("-f {file}"), "list table inet cut", "delete table inet cut"].map(words);
            turn(&there, [("nft", &apply), ("nft", &list), ("nft", &heal)])
        }),
        Box::new(|| {
            let [apply, list, heal] =
                [&format!("-f {}", same.apply), "list ruleset", &format!("-f {}", same.heal)].map(words);
            turn(&beside, [("nft", &apply), ("nft", &list), ("nft", &heal)])
        }),
    ];
    let contest = Contest::hold(rounds, &mut turns)?;
    drop(turns);
    std::fs::remove_file(&file)?;
    let what = format!("{count} {}", form.name());
    let row = |verb: &str, figure, beside| Row::of(&contest, &format!("{what}, {verb}"), figure, 0, beside);
    Ok(vec![
        row("applied", 0, ("nft -f", 1)).goal(0.5),
        row("applied", 0, ("nft -f, the same rules", 2)).goal(0.5),
        row("memory to apply", 3, ("nft -f", 1)).unit("MiB"),
        row("memory to apply", 3, ("nft -f, the same rules", 2)).unit("MiB"),
        row("status", 1, ("nft list table", 1)),
        row("healed", 2, ("nft delete table", 1)),
        row("healed", 2, ("nft -f, the same tables", 2)),
    ])
}

/// Times of all three, and the memory of the first.
fn turn(ns: &NetNs, steps: [(&str, &Vec<String>); 3]) -> Result<Vec<f64>> {
    ns.run(|| {
        let took = steps.iter().map(|(program, words)| process::run(program, words)).collect::<Result<Vec<_>>>()?;
        let [(program, apply), _, (healer, heal)] = steps;
        let peak = process::peak(program, apply)?;
        process::run(healer, heal)?;
        Ok(took.iter().map(|took| took.ms).chain([peak]).collect())
    })?
}

/// Nothing is measured that is not there: nft, which is not asked to write here, counts the elements.
fn check(ns: &NetNs, apply: &[String], form: Form, count: u32) -> Result<()> {
    let wanted = match form {
        Form::Address | Form::Prefix => count,
        // TCP and UDP.
        Form::Range => 2 * count,
    };
    ns.run(|| -> Result<()> {
        process::run(PLAYDEAD, apply)?;
        let (listed, _) = process::output("nft", &words("-j list sets inet"))?;
        let document: serde_json::Value = serde_json::from_str(&listed)?;
        let sets =
            document["nftables"].as_array().into_iter().flatten().filter_map(|one| one["set"]["elem"].as_array());
        let most = sets.map(Vec::len).max().unwrap_or_default();
        process::line(PLAYDEAD, "--netns /proc/self/ns/net heal")?;
        ensure!(most == wanted as usize, "the kernel has {most} elements of {wanted}");
        Ok(())
    })?
}
