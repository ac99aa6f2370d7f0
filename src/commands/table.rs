//! Tables for people: no borders, two blanks between columns.

use comfy_table::{Table, presets};

pub(super) fn new<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    table
}

/// A line a row, with no padding behind the last column.
pub(super) fn text(table: &Table) -> String {
    table.trim_fmt() + "\n"
}
