//! Standard output: the result only, and a reader that has gone away is no error.
//!
//! Names of namespaces, devices, containers and rules are anybody's to choose: what would make a terminal do something is
//! printed by nobody but [`afresh`].

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

use crate::record::{self, plain};

/// Prints all of `text`. That nobody reads it any more (`| head`) is the reader's choice; a full disk is an error.
pub(super) fn print(text: &str) -> Result<()> {
    print_while_read(text).map(drop)
}

/// The same, and tells whether somebody still reads.
pub(super) fn print_while_read(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    written(out.write_all(plain(text).as_bytes()).and_then(|()| out.flush()))
}

/// One look of several (`watch`) or the only one, as a document or as text; tells whether somebody still reads.
pub(super) fn look(
    [json, watch]: [bool; 2],
    document: impl FnOnce() -> serde_json::Value,
    text: impl FnOnce() -> String,
) -> Result<bool> {
    match (json, watch) {
        (true, _) => print_while_read(&self::json(&document())),
        (false, true) => afresh(&text()),
        (false, false) => print_while_read(&text()),
    }
}

/// In place of what a terminal shows by now.
fn afresh(text: &str) -> Result<bool> {
    if super::on_terminal() {
        // Clear the screen, and to the top of it.
        written(io::stdout().write_all(b"\x1b[2J\x1b[H"))?;
    }
    print_while_read(text)
}

/// Whether somebody still reads what was written there.
pub(super) fn written(result: io::Result<()>) -> Result<bool> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true).context("cannot write the result to standard output"),
    }
}

/// Tells the user something beside the result.
pub(super) fn note(text: &str) {
    error(&format!("note: {text}"));
}

/// One line on standard error. Where that cannot be written to, the exit code has to do.
pub(super) fn error(text: &str) {
    let _ = writeln!(io::stderr().lock(), "playdead: {}", record::line(text));
}

/// Prints one JSON document.
pub(super) fn print_json(document: &serde_json::Value) -> Result<()> {
    print(&json(document))
}

/// One JSON document as it is printed.
pub(super) fn json(document: &serde_json::Value) -> String {
    record::json(&document.to_string()) + "\n"
}
