//! A partition over many namespaces, and its end.

use std::fmt::Write;
use std::time::Instant;

use anyhow::{Context, Result};
use playdead::kernel::netns::NetNs;
use serde_json::Value;

use crate::Extent;
use crate::contest::{Contest, Turn};
use crate::one::tempfile;
use crate::places::Places;
use crate::process::{self, PLAYDEAD, words};
use crate::report::Row;

fn address(number: usize) -> String {
    format!("10.100.{}.{}", number / 250, number % 250 + 1)
}

/// The nodes of playdead's file, and its words.
struct Nodes {
    file: String,
    count: usize,
}

impl Nodes {
    fn write(places: &Places) -> Result<Self> {
        let mut text = String::new();
        for (number, name) in places.names().iter().enumerate() {
            let _ = writeln!(text, "[nodes.n{number}]\nnetns = \"{name}\"\naddresses = [\"{}\"]", address(number));
        }
        Ok(Self { file: tempfile("nodes", &text)?, count: places.names().len() })
    }

    fn group(numbers: std::ops::Range<usize>) -> String {
        numbers.map(|number| format!("n{number}")).collect::<Vec<_>>().join(",")
    }

    fn words(&self, verb: &str) -> Vec<String> {
        let mut all = words(&format!("--json --nodes {}", self.file));
        match verb {
            "partition" => {
                let half = self.count / 2;
                all.extend(["partition", "--name", "bench"].map(str::to_owned));
                all.extend([Self::group(0..half), Self::group(half..self.count)]);
            }
            verb => {
                all.extend((0..self.count).flat_map(|number| ["--node".to_owned(), format!("n{number}")]));
                all.push(verb.to_owned());
            }
        }
        all
    }
}

pub(crate) fn rows(extent: Extent) -> Result<Vec<Row>> {
    let mut rows = compare(3, 0.3, extent.rounds(20))?;
    rows.extend(compare(30, 3.0, extent.rounds(10))?);
    if extent == Extent::Full {
        rows.extend(compare(300, 30.0, 5)?);
    }
    Ok(rows)
}

fn compare(count: usize, goal: f64, rounds: usize) -> Result<Vec<Row>> {
    let (ours, theirs) = (Places::new("many-a", count)?, Places::new("many-b", count)?);
    let nodes = Nodes::write(&ours)?;
    let namespaces = (0..count).map(|number| theirs.open(number)).collect::<Result<Vec<_>>>()?;
    let files =
        [count / 2..count, 0..count / 2].map(|others| tempfile(&format!("side{}", others.start), &by_nft(others)));
    let [first, second] = files;
    let (first, second) = (first?, second?);
    let file_of = |number: usize| if number < count / 2 { &first } else { &second };
    let mut turns: Vec<Turn> = vec![Box::new(|| by_playdead(&nodes)), Box::new(|| in_a_loop(&namespaces, &file_of))];
    let contest = Contest::hold(rounds, &mut turns)?;
    drop(turns);
    [&nodes.file, &first, &second].into_iter().try_for_each(std::fs::remove_file)?;
    let row = |what: &str, figure, beside: &str| {
        let each = format!("{beside} in each");
        Row::of(&contest, &format!("{count} namespaces, {what}"), figure, 0, (&each, 1))
    };
    Ok(vec![
        row("partition", 0, "nft -f"),
        Row::alone(&format!("{count} namespaces, first to last cut"), contest.spread(0, 1), "ms").goal(goal),
        row("first to last cut", 1, "nft -f"),
        row("status", 2, "nft list ruleset"),
        row("heal", 3, "nft delete table"),
    ])
}

fn by_playdead(nodes: &Nodes) -> Result<Vec<f64>> {
    let (made, partition) = process::output(PLAYDEAD, &nodes.words("partition"))?;
    let made: Value = serde_json::from_str(&made)?;
    let spread = made["spread_ms"].as_f64().context("no spread")?;
    let (_, status) = process::output(PLAYDEAD, &nodes.words("status"))?;
    let (_, heal) = process::output(PLAYDEAD, &nodes.words("heal"))?;
    Ok(vec![partition, spread, status, heal])
}

fn by_nft(others: std::ops::Range<usize>) -> String {
    let others: Vec<_> = others.map(address).collect();
    format!(
        "table inet cut {{
  set dead {{ type ipv4_addr; elements = {{ {} }} }}
  chain in {{ type filter hook prerouting priority -300; ip saddr @dead drop; }}
}}
",
        others.join(", ")
    )
}

fn in_a_loop<'a>(namespaces: &[NetNs], file_of: &(impl Fn(usize) -> &'a String + Sync)) -> Result<Vec<f64>> {
    let mut ends = Vec::new();
    let partition = each(namespaces, |number| {
        process::line("nft", &format!("-f {}", file_of(number)))?;
        ends.push(Instant::now());
        Ok(())
    })?;
    let spread = ends.last().zip(ends.first()).map_or(0.0, |(last, first)| (*last - *first).as_secs_f64() * 1e3);
    let status = each(namespaces, |_| process::line("nft", "list ruleset").map(drop))?;
    let heal = each(namespaces, |_| process::line("nft", "delete table inet cut").map(drop))?;
    Ok(vec![partition, spread, status, heal])
}

/// In milliseconds, for all.
fn each(namespaces: &[NetNs], mut f: impl FnMut(usize) -> Result<()> + Send) -> Result<f64> {
    let start = Instant::now();
    for (number, ns) in namespaces.iter().enumerate() {
        ns.run(|| f(number))??;
    }
    Ok(start.elapsed().as_secs_f64() * 1e3)
}
