//! Watches the cluster while the scenario plays, and records whatever changes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::stop::Stop;
use super::world::World;
use crate::cluster::{self, Live, Quorum, Snapshot, View};
use crate::record::{Event, Record, State};
use crate::scenario::file::Telemetry;

/// Looks again and again until it is over; the last look ends in its own time, unless a signal comes.
pub(super) fn watch(
    world: &World,
    how: &Telemetry,
    mut known: Known,
    record: &Record,
    [over, stop]: [&Stop; 2],
) -> Result<()> {
    while over.sleep_until(known.looked + how.every.0.max(Duration::from_millis(10))) {
        known.look(world, how, record, stop)?;
    }
    Ok(())
}

/// What was told last.
pub(super) struct Known {
    looked: Instant,
    members: HashMap<(String, Option<String>), (State, Option<bool>)>,
    leader: Option<(Option<String>, Option<u64>)>,
}

impl Known {
    /// The first look.
    pub(super) fn first(world: &World, how: &Telemetry, record: &Record, stop: &Stop) -> Result<Self> {
        let mut known = Self { looked: Instant::now(), members: HashMap::new(), leader: None };
        known.look(world, how, record, stop)?;
        Ok(known)
    }

    fn look(&mut self, world: &World, how: &Telemetry, record: &Record, stop: &Stop) -> Result<()> {
        self.looked = Instant::now();
        if let Some(seen) = world.look(&how.from.get_ref().0, how.patience.0, stop)? {
            self.tell(&seen, record);
        }
        Ok(())
    }

    fn tell(&mut self, seen: &Snapshot, record: &Record) {
        let asked_ms = record.ms(self.looked);
        for view in &seen.views {
            let now = (state(view), view.able.as_ref().map(cluster::Able::is_enough));
            let key = (view.node.clone(), view.from.clone());
            if self.members.insert(key, now) != Some(now) {
                let ((node, from), (state, able)) = ((view.node.clone(), view.from.clone()), now);
                record.add(None, Event::Member { node, from, state, asked_ms, able, why: why(view) });
            }
        }
        let leads = (seen.leader().map(str::to_owned), seen.term());
        if self.leader.as_ref() != Some(&leads) {
            self.leader = Some(leads.clone());
            record.add(None, Event::Leader { leader: leads.0, term: leads.1, asked_ms });
        }
    }
}

pub(super) fn state(view: &View) -> State {
    match () {
        () if view.has_quorum() => State::Quorum,
        () if view.is_live() => State::Live,
        () => State::Silent,
    }
}

/// Why it is not better.
pub(super) fn why(view: &View) -> Option<String> {
    match (&view.answer.quorum, &view.answer.live) {
        (Quorum::Yes, _) => None,
        (_, Live::No(why)) | (Quorum::No(why) | Quorum::Unknown(why), _) => Some(why.clone()),
    }
}
