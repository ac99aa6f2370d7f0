//! The record as a picture: time runs to the right, a row a node.

use svg::Document;
use svg::node::element::{Group, Line, Rectangle, Text, Title};

use super::event::{Event, Outcome, Stamped, State};
use super::steps::Steps;
use super::summary::{Spans, ends, finish, spans, verdict, views};

/// Where the chart begins, and how wide it is, in pixels.
const LEFT: f64 = 130.0;
const CHART: f64 = 1050.0;
const WIDTH: f64 = LEFT + CHART + 20.0;
/// Font sizes and the height of what stands in one lane.
const SMALL: f64 = 11.0;
const LANE: f64 = 17.0;
const STRIP: f64 = 9.0;
/// Wide enough for the letters of every usual font at the small size.
const LETTER: f64 = 6.7;
/// More lanes than these are not read by anyone: the rest is drawn without its text.
const MOST_LANES: usize = 12;
/// As much text as one thing may have in the chart, and in the list below it.
const LABEL: usize = 46;
const LINE: usize = 150;
/// Where the text of the list below the chart begins.
const TEXT: f64 = 145.0;

const INK: &str = "#222222";
const FAINT: &str = "#888888";

/// Something in a row, from a time to a time.
struct Item {
    from: f64,
    to: f64,
    label: String,
    paint: Paint,
}

/// How a bar looks. The outlines differ, so that kinds are told apart without colours, too.
#[derive(Debug, Clone, Copy)]
struct Paint {
    fill: &'static str,
    outline: f64,
    dashes: &'static str,
}

impl Paint {
    const fn thin(fill: &'static str) -> Self {
        Self { fill, outline: 0.6, dashes: "none" }
    }

    fn bar(self, x: f64, y: f64, width: f64, height: f64) -> Rectangle {
        let bar = Rectangle::new().set("x", round(x)).set("y", round(y)).set("width", round(width));
        let bar = bar.set("height", height).set("fill", self.fill).set("stroke", "#444444");
        bar.set("stroke-width", self.outline).set("stroke-dasharray", self.dashes)
    }
}

struct Row {
    name: String,
    items: Vec<Item>,
    /// How the member did, seen from a place, and when a fault that comes and goes was there.
    strips: Vec<Strip>,
}

/// A name, and marks from a time to a time, each with its height and colour.
type Strip = (String, Vec<(f64, f64, f64, &'static str)>);

/// The picture.
pub(super) fn svg(events: &[Stamped]) -> String {
    let end = events.last().map_or(0.0, |last| last.ms).max(1.0);
    let mut page = Page { y: 0.0, end, body: Group::new() };
    page.head(events);
    let steps = Steps::of(events);
    let rows = rows(events, &steps, end);
    let top = page.y;
    page.y += 20.0;
    for row in &rows {
        page.row(row);
    }
    page.axis(top);
    page.legend();
    page.steps(events, &steps);
    let height = page.y + 10.0;
    let style = format!("font-family: 'DejaVu Sans', Verdana, Arial, sans-serif; font-size: {SMALL}px");
    Document::new()
        .set("viewBox", (0.0, 0.0, WIDTH, height))
        .set("width", WIDTH)
        .set("height", height)
        .set("style", style)
        .add(Rectangle::new().set("width", WIDTH).set("height", height).set("fill", "white"))
        .add(page.body)
        .to_string()
}

struct Page {
    /// Where the next thing goes.
    y: f64,
    /// The time at the right edge, in milliseconds.
    end: f64,
    body: Group,
}

impl Page {
    fn x(&self, ms: f64) -> f64 {
        LEFT + CHART * (ms / self.end).clamp(0.0, 1.0)
    }

    fn add(&mut self, node: impl Into<Box<dyn svg::Node>>) {
        self.body = std::mem::replace(&mut self.body, Group::new()).add(node);
    }

    fn text(&mut self, x: f64, y: f64, text: &str, fill: &str, more: &[(&str, &str)]) {
        let mut node = Text::new(text).set("x", round(x)).set("y", round(y)).set("fill", fill);
        for (name, value) in more {
            node = node.set(*name, *value);
        }
        self.add(node);
    }

    fn head(&mut self, events: &[Stamped]) {
        let Some(Event::Start { scenario, about, seed, .. }) = events.first().map(|first| &first.event) else { return };
        let verdict = verdict(events);
        let passed = finish(events).is_some_and(|(outcome, _)| outcome == Outcome::Passed);
        let colour = if passed { "#1b6e2c" } else { "#a01010" };
        self.text(12.0, 26.0, scenario, INK, &[("font-size", "17"), ("font-weight", "bold")]);
        let wall = events[0].wall.get(..19).unwrap_or_default().replace('T', " ");
        let facts = format!("{verdict}; {:.1} s; seed {seed}; {wall} UTC", self.end / 1e3);
        self.text(12.0, 44.0, &facts, colour, &[("font-weight", "bold")]);
        self.y = 52.0;
        for line in wrapped(about, LINE) {
            self.y += 14.0;
            self.text(12.0, self.y, &line, INK, &[]);
        }
        self.y += 10.0;
    }

    fn row(&mut self, row: &Row) {
        let top = self.y;
        self.y += 4.0;
        let lanes = self.items(&row.items);
        #[expect(clippy::cast_precision_loss, reason = "a dozen")]
        let height = lanes as f64 * LANE;
        self.y += height.max(if row.strips.is_empty() { LANE } else { 0.0 });
        row.strips.iter().for_each(|strip| self.strip(strip));
        self.y += 4.0;
        self.text(12.0, top + 16.0, &row.name, INK, &[("font-weight", "bold"), ("font-size", "12")]);
        let y = round(self.y);
        self.add(line(0.0, y, WIDTH, y, "#bbbbbb"));
    }

    /// Each item in the first lane in which it and its text touch nothing. Gives how many lanes there are.
    fn items(&mut self, items: &[Item]) -> usize {
        let mut taken: Vec<f64> = Vec::new();
        for item in items {
            let (x0, x1) = (self.x(item.from), self.x(item.to).max(self.x(item.from) + 3.0));
            #[expect(clippy::cast_precision_loss, reason = "a few dozen letters")]
            let width = item.label.chars().count() as f64 * LETTER;
            // Before the bar, the text ends at it, however wide its letters are.
            let (text, anchor, left, right) = match () {
                () if width + 6.0 <= x1 - x0 => (x0 + 4.0, "start", x0, x1),
                () if x1 + 4.0 + width <= LEFT + CHART => (x1 + 4.0, "start", x0, x1 + 4.0 + width),
                () if x0 - 4.0 - width >= LEFT => (x0 - 4.0, "end", x0 - 4.0 - width, x1),
                () => (LEFT, "start", LEFT, x1),
            };
            let lane = taken.iter().position(|end| *end + 4.0 <= left).unwrap_or(taken.len());
            let lane = lane.min(MOST_LANES - 1);
            let full = lane < taken.len() && taken[lane] + 4.0 > left;
            if lane == taken.len() {
                taken.push(right);
            }
            taken[lane] = taken[lane].max(right);
            #[expect(clippy::cast_precision_loss, reason = "a dozen")]
            let y = self.y + lane as f64 * LANE;
            let bar = item.paint.bar(x0, y + 1.0, x1 - x0, LANE - 3.0);
            self.add(bar.add(Title::new(item.label.as_str())));
            if !full {
                self.text(text, y + 12.0, &item.label, INK, &[("text-anchor", anchor)]);
            }
        }
        taken.len()
    }

    /// Full height: quorum; half: serves without one; a line: silent. So it can be read without colours.
    fn strip(&mut self, (name, marks): &Strip) {
        let y = self.y + 2.0;
        self.text(LEFT - 6.0, y + 8.0, name, FAINT, &[("text-anchor", "end"), ("font-size", "9")]);
        for (from, to, height, fill) in marks {
            let (x0, x1) = (self.x(*from), self.x(*to));
            let bar = Rectangle::new()
                .set("x", round(x0))
                .set("y", round(y + STRIP - height))
                .set("width", round((x1 - x0).max(0.5)))
                .set("height", *height)
                .set("fill", *fill);
            self.add(bar);
        }
        self.y += STRIP + 4.0;
    }

    fn axis(&mut self, top: f64) {
        let step = tick(self.end);
        let bottom = self.y;
        let mut at = 0.0;
        let mut grid = Group::new();
        while at <= self.end {
            let x = round(self.x(at));
            grid = grid.add(line(x, top + 16.0, x, bottom, "#dddddd"));
            let seconds = at / 1e3;
            let label = if step < 1000.0 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") };
            let label = Text::new(label).set("x", x).set("y", round(top + 12.0)).set("text-anchor", "middle");
            grid = grid.add(label.set("fill", FAINT));
            at += step;
        }
        // Behind everything else.
        let front = std::mem::replace(&mut self.body, grid);
        self.add(front);
    }

    fn legend(&mut self) {
        self.y += 18.0;
        let mut x = 12.0;
        let states = [
            (State::Quorum, "the cluster answers through it"),
            (State::Live, "serves, but has no quorum"),
            (State::Silent, "silent"),
        ];
        for (state, text) in states {
            let (height, fill) = look_of(state);
            let mark =
                Rectangle::new().set("x", x).set("y", round(self.y - height)).set("width", 22).set("height", height);
            self.add(mark.set("fill", fill));
            self.text(x + 28.0, self.y, text, INK, &[]);
            x += 240.0;
        }
        for (paint, text) in [(FAULT, "fault"), (REAL, "for real"), (LEADS, "leads"), (LOOK, "looks and commands")] {
            self.add(paint.bar(x, self.y - 10.0, 22.0, 12.0));
            self.text(x + 28.0, self.y, text, INK, &[]);
            x += 100.0;
        }
        self.y += 12.0;
    }

    /// What the numbers of the first row mean.
    fn steps(&mut self, events: &[Stamped], steps: &Steps) {
        for begin in events {
            let Event::Begin { text, .. } = &begin.event else { continue };
            self.y += 15.0;
            let (mark, fill, words) = match steps.ended(begin).map(|ended| ended.failed) {
                None => ("…", FAINT, text.clone()),
                Some(None) => ("✓", "#1b6e2c", text.clone()),
                Some(Some(why)) => ("✗", "#a01010", format!("{text}: {why}")),
            };
            self.text(12.0, self.y, mark, fill, &[]);
            self.text(28.0, self.y, begin.step.as_deref().unwrap_or_default(), INK, &[]);
            let at = format!("{:.2} s", begin.ms / 1e3);
            self.text(TEXT - 12.0, self.y, &at, FAINT, &[("text-anchor", "end")]);
            for (index, line) in wrapped(&words, LINE).iter().enumerate() {
                self.y += if index > 0 { 13.0 } else { 0.0 };
                self.text(if index > 0 { TEXT + 16.0 } else { TEXT }, self.y, line, INK, &[]);
            }
        }
    }
}

const FAULT: Paint = Paint { fill: "#f6b7a8", outline: 2.0, dashes: "none" };
const REAL: Paint = Paint { fill: "#e2d0ee", outline: 2.0, dashes: "4 2" };
const LEADS: Paint = Paint::thin("#fbe9a8");
const LOOK: Paint = Paint { fill: "#d3e6f8", outline: 1.2, dashes: "1.5 1.5" };
const STEP: Paint = Paint::thin("#e4e4e4");
const MET: Paint = Paint::thin("#c9e8cf");
const UNMET: Paint = Paint { fill: "#e06060", outline: 2.0, dashes: "none" };

fn look_of(state: State) -> (f64, &'static str) {
    match state {
        State::Quorum => (STRIP, "#5fae6e"),
        State::Live => (STRIP / 2.0, "#e0a030"),
        State::Silent => (1.5, "#a01010"),
    }
}

fn rows(events: &[Stamped], steps: &Steps, end: f64) -> Vec<Row> {
    let nodes = match events.first().map(|first| &first.event) {
        Some(Event::Start { nodes, .. }) => nodes.clone(),
        _ => Vec::new(),
    };
    let steps = Row { name: "steps".into(), items: of_steps(events, steps, end), strips: Vec::new() };
    let of_nodes = nodes.iter().map(|node| Row {
        name: node.clone(),
        items: of_node(events, node, end),
        strips: strips(events, node, end),
    });
    let expectations = Row { name: "expectations".into(), items: of_expectations(events), strips: Vec::new() };
    [steps].into_iter().chain(of_nodes).chain([expectations]).collect()
}

fn of_steps(events: &[Stamped], steps: &Steps, end: f64) -> Vec<Item> {
    let begun = events.iter().filter(|stamped| matches!(stamped.event, Event::Begin { .. }));
    let item = |begin: &Stamped| {
        let ended = steps.ended(begin);
        let failed = ended.as_ref().is_some_and(|ended| ended.failed.is_some());
        let paint = if failed { UNMET } else { STEP };
        let label = begin.step.clone().unwrap_or_default();
        Item { from: begin.ms, to: ended.map_or(end, |ended| ended.ms), label, paint }
    };
    begun.map(item).collect()
}

fn of_node(events: &[Stamped], node: &str, end: f64) -> Vec<Item> {
    let mut items = Vec::new();
    for stamped in events {
        let from = stamped.ms;
        // When the first later event ends it.
        let until = |ends: &dyn Fn(&Event) -> bool| {
            events.iter().find(|other| other.ms > from && ends(&other.event)).map_or(end, |other| other.ms)
        };
        match &stamped.event {
            Event::Fault { text, nodes, .. } if nodes.iter().any(|broken| broken == node) => {
                let to = ends(events, stamped).unwrap_or(end);
                items.push(Item { from, to, label: short(text), paint: FAULT });
            }
            Event::Node { node: touched, did, .. } if touched == node => {
                let (label, undone) = match did.as_str() {
                    "kill" => ("process killed", "start"),
                    "stop" => ("process stopped", "start"),
                    "pause" => ("process paused", "resume"),
                    "unplug" => ("unplugged", "plug"),
                    _ => continue,
                };
                let ends = |event: &Event| matches!(event, Event::Node { node: other, did, .. } if other == node && did == undone);
                items.push(Item { from, to: until(&ends), label: label.into(), paint: REAL });
            }
            Event::Leader { leader: Some(leader), term, asked_ms } if leader == node => {
                let term = term.map_or(String::new(), |term| format!(", term {term}"));
                let next = events.iter().filter(|other| other.ms > from).find_map(|other| match &other.event {
                    Event::Leader { asked_ms, .. } => Some(*asked_ms),
                    _ => None,
                });
                let (from, to) = (*asked_ms, next.unwrap_or(end));
                items.push(Item { from, to, label: format!("leads{term}"), paint: LEADS });
            }
            Event::Command { node: Some(place), took_ms, said, .. } if place == node && !said.is_empty() => {
                items.push(Item { from: (from - took_ms).max(0.0), to: from, label: short(said), paint: LOOK });
            }
            Event::Probe { from: place, text, report } if place == node => {
                let took = report["took_ms"].as_f64().unwrap_or(0.0);
                items.push(Item { from: (from - took).max(0.0), to: from, label: short(text), paint: LOOK });
            }
            _ => {}
        }
    }
    items.sort_by(|a, b| a.from.total_cmp(&b.from));
    items
}

fn strips(events: &[Stamped], node: &str, end: f64) -> Vec<Strip> {
    let places = views(events).into_iter().filter(|(member, _)| *member == node).map(|(_, place)| place);
    let named = |place: Option<&str>| place.map_or("itself".to_owned(), |place| format!("from {place}"));
    let look = |(from, to, state)| {
        let (height, fill) = look_of(state);
        (from, to, height, fill)
    };
    let looks = |spans: Spans| spans.into_iter().map(look).collect();
    let views = places.map(|place| (named(place), looks(spans(events, node, place))));
    let flaps = events.iter().filter_map(|stamped| match &stamped.event {
        Event::Fault { name, nodes, .. } if nodes.iter().any(|broken| broken == node) => flap(events, name, end),
        _ => None,
    });
    flaps.chain(views).collect()
}

/// When a fault that comes and goes was there.
fn flap(events: &[Stamped], flapping: &str, end: f64) -> Option<Strip> {
    let edges = events.iter().filter_map(|stamped| match &stamped.event {
        Event::Edge { name, down, .. } if name == flapping => Some((stamped.ms, *down)),
        Event::Healed { name, .. } | Event::Over { name } if name == flapping => Some((stamped.ms, false)),
        _ => None,
    });
    let edges: Vec<_> = edges.collect();
    let ends = edges.iter().skip(1).map(|(ms, _)| *ms).chain([end]);
    let downs = edges.iter().zip(ends).filter(|((_, down), _)| *down);
    let marks: Vec<_> = downs.map(|((from, _), to)| (*from, to, STRIP, "#d9694f")).collect();
    (!marks.is_empty()).then(|| ("comes and goes".to_owned(), marks))
}

fn of_expectations(events: &[Stamped]) -> Vec<Item> {
    let expectation = |stamped: &Stamped| match &stamped.event {
        Event::Expect { what, met, took_ms, .. } => Some(Item {
            from: (stamped.ms - took_ms).max(0.0),
            to: stamped.ms,
            label: short(&format!("{} {what}", if *met { "✓" } else { "✗" })),
            paint: if *met { MET } else { UNMET },
        }),
        _ => None,
    };
    let mut items: Vec<_> = events.iter().filter_map(expectation).collect();
    items.sort_by(|a, b| a.from.total_cmp(&b.from));
    items
}

fn line(x1: f64, y1: f64, x2: f64, y2: f64, stroke: &str) -> Line {
    let ends = [("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2)];
    ends.into_iter().fold(Line::new(), |line, (name, value)| line.set(name, value)).set("stroke", stroke)
}

/// From one mark of the axis to the next, in milliseconds: at most a dozen marks.
fn tick(end: f64) -> f64 {
    let mut step = 100.0;
    for factor in [2.0, 2.5, 2.0].into_iter().cycle() {
        if end / step <= 12.0 {
            break;
        }
        step *= factor;
    }
    step
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn short(text: &str) -> String {
    if text.chars().count() <= LABEL {
        return text.to_owned();
    }
    text.chars().take(LABEL - 1).chain(['…']).collect()
}

/// Lines of at most so many letters, broken between words.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: f64, event: Event) -> Stamped {
        Stamped { ms, wall: "2026-11-30T00:00:00.000000Z".into(), step: Some("1".into()), event }
    }

    fn begun() -> Stamped {
        let start = Event::Start {
            format: super::super::FORMAT,
            scenario: "a <b> & \"c\"".into(),
            about: String::new(),
            seed: 1,
            nodes: vec!["etcd1".into()],
            plan: Vec::new(),
        };
        at(0.0, start)
    }

    #[test]
    fn what_would_touch_goes_into_another_lane() {
        let mut page = Page { y: 0.0, end: 1000.0, body: Group::new() };
        let item = |from: f64, to: f64| Item { from, to, label: "ten words".into(), paint: FAULT };
        assert_eq!(page.items(&[item(0.0, 500.0), item(600.0, 1000.0)]), 1);
        assert_eq!(page.items(&[item(0.0, 500.0), item(400.0, 1000.0)]), 2);
        // Its text stands behind a short one, and before it at the right edge.
        assert_eq!(page.items(&[item(0.0, 10.0), item(30.0, 500.0)]), 2);
        assert_eq!(page.items(&[item(0.0, 930.0), item(990.0, 1000.0)]), 2);
        let many: Vec<_> = (0..50).map(|_| item(0.0, 1000.0)).collect();
        assert_eq!(page.items(&many), MOST_LANES);
    }

    #[test]
    fn a_picture_has_no_character_that_xml_forbids() {
        let text =
            super::super::plain(&svg(&[begun(), at(5.0, Event::Begin { text: "\u{1b}[31m\0".into(), late_ms: None })]));
        assert!(
            text.contains("\u{fffd}[31m\u{fffd}") && !text.chars().any(|c| c.is_control() && c != '\n'),
            "{text:?}"
        );
    }

    #[test]
    fn it_is_well_formed_whatever_the_texts_are() {
        let text = svg(&[begun(), at(5.0, Event::Begin { text: "run: a && b > c".into(), late_ms: None })]);
        assert!(text.contains("a &lt;b&gt; &amp;"), "{text}");
        assert!(text.contains("a &amp;&amp; b &gt; c"), "{text}");
    }

    #[test]
    fn marks_of_the_axis_are_round_and_few() {
        for (end, expected) in [(900.0, 100.0), (2000.0, 200.0), (10_000.0, 1000.0), (60_000.0, 5000.0)] {
            assert!((tick(end) - expected).abs() < 1e-6, "{end}: {}", tick(end));
        }
    }
}
