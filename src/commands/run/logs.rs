//! What the nodes' logs say while a scenario plays.

use std::path::PathBuf;

use super::world::World;
use crate::cluster;
use crate::record::Record;

/// What the nodes' logs say from now on.
pub(super) struct Logs(Vec<(String, PathBuf, u64)>);

impl Logs {
    pub(super) fn mark(world: &World) -> Self {
        let log = |seat: &cluster::Seat| {
            let path = seat.node.log.clone().filter(|path| path.is_file())?;
            let len = path.metadata().ok()?.len();
            Some((seat.node.name.clone(), path, len))
        };
        Self(world.seats.iter().filter_map(log).collect())
    }

    pub(super) fn copy(&self, record: &Record) {
        for (node, path, from) in &self.0 {
            let text = std::fs::read(path).unwrap_or_default();
            // One that is shorter now was begun anew.
            let from = usize::try_from(*from).ok().filter(|from| *from <= text.len()).unwrap_or(0);
            record.file(&format!("logs/{node}.log"), &text[from..]);
        }
    }
}
