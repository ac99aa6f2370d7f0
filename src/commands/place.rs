//! PLACE: from what was typed to open namespaces.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use nix::errno::Errno;

use super::Usage;
use super::cli::PlaceArgs;
use super::nodes;
use crate::cluster;
use crate::kernel::container;
use crate::kernel::netns::NetNs;

/// A namespace and how the user called it.
#[derive(Debug)]
pub(super) struct Place {
    /// As typed, or as it can be typed.
    pub(super) label: String,
    /// The namespace.
    pub(super) ns: NetNs,
}

/// The places that were named, each namespace once; the current one if none was.
pub(super) fn resolve(args: &PlaceArgs) -> Result<Vec<Place>> {
    let mut places = Vec::new();
    for name in &args.netns {
        let ns = if name.starts_with('/') { NetNs::open(Path::new(name)) } else { NetNs::named(name) };
        places.push(Place { label: name.clone(), ns: ns? });
    }
    for pid in &args.pid {
        places.push(Place { label: format!("pid {pid}"), ns: NetNs::of_pid(*pid)? });
    }
    for name in &args.container {
        places.push(Place { label: format!("container {name}"), ns: container::namespace(name)? });
    }
    places.extend(nodes(args)?);
    if let Some(label) = &args.here {
        places.push(Place { label: label.clone(), ns: NetNs::current()? });
    }
    if places.is_empty() {
        places.push(Place { label: "here".into(), ns: NetNs::current()? });
    }
    without_doubles(places)
}

/// One place by whatever name it has: a namespace's name or absolute path, or a lab node's.
pub(super) fn called(name: &str) -> Result<Place> {
    let label = name.to_owned();
    if name.starts_with('/') {
        return Ok(Place { label, ns: NetNs::open(Path::new(name))? });
    }
    if let Ok(ns) = NetNs::named(name) {
        return Ok(Place { label, ns });
    }
    let node =
        crate::lab::find(None, name)?.with_context(|| format!("no namespace and no lab node is called {name:?}"))?;
    Ok(Place { label: node.netns.clone(), ns: node.namespace()? })
}

/// The nodes that were named: of the file, if one is given, else of the running lab.
fn nodes(args: &PlaceArgs) -> Result<Vec<Place>> {
    let of_lab = |name: &String| {
        let node = crate::lab::node(None, name)?;
        Ok(Place { label: node.netns.clone(), ns: node.namespace()? })
    };
    let Some(file) = args.nodes.as_ref().filter(|_| !args.node.is_empty()) else {
        return args.node.iter().map(of_lab).collect();
    };
    let nodes = nodes::of_file(file)?;
    let of_file = |name: &String| {
        let place = cluster::by_name(&nodes, name).map_err(Usage)?.place.as_ref();
        let place = place.with_context(|| format!("{}: the node {name} has no place", file.display()))?;
        Ok(Place { label: place.to_string(), ns: place.open().with_context(|| format!("node {name}"))? })
    };
    args.node.iter().map(of_file).collect()
}

/// Whether a place was named.
pub(super) fn is_named(args: &PlaceArgs) -> bool {
    let named = [&args.netns, &args.container, &args.node];
    named.iter().any(|names| !names.is_empty()) || !args.pid.is_empty() || args.here.is_some()
}

/// The containers that were named and no longer have the network that they had.
pub(super) fn without_their_network<'a>(args: &'a PlaceArgs, had: &[Place]) -> Vec<&'a str> {
    let has = |name: &str| {
        let id = container::namespace(name).and_then(|ns| ns.id());
        id.is_ok_and(|id| had.iter().any(|place| place.ns.id().is_ok_and(|known| known == id)))
    };
    args.container.iter().map(String::as_str).filter(|name| !has(name)).collect()
}

/// Each namespace once.
pub(super) fn without_doubles(places: Vec<Place>) -> Result<Vec<Place>> {
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    for place in places {
        if seen.insert(place.ns.id()?) {
            kept.push(place);
        }
    }
    Ok(kept)
}

/// Every namespace that can be reached from here: the current one, those with a name, and those of processes.
pub(super) fn everywhere() -> Result<Vec<Place>> {
    let here = NetNs::current()?;
    let mut seen = HashSet::from([here.id()?]);
    let mut places = vec![Place { label: "here".into(), ns: here }];
    let named = NetNs::names().into_iter().filter_map(|name| Some((NetNs::path_of_name(&name).ok()?, name)));
    let pids = Path::new("/proc").read_dir().context("cannot read /proc")?.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of_processes = pids.map(|pid| (NetNs::path_of_pid(pid), format!("pid {pid}")));
    for (path, label) in named.chain(of_processes) {
        // Processes come and go, and others' namespaces may be closed to us: that is no error. No more room for open
        // files is one, since what is not looked at is not healed.
        if NetNs::id_at(&path).is_ok_and(|id| seen.insert(id)) {
            match NetNs::open(&path) {
                Ok(ns) => places.push(Place { label, ns }),
                Err(error) if is_out_of_files(&error) => return Err(error),
                Err(_) => {}
            }
        }
    }
    Ok(places)
}

fn is_out_of_files(error: &anyhow::Error) -> bool {
    let errno = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error);
    [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM].iter().any(|full| errno == Some(*full as i32))
}
