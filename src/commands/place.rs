//! PLACE: from what was typed to open namespaces.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;

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
