//! What it costs to start the program, and its size.

use anyhow::Result;

use crate::Extent;
use crate::contest::{Contest, Spread, Turn};
use crate::process::{self, PLAYDEAD};
use crate::report::Row;

pub(crate) fn rows(extent: Extent) -> Result<Vec<Row>> {
    let turn = |program: &'static str| -> Turn { Box::new(move || Ok(vec![process::line(program, "--version")?.ms])) };
    let mut turns = [PLAYDEAD, "nft", "iptables", "true"].map(turn);
    let contest = Contest::hold(extent.rounds(100), &mut turns)?;
    let mut rows: Vec<_> = [("nft", 1), ("iptables", 2), ("true", 3)]
        .map(|other| Row::of(&contest, "start-up (--version)", 0, 0, other))
        .into();
    #[expect(clippy::cast_precision_loss, reason = "some MiB")]
    let mib = std::fs::metadata(PLAYDEAD)?.len() as f64 / f64::from(1 << 20);
    rows.push(Row::alone("size of the program", Spread::of(vec![mib]), "MiB"));
    Ok(rows)
}
