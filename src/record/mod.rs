//! What a scenario leaves behind: a directory that is written as things happen.
//!
//! `events.jsonl` is the truth and is appended to, one line an event; the other views are made of the same events and
//! replaced as a whole, so that none of them is ever seen half written.

mod event;
mod folder;
mod junit;
mod plain;
mod steps;
mod summary;
mod timeline;
mod writer;

pub use event::{Event, FORMAT, Outcome, Stamped, State};
pub use plain::{json, line, plain};
pub use writer::Record;
