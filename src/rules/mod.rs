//! What is written into a namespace: nftables objects as plain values that print as `nft -f` text.
//!
//! [`compile()`] turns a fault of the model into a [`Ruleset`]. Nothing here does I/O: `--dry-run` prints
//! the value, the netlink encoder sends the very same one, and a test proves both equal with `nft` as
//! witness.

mod compile;
mod key;
mod sets;
mod text;
mod trial;
mod value;

pub use compile::{COVERED_SET, FIRST, FORGED_MARK, ICMP_REST, compile, uncovered};
pub use key::{Base, Key, Kind as KeyKind};
pub use sets::{GATE_SET, READ_BACK, read_back, renewed};
pub use trial::{Facility, Source, facilities, reject_trial};
pub use value::{
    Chain, Element, Entry, Family, Hook, IcmpCode, Order, Per, Rate, Reject, Rule, Ruleset, Set, Span, Stmt, Table,
    Update, Verdict,
};
