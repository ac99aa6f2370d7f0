//! The differences that `docs/fidelity.md` names: the first column of its table is the name, the second has the cells.
//! Those below a heading of another kernel show on that one only.

use playdead::kernel::machine;

/// The document, as it was when the tests were built.
const DOCUMENT: &str = include_str!("../../docs/fidelity.md");
const HEADING: &str = "## Known differences";
/// What stands before the release of another kernel.
const OTHER: &str = "### On Linux ";

/// A difference with a name.
pub(crate) struct Known {
    pub(crate) name: String,
    patterns: Vec<String>,
    /// The beginning of the release of the kernel on which alone it shows.
    release: Option<&'static str>,
}

impl Known {
    /// Whether it is about this cell.
    pub(crate) fn covers(&self, cell: &str) -> bool {
        self.patterns.iter().any(|pattern| matches(pattern, cell))
    }
}

/// Those of this kernel.
pub(crate) fn all() -> Vec<Known> {
    let running = machine::release().unwrap();
    let is_here = |known: &Known| known.release.is_none_or(|release| running.starts_with(&format!("{release}.")));
    on_any_kernel().into_iter().filter(is_here).collect()
}

fn on_any_kernel() -> Vec<Known> {
    let (_, section) = DOCUMENT.split_once(HEADING).expect("docs/fidelity.md has its table of known differences");
    let mut release = None;
    let mut known = Vec::new();
    for line in section.lines() {
        if line.starts_with('#') {
            release = line.strip_prefix(OTHER);
        }
        known.extend(row(line, release));
    }
    known
}

/// Every pattern is about some cell, or it is a slip of the pen.
pub(crate) fn check(cells: &[String]) -> Result<(), String> {
    let all = on_any_kernel();
    let patterns = all.iter().flat_map(|known| &known.patterns);
    let idle: Vec<_> = patterns.filter(|pattern| !cells.iter().any(|cell| matches(pattern, cell))).collect();
    if idle.is_empty() {
        Ok(())
    } else {
        Err(format!("no cell of the matrix is meant in docs/fidelity.md by {idle:?}"))
    }
}

/// A row that has patterns of cells, each in backticks.
fn row(line: &str, release: Option<&'static str>) -> Option<Known> {
    let mut columns = line.strip_prefix('|')?.split('|');
    let name = columns.next()?.trim().to_owned();
    let patterns: Vec<_> = columns.next()?.split('`').filter(|text| text.contains('/')).map(str::to_owned).collect();
    (!patterns.is_empty()).then_some(Known { name, patterns, release })
}

/// Part for part: `*` is any, a comma stands between alternatives.
fn matches(pattern: &str, cell: &str) -> bool {
    let parts: Vec<_> = pattern.split('/').collect();
    let of_cell: Vec<_> = cell.split('/').collect();
    assert_eq!(parts.len(), of_cell.len(), "{pattern} in docs/fidelity.md does not have the parts of a cell's name");
    parts.iter().zip(of_cell).all(|(part, of_cell)| *part == "*" || part.split(',').any(|name| name == of_cell))
}
