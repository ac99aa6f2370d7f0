//! The TCP connections that pass through a namespace, where it tracks connections.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;

use anyhow::{Context, Result};

use super::netns::NetNs;

/// In the namespace of the thread that reads it. There is none where the kernel has no connection tracking, or none that
/// it shows (`CONFIG_NF_CONNTRACK_PROCFS`).
const TABLE: &str = "/proc/thread-self/net/nf_conntrack";

/// A connection that was opened and not ended, as far as both ends let it be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Passing {
    /// The end that opened it.
    pub from: SocketAddr,
    /// The end that took it, by the address that the other knows.
    pub to: SocketAddr,
}

/// The established TCP connections that are tracked in `ns`, its own included; none where none are tracked.
///
/// Looking does not switch connection tracking on. Who may not look (root of the namespace may) finds none. Fails if the
/// namespace cannot be entered or the table not be read.
pub fn established(ns: &NetNs) -> Result<Vec<Passing>> {
    match ns.run(|| fs::read_to_string(TABLE))? {
        Ok(table) => Ok(table.lines().filter_map(passing).collect()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(Vec::new()),
        Err(error) => Err(error).context("cannot read which connections are tracked"),
    }
}

/// `ipv4 2 tcp 6 431999 ESTABLISHED src=… dst=… sport=… dport=…`, then the same of the other direction.
fn passing(line: &str) -> Option<Passing> {
    let mut words = line.split_whitespace();
    if words.nth(2)? != "tcp" || words.nth(2)? != "ESTABLISHED" {
        return None;
    }
    let mut field = |name: &str| words.next()?.strip_prefix(name)?.strip_prefix('=');
    let (from, to) = (field("src")?.parse().ok()?, field("dst")?.parse().ok()?);
    let [from_port, to_port] = [field("sport")?.parse().ok()?, field("dport")?.parse().ok()?];
    Some(Passing { from: SocketAddr::new(from, from_port), to: SocketAddr::new(to, to_port) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_established_is_listed_as_its_opener_knows_it() {
        let line = |state: &str| {
            format!(
                "ipv6     10 tcp      6 431999 {state} src=fd00::1 dst=fd00::2 sport=40000 dport=2379 \
                 src=fd00::9 dst=fd00::1 sport=9 dport=40000 [ASSURED] mark=0 zone=0 use=2"
            )
        };
        let ends = Passing { from: "[fd00::1]:40000".parse().unwrap(), to: "[fd00::2]:2379".parse().unwrap() };
        assert_eq!(passing(&line("ESTABLISHED")), Some(ends));
        assert_eq!(passing(&line("TIME_WAIT")), None);
        let udp = "ipv4     2 udp      17 29 src=10.0.0.1 dst=10.0.0.2 sport=68 dport=67 src=10.0.0.2 dst=10.0.0.1";
        assert_eq!(passing(udp), None);
    }
}
