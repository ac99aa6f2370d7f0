//! The edges of a fault that comes and goes, on absolute deadlines.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::Extent;
use crate::contest::{Contest, Spread, Turn};
use crate::one::{BY_NFT, tempfile};
use crate::places::Places;
use crate::process::{self, PLAYDEAD, words};
use crate::report::Row;

const CYCLES: u32 = 10;
const HALF: Duration = Duration::from_millis(50);

pub(crate) fn rows(extent: Extent) -> Result<Vec<Row>> {
    let (ours, theirs) = (Places::pair("edge-a")?, Places::pair("edge-b")?);
    let (here, there) = (ours.open(0)?, theirs.open(0)?);
    let file = tempfile("edges", BY_NFT)?;
    let mut turns: Vec<Turn> = vec![Box::new(|| here.run(by_playdead)?), Box::new(|| there.run(|| by_nft(&file))?)];
    let contest = Contest::hold(extent.rounds(10), &mut turns)?;
    drop(turns);
    std::fs::remove_file(&file)?;
    let beside = ("nft at the same deadlines", 1);
    Ok(vec![Row::of(&contest, "flap: an edge is late by (median of 20)", 0, 0, beside)])
}

fn by_playdead() -> Result<Vec<f64>> {
    let half = format!("{}ms", HALF.as_millis());
    let line = format!("--json flap dead-host 10.99.0.2 --up {half} --down {half} --cycles {CYCLES}");
    let (told, _) = process::output(PLAYDEAD, &words(&line))?;
    let told: Value = serde_json::from_str(&told)?;
    Ok(vec![told["late_ms"]["median"].as_f64().context("no lateness")?])
}

fn by_nft(file: &str) -> Result<Vec<f64>> {
    let start = Instant::now() + HALF;
    let mut late = Vec::new();
    for edge in 0..2 * CYCLES {
        let at = start + HALF * edge;
        sleep(at.saturating_duration_since(Instant::now()));
        let line = if edge % 2 == 0 { format!("-f {file}") } else { "delete table inet cut".into() };
        process::line("nft", &line)?;
        late.push(at.elapsed().as_secs_f64() * 1e3);
    }
    Ok(vec![Spread::of(late).median])
}
