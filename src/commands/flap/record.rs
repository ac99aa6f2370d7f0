//! When the edges were, and what was met: as text and as a document.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use comfy_table::CellAlignment;
use serde_json::{Value, json};

use crate::commands::inforce::Hits;
use crate::commands::{closing, out, shown, table};
use crate::model::{Edge, Lateness, Name, Rhythm};

/// As many edges are shown as text; `--json` has all.
pub(super) const SHOWN: usize = 20;

/// An edge, and when it was.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Beat {
    pub(in super::super) edge: Edge,
    /// When the timer went off.
    pub(super) woke: Duration,
    /// When the last kernel had said that it was done.
    pub(in super::super) done: Duration,
}

/// What was done.
pub(in super::super) struct Record {
    pub(super) name: Name,
    pub(super) shown: String,
    /// What `CLOCK_MONOTONIC` showed at time zero.
    pub(super) start: Duration,
    pub(super) beats: Vec<Beat>,
    /// Whether it has come as often as it was to.
    pub(in super::super) is_whole: bool,
    pub(super) closed: closing::Closed,
    pub(super) hits: Vec<(String, Hits, Hits)>,
    pub(super) notes: Vec<String>,
}

pub(super) fn name_of(edge: Edge) -> &'static str {
    if edge.down { "down" } else { "up" }
}

pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

impl Beat {
    fn late(&self) -> Duration {
        self.done.saturating_sub(self.edge.at)
    }
}

impl Record {
    /// The packets that it met, to its peers and from them.
    pub(in super::super) fn packets(&self) -> [u64; 2] {
        self.hits
            .iter()
            .fold([0, 0], |[to, from], (_, hit_to, hit_from)| [to + hit_to.packets, from + hit_from.packets])
    }

    fn late(&self) -> Lateness {
        Lateness::of(self.beats.iter().map(Beat::late))
    }

    /// The timer's own error: what was late before anything was sent.
    fn timer(&self) -> Lateness {
        Lateness::of(self.beats.iter().map(|beat| beat.woke.saturating_sub(beat.edge.at)))
    }

    /// By how many milliseconds the last tenth of the edges was later than the first.
    fn drift_ms(&self) -> f64 {
        let tenth = self.beats.len().div_ceil(10);
        let median = |beats: &[Beat]| ms(Lateness::of(beats.iter().map(Beat::late)).median);
        median(&self.beats[self.beats.len() - tenth..]) - median(&self.beats[..tenth])
    }

    pub(super) fn report(&self, rhythm: &Rhythm, json: bool) -> Result<()> {
        self.notes.iter().for_each(|note| out::note(note));
        if json { out::print_json(&self.document(rhythm)) } else { out::print(&self.text()) }
    }

    /// The fields are listed in `docs/json.md`.
    pub(super) fn document(&self, rhythm: &Rhythm) -> Value {
        let edge = |beat: &Beat| {
            let (planned, woke, done) = (ms(beat.edge.at), ms(beat.woke), ms(beat.done));
            json!({ "edge": name_of(beat.edge), "planned_ms": planned, "woke_ms": woke, "done_ms": done })
        };
        let place =
            |(place, to, from): &(String, Hits, Hits)| json!({ "place": place, "hits": { "to": to, "from": from } });
        let late = |late: Lateness| json!({ "median": ms(late.median), "max": ms(late.max) });
        json!({
            "format": shown::FORMAT,
            "name": self.name.to_string(),
            "up_ms": ms(rhythm.up),
            "down_ms": ms(rhythm.down),
            "jitter_percent": rhythm.jitter,
            "seed": rhythm.seed,
            "start_monotonic_ms": ms(self.start),
            "edges": self.beats.iter().map(edge).collect::<Vec<_>>(),
            "late_ms": late(self.late()),
            "timer_ms": late(self.timer()),
            "drift_ms": self.drift_ms(),
            "connections_ended": self.closed.ended,
            "places": self.hits.iter().map(place).collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let mut table = table::new(["EDGE", "PLANNED", "ACTUAL", "LATE", "OF THAT THE TIMER"]);
        for beat in self.beats.iter().take(SHOWN) {
            let second = |time: Duration| format!("{:.6} s", time.as_secs_f64());
            let late = |time: Duration| format!("{:.3} ms", ms(time.saturating_sub(beat.edge.at)));
            let [planned, done] = [beat.edge.at, beat.done].map(second);
            table.add_row([name_of(beat.edge).into(), planned, done, late(beat.done), late(beat.woke)]);
        }
        table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        let mut text = table::text(&table);
        if let Some(more) = self.beats.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            let _ = writeln!(text, "and {more} more (--json has them all)");
        }
        let (late, timer) = (self.late(), self.timer());
        let downs = self.beats.iter().filter(|beat| beat.edge.down).count();
        let _ = writeln!(
            text,
            "{} came {downs} times{}; edges were late by {:.3} ms (median), {:.3} ms at most, of that the timer {:.3} ms \
             and {:.3} ms; drift {:.3} ms",
            self.shown,
            self.closed,
            ms(late.median),
            ms(late.max),
            ms(timer.median),
            ms(timer.max),
            self.drift_ms(),
        );
        for (place, to, from) in &self.hits {
            let _ = writeln!(text, "hit in {place}: {} packets to the peer, {} from it", to.packets, from.packets);
        }
        text
    }
}
