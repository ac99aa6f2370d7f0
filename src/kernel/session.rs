//! By which connections the caller is logged in from elsewhere.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::netns::NetNs;
use super::sockets::{self, Connection};

/// Programs whose connections are those of who works here by them.
const SERVERS: [&str; 3] = ["sshd", "sshd-session", "dropbear"];
/// More than an environment usually has.
const ROOM: usize = 0x8000;

/// The TCP connections in `ns` by which the calling process is controlled from another machine: those of the SSH
/// servers that it descends from, and those that SSH told an ancestor of (`SSH_CONNECTION`: a terminal multiplexer
/// does not descend from the server, and sudo forgets the variable). What is not in the kernel's table of sockets of `ns`
/// any more, or never was, does not count.
///
/// Fails if the namespace cannot be entered or the kernel does not list its sockets.
pub fn connections(ns: &NetNs) -> Result<Vec<Connection>> {
    let ancestors: Vec<_> = ancestors().collect();
    let servers = ancestors.iter().filter(|one| one.is_server).map(|one| one.pid);
    let sockets: HashSet<u64> = servers.flat_map(inodes).collect();
    let told: HashSet<_> = ancestors.iter().filter_map(|one| told(one.pid)).collect();
    if sockets.is_empty() && told.is_empty() {
        return Ok(Vec::new());
    }
    let mut connections = sockets::connections(ns)?;
    connections.retain(|one| sockets.contains(&u64::from(one.inode)) || told.contains(&(one.local, one.remote)));
    Ok(connections)
}

struct Ancestor {
    pid: u32,
    is_server: bool,
    parent: u32,
}

/// The calling process, its parent, and so on.
fn ancestors() -> impl Iterator<Item = Ancestor> {
    let one = |pid| {
        let stat = read(pid, "stat")?;
        let (name, parent) = name_and_parent(&stat)?;
        Some(Ancestor { pid, is_server: SERVERS.contains(&name), parent })
    };
    std::iter::successors(one(std::process::id()), move |child| one(child.parent))
}

fn file(pid: u32, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(name)
}

/// Files of `/proc` have no length: what reads them by small pieces enters the kernel ten times for each.
fn read(pid: u32, name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(ROOM);
    File::open(file(pid, name)).ok()?.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Its name and its parent, of `PID (NAME) STATE PARENT ...`; a name may have brackets and blanks, too.
fn name_and_parent(stat: &[u8]) -> Option<(&str, u32)> {
    let (before, after) = std::str::from_utf8(stat).ok()?.rsplit_once(')')?;
    Some((before.split_once('(')?.1, after.split(' ').nth(2)?.parse().ok()?))
}

/// What is not ours to read is nothing.
fn inodes(pid: u32) -> Vec<u64> {
    let Ok(descriptors) = file(pid, "fd").read_dir() else { return Vec::new() };
    let inode = |link: PathBuf| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
    descriptors.flatten().filter_map(|entry| inode(fs::read_link(entry.path()).ok()?)).collect()
}

/// Both ends of the connection, this one first, as SSH has told the process.
fn told(pid: u32) -> Option<(SocketAddr, SocketAddr)> {
    let environment = read(pid, "environ")?;
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
    use super::{ends, name_and_parent};

    #[test]
    fn the_variable_has_the_client_first() {
        let both = |here: &str, there: &str| Some((here.parse().unwrap(), there.parse().unwrap()));
        assert_eq!(ends("10.0.0.9 50000 10.0.0.1 22"), both("10.0.0.1:22", "10.0.0.9:50000"));
        assert_eq!(ends("fd00::9 50000 fd00::1 22"), both("[fd00::1]:22", "[fd00::9]:50000"));
        assert_eq!(ends("10.0.0.9 50000 10.0.0.1"), None);
    }

    #[test]
    fn a_process_may_be_called_anything() {
        let of = |stat: &'static str| name_and_parent(stat.as_bytes());
        assert_eq!(of("77 (sshd-session) S 12 77 77 0 -1"), Some(("sshd-session", 12)));
        assert_eq!(of("77 (a) S 1 (b) R 13 77 77 0 -1"), Some(("a) S 1 (b", 13)));
        assert_eq!(of("77"), None);
    }
}
