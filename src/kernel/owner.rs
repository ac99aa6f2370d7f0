//! Which process holds a netlink socket, and with it every table that was made with `flags owner`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::netns::NetNs;

/// `NETLINK_NETFILTER`, as the column `Eth` of `/proc/net/netlink` has it.
const NETFILTER: &str = "12";

/// The process (an id of our `/proc`) that has the netfilter socket with the port id `portid` open in `ns`.
///
/// A port id is often, but by no means always, the id of a process: so the kernel's list gives the socket's inode,
/// and the holder is whoever has that inode open. If several share it (after a fork), the lowest id is given.
/// `None` if there is no such socket, or nobody whose descriptors we may read has it.
pub fn holder(ns: &NetNs, portid: u32) -> Result<Option<u32>> {
    let list = ns.run(|| fs::read_to_string("/proc/thread-self/net/netlink"))?;
    let list = list.context("cannot read the namespace's list of netlink sockets")?;
    Ok(inode(&list, portid).and_then(process_with))
}

/// The file that a process runs; `None` if it has ended or is not ours to see.
pub fn program(pid: u32) -> Option<PathBuf> {
    fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe")).ok()
}

/// Columns: sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode. The kernel's own sockets have the port id 0.
fn inode(list: &str, portid: u32) -> Option<u64> {
    let portid = portid.to_string();
    let mut rows = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.len() >= 10 && row[1] == NETFILTER && row[2] == portid)?;
    row[9].parse().ok().filter(|inode| *inode != 0)
}

fn process_with(inode: u64) -> Option<u32> {
    let target = PathBuf::from(format!("socket:[{inode}]"));
    let entries = Path::new("/proc").read_dir().ok()?;
    let mut pids: Vec<u32> = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids.into_iter().find(|pid| has_open(*pid, &target))
}

/// A process that ends meanwhile, or whose descriptors are not ours to read, has nothing open.
fn has_open(pid: u32, target: &Path) -> bool {
    let Ok(descriptors) = Path::new("/proc").join(pid.to_string()).join("fd").read_dir() else { return false };
    descriptors.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == target))
}

#[cfg(test)]
mod tests {
    use super::inode;

    const LIST: &str = "\
sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
00000000a8a1b2c3 0   4021       00000000 0        0        0     2        0        900
00000000a8a1b2c4 12  0          00000000 0        0        0     2        0        7
00000000a8a1b2c5 12  4021       00000000 0        0        0     2        0        901
00000000a8a1b2c6 12  4294962345 00000000 0        0        0     2        0        902
";

    #[test]
    fn the_protocol_and_the_port_id_find_the_inode() {
        assert_eq!(inode(LIST, 4021), Some(901));
        assert_eq!(inode(LIST, 4_294_962_345), Some(902));
        assert_eq!(inode(LIST, 402), None);
    }
}
