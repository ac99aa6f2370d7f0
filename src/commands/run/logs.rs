//! What the nodes' logs say while a scenario plays.

use std::path::PathBuf;

use super::world::World;
use crate::cluster;
use crate::kernel::file::open_plain;
use crate::record::Record;

/// What the nodes' logs say from now on.
pub(super) struct Logs(Vec<(String, PathBuf, u64)>);

impl Logs {
    pub(super) fn mark(world: &World) -> Self {
        let log = |seat: &cluster::Seat| {
            let path = seat.node.log.clone()?;
            // One that is not there yet may be written by a process that is started meanwhile.
            let len = path.metadata().map_or(0, |file| file.len());
            Some((seat.node.name.clone(), path, len))
        };
        Self(world.seats.iter().filter_map(log).collect())
    }

    pub(super) fn copy(&self, record: &Record) {
        for (node, path, from) in &self.0 {
            let Ok(log) = open_plain(path) else { continue };
            // One that is shorter now was begun anew.
            let from = log.metadata().map_or(0, |now| if now.len() < *from { 0 } else { *from });
            record.copy(&format!("logs/{node}.log"), &log, from);
        }
    }
}
