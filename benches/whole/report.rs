//! The rows as text, as Markdown for the README, and as a picture.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use svg::Document;
use svg::node::element::{Line, Rectangle, Text};

use crate::contest::{Contest, Spread};

/// One comparison.
pub(crate) struct Row {
    /// What was done.
    pub(crate) what: String,
    /// playdead's figure.
    pub(crate) ours: Spread,
    /// By what others do the same, and theirs.
    pub(crate) beside: Option<(String, Spread, Spread)>,
    pub(crate) unit: &'static str,
    /// The ratio that is aimed at, or without another the figure.
    pub(crate) goal: Option<f64>,
}

impl Row {
    /// A contestant's figure beside that of another, called `beside`.
    pub(crate) fn of(contest: &Contest, what: &str, figure: usize, who: usize, beside: (&str, usize)) -> Self {
        let (name, other) = beside;
        let theirs = contest.spread(other, figure);
        let ratio = contest.ratio(who, other, figure);
        let ours = contest.spread(who, figure);
        Self { what: what.into(), ours, beside: Some((name.into(), theirs, ratio)), unit: "ms", goal: None }
    }

    /// A figure beside which there is nothing.
    pub(crate) fn alone(what: &str, ours: Spread, unit: &'static str) -> Self {
        Self { what: what.into(), ours, beside: None, unit, goal: None }
    }

    pub(crate) fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    pub(crate) fn goal(self, goal: f64) -> Self {
        Self { goal: Some(goal), ..self }
    }

    fn cells(&self) -> [String; 6] {
        let (unit, number) = (self.unit, number);
        let (name, theirs, ratio) = match &self.beside {
            None => (String::new(), String::new(), String::new()),
            Some((name, theirs, ratio)) => (
                name.clone(),
                format!("{} {unit}", number(theirs.median)),
                format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.low, ratio.high),
            ),
        };
        let goal = match (self.goal, &self.beside) {
            (None, _) => String::new(),
            (Some(goal), Some(_)) => format!("{goal}"),
            (Some(goal), None) => format!("{goal} {unit}"),
        };
        [self.what.clone(), format!("{} {unit}", number(self.ours.median)), name, theirs, ratio, goal]
    }
}

const HEAD: [&str; 6] = ["WHAT", "PLAYDEAD", "BESIDE", "TAKES", "RATIO (QUARTILES)", "GOAL"];

/// Three digits.
fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

pub(crate) fn text(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(HEAD);
    table.add_rows(rows.iter().map(Row::cells));
    for right in [1, 3, 4, 5] {
        if let Some(column) = table.column_mut(right) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{table}\n")
}

pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut text = String::from("| what | playdead | beside | takes | ratio (quartiles) | goal |\n");
    text.push_str("| --- | ---: | --- | ---: | ---: | ---: |\n");
    for row in rows {
        let _ = writeln!(text, "| {} |", row.cells().join(" | "));
    }
    text
}

const WIDTH: f64 = 1080.0;
const LABELS: f64 = 560.0;
const STEP: f64 = 22.0;
const TOP: f64 = 64.0;
/// Ratios from a thirty-second to eight, by powers of two.
const POWERS: std::ops::RangeInclusive<i32> = -5..=3;

fn x_of(ratio: f64) -> f64 {
    let (first, last) = (f64::from(*POWERS.start()), f64::from(*POWERS.end()));
    let room = WIDTH - LABELS - 70.0;
    LABELS + room * (ratio.log2().clamp(first, last) - first) / (last - first)
}

/// A dot for each ratio on a scale of powers of two, its quartiles as a bar, and its goal as a stroke.
pub(crate) fn picture(rows: &[Row]) -> Document {
    let rows: Vec<_> =
        rows.iter().filter_map(|row| row.beside.as_ref().map(|(name, _, ratio)| (row, name, ratio))).collect();
    #[expect(clippy::cast_precision_loss, reason = "a few dozen rows")]
    let y_of = |number: usize| TOP + STEP * (number as f64 + 0.5);
    let bottom = y_of(rows.len());
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH, bottom + 24.0))
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(rectangle(0.0, 0.0, WIDTH, bottom + 24.0, "#ffffff"))
        .add(label(16.0, 26.0, "start", "Time of playdead over that of others: less is faster").set("font-size", 17));
    for power in POWERS {
        let x = x_of(2f64.powi(power));
        let shown = if power < 0 { format!("1/{}", 2f64.powi(-power)) } else { format!("{}", 2f64.powi(power)) };
        let stroke = if power == 0 { "#000000" } else { "#cccccc" };
        document = document.add(line(x, TOP - 6.0, bottom, stroke, 1.0)).add(label(x, TOP - 12.0, "middle", &shown));
    }
    for (number, (row, name, ratio)) in rows.into_iter().enumerate() {
        let y = y_of(number);
        let (low, high) = (x_of(ratio.low), x_of(ratio.high));
        document = document
            .add(label(16.0, y + 4.0, "start", &format!("{}, beside {name}", row.what)))
            .add(rectangle(low, y - 5.0, (high - low).max(2.0), 10.0, "#9ecae1"))
            .add(rectangle(x_of(ratio.median) - 2.5, y - 7.0, 5.0, 14.0, "#08519c"))
            .add(label(WIDTH - 16.0, y + 4.0, "end", &format!("{:.2}", ratio.median)));
        if let Some(goal) = row.goal {
            document = document.add(line(x_of(goal), y - 9.0, y + 9.0, "#d94801", 2.0));
        }
    }
    document.add(label(LABELS, bottom + 14.0, "start", "dark: median; light: quartiles; orange: goal"))
}

fn rectangle(x: f64, y: f64, width: f64, height: f64, fill: &str) -> Rectangle {
    Rectangle::new().set("x", x).set("y", y).set("width", width).set("height", height).set("fill", fill)
}

fn line(x: f64, y1: f64, y2: f64, stroke: &str, width: f64) -> Line {
    Line::new().set("x1", x).set("x2", x).set("y1", y1).set("y2", y2).set("stroke", stroke).set("stroke-width", width)
}

fn label(x: f64, y: f64, anchor: &str, content: &str) -> Text {
    Text::new(content).set("x", x).set("y", y).set("text-anchor", anchor)
}
