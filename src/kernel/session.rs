//! By which connections the caller is logged in from elsewhere.

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::netns::NetNs;
use super::sockets::{self, Connection};

/// Programs whose connections are those of who works here by them.
const SERVERS: [&str; 3] = ["sshd", "sshd-session", "dropbear"];

/// The TCP connections in `ns` by which the calling process is controlled from another machine: those of the SSH
/// servers that it descends from, and those that SSH told an ancestor of (`SSH_CONNECTION`: a terminal multiplexer
/// does not descend from the server, and sudo forgets the variable). What is not in the kernel's table of sockets of `ns`
/// any more, or never was, does not count.
///
/// Fails if the namespace cannot be entered or the kernel does not list its sockets.
pub fn connections(ns: &NetNs) -> Result<Vec<Connection>> {
    let ancestors: Vec<_> = ancestors().collect();
    let sockets: HashSet<u64> = ancestors.iter().filter(|pid| is_server(**pid)).flat_map(|pid| inodes(*pid)).collect();
    let told: HashSet<_> = ancestors.iter().filter_map(|pid| told(*pid)).collect();
    if sockets.is_empty() && told.is_empty() {
        return Ok(Vec::new());
    }
    let mut connections = sockets::connections(ns)?;
    connections.retain(|one| sockets.contains(&u64::from(one.inode)) || told.contains(&(one.local, one.remote)));
    Ok(connections)
}

/// The calling process, its parent, and so on.
fn ancestors() -> impl Iterator<Item = u32> {
    std::iter::successors(Some(std::process::id()), |pid| parent(*pid))
}

fn file(pid: u32, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(name)
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(file(pid, "status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
    (parent > 0).then_some(parent)
}

fn is_server(pid: u32) -> bool {
    fs::read_to_string(file(pid, "comm")).is_ok_and(|name| SERVERS.contains(&name.trim_end()))
}

/// What is not ours to read is nothing.
fn inodes(pid: u32) -> Vec<u64> {
    let Ok(descriptors) = file(pid, "fd").read_dir() else { return Vec::new() };
    let inode = |link: PathBuf| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
    descriptors.flatten().filter_map(|entry| inode(fs::read_link(entry.path()).ok()?)).collect()
}

/// Both ends of the connection, this one first, as SSH has told the process.
fn told(pid: u32) -> Option<(SocketAddr, SocketAddr)> {
    let environment = fs::read(file(pid, "environ")).ok()?;
    let variable = environment.split(|byte| *byte == 0).find_map(|line| line.strip_prefix(b"SSH_CONNECTION="))?;
    ends(std::str::from_utf8(variable).ok()?)
}

/// `CLIENT PORT SERVER PORT` (`sshd(8)`).
fn ends(text: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut words = text.split(' ');
    let mut end = || Some(SocketAddr::new(words.next()?.parse().ok()?, words.next()?.parse().ok()?));
    let client = end()?;
    Some((end()?, client))
}

#[cfg(test)]
mod tests {
    use super::ends;

    #[test]
    fn the_variable_has_the_client_first() {
        let both = |here: &str, there: &str| Some((here.parse().unwrap(), there.parse().unwrap()));
        assert_eq!(ends("10.0.0.9 50000 10.0.0.1 22"), both("10.0.0.1:22", "10.0.0.9:50000"));
        assert_eq!(ends("fd00::9 50000 fd00::1 22"), both("[fd00::1]:22", "[fd00::9]:50000"));
        assert_eq!(ends("10.0.0.9 50000 10.0.0.1"), None);
    }
}
