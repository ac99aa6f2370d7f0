//! The segment of an edge's test: with somebody who is not meant on it, and neighbours that are never forgotten.

use std::net::SocketAddr;

use playdead::kernel::netns::NetNs;

use crate::net::{At, PORT, Segment, ip, plug_in};

/// The other machine on the segment by both families.
pub(crate) fn bystanders() -> [SocketAddr; 2] {
    ["10.99.0.3", "fd99::3"].map(|address| SocketAddr::new(address.parse().unwrap(), PORT))
}

/// A segment and another machine on it. Gone when dropped.
pub(crate) struct Rig {
    pub(crate) segment: Segment,
    neighbour: String,
}

impl Rig {
    pub(crate) fn new(routed: bool) -> Self {
        let segment = Segment::of(routed);
        let rig = Self { neighbour: format!("{}n", segment.name(At::Switch)), segment };
        NetNs::create(&rig.neighbour).unwrap();
        plug_in(&rig.neighbour, &rig.segment.name(At::Switch), "third", 3);
        if routed {
            ip(&["-n", &rig.neighbour, "route", "add", "default", "via", "10.99.0.254"]);
            ip(&["-n", &rig.neighbour, "-6", "route", "add", "default", "via", "fd99::254"]);
        }
        for target in bystanders() {
            rig.segment.ping_until_answered(&["-n"], target);
        }
        rig.keep_neighbours();
        rig.segment.unlimited_errors();
        rig
    }

    pub(crate) fn neighbour(&self) -> NetNs {
        NetNs::named(&self.neighbour).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let all = [At::Client, At::Peer, At::Router].into_iter().filter(|at| self.segment.has(*at));
        all.map(|at| self.segment.name(at)).chain([self.neighbour.clone()]).collect()
    }

    /// A neighbour of a dead host fails after some seconds, and that is an errno.
    fn keep_neighbours(&self) {
        for ns in self.names() {
            for family in ["-4", "-6"] {
                let shown = ip(&["-n", &ns, family, "neigh", "show"]);
                let entries = shown.lines().map(|line| line.split(' ').collect::<Vec<_>>());
                for entry in entries.filter(|entry| entry.get(3) == Some(&"lladdr")) {
                    let [address, device, mac] = [entry[0], entry[2], entry[4]];
                    ip(&["-n", &ns, "neigh", "replace", address, "lladdr", mac, "dev", device, "nud", "permanent"]);
                }
            }
        }
    }

    /// The datagrams for which a socket here had no room.
    pub(crate) fn dropped(&self) -> u64 {
        let files = ["cat", "/proc/net/udp", "/proc/net/udp6"];
        let shown = |ns: &String| ip(&[&["netns", "exec", ns], &files[..]].concat());
        let drops = |line: &str| line.split_whitespace().last()?.parse::<u64>().ok();
        self.names().iter().map(shown).flat_map(|shown| shown.lines().filter_map(drops).collect::<Vec<_>>()).sum()
    }
}

/// The packets for which the machine's queues had no room, so far, whosoever they were: the second number of a line is
/// what did not fit into the queue of a processor (`net.core.netdev_max_backlog`).
pub(crate) fn overflowed() -> u64 {
    let shown = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
    let second = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
    shown.lines().map(second).sum()
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = NetNs::delete(&self.neighbour);
    }
}
