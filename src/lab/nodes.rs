//! Which labs and nodes there are, and where they keep their files.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use super::plan::{self, DEFAULT_NAME, Layout, MOST_MEMBERS, Role};
use crate::kernel::netns::{ETC, NetNs};

/// Below it every lab has a directory, and in that every etcd node one: with `data`, `flags` and `log`.
const FILES: &str = "/var/lib/playdead";

/// A node of a lab that is there, or was half made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The lab's name.
    pub lab: String,
    /// Its own name, as in the lab's hosts file.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Its network namespace as `ip netns` names it: `LAB-NODE`.
    pub netns: String,
    /// Its addresses, IPv4 before IPv6 on each segment; the switch has none.
    pub addresses: Vec<IpAddr>,
}

impl Node {
    /// The node of that role in a lab of that shape.
    pub(super) fn of(layout: &Layout, role: Role) -> Self {
        Self {
            lab: layout.name.clone(),
            name: role.to_string(),
            role,
            netns: plan::netns_name(&layout.name, role),
            addresses: layout.addresses(role),
        }
    }

    /// Its network namespace.
    ///
    /// # Errors
    /// When the namespace is gone, or cannot be opened.
    pub fn namespace(&self) -> Result<NetNs> {
        NetNs::named(&self.netns)
    }

    /// Where its files are.
    pub(super) fn directory(&self) -> PathBuf {
        log_directory(&self.lab).join(&self.name)
    }

    /// Where what etcd says goes.
    pub(super) fn log(&self) -> PathBuf {
        self.directory().join("log")
    }
}

/// The directory of a lab's logs, which outlive it: `NODE/log` below this.
pub fn log_directory(lab: &str) -> PathBuf {
    Path::new(FILES).join(lab)
}

/// The labs on this machine, sorted, with those that were only half made or half removed.
pub fn labs() -> Vec<String> {
    let Ok(entries) = fs::read_dir(ETC) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut labs: Vec<_> = names
        .filter_map(|name| {
            let (lab, role) = plan::split_netns_name(&name)?;
            is_ours(lab, role).then(|| lab.to_owned())
        })
        .collect();
    labs.sort();
    labs.dedup();
    labs
}

/// The nodes of a lab, the switch first; none when there is no such lab.
pub fn nodes(lab: &str) -> Vec<Node> {
    let roles: Vec<_> = Role::every().filter(|role| is_ours(lab, *role)).collect();
    let routed = roles.contains(&Role::Router);
    let layout = Layout { name: lab.to_owned(), members: MOST_MEMBERS, routed };
    roles.into_iter().map(|role| Node::of(&layout, role)).collect()
}

/// The running lab that is meant: the named one, else the one named [`DEFAULT_NAME`], else the only one.
///
/// # Errors
/// When there is none, or one would have to guess.
pub fn choose(lab: Option<&str>) -> Result<String> {
    let all = labs();
    match lab {
        Some(name) if all.iter().any(|lab| lab == name) => Ok(name.to_owned()),
        Some(name) => bail!("no lab is named {name}: `playdead lab up --lab {name}` makes it"),
        None => unnamed(&all)?.map(str::to_owned).ok_or_else(|| anyhow!("no lab is up: `playdead lab up` makes one")),
    }
}

/// Looks a node up by `NODE` or `LAB/NODE`. A plain `NODE` is one of the lab given, else of the one that
/// [`choose`] would take. `None`: there is no such lab or node, and the name may mean something else.
///
/// # Errors
/// When several labs could be meant.
pub fn find(lab: Option<&str>, node: &str) -> Result<Option<Node>> {
    let (lab, name) = match node.split_once('/') {
        Some((lab, name)) => (Some(lab), name),
        None => (lab, node),
    };
    let Some(role) = Role::named(name) else { return Ok(None) };
    let all = labs();
    let lab = match lab {
        Some(lab) => Some(lab),
        None => unnamed(&all).map_err(|error| error.context(format!("cannot tell which {name} is meant")))?,
    };
    Ok(lab.and_then(|lab| nodes(lab).into_iter().find(|node| node.role == role)))
}

/// As [`find`], for where it can be nothing else than a node.
///
/// # Errors
/// When there is no such node, or several labs could be meant.
pub fn node(lab: Option<&str>, name: &str) -> Result<Node> {
    if let Some(node) = find(lab, name)? {
        return Ok(node);
    }
    let (lab, name) = match name.split_once('/') {
        Some((lab, name)) => (choose(Some(lab))?, name),
        None => (choose(lab)?, name),
    };
    let names: Vec<_> = nodes(&lab).into_iter().map(|node| node.name).collect();
    bail!("the lab {lab} has no node {name:?}: it has {}", names.join(", "))
}

fn unnamed(all: &[String]) -> Result<Option<&str>> {
    match all {
        [] => Ok(None),
        _ if all.iter().any(|lab| lab == DEFAULT_NAME) => Ok(Some(DEFAULT_NAME)),
        [only] => Ok(Some(only)),
        several => bail!(
            "several labs are up, none named {DEFAULT_NAME}: write LAB/NODE or give --lab: {}",
            several.join(", ")
        ),
    }
}

/// Whether a namespace of that name is a lab's, and so may be used and removed.
pub(super) fn is_ours(lab: &str, role: Role) -> bool {
    let hosts = etc(lab, role).join("hosts");
    fs::read_to_string(hosts).is_ok_and(|text| text.starts_with(&plan::mark(lab)))
}

/// Whether nothing is said for the node in `/etc/netns`. An `up` that was killed before it could write its mark
/// leaves an empty directory or an empty hosts file.
pub(super) fn is_nobodys(lab: &str, role: Role) -> bool {
    let Ok(entries) = fs::read_dir(etc(lab, role)) else { return !etc(lab, role).exists() };
    entries.flatten().all(|entry| entry.file_name() == "hosts" && entry.metadata().is_ok_and(|meta| meta.len() == 0))
}

/// The directory of the files that replace those of `/etc` on a node.
pub(super) fn etc(lab: &str, role: Role) -> PathBuf {
    Path::new(ETC).join(plan::netns_name(lab, role))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_default_lab_comes_before_the_only_one_and_nothing_is_guessed() {
        assert_eq!(unnamed(&[]).unwrap(), None);
        assert_eq!(unnamed(&named(&["a", "lab"])).unwrap(), Some("lab"));
        assert_eq!(unnamed(&named(&["a"])).unwrap(), Some("a"));
        assert!(unnamed(&named(&["a", "b"])).unwrap_err().to_string().contains("LAB/NODE"));
    }

    #[test]
    fn what_cannot_be_a_node_is_not_looked_for() {
        for name in ["example.com", "10.77.0.11", "etcd1:2379", "a/b/etcd1", "etcd://etcd1:2379"] {
            assert_eq!(find(None, name).unwrap(), None, "{name}");
        }
    }
}
