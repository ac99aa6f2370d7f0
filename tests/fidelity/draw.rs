//! The matrix as a picture that can be read on paper: colour says the same as the numbers.

use svg::Document;
use svg::node::element::{Group, Rectangle, Text};

use crate::places::{Family, Location, Vantage};
use crate::report::{Found, Tally, columns, rows};

const MARGIN: usize = 16;
const LABELS: usize = 400;
const HEAD: usize = 108;
const CELL: (usize, usize) = (46, 28);
/// Between two locations.
const GAP: usize = 12;

/// Fill, and what it stands for.
const EQUAL: (&str, &str) = ("#a6d8a8", "equal in every probe");
const NAMED: (&str, &str) = ("#ffe08a", "differs, by a name in docs/fidelity.md");
const WRONG: (&str, &str) = ("#ef8a80", "differs");
const NEVER: (&str, &str) = ("#ffffff", "? never run");
const NONE: (&str, &str) = ("#e4e4e4", "there is no such failure");

/// Draws what was found.
pub(crate) fn picture(found: &Found) -> Document {
    let columns = columns();
    let (width, height) = (x_of(&columns, columns.len()) + MARGIN, HEAD + rows().len() * CELL.1 + 84);
    let mut document = Document::new()
        .set("viewBox", (0, 0, width, height))
        .set("font-family", "sans-serif")
        .set("font-size", 13)
        .add(rectangle((0, 0), (width, height), "#ffffff", "none"))
        .add(text((MARGIN, 30), "start", "Simulated beside real: probes equal, of how many").set("font-size", 18))
        .add(heads(&columns));
    for (number, (name, what)) in rows().into_iter().enumerate() {
        document = document.add(row(found, &columns, HEAD + number * CELL.1, name, what));
    }
    let below = HEAD + rows().len() * CELL.1;
    document.add(legend(below + 14)).add(text((MARGIN, below + 64), "start", &found.summary()))
}

type Column = (Location, Vantage, Family);

fn x_of(columns: &[Column], number: usize) -> usize {
    let gaps = columns.windows(2).take(number).filter(|pair| pair[0].0 != pair[1].0).count();
    MARGIN + LABELS + number * CELL.0 + gaps * GAP
}

/// Location, vantage and family above each other, each over what it spans.
fn heads(columns: &[Column]) -> Group {
    let mut group = Group::new();
    for (number, column) in columns.iter().enumerate() {
        let x = x_of(columns, number);
        let is_first = |same: fn(&Column, &Column) -> bool| number == 0 || !same(&columns[number - 1], column);
        if is_first(|a, b| a.0 == b.0) {
            group = group.add(text((x, HEAD - 48), "start", column.0.name()).set("font-weight", "bold"));
        }
        if is_first(|a, b| (a.0, a.1) == (b.0, b.1)) {
            group = group.add(text((x, HEAD - 28), "start", column.1.name()));
        }
        group = group.add(text((x + CELL.0 / 2, HEAD - 8), "middle", column.2.name()));
    }
    group
}

fn row(found: &Found, columns: &[Column], y: usize, name: &str, what: &str) -> Group {
    let mut group = Group::new().add(text((MARGIN, y + 19), "start", what));
    for (number, column) in columns.iter().enumerate() {
        let tally = found.tally(name, *column);
        let x = x_of(columns, number);
        group = group.add(rectangle((x, y), CELL, fill(tally).0, "#666666"));
        group = group.add(text((x + CELL.0 / 2, y + 19), "middle", &tally.text()));
    }
    group
}

fn fill(tally: Tally) -> (&'static str, &'static str) {
    match tally {
        _ if tally.cells() == 0 => NONE,
        Tally { wrong: 1.., .. } => WRONG,
        Tally { missing: 1.., .. } => NEVER,
        Tally { named: 1.., .. } => NAMED,
        _ => EQUAL,
    }
}

fn legend(y: usize) -> Group {
    let mut group = Group::new();
    for (number, (colour, meaning)) in [EQUAL, NAMED, WRONG, NEVER, NONE].into_iter().enumerate() {
        let x = MARGIN + number * 238;
        group = group.add(rectangle((x, y), (18, 18), colour, "#666666"));
        group = group.add(text((x + 24, y + 14), "start", meaning).set("font-size", 11));
    }
    group
}

fn rectangle(at: (usize, usize), size: (usize, usize), fill: &str, stroke: &str) -> Rectangle {
    let rectangle = Rectangle::new().set("x", at.0).set("y", at.1).set("width", size.0).set("height", size.1);
    rectangle.set("fill", fill).set("stroke", stroke)
}

fn text(at: (usize, usize), anchor: &str, content: &str) -> Text {
    Text::new(content).set("x", at.0).set("y", at.1).set("text-anchor", anchor)
}
