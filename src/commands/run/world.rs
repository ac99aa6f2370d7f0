//! Who takes part in a scenario, and what can be done to them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::RunArgs;
use super::stop::Stop;
use super::undo::Undo;
use crate::cluster::{self, Check, Commands, Node, Seat, Snapshot, Ssh};
use crate::commands::cli::PlaceArgs;
use crate::commands::place::Place;
use crate::commands::{Usage, nodes};
use crate::kernel::netns::NetNs;
use crate::kernel::privilege::Privilege;
use crate::lab;
use crate::model::PeerSpec;
use crate::scenario::Scenario;
use crate::scenario::file::{Names, Verb};
use crate::scenario::plan::LIVE;

/// The nodes of a scenario.
pub(super) struct World {
    /// Each with its place open and its addresses known.
    pub(super) seats: Arc<[Seat]>,
    /// The lab whose nodes these are, if the file names none of its own.
    lab: Option<String>,
    /// The environment of all commands.
    pub(super) env: BTreeMap<String, String>,
    /// A directory for what its commands have to tell each other.
    pub(super) work: PathBuf,
    /// What the commands of its steps keep of this process's rights.
    pub(super) privilege: Privilege,
}

impl World {
    /// The scenario's own nodes, else those of another file, else those of the lab that is named, else of the usual one.
    pub(super) fn open(scenario: &Scenario, nodes: Option<&Path>, args: &RunArgs) -> Result<Self> {
        // A name that nobody else can have taken before.
        let name = format!("playdead-run-{}-{:08x}", std::process::id(), crate::commands::random_seed());
        let (env, work) = (scenario.env.clone(), std::env::temp_dir().join(name));
        let privilege = if args.privileged { Privilege::Kept } else { Privilege::of_caller()? };
        let own = scenario.nodes.as_ref().map(|nodes| Ok(nodes.0.clone()));
        let lab = args.lab.as_deref().or(scenario.lab.as_deref());
        if let Some(mut nodes) = own.or_else(|| nodes.map(crate::commands::nodes::of_file)).transpose()? {
            for node in &mut nodes {
                in_its_lab(node, lab)?;
            }
            return Ok(Self { seats: cluster::open(&nodes)?.into(), lab: None, env, work, privilege });
        }
        let lab = lab::choose(lab)?;
        let seats = cluster::open(&cluster::of_lab(Some(&lab))?)?.into();
        Ok(Self { seats, lab: Some(lab), env, work, privilege })
    }

    /// Makes the directory, which nobody else can look into.
    pub(super) fn make_work(&self) -> std::io::Result<()> {
        std::fs::DirBuilder::new().mode(0o700).create(&self.work)?;
        let user = self.privilege.user().map(|user| (user.uid.as_raw(), user.gid.as_raw()));
        user.map_or(Ok(()), |(uid, gid)| chown(&self.work, Some(uid), Some(gid)))
    }

    /// The names of all.
    pub(super) fn names(&self) -> Vec<String> {
        self.seats.iter().map(|seat| seat.node.name.clone()).collect()
    }

    /// The names of those that are members of the cluster.
    pub(super) fn members(&self) -> Vec<String> {
        self.seats.iter().filter(|seat| seat.node.check.is_some()).map(|seat| seat.node.name.clone()).collect()
    }

    /// Asks the members, from each one's own place and from these nodes; nothing if the end is asked for meanwhile.
    pub(super) fn look(&self, from: &[String], patience: Duration, stop: &Stop) -> Result<Option<Snapshot>> {
        // What a check has started must not outlive this process, and so is waited for.
        if self.seats.iter().any(|seat| matches!(seat.node.check, Some(Check::Command(_)))) {
            return cluster::look(&self.seats, &nodes::as_places(&self.seats, from)?, patience).map(Some);
        }
        let (seats, from) = (Arc::clone(&self.seats), from.to_vec());
        let seen = stop.unless_told(move || cluster::look(&seats, &nodes::as_places(&seats, &from)?, patience));
        seen?.transpose()
    }

    /// The same nodes, opened once more. Their places are called as the nodes are.
    pub(super) fn reopened(&self) -> Result<Vec<Seat>> {
        cluster::open(&self.seats.iter().map(|seat| seat.node.clone()).collect::<Vec<_>>())
    }

    /// The node whose place this is.
    pub(super) fn node_at(&self, ns: &NetNs) -> Option<&str> {
        let id = ns.id().ok()?;
        let here = |seat: &&Seat| seat.ns.as_ref().is_some_and(|ns| ns.id().is_ok_and(|other| other == id));
        self.seats.iter().find(here).map(|seat| seat.node.name.as_str())
    }

    /// A node's place. A lab's switch and router count as nodes here.
    pub(super) fn place(&self, name: &str) -> Result<Place> {
        let own = self.seats.iter().find(|seat| seat.node.name == name);
        if let (None, Some(lab)) = (own, &self.lab) {
            let ns = lab::node(Some(lab), name)?.namespace()?;
            return Ok(Place { label: name.to_owned(), ns });
        }
        let node = &cluster::seat(&self.seats, name).map_err(Usage)?.node;
        let place = node.place.as_ref().with_context(|| format!("the node {name} has no place, only addresses"))?;
        Ok(Place { label: name.to_owned(), ns: place.open()? })
    }

    /// Peers with the names of nodes stand for these.
    pub(super) fn peers(&self, peers: &[PeerSpec]) -> Vec<PeerSpec> {
        nodes::as_peers(peers, &self.seats)
    }

    /// The nodes of a place, if some of them are on other hosts.
    pub(super) fn elsewhere(&self, place: &PlaceArgs) -> Result<Option<Vec<Node>>> {
        if !place.node.iter().any(|name| self.ssh(name).is_some()) {
            return Ok(None);
        }
        if !(place.netns.is_empty() && place.pid.is_empty() && place.container.is_empty()) {
            bail!(Usage("beside nodes on other hosts only nodes can be named".into()));
        }
        let node = |name: &String| Ok(cluster::seat(&self.seats, name).map_err(Usage)?.node.clone());
        place.node.iter().map(node).collect::<Result<_>>().map(Some)
    }

    /// How a node is reached that is on another host.
    pub(super) fn ssh(&self, name: &str) -> Option<&Ssh> {
        self.seats.iter().find(|seat| seat.node.name == name)?.node.ssh()
    }

    /// Whether some nodes are on other hosts.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.seats.iter().any(|seat| seat.node.ssh().is_some())
    }

    /// All nodes, their addresses known.
    pub(super) fn nodes(&self) -> Vec<Node> {
        self.seats.iter().map(|seat| seat.node.clone()).collect()
    }

    /// Every address, and whose it is.
    pub(super) fn addresses(&self) -> Vec<(IpAddr, String)> {
        let of = |seat: &Seat| {
            let name = seat.node.name.clone();
            seat.node.addresses.clone().into_iter().map(move |address| (address, name.clone()))
        };
        self.seats.iter().flat_map(of).collect()
    }

    /// The nodes that have one of these addresses or names.
    pub(super) fn owners(&self, targets: &[crate::model::Target]) -> Vec<String> {
        let has = |seat: &&Seat| {
            targets.iter().any(|target| {
                seat.node.addresses.iter().any(|address| target.net.contains(address))
                    || target.label.as_deref() == Some(&seat.node.name)
            })
        };
        self.seats.iter().filter(has).map(|seat| seat.node.name.clone()).collect()
    }

    /// The members that are meant: those named, or all.
    pub(super) fn meant(&self, names: &Names) -> Vec<String> {
        if names.is_all() { self.members() } else { names.0.clone() }
    }

    /// Fails unless all are nodes; `leader` and the like are.
    pub(super) fn check_names(&self, names: &Names) -> Result<()> {
        let known = |name: &str| LIVE.contains(&name) || self.place_known(name);
        match names.0.iter().find(|name| *name != "all" && !known(name)) {
            Some(name) => bail!("no node is called {name:?}: there are {}", self.names().join(", ")),
            None => Ok(()),
        }
    }

    fn place_known(&self, name: &str) -> bool {
        self.seats.iter().any(|seat| seat.node.name == name)
            || self.lab.as_deref().is_some_and(|lab| lab::find(Some(lab), name).ok().flatten().is_some())
    }

    /// Asks the live cluster who is the leader, or a follower.
    pub(super) fn live(&self, which: &str, seen: &Snapshot) -> Result<String> {
        let leader = seen.leader().ok_or_else(|| anyhow!("no member names a leader now"))?;
        if !self.members().iter().any(|member| member == leader) {
            bail!("the leader {leader} is none of the nodes {}", self.members().join(", "));
        }
        if which == "leader" {
            return Ok(leader.to_owned());
        }
        let follower = seen.with_quorum().into_iter().find(|name| *name != leader);
        follower.map(str::to_owned).ok_or_else(|| anyhow!("no member follows the leader {leader} now"))
    }

    /// How something is done to a node, also by whoever comes after a crash.
    pub(super) fn deed(&self, name: &str, verb: Verb) -> Result<Undo> {
        let own = self.seats.iter().find(|seat| seat.node.name == name).map(|seat| &seat.node);
        if let Some((node, command)) = own.and_then(|node| Some((node, of(&node.commands, verb)?))) {
            return Ok(Undo::Shell { command: command.to_owned(), env: self.env_of(node), on: node.ssh().cloned() });
        }
        if let Some(node) = own.and_then(lab_name).or(self.lab.as_ref().map(|lab| format!("{lab}/{name}"))) {
            let has_etcd = lab::node(None, &node)?.role.is_etcd();
            if !has_etcd && !matches!(verb, Verb::Plug | Verb::Unplug) {
                bail!("{name} has no etcd to {}: only its cable can be pulled (unplug, plug)", verb.name());
            }
            return Ok(Undo::Lab { node, verb });
        }
        own.with_context(|| format!("no node is called {name:?}"))?;
        let verb = verb.name();
        bail!("how to {verb} the node {name} is not said: give [nodes.{name}.commands] {verb} = \"...\"")
    }

    /// What a node's own commands find in their environment, besides what playdead itself finds.
    pub(super) fn env_of(&self, node: &Node) -> BTreeMap<String, String> {
        let netns = node.place.as_ref().and_then(cluster::Place::netns);
        let address = node.addresses.first().map(ToString::to_string);
        let own = [
            // A directory of this machine.
            ("PLAYDEAD_WORK", node.ssh().is_none().then(|| self.work.display().to_string())),
            ("PLAYDEAD_NODE", Some(node.name.clone())),
            ("PLAYDEAD_ADDRESS", address),
            ("PLAYDEAD_NETNS", netns),
        ];
        let own = own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        self.env.clone().into_iter().chain(own).collect()
    }

    /// What is not as it should be in the lab's own nodes: paused, unplugged, dead.
    pub(super) fn ailing(&self) -> Result<Vec<(String, Verb)>> {
        let names = self.seats.iter().filter_map(|seat| lab_name(&seat.node));
        let mut labs: Vec<_> = names.filter_map(|name| Some(name.split_once('/')?.0.to_owned())).collect();
        labs.sort();
        labs.dedup();
        let mut ailing = Vec::new();
        for lab in labs {
            for status in lab::status(&lab)?.nodes {
                let Some(seat) = self.seats.iter().find(|seat| is_node(&seat.node, &status.node)) else { continue };
                let name = &seat.node.name;
                let etcd = status.etcd.as_ref();
                let wrong = [
                    (status.plugged == Some(false), Verb::Plug),
                    (etcd.is_some_and(|etcd| etcd.paused), Verb::Resume),
                    (etcd.is_some_and(|etcd| etcd.pid.is_none()), Verb::Start),
                ];
                ailing.extend(wrong.into_iter().filter(|(is, _)| *is).map(|(_, verb)| (name.clone(), verb)));
            }
        }
        Ok(ailing)
    }
}

/// A lab's node is in that lab where it does not say in which, and so is its log where it says only the rest of the path.
fn in_its_lab(node: &mut Node, lab: Option<&str>) -> Result<()> {
    let Some(cluster::Place::Node(name)) = &mut node.place else { return Ok(()) };
    if !name.contains('/') {
        *name = format!("{}/{name}", lab::choose(lab)?);
    }
    if let (Some(log), Some((lab, _))) = (&mut node.log, name.split_once('/')) {
        // An absolute path stays as it is.
        *log = lab::log_directory(lab).join(&log);
    }
    Ok(())
}

fn of(commands: &Commands, verb: Verb) -> Option<&str> {
    let command = match verb {
        Verb::Kill => &commands.kill,
        Verb::Stop => &commands.stop,
        Verb::Start => &commands.start,
        Verb::Pause => &commands.pause,
        Verb::Resume => &commands.resume,
        Verb::Unplug => &commands.unplug,
        Verb::Plug => &commands.plug,
    };
    command.as_deref()
}

/// `LAB/NODE` of a node that is a lab's.
fn lab_name(node: &Node) -> Option<String> {
    match &node.place {
        Some(cluster::Place::Node(name)) => {
            let node = lab::node(None, name).ok()?;
            Some(format!("{}/{}", node.lab, node.name))
        }
        _ => None,
    }
}

fn is_node(node: &Node, of_lab: &lab::Node) -> bool {
    lab_name(node).is_some_and(|name| name == format!("{}/{}", of_lab.lab, of_lab.name))
}
