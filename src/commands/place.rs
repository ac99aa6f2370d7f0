//! PLACE: from what was typed to open namespaces.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::cli::PlaceArgs;
use crate::kernel::Missing;
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
        let pid = container_pid(name)?;
        let ns = NetNs::of_pid(pid).with_context(|| format!("container {name:?}"))?;
        places.push(Place { label: format!("container {name}"), ns });
    }
    for name in &args.node {
        let node = crate::lab::node(None, name)?;
        places.push(Place { label: node.netns.clone(), ns: node.namespace()? });
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

/// Whether a place was named.
pub(super) fn is_named(args: &PlaceArgs) -> bool {
    !(args.netns.is_empty() && args.pid.is_empty() && args.container.is_empty() && args.node.is_empty())
}

fn without_doubles(places: Vec<Place>) -> Result<Vec<Place>> {
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
    let mut places = vec![Place { label: "here".into(), ns: NetNs::current()? }];
    for name in NetNs::names() {
        places.extend(NetNs::named(&name).ok().map(|ns| Place { label: name, ns }));
    }
    for entry in Path::new("/proc").read_dir().context("cannot read /proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // Processes come and go, and others' namespaces may be closed to us.
        places.extend(NetNs::of_pid(pid).ok().map(|ns| Place { label: format!("pid {pid}"), ns }));
    }
    without_doubles(places)
}

/// The process id of a container's first process, by the engine's own command.
fn container_pid(name: &str) -> Result<u32> {
    let engines = ["docker", "podman"];
    let mut found = false;
    let mut reasons = Vec::new();
    for engine in engines {
        let arguments = ["inspect", "--type", "container", "--format", "{{.State.Pid}}", "--", name];
        let output = match Command::new(engine).args(arguments).output() {
            Ok(output) => output,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot run {engine}")),
        };
        found = true;
        let said = String::from_utf8_lossy(&output.stdout);
        match said.trim().parse::<u32>() {
            Ok(0) => bail!("the container {name:?} is not running: start it first"),
            Ok(pid) if output.status.success() => return Ok(pid),
            _ => {
                let error = String::from_utf8_lossy(&output.stderr);
                reasons.push(format!("{engine}: {}", error.lines().next().unwrap_or("no answer").trim()));
            }
        }
    }
    if !found {
        return Err(
            Missing(format!("cannot find the container {name:?}: neither docker nor podman is installed")).into()
        );
    }
    bail!("no running container is called {name:?} ({})", reasons.join("; "))
}
