//! What the last run found: as a table, as a document, and drawn.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table};
use serde_json::json;

use crate::cell::{Cell, Result};
use crate::failures;
use crate::places::{Family, Location, Vantage};
use crate::{draw, row};

/// Where the picture goes, if anywhere.
const PICTURE: &str = "PLAYDEAD_FIDELITY_SVG";
/// More named differences than this are too many, in per cent of the cells.
const LIMIT: f64 = 3.0;

/// What the probes of one vantage and family showed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) equal: usize,
    /// Different, and named.
    pub(crate) named: usize,
    /// Different.
    pub(crate) wrong: usize,
    /// Never measured.
    pub(crate) missing: usize,
}

impl Tally {
    pub(crate) fn cells(self) -> usize {
        self.equal + self.named + self.wrong + self.missing
    }

    fn named_percent(self) -> f64 {
        let number = |count: usize| f64::from(u32::try_from(count).unwrap());
        number(self.named) * 100.0 / number(self.cells())
    }

    fn add(&mut self, result: Option<&Result>) {
        let count = match result {
            None => &mut self.missing,
            Some(result) if result.is_equal() => &mut self.equal,
            Some(result) if result.named.is_some() => &mut self.named,
            Some(_) => &mut self.wrong,
        };
        *count += 1;
    }

    /// How many are equal, of how many; what was never run has no number.
    pub(crate) fn text(self) -> String {
        match self {
            Self { equal: 0, named: 0, wrong: 0, missing: 0 } => String::new(),
            _ if self.missing == self.cells() => "?".to_owned(),
            _ => format!("{}/{}", self.equal, self.cells()),
        }
    }
}

/// The columns.
pub(crate) fn columns() -> Vec<(Location, Vantage, Family)> {
    let of = |location: Location| location.vantages().iter().map(move |vantage| (location, *vantage));
    let places = Location::ALL.into_iter().flat_map(of);
    places.flat_map(|(location, vantage)| Family::ALL.map(|family| (location, vantage, family))).collect()
}

/// The rows: every failure by its name, and what happens in it.
pub(crate) fn rows() -> Vec<(&'static str, &'static str)> {
    let mut rows: Vec<_> = failures::ALL.iter().map(|failure| (failure.name, failure.what)).collect();
    // A failure that etcd's client looks at is in the list twice, one behind the other.
    rows.dedup();
    rows
}

/// Everything that is known of the last run.
pub(crate) struct Found {
    results: BTreeMap<String, Result>,
}

impl Found {
    fn read(directory: &Path) -> Self {
        let mut results = BTreeMap::new();
        for file in std::fs::read_dir(directory).into_iter().flatten() {
            for line in std::fs::read_to_string(file.unwrap().path()).unwrap().lines() {
                let result: Result = serde_json::from_str(line).unwrap();
                results.insert(result.cell.clone(), result);
            }
        }
        Self { results }
    }

    /// Of one row and column.
    pub(crate) fn tally(&self, failure: &str, column: (Location, Vantage, Family)) -> Tally {
        self.count(|cell| cell.failure == failure && (cell.location, cell.vantage, cell.family) == column)
    }

    fn count(&self, wanted: impl Fn(&Cell) -> bool) -> Tally {
        let mut tally = Tally::default();
        for cell in Cell::all().filter(wanted) {
            tally.add(self.results.get(&cell.name()));
        }
        tally
    }

    fn repeats(&self) -> u32 {
        self.results.values().map(|result| result.repeats).sum()
    }

    /// One line that says whether the promise is kept.
    pub(crate) fn summary(&self) -> String {
        let tally = self.all();
        let (Tally { equal, named, wrong, missing }, cells, percent) = (tally, tally.cells(), tally.named_percent());
        format!(
            "{cells} cells: {equal} equal, {named} differ by name ({percent:.1} %), {wrong} differ without one, \
             {missing} never run; measured again: {}",
            self.repeats()
        )
    }

    fn all(&self) -> Tally {
        self.count(|_| true)
    }

    fn is_kept(&self) -> bool {
        let tally = self.all();
        tally.wrong == 0 && tally.missing == 0 && tally.named_percent() <= LIMIT
    }

    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
        let heading = |(location, vantage, family): &(Location, Vantage, Family)| {
            format!("{}\n{}\n{}", location.name(), vantage.name(), family.name())
        };
        table.set_header(std::iter::once("failure".to_owned()).chain(columns().iter().map(heading)));
        for (name, _) in rows() {
            let cells = columns().into_iter().map(|column| self.tally(name, column).text());
            table.add_row(std::iter::once(name.to_owned()).chain(cells));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut lines = vec![table.to_string(), "probes equal / probes; ?: never run".to_owned()];
        lines.extend(self.results.values().filter_map(Result::wrong));
        lines.push(self.summary());
        lines.join("\n")
    }

    fn document(&self) -> String {
        let Tally { equal, named, wrong, missing } = self.all();
        let never_run: Vec<_> =
            Cell::all().map(|cell| cell.name()).filter(|name| !self.results.contains_key(name)).collect();
        let cells: Vec<_> = self.results.values().collect();
        let document = json!({
            "version": 1, "kept": self.is_kept(), "equal": equal, "named": named, "different": wrong,
            "missing": missing, "repeats": self.repeats(), "never_run": never_run, "cells": cells,
        });
        serde_json::to_string_pretty(&document).unwrap()
    }
}

/// Prints what the last run found, if that is what is wanted, and draws it.
pub(crate) fn print(scope: &str) -> Option<ExitCode> {
    if !matches!(scope, "table" | "json") {
        return None;
    }
    let directory = std::env::var_os(row::DIRECTORY).expect("the directory of the results is named");
    let found = Found::read(Path::new(&directory));
    println!("{}", if scope == "json" { found.document() } else { found.table() });
    if let Some(picture) = std::env::var_os(PICTURE) {
        svg::save(picture, &draw::picture(&found)).unwrap();
    }
    Some(if found.is_kept() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
