//! PEER: from what was typed to addresses, looked up in the place.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use ipnet::IpNet;
use serde_json::Value;

use super::Usage;
use super::place::Place;
use crate::cluster::{Check, Commands, Node, ask_etcd};
use crate::kernel::resolve;
use crate::model::{Host, Kind, Members, PeerSpec, Ports, Target, checked};

/// The addresses of the peers as they are in `place`; a kind that happens to a process needs ports.
pub(super) fn targets(place: &Place, specs: &[PeerSpec], kind: Kind) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for spec in specs {
        let found = of_spec(place, spec, kind.needs_port());
        targets.extend(found.with_context(|| format!("{}, looked up {}", spec.text, where_is(place)))?);
    }
    targets.sort();
    targets.dedup();
    Ok(targets)
}

fn where_is(place: &Place) -> String {
    if place.label == "here" { "here".into() } else { format!("in {}", place.label) }
}

fn of_spec(place: &Place, spec: &PeerSpec, with_ports: bool) -> Result<Vec<Target>> {
    match &spec.host {
        Host::Net(net) => Ok(vec![Target { net: *net, ports: spec.ports, label: None }]),
        Host::Name(name) => labelled(&addresses(place, name)?, spec.ports, name),
        Host::Node { name, addresses } => labelled(addresses, spec.ports, name),
        Host::Etcd { endpoint, which } => etcd_members(place, endpoint, *which, with_ports),
    }
}

/// What a name stands for is checked as what is typed is: `0.0.0.0 ads.example` in a hosts file names no machine.
fn labelled(addresses: &[IpAddr], ports: Option<Ports>, name: &str) -> Result<Vec<Target>> {
    let target = |address: &IpAddr| {
        let net = checked(name, IpNet::from(address.to_canonical())).map_err(Error::msg)?;
        Ok(Target { net, ports, label: Some(name.to_owned()) })
    };
    addresses.iter().map(target).collect()
}

/// A name as the place knows it; a node of a lab is known everywhere.
fn addresses(place: &Place, name: &str) -> Result<Vec<IpAddr>> {
    let known = resolve::addresses(&place.ns, name);
    if known.is_err()
        && let Some(node) = crate::lab::find(None, name)?
    {
        return Ok(node.addresses);
    }
    known
}

/// The addresses of the peers in `place`, with what ports were named.
pub(super) fn plain(place: &Place, specs: &[PeerSpec]) -> Result<Vec<Target>> {
    let mut found = Vec::new();
    for spec in specs {
        found.extend(
            of_spec(place, spec, false).with_context(|| format!("{}, looked up {}", spec.text, where_is(place)))?,
        );
    }
    Ok(found)
}

/// Where to send probes: every address of every peer, with its port.
pub(super) fn socket_addresses(place: &Place, peers: &[PeerSpec]) -> Result<Vec<SocketAddr>> {
    let mut found = Vec::new();
    for spec in peers {
        let peer = &spec.text;
        let ports = match spec.ports {
            None => return Err(Usage(format!("{peer}: a probe needs a port: write {peer}:PORT")).into()),
            Some(ports) if ports.first != ports.last => {
                let one = peer.trim_end_matches(&format!("-{}", ports.last));
                return Err(Usage(format!("{peer}: a probe looks at one port, not at a range: write {one}")).into());
            }
            Some(ports) => ports,
        };
        for target in of_spec(place, spec, true).with_context(|| format!("{peer}, looked up {}", where_is(place)))? {
            if target.net.prefix_len() != target.net.max_prefix_len() {
                return Err(Usage(format!("{peer}: a probe needs an address, not a prefix")).into());
            }
            found.push(SocketAddr::new(target.net.addr(), ports.first));
        }
    }
    found.dedup();
    Ok(found)
}

/// How long a live member may take to say who is in its cluster.
const ETCD_PATIENCE: Duration = Duration::from_secs(5);

/// The members of a live cluster: their machines, or their client and peer ports.
fn etcd_members(place: &Place, endpoint: &str, which: Members, with_ports: bool) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for member in members(place, endpoint, which)? {
        for urls in ["clientURLs", "peerURLs"] {
            let found = of_member(place, &member, urls)?.into_iter();
            targets.extend(found.map(|target| Target { ports: target.ports.filter(|_| with_ports), ..target }));
        }
    }
    Ok(targets)
}

/// The members of a live cluster as nodes that are known by their addresses only.
pub(super) fn etcd_nodes(place: &Place, spec: &PeerSpec) -> Result<Vec<Node>> {
    let Host::Etcd { endpoint, which } = &spec.host else {
        return Err(Usage(format!("{}: write etcd://HOST:PORT of a member's client port", spec.text)).into());
    };
    members(place, endpoint, *which)?.iter().map(|member| etcd_node(place, member)).collect()
}

fn etcd_node(place: &Place, member: &Value) -> Result<Node> {
    let [client, peer] = ["clientURLs", "peerURLs"].map(|urls| of_member(place, member, urls));
    let (client, peer) = (client?, peer?);
    let port = |targets: &[Target]| targets.iter().find_map(|target| target.ports).map(|ports| ports.first);
    let mut addresses: Vec<_> = client.iter().chain(&peer).map(|target| target.net.addr()).collect();
    addresses.sort();
    addresses.dedup();
    let (client_port, peer_port) = (port(&client), port(&peer));
    let name = name_of(member);
    let (check, commands) = (Some(Check::Etcd), Commands::default());
    Ok(Node { name, place: None, addresses, client_port, peer_port, check, commands, log: None })
}

fn members(place: &Place, endpoint: &str, which: Members) -> Result<Vec<Value>> {
    let ask = |path: &str| -> Result<Value> {
        let until = Instant::now() + ETCD_PATIENCE;
        let answer = place.ns.run_with_etc(|| ask_etcd(endpoint, path, "{}", until))?;
        answer.map_err(|why| anyhow!("no etcd member answers at {endpoint}: {why}"))
    };
    let mut list = ask("cluster/member/list")?;
    let status = ask("maintenance/status")?;
    let (asked, leader) = (&status["header"]["member_id"], &status["leader"]);
    let members = list["members"].as_array_mut().context("the member list has no members")?;
    members.retain(|member| match which {
        Members::All => true,
        Members::Leader => member["ID"] == *leader,
        Members::Followers => member["ID"] != *leader,
        Members::Others => member["ID"] != *asked,
    });
    if members.is_empty() {
        match which {
            Members::Leader => bail!("the cluster at {endpoint} has no leader now"),
            _ => bail!("the cluster at {endpoint} has no such member now"),
        }
    }
    Ok(std::mem::take(members))
}

/// A name that somebody else gave, as it may stand in a rule's comment and on a terminal.
fn label(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    name.chars().take(60).map(plain).collect()
}

fn name_of(member: &Value) -> String {
    label(member["name"].as_str().unwrap_or("unnamed"))
}

/// By the addresses of one of its lists of URLs.
fn of_member(place: &Place, member: &Value, urls: &str) -> Result<Vec<Target>> {
    let name = name_of(member);
    let mut targets = Vec::new();
    for url in member[urls].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let authority = url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/');
        let spec: PeerSpec = authority.parse().map_err(|error| anyhow!("member {name} advertises {url}: {error}"))?;
        let found = of_spec(place, &spec, true)?.into_iter();
        targets.extend(found.map(|target| Target { label: Some(name.clone()), ..target }));
    }
    Ok(targets)
}
