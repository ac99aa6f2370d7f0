//! Removes a lab, whole or half made.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};

use super::nodes::{self, Node};
use super::plan::{Role, netns_name};
use super::process;
use super::{check_name, log_directory};
use crate::kernel::netns::{NAMES, NetNs};

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
    errors.extend(remove_unmarked(lab).err().map(|error| format!("{error:#}")));
    let logs = remove_files(lab, purge).unwrap_or_else(|error| {
        errors.push(format!("{error:#}"));
        None
    });
    ensure!(errors.is_empty(), anyhow!("cannot remove all of the lab {lab}: {}", errors.join("; ")));
    Ok(Removed { nodes: nodes.into_iter().map(|node| node.name).collect(), logs })
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

/// Removes what an `up` left that was killed before it could write a mark.
fn remove_unmarked(lab: &str) -> Result<()> {
    let named = |role: Role| Path::new(NAMES).join(netns_name(lab, role)).exists();
    for role in Role::every().filter(|role| nodes::is_nobodys(lab, *role) && !named(*role)) {
        let etc = nodes::etc(lab, role);
        gone(fs::remove_dir_all(&etc)).with_context(|| format!("cannot remove {}", etc.display()))?;
    }
    Ok(())
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
        if !node.join("log").exists() {
            gone(fs::remove_dir(&node))?;
        }
    }
    if fs::read_dir(directory)?.next().is_none() { gone(fs::remove_dir(directory)) } else { Ok(()) }
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
