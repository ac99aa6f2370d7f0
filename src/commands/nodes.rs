//! The nodes of a cluster that a verb is about: those of a file, of a lab, or of a live cluster's member list.

use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;

use super::Usage;
use super::cli::{Cli, PlaceArgs, Verb};
use super::lab::lab_name;
use super::{out, peers, place};
use crate::cluster::{self, From, Node, Seat};
use crate::model::{Host, PeerSpec};

/// Which lab, where no file is given.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// The lab whose nodes are meant [default: the one named "lab", else the only one].
    #[arg(long, value_name = "NAME", conflicts_with = "nodes-file", value_parser = lab_name)]
    pub lab: Option<String>,
}

/// The nodes of the file of `--nodes`, else of a lab.
pub(super) fn of(place: &PlaceArgs, cluster: &ClusterArgs) -> Result<Vec<Node>> {
    match &place.nodes {
        Some(file) => of_file(file),
        None => cluster::of_lab(cluster.lab.as_deref()),
    }
}

/// The nodes of a file. One that is wrong is wrong usage.
pub(super) fn of_file(file: &Path) -> Result<Vec<Node>> {
    cluster::read_nodes(file).map_err(|error| Usage(format!("{error:#}")).into())
}

/// The places that were typed. What looks at faults or ends them looks at all nodes of a file if none is named, and not
/// beyond them; those that have gone have none.
pub(super) fn places(cli: &Cli) -> Result<PlaceArgs> {
    let mut args = cli.place.clone();
    let is_about_faults = matches!(cli.verb, Verb::Heal(_) | Verb::Renew(_) | Verb::Status(_) | Verb::Verify(_));
    let Some(file) = args.nodes.as_ref().filter(|_| is_about_faults && !place::is_named(&args)) else {
        return Ok(args);
    };
    for node in of_file(file)? {
        let Some(place) = &node.place else {
            out::note(&format!("left out: node {}: it has no place in {}", node.name, file.display()));
            continue;
        };
        match place.open() {
            Err(error) if node.ssh().is_none() => out::note(&format!("left out: node {}: {error:#}", node.name)),
            _ => args.node.push(node.name),
        }
    }
    if args.node.is_empty() {
        bail!("no node of {} is there", file.display());
    }
    Ok(args)
}

/// Nodes as places to ask from.
pub(super) fn as_places<'a>(seats: &'a [Seat], names: &'a [String]) -> Result<Vec<From<'a>>> {
    let place = |name: &'a String| Ok(From { label: name, ns: cluster::seat(seats, name).map_err(Usage)?.ns()? });
    names.iter().map(place).collect()
}

/// Peers that are called as nodes stand for these, whatever the place knows by that name.
pub(super) fn as_peers(peers: &[PeerSpec], seats: &[Seat]) -> Vec<PeerSpec> {
    let of = |peer: &PeerSpec| {
        let Host::Name(name) = &peer.host else { return peer.clone() };
        let Ok(Seat { node, .. }) = cluster::seat(seats, name) else { return peer.clone() };
        PeerSpec { host: Host::Node { name: name.clone(), addresses: node.addresses.clone() }, ..peer.clone() }
    };
    peers.iter().map(of).collect()
}

/// The same with the nodes of the file of `--nodes`, if one is given. Only those that are meant have to be there.
pub(super) fn peers_of_file(place: &PlaceArgs, peers: &[PeerSpec]) -> Result<Vec<PeerSpec>> {
    let Some(file) = &place.nodes else { return Ok(peers.to_vec()) };
    let mut nodes = of_file(file)?;
    nodes.retain(|node| peers.iter().any(|peer| matches!(&peer.host, Host::Name(name) if *name == node.name)));
    Ok(as_peers(peers, &cluster::open(&nodes)?))
}

/// The members of a live cluster, asked from the one place that is named.
pub(super) fn of_live(args: &PlaceArgs, spec: &PeerSpec) -> Result<Vec<Node>> {
    let places = place::resolve(args)?;
    let [place] = places.as_slice() else {
        return Err(Usage(format!("{}: its members are asked for from one place: name one", spec.text)).into());
    };
    let nodes = peers::etcd_nodes(place, spec)?;
    if nodes.is_empty() {
        bail!("{}: the cluster has no members", spec.text);
    }
    Ok(nodes)
}
