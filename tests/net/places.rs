//! Where a rule can stand between the client and the peer.

use std::thread;

use super::{At, Segment};

/// Whether there is a router in between, and where the rule is.
pub(crate) const PLACES: [(bool, At); 5] =
    [(false, At::Client), (false, At::Peer), (false, At::Switch), (true, At::Router), (true, At::Client)];

impl Segment {
    /// With a router in between or without.
    pub(crate) fn of(routed: bool) -> Self {
        if routed { Self::routed() } else { Self::new() }
    }
}

/// Runs for every place at once, each on a segment of its own.
pub(crate) fn at_all(run: impl Fn(&Segment, At) + Sync) {
    let run = &run;
    thread::scope(|scope| {
        for (routed, at) in PLACES {
            scope.spawn(move || run(&Segment::of(routed), at));
        }
    });
}
