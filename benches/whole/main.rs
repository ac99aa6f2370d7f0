//! playdead beside what a user would type, whole processes, side by side in one run: `scripts/bench` runs it.
//!
//! The contestants of a row take turns, and the ratio of a row is the median of the ratios of its rounds: what disturbs
//! the machine for longer than a round disturbs both.

mod contest;
mod edges;
mod inside;
mod many;
mod one;
mod peers;
mod places;
mod process;
mod report;
mod start;
mod traffic;

use std::path::PathBuf;

use anyhow::{Context, Result};

use report::Row;

/// How much is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// All, for the table in the README.
    Full,
    /// Fewer rounds and no more than 10,000 peers and 30 namespaces.
    Quick,
}

impl Extent {
    fn rounds(self, full: usize) -> usize {
        match self {
            Self::Full => full,
            Self::Quick => (full / 5).max(3),
        }
    }
}

type Part = fn(Extent) -> Result<Vec<Row>>;

const PARTS: [(&str, Part); 7] = [
    ("one fault", one::rows),
    ("inside", inside::rows),
    ("peers", peers::rows),
    ("namespaces", many::rows),
    ("edges", edges::rows),
    ("traffic", traffic::rows),
    ("start", start::rows),
];

fn main() -> Result<()> {
    if process::tell_peak()? {
        return Ok(());
    }
    // What cargo bench says by itself is not meant for us.
    let words: Vec<_> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let extent = if words.iter().any(|word| word == "--quick") { Extent::Quick } else { Extent::Full };
    let named: Vec<_> = words.iter().filter(|word| !word.starts_with("--")).collect();
    let mut rows = Vec::new();
    for (name, part) in PARTS {
        if named.is_empty() || named.iter().any(|word| name.contains(word.as_str())) {
            eprintln!("bench: {name}");
            rows.extend(part(extent).with_context(|| format!("in the part {name:?}"))?);
        }
    }
    print!("{}", report::text(&rows));
    if let Some(file) = std::env::var_os("PLAYDEAD_BENCH_TABLE").map(PathBuf::from) {
        std::fs::write(&file, report::markdown(&rows)).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(file) = std::env::var_os("PLAYDEAD_BENCH_SVG").map(PathBuf::from) {
        svg::save(&file, &report::picture(&rows)).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}
