//! Who is in the cluster, and where: from a file's `[nodes]` table, from a lab, or from a cluster's member list.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail, ensure};
use serde::{Deserialize, Deserializer, Serialize};

use super::file;
use super::ssh::Ssh;
use crate::kernel::netns::NetNs;
use crate::kernel::{container, route};
use crate::lab;

/// Names that mean something else where a node is named.
const TAKEN: [&str; 3] = ["leader", "a-follower", "itself"];

/// A machine of the system: a member of the cluster, or one that only talks to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// What it is called.
    pub name: String,
    /// Where its network is; `None`: it is only known by its addresses.
    pub place: Option<Place>,
    /// By which addresses the others reach it. Until it is [opened](open), none means: those that the place has.
    pub addresses: Vec<IpAddr>,
    /// Where it serves its clients.
    pub client_port: Option<u16>,
    /// Where the other members reach it.
    pub peer_port: Option<u16>,
    /// How it is asked; `None`: it is no member.
    pub check: Option<Check>,
    /// How its process and its cable are handled.
    pub commands: Commands,
    /// Where its process writes its log.
    pub log: Option<PathBuf>,
}

impl Node {
    /// How it is reached, if it is on another host.
    pub fn ssh(&self) -> Option<&Ssh> {
        match &self.place {
            Some(Place::Ssh(ssh)) => Some(ssh),
            _ => None,
        }
    }
}

/// What is run by `sh -c`, where playdead runs (or on the node's own host, if that is reached by ssh), to do something
/// to a node other than what a lab does to its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[expect(missing_docs, reason = "each is named for what it does")]
pub struct Commands {
    pub kill: Option<String>,
    pub stop: Option<String>,
    pub start: Option<String>,
    pub pause: Option<String>,
    pub resume: Option<String>,
    pub unplug: Option<String>,
    pub plug: Option<String>,
}

/// A network namespace, by what stands for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// As `ip netns` knows it, or an absolute path.
    NetNs(String),
    /// That of a process.
    Pid(u32),
    /// That of a running Docker or Podman container.
    Container(String),
    /// That of a lab's node, `NODE` or `LAB/NODE`.
    Node(String),
    /// On another host: the one that a session there is in.
    Ssh(Ssh),
}

/// How a member is asked whether it lives and whether there is a quorum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// etcd's JSON gateway (version 3): its status, and a linearizable read.
    Etcd,
    /// ZooKeeper's four-letter word `srvr`.
    Zookeeper,
    /// It lives if its client port takes a connection; about a quorum this says nothing.
    Tcp,
    /// It lives if its client port answers HTTP; it has a quorum if the answer to a GET of this path is a success.
    Http(String),
    /// It has a quorum if this succeeds, run by `sh -c` in the place that asks, with `PLAYDEAD_NODE`,
    /// `PLAYDEAD_ADDRESS` and `PLAYDEAD_PORT`; it lives if its client port takes a connection.
    Command(String),
}

impl Check {
    fn ports(&self) -> (Option<u16>, Option<u16>) {
        match self {
            Self::Etcd => (Some(2379), Some(2380)),
            // The election port: the other one, 2888, is open on the leader only.
            Self::Zookeeper => (Some(2181), Some(3888)),
            Self::Tcp | Self::Http(_) | Self::Command(_) => (None, None),
        }
    }
}

/// A `[nodes]` table, sorted by name. As a part of any document that is deserialized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes(pub Vec<Node>);

impl<'de> Deserialize<'de> for Nodes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = BTreeMap::<Name, Entry>::deserialize(deserializer)?;
        let node = |(name, entry): (Name, Entry)| Node { name: name.0, ..entry.0 };
        Ok(Self(table.into_iter().map(node).collect()))
    }
}

#[derive(Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "String")]
struct Name(String);

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.starts_with('-') || !name.chars().all(plain) {
            return Err(format!("{name:?} is not a node's name: use letters, digits, '-', '_' or '.'"));
        }
        if TAKEN.contains(&name.as_str()) {
            return Err(format!("a node cannot be called {name}: that names one by what it is"));
        }
        Ok(Self(name))
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Raw {
    netns: Option<String>,
    pid: Option<u32>,
    container: Option<String>,
    node: Option<String>,
    ssh: Option<String>,
    ssh_config: Option<PathBuf>,
    #[serde(default)]
    addresses: Vec<IpAddr>,
    client_port: Option<u16>,
    peer_port: Option<u16>,
    check: Option<Check>,
    #[serde(default)]
    commands: Commands,
    log: Option<PathBuf>,
}

/// A node that has no name yet.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Raw")]
struct Entry(Node);

impl TryFrom<Raw> for Entry {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        if raw.ssh_config.is_some() && raw.ssh.is_none() {
            return Err("ssh-config is the file for ssh: give ssh = \"HOST\", too".into());
        }
        if raw.log.is_some() && raw.ssh.is_some() {
            return Err("log is a file of this machine: it is not copied from another host".into());
        }
        let ssh = raw.ssh.map(|destination| Ssh::new(&destination, raw.ssh_config)).transpose()?;
        let places = [
            raw.netns.map(Place::NetNs),
            raw.pid.map(Place::Pid),
            raw.container.map(Place::Container),
            raw.node.map(Place::Node),
            ssh.map(Place::Ssh),
        ];
        let mut places = places.into_iter().flatten();
        let place = places.next();
        if places.next().is_some() {
            return Err("a node is in one place: give one of netns, pid, container, node, ssh".into());
        }
        if place.is_none() && raw.addresses.is_empty() {
            return Err("give its place (netns, pid, container, node or ssh), or at least its addresses".into());
        }
        let check = raw.check.or_else(|| place.as_ref().and_then(usual_check));
        let (client_port, peer_port) = check.as_ref().map_or((None, None), Check::ports);
        let client_port = raw.client_port.or(client_port);
        if client_port.is_none() && matches!(check, Some(Check::Tcp | Check::Http(_))) {
            return Err("this check needs a client-port".into());
        }
        let peer_port = raw.peer_port.or(peer_port);
        let (addresses, commands, log) = (raw.addresses, raw.commands, raw.log);
        Ok(Self(Node { name: String::new(), place, addresses, client_port, peer_port, check, commands, log }))
    }
}

/// What runs on a lab's node is known by its name.
fn usual_check(place: &Place) -> Option<Check> {
    let Place::Node(name) = place else { return None };
    let name = name.rsplit('/').next().unwrap_or(name);
    lab::Role::named(name).filter(|role| role.is_etcd()).map(|_| Check::Etcd)
}

/// The `[nodes]` table of a file, whatever else stands in it. Nothing is looked up yet.
///
/// # Errors
/// One line: the file, the line, the field and what is wrong with it.
pub fn read_nodes(path: &Path) -> Result<Vec<Node>> {
    #[derive(Deserialize)]
    struct File {
        nodes: Nodes,
    }
    let File { nodes } = file::read(path)?;
    Ok(nodes.0)
}

/// The nodes of a running lab that have addresses: the named one, else the one that [`lab::choose`] takes.
///
/// # Errors
/// When there is no such lab, or several could be meant.
pub fn of_lab(lab: Option<&str>) -> Result<Vec<Node>> {
    let lab = lab::choose(lab)?;
    let nodes = lab::nodes(&lab).into_iter().filter(|node| !node.addresses.is_empty());
    Ok(nodes.map(of_lab_node).collect())
}

fn of_lab_node(node: lab::Node) -> Node {
    let check = node.role.is_etcd().then_some(Check::Etcd);
    let (client_port, peer_port) = check.as_ref().map_or((None, None), Check::ports);
    let place = Some(Place::Node(format!("{}/{}", node.lab, node.name)));
    let log = Some(lab::log_directory(&node.lab).join(&node.name).join("log"));
    let (name, addresses, commands) = (node.name, node.addresses, Commands::default());
    Node { name, place, addresses, client_port, peer_port, check, commands, log }
}

/// A node with its network namespace open and its addresses known.
#[derive(Debug)]
pub struct Seat {
    /// The node; it has at least one address.
    pub node: Node,
    /// Where it is; `None` for one that is on another host, or only known by its addresses.
    pub ns: Option<NetNs>,
}

impl Seat {
    /// Its namespace, for what has to be done there.
    ///
    /// # Errors
    /// When it is on another host, or only known by its addresses.
    pub fn ns(&self) -> Result<&NetNs> {
        let name = &self.node.name;
        if let Some(ssh) = self.node.ssh() {
            bail!("the node {name} is on another host ({ssh}), where this cannot be done");
        }
        self.ns
            .as_ref()
            .with_context(|| format!("the node {name} has no place: give its netns, pid, container, node or ssh"))
    }
}

/// Opens the places of the nodes, and finds the addresses of those that give none.
///
/// # Errors
/// When a place is not there or has no address; names the node.
pub fn open(nodes: &[Node]) -> Result<Vec<Seat>> {
    let seats = nodes.iter().map(|node| open_one(node).with_context(|| format!("node {}", node.name)));
    let mut seats = seats.collect::<Result<Vec<_>>>()?;
    let asked =
        seats.iter_mut().zip(nodes).filter(|(seat, node)| seat.node.ssh().is_some() && node.addresses.is_empty());
    drop_shared(asked.map(|(seat, _)| &mut seat.node.addresses).collect());
    match seats.iter().find(|seat| seat.node.addresses.is_empty()) {
        Some(seat) => bail!("node {}: others have all of its addresses, too: give those that reach it", seat.node.name),
        None => Ok(seats),
    }
}

/// An address that several hosts have, as machines behind address translation do, or with bridges of the same program,
/// is none by which one of them could be meant.
pub fn drop_shared(hosts: Vec<&mut Vec<IpAddr>>) {
    let all: Vec<IpAddr> = hosts.iter().flat_map(|addresses| addresses.iter().copied()).collect();
    for addresses in hosts {
        addresses.retain(|address| all.iter().filter(|other| *other == address).count() == 1);
    }
}

/// The same, but of those that are not `needed` some may be missing: why each is, comes second.
///
/// # Errors
/// When one that is needed is missing.
pub fn open_needed(nodes: &[Node], needed: impl Fn(&Node) -> bool) -> Result<(Vec<Seat>, Vec<Error>)> {
    let (mut seats, mut missing) = (Vec::new(), Vec::new());
    for node in nodes {
        match open_one(node).with_context(|| format!("node {}", node.name)) {
            Ok(seat) => seats.push(seat),
            Err(error) if needed(node) => return Err(error),
            Err(error) => missing.push(error),
        }
    }
    Ok((seats, missing))
}

fn open_one(node: &Node) -> Result<Seat> {
    let mut node = node.clone();
    if let (true, Some(ssh)) = (node.addresses.is_empty(), node.ssh()) {
        node.addresses = ssh.addresses()?;
    }
    let ns = node.place.as_ref().filter(|_| node.ssh().is_none()).map(Place::open).transpose()?;
    if let (true, Some(ns)) = (node.addresses.is_empty(), &ns) {
        node.addresses = addresses(ns)?;
        ensure!(!node.addresses.is_empty(), "its namespace has no address: give its addresses");
    }
    Ok(Seat { node, ns })
}

/// By which addresses of a namespace others may reach it.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn addresses(ns: &NetNs) -> Result<Vec<IpAddr>> {
    let all = route::addresses(ns)?.into_iter().map(|(_, net)| net.addr());
    Ok(all.filter(|address| !is_local(address)).collect())
}

/// An address by which no other machine could be reached without naming a device.
fn is_local(address: &IpAddr) -> bool {
    address.is_loopback() || matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// As it is shown with a fault that is in force there.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "pid {pid}"),
            Self::Container(name) => write!(f, "container {name}"),
            Self::Ssh(ssh) => write!(f, "{ssh}"),
            Self::NetNs(_) | Self::Node(_) => f.write_str(&self.netns().unwrap_or_default()),
        }
    }
}

impl Place {
    /// As `ip netns` knows it, where it does.
    pub fn netns(&self) -> Option<String> {
        match self {
            Self::NetNs(name) => Some(name.clone()),
            // The namespace of LAB/NODE is called LAB-NODE.
            Self::Node(name) => Some(name.replace('/', "-")),
            Self::Pid(_) | Self::Container(_) | Self::Ssh(_) => None,
        }
    }

    /// Opens the namespace.
    ///
    /// # Errors
    /// When it is not there, may not be opened, or is on another host.
    pub fn open(&self) -> Result<NetNs> {
        match self {
            Self::NetNs(path) if path.starts_with('/') => NetNs::open(&PathBuf::from(path)),
            Self::NetNs(name) => NetNs::named(name),
            Self::Pid(pid) => NetNs::of_pid(*pid),
            Self::Container(name) => container::namespace(name),
            Self::Node(name) => lab::node(None, name)?.namespace(),
            Self::Ssh(ssh) => bail!("this cannot be done on another host ({ssh})"),
        }
    }
}

/// The node of that name.
///
/// # Errors
/// When there is none; says which there are.
pub fn by_name<'a>(nodes: &'a [Node], name: &str) -> Result<&'a Node, String> {
    nodes.iter().find(|node| node.name == name).ok_or_else(|| unknown(name, nodes.iter()))
}

/// The seat of the node of that name.
///
/// # Errors
/// When there is none; says which there are.
pub fn seat<'a>(seats: &'a [Seat], name: &str) -> Result<&'a Seat, String> {
    let found = seats.iter().find(|seat| seat.node.name == name);
    found.ok_or_else(|| unknown(name, seats.iter().map(|seat| &seat.node)))
}

fn unknown<'a>(name: &str, nodes: impl Iterator<Item = &'a Node>) -> String {
    let names: Vec<_> = nodes.map(|node| node.name.as_str()).collect();
    format!("no node is called {name:?}: there are {}", names.join(", "))
}

/// The names of the nodes.
pub fn names(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(|node| node.name.clone()).collect()
}

/// The names of the nodes that are members of the cluster.
///
/// # Errors
/// When none is.
pub fn members(nodes: &[Node]) -> Result<Vec<String>, String> {
    let members: Vec<_> = nodes.iter().filter(|node| node.check.is_some()).map(|node| node.name.clone()).collect();
    if members.is_empty() {
        let names = names(nodes).join(", ");
        return Err(format!("none of the nodes ({names}) is a member of the cluster: give them a check"));
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Node>, String> {
        #[derive(Debug, Deserialize)]
        struct File {
            nodes: Nodes,
        }
        file::parse::<File>(text).map(|file| file.nodes.0)
    }

    #[test]
    fn a_table_of_nodes_is_read_with_the_usual_ports_of_each_check() {
        let nodes = parse(
            "[steps]\n[nodes.b]\nnetns = \"x\"\ncheck = \"zookeeper\"\n[nodes.a]\nnode = \"lab/etcd1\"\n\
             [nodes.c]\naddresses = [\"10.0.0.1\", \"fd00::1\"]\nclient-port = 80\ncheck = { http = \"/healthz\" }\n\
             [nodes.client]\npid = 7\n",
        );
        let nodes = nodes.unwrap();
        let shown = nodes.iter().map(|n| (n.name.as_str(), n.client_port, n.peer_port, n.check.clone()));
        let expected = [
            ("a", Some(2379), Some(2380), Some(Check::Etcd)),
            ("b", Some(2181), Some(3888), Some(Check::Zookeeper)),
            ("c", Some(80), None, Some(Check::Http("/healthz".into()))),
            ("client", None, None, None),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        assert_eq!(members(&nodes).unwrap(), ["a", "b", "c"]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_its_field() {
        for (text, line, field, what) in [
            ("[nodes.a]\nnetns = \"x\"\nclient-port = \"y\"", 3, "nodes.a.client-port", "expected u16"),
            ("[nodes.a]\nnetns = \"x\"\nport = 1", 3, "nodes.a.port", "unknown field `port`"),
            ("\n[nodes.a]\nnetns = \"x\"\npid = 1", 2, "nodes.a", "one place"),
            ("[nodes.a]\ncheck = \"tcp\"\nnetns = \"x\"", 1, "nodes.a", "client-port"),
            ("[nodes.a]\nnetns = \"x\"\n[nodes.b]\n", 3, "nodes.b", "addresses"),
            ("[nodes.a]\nnode = \"x\"\ncheck = \"etdc\"", 3, "nodes.a.check", "unknown variant `etdc`"),
            ("[nodes.a]\naddresses = [\"10.0.0.1\",\n\"10.0.0\"]", 3, "nodes.a.addresses[1]", "invalid IP address"),
            ("[nodes.a]\nssh = \"-oX=y\"", 1, "nodes.a", "HOST or USER@HOST"),
            ("[nodes.a]\naddresses = [\"10.0.0.1\"]\nssh-config = \"x\"", 1, "nodes.a", "give ssh"),
            ("[nodes.leader]\nnetns = \"x\"", 1, "nodes.leader", "cannot be called leader"),
            ("[nodes.a\nnetns = \"x\"", 1, "", "unclosed table"),
        ] {
            let error = parse(text).unwrap_err();
            let start = if field.is_empty() { format!("{line}: ") } else { format!("{line}: {field}: ") };
            assert!(error.starts_with(&start) && error.contains(what) && !error.contains('\n'), "{text:?}: {error}");
        }
    }
}
