//! What a lab consists of: its nodes, their names and addresses. Pure.
//!
//! Labs are isolated from each other and from the host, so the addresses are the same in every one:
//!
//! | node | on one switch | with a router |
//! | --- | --- | --- |
//! | `etcd1`, `etcd2`, ... | `10.77.0.11`, `fd77::11`, ... | the same |
//! | `agent` | `10.77.0.10`, `fd77::10` | `10.78.0.10`, `fd78::10` |
//! | `router` | | `10.77.0.1`, `fd77::1` and `10.78.0.1`, `fd78::1` |
//! | `switch` | none | none |

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Result, ensure};
use ipnet::IpNet;

/// The lab's name when none is given.
pub const DEFAULT_NAME: &str = "lab";
/// As many etcd members as a lab can have. More than seven make no sense with etcd.
pub const MOST_MEMBERS: u8 = 9;
const LONGEST_NAME: usize = 32;

/// What a node is; its text form is the node's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The bridge that the others are plugged into. It has no addresses.
    Switch,
    /// Forwards between the agent and the switch.
    Router,
    /// The client's machine: nothing runs on it.
    Agent,
    /// A member of the etcd cluster, counted from 1.
    Etcd(u8),
}

/// One of the two Ethernet segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Segment {
    /// The switch.
    Switch,
    /// The cable between the router and the agent.
    Agent,
}

impl Role {
    /// The role that a node's name stands for.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "switch" => Some(Self::Switch),
            "router" => Some(Self::Router),
            "agent" => Some(Self::Agent),
            _ => Self::every().find(|role| matches!(role, Self::Etcd(_)) && role.to_string() == name),
        }
    }

    /// Every role that any lab could have.
    pub fn every() -> impl Iterator<Item = Self> {
        [Self::Switch, Self::Router, Self::Agent].into_iter().chain((1..=MOST_MEMBERS).map(Self::Etcd))
    }

    /// Whether etcd runs on it.
    pub fn is_etcd(self) -> bool {
        matches!(self, Self::Etcd(_))
    }

    /// The addresses on one segment, IPv4 first.
    pub(super) fn nets(self, segment: Segment) -> Option<[IpNet; 2]> {
        let host = match self {
            Self::Switch => return None,
            Self::Router => 1,
            Self::Agent => 10,
            Self::Etcd(number) => 10 + number,
        };
        let (net4, net6) = match segment {
            Segment::Switch => (77, 0xfd77),
            Segment::Agent => (78, 0xfd78),
        };
        // The last group of the IPv6 address reads like the last byte of the IPv4 one: .11 is ::11.
        let low = u16::from(host / 10) << 4 | u16::from(host % 10);
        let v4 = IpAddr::from(Ipv4Addr::new(10, net4, 0, host));
        let v6 = IpAddr::from(Ipv6Addr::new(net6, 0, 0, 0, 0, 0, 0, low));
        Some([IpNet::new_assert(v4, 24), IpNet::new_assert(v6, 64)])
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch => f.write_str("switch"),
            Self::Router => f.write_str("router"),
            Self::Agent => f.write_str("agent"),
            Self::Etcd(number) => write!(f, "etcd{number}"),
        }
    }
}

/// A lab's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Its name.
    pub name: String,
    /// How many etcd members it has, 1 to [`MOST_MEMBERS`].
    pub members: u8,
    /// Whether the agent is on a segment of its own, behind a router.
    pub routed: bool,
}

impl Layout {
    /// A shape that can be made.
    ///
    /// # Errors
    /// When the name or the number of members is bad.
    pub fn new(name: &str, members: u8, routed: bool) -> Result<Self> {
        check_name(name)?;
        ensure!((1..=MOST_MEMBERS).contains(&members), "a lab has 1 to {MOST_MEMBERS} etcd members, not {members}");
        Ok(Self { name: name.to_owned(), members, routed })
    }

    /// Its nodes; the switch is the first, since the others are plugged into it.
    pub fn roles(&self) -> Vec<Role> {
        let exists = |role: &Role| match role {
            Role::Router => self.routed,
            Role::Etcd(number) => *number <= self.members,
            Role::Switch | Role::Agent => true,
        };
        Role::every().filter(exists).collect()
    }

    /// Every address of a node.
    pub fn addresses(&self, role: Role) -> Vec<IpAddr> {
        self.segments(role).iter().filter_map(|segment| role.nets(*segment)).flatten().map(|net| net.addr()).collect()
    }

    /// The segments that a node has an interface in.
    pub(super) fn segments(&self, role: Role) -> &'static [Segment] {
        match role {
            Role::Switch => &[],
            Role::Router => &[Segment::Switch, Segment::Agent],
            Role::Agent if self.routed => &[Segment::Agent],
            Role::Agent | Role::Etcd(_) => &[Segment::Switch],
        }
    }

    /// The hosts file of every node of the lab. Its first line says whose it is.
    pub fn hosts(&self) -> String {
        let mut text = mark(&self.name) + "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";
        for role in self.roles() {
            for address in self.addresses(role) {
                let _ = writeln!(text, "{address} {role}");
            }
        }
        text
    }
}

/// The line by which playdead knows its own work again.
pub(super) fn mark(lab: &str) -> String {
    format!("# playdead lab {lab}: made by `playdead lab up`, removed by `playdead lab down`\n")
}

/// The name of a node's network namespace.
pub(super) fn netns_name(lab: &str, role: Role) -> String {
    format!("{lab}-{role}")
}

/// The lab and the node that a namespace's name would stand for. No node has a dash in its name, so labs may.
pub(super) fn split_netns_name(name: &str) -> Option<(&str, Role)> {
    let (lab, node) = name.rsplit_once('-')?;
    check_name(lab).ok()?;
    Some((lab, Role::named(node)?))
}

/// Checks a lab's name: it becomes part of file names.
///
/// # Errors
/// When it is empty, too long, or has other characters than letters, digits and dashes.
pub fn check_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-';
    ensure!(
        (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(good) && !name.starts_with('-'),
        "{name:?} is not a lab's name: give 1 to {LONGEST_NAME} letters, digits and dashes, no dash in front"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(layout: &Layout, role: Role) -> Vec<String> {
        layout.addresses(role).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_are_the_documented_ones() {
        let flat = Layout::new("lab", 9, false).unwrap();
        assert_eq!(texts(&flat, Role::Etcd(1)), ["10.77.0.11", "fd77::11"]);
        assert_eq!(texts(&flat, Role::Etcd(9)), ["10.77.0.19", "fd77::19"]);
        assert_eq!(texts(&flat, Role::Agent), ["10.77.0.10", "fd77::10"]);
        assert_eq!(texts(&flat, Role::Switch), [""; 0]);
        let routed = Layout::new("lab", 3, true).unwrap();
        assert_eq!(texts(&routed, Role::Agent), ["10.78.0.10", "fd78::10"]);
        assert_eq!(texts(&routed, Role::Router), ["10.77.0.1", "fd77::1", "10.78.0.1", "fd78::1"]);
    }

    #[test]
    fn every_name_leads_back_to_its_role() {
        for role in Role::every() {
            assert_eq!(Role::named(&role.to_string()), Some(role));
            assert_eq!(split_netns_name(&netns_name("a-b", role)), Some(("a-b", role)));
        }
        for name in ["etcd0", "etcd10", "etcd01", "etcd", "", "Agent"] {
            assert_eq!(Role::named(name), None, "{name}");
        }
        for name in ["agent", "-agent", "lab-", "a/b-agent", "lab-etcd1-"] {
            assert_eq!(split_netns_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_router_is_there_only_when_asked_for() {
        let names = |routed| {
            let layout = Layout::new("x", 2, routed).unwrap();
            layout.roles().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(false), ["switch", "agent", "etcd1", "etcd2"]);
        assert_eq!(names(true), ["switch", "router", "agent", "etcd1", "etcd2"]);
    }

    #[test]
    fn bad_names_and_sizes_are_refused_in_one_line() {
        let long = "x".repeat(33);
        for name in ["", "-a", "a b", "a/b", "..", "ä", "a\nb", &long] {
            let error = Layout::new(name, 3, false).unwrap_err().to_string();
            assert!(error.contains("is not a lab's name") && error.lines().count() == 1, "{error}");
        }
        for members in [0, 10] {
            assert!(Layout::new("lab", members, false).is_err());
        }
    }

    #[test]
    fn the_hosts_file_names_every_node_in_both_families() {
        let hosts = Layout::new("lab", 1, false).unwrap().hosts();
        assert!(hosts.starts_with(&mark("lab")));
        for line in
            ["::1 localhost", "10.77.0.10 agent\n", "fd77::10 agent\n", "10.77.0.11 etcd1\n", "fd77::11 etcd1\n"]
        {
            assert!(hosts.contains(line), "{line:?} is missing in {hosts}");
        }
        assert!(!hosts.contains("switch") && !hosts.contains("router"));
    }
}
