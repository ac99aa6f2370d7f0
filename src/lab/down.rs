//! Removes a lab, whole or half made.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};

use super::nodes::{self, Node};
use super::plan::{Layout, Role};
use super::process;
use super::{check_name, log_directory};
use crate::kernel::netns::NetNs;

/// What [`down`] found and left.
#[derive(Debug)]
pub struct Removed {
    /// The names of the nodes that were removed; none when there was no such lab.
    pub nodes: Vec<String>,
    /// Where the logs of its etcd processes still are.
    pub logs: Option<PathBuf>,
}

/// Removes a lab: kills what runs in its namespaces, deletes those, their `/etc/netns` entries and etcd's data.
/// The logs stay unless `purge`. No such lab is success.
///
/// # Errors
/// Everything that could not be removed, in one error; what could be is.
pub fn down(lab: &str, purge: bool) -> Result<Removed> {
    check_name(lab)?;
    let nodes = nodes::nodes(lab);
    let mut errors = Vec::new();
    for node in &nodes {
        errors.extend(remove_node(node).err().map(|error| format!("{}: {error:#}", node.name)));
    }
    let logs = remove_files(lab, purge).unwrap_or_else(|error| {
        errors.push(format!("{error:#}"));
        None
    });
    ensure!(errors.is_empty(), anyhow!("cannot remove all of the lab {lab}: {}", errors.join("; ")));
    Ok(Removed { nodes: nodes.into_iter().map(|node| node.name).collect(), logs })
}

/// Removes what a failed [`up`](super::up) has made, also the claim to the name without a mark yet.
///
/// # Errors
/// Everything that could not be removed.
pub(super) fn abandon(layout: &Layout) -> Result<()> {
    down(&layout.name, false)?;
    let claim = nodes::etc(&layout.name, Role::Switch);
    gone(fs::remove_dir(&claim)).with_context(|| format!("cannot remove {}", claim.display()))
}

/// The mark goes last, and only once the rest is gone: until then `down` can be repeated.
fn remove_node(node: &Node) -> Result<()> {
    // One that cannot be opened was never mounted and has no processes.
    let killed = node.namespace().map_or(Ok(()), |ns| process::kill_all(&ns));
    let deleted = NetNs::delete(&node.netns);
    killed?;
    deleted?;
    let etc = nodes::etc(&node.lab, node.role);
    gone(fs::remove_dir_all(&etc)).with_context(|| format!("cannot remove {}", etc.display()))
}

/// Gives the directory that the logs are in, if there are any.
fn remove_files(lab: &str, purge: bool) -> Result<Option<PathBuf>> {
    let directory = log_directory(lab);
    let removed = if purge { gone(fs::remove_dir_all(&directory)) } else { keep_logs(&directory) };
    removed.with_context(|| format!("cannot clear {}", directory.display()))?;
    Ok(directory.is_dir().then_some(directory))
}

fn keep_logs(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let node = entry?.path();
        gone(fs::remove_dir_all(node.join("data")))?;
        gone(fs::remove_file(node.join("flags")))?;
    }
    Ok(())
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
