//! Steps that are written in the words of the command line, read by the command line's own definition.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;

use super::world::World;
use crate::cluster::Node;
use crate::commands::cli::{Cli, FaultArgs, LossArgs, LossyArgs, PlaceArgs, Verb};
use crate::commands::flap::FlapArgs;
use crate::commands::hosts;
use crate::commands::partition::PartitionArgs;
use crate::commands::place::{self, Place};
use crate::commands::plan::check_usage;
use crate::commands::probe::ProbeArgs;
use crate::commands::share::Part;
use crate::commands::{Usage, broken};
use crate::model::{Host, Kind, Lifetime, PeerSpec, Rhythm};
use crate::scenario::plan::LIVE;

/// A fault as it was written.
pub(super) struct Fault {
    cli: Cli,
    words: String,
}

/// A fault for nodes of which some are on other hosts.
pub(super) struct Elsewhere {
    pub(super) nodes: Vec<Node>,
    pub(super) part: Part,
    pub(super) lease: Duration,
}

impl Fault {
    /// `KIND PEER... [options] --node NODE`. The seed is for dice that the words leave open.
    pub(super) fn parse(words: &str, seed: u64) -> Result<Self> {
        let mut cli = parse(&[], words)?;
        if let Verb::Lossy(args) = &mut cli.verb
            && args.loss.per_connection
            && args.seed.is_none()
        {
            #[expect(clippy::cast_possible_truncation, reason = "any 32 bits of it")]
            let seed = seed as u32;
            args.seed = Some(seed);
        }
        let Some((kind, args, _)) = broken(&cli.verb) else {
            bail!(Usage("a fault begins with its kind: dead-host, dead-process, ...".into()));
        };
        check_usage(&args.aim, kind)?;
        refuse(args.lifetime.hold, args.aim.dry_run, &args.aim.under.command)?;
        Ok(Self { cli, words: words.to_owned() })
    }

    /// The kind, its arguments with the scenario's nodes as peers, and what is run afterwards. Without a lease it is
    /// held by this process.
    pub(super) fn args(&self, world: &World) -> Result<(Kind, FaultArgs, Option<&OsStr>)> {
        let Some((kind, args, then)) = broken(&self.cli.verb) else { bail!("not a kind of fault") };
        let mut args = args.clone();
        args.lifetime.hold = args.lifetime.lease.is_none();
        args.aim.peers = world.peers(&args.aim.peers);
        Ok((kind, args, then))
    }

    /// Where it is to be.
    pub(super) fn places(&self, world: &World) -> Result<Vec<Place>> {
        some_places(world, &self.cli.place)
    }

    /// What other hosts are told, if some of its places are there.
    pub(super) fn elsewhere(&self, world: &World) -> Result<Option<Elsewhere>> {
        let Some(nodes) = world.elsewhere(&self.cli.place)? else { return Ok(None) };
        let Some((_, args, None)) = broken(&self.cli.verb) else {
            bail!(Usage("--then is not run on another host: make it a step of its own".into()));
        };
        let lease = hosts::lease(args.lifetime.lasting(false))?;
        let mut words = hosts::without_place(shlex::split(&self.words).unwrap_or_default());
        if let Verb::Lossy(LossyArgs { loss: LossArgs { per_connection: true, .. }, seed: Some(seed), .. }) =
            &self.cli.verb
        {
            words.push(format!("--seed={seed}"));
        }
        Ok(Some(Elsewhere { nodes, part: Part { words, names: world.addresses(), gone: Vec::new() }, lease }))
    }

    /// Whether its peers are asked of the live cluster, and so are not known before it happens.
    pub(super) fn is_live(&self) -> bool {
        let peers = broken(&self.cli.verb).map(|(_, args, _)| &args.aim.peers);
        peers.is_some_and(|peers| peers.iter().any(|peer| matches!(peer.host, Host::Etcd { .. })))
    }
}

/// A fault that comes and goes, as it was written.
pub(super) struct Flap {
    pub(super) args: FlapArgs,
    place: PlaceArgs,
}

impl Flap {
    /// `KIND PEER... --up D --down D [options] --node NODE`. The seed is for dice that the words leave open.
    pub(super) fn parse(words: &str, seed: u64) -> Result<Self> {
        let cli = parse(&["flap"], words)?;
        let Verb::Flap(mut args) = cli.verb else { bail!(Usage("write KIND PEER... --up D --down D".into())) };
        refuse(false, args.aim.dry_run, &args.aim.under.command)?;
        args.seed.get_or_insert(seed);
        args.meaning()?;
        Ok(Self { args, place: cli.place })
    }

    /// Its kind, rhythm and fault, with the scenario's nodes as peers.
    pub(super) fn meaning(&self, world: &World) -> Result<(Kind, Rhythm, FaultArgs)> {
        let (kind, rhythm, mut fault) = self.args.meaning()?;
        fault.aim.peers = world.peers(&fault.aim.peers);
        Ok((kind, rhythm, fault))
    }

    /// Where it is to be.
    pub(super) fn places(&self, world: &World) -> Result<Vec<Place>> {
        some_places(world, &self.place)
    }
}

/// A partition as it was written.
pub(super) struct Cut {
    pub(super) args: PartitionArgs,
}

impl Cut {
    /// `GROUP GROUP... [options]`. The seed is for dice that the words leave open.
    pub(super) fn parse(words: &str, seed: u64) -> Result<Self> {
        let cli = parse(&["partition"], words)?;
        let Verb::Partition(mut args) = cli.verb else { bail!(Usage("write the groups of a partition".into())) };
        refuse(args.lifetime.hold, args.dry_run, &args.under.command)?;
        if args.nodes.lab.is_some() || cli.place.nodes.is_some() || place::is_named(&cli.place) {
            bail!(Usage("a partition is between the nodes of the scenario: name no others".into()));
        }
        args.seed.get_or_insert(seed);
        args.lifetime.hold = args.lifetime.lease.is_none();
        Ok(Self { args })
    }

    /// Whether the live cluster is asked for it.
    pub(super) fn is_live(&self) -> bool {
        self.args.isolate.as_deref().is_some_and(|node| LIVE.contains(&node))
    }

    /// How long it lasts.
    pub(super) fn lifetime(&self) -> Lifetime {
        self.args.lifetime.lasting(false)
    }
}

/// What a scenario does in its own way.
fn refuse(hold: bool, dry_run: bool, command: &[OsString]) -> Result<()> {
    let own = [
        (dry_run, "--dry-run", "give it to run"),
        (hold, "--hold", "a scenario holds its faults anyway"),
        (!command.is_empty(), "-- COMMAND", "make it a step of its own"),
    ];
    match own.iter().find(|(given, ..)| *given) {
        Some((_, option, why)) => bail!(Usage(format!("{option} has no place in a scenario: {why}"))),
        None => Ok(()),
    }
}

/// A look as it was written.
pub(super) struct Look {
    pub(super) args: ProbeArgs,
    place: PlaceArgs,
}

impl Look {
    /// `PEER:PORT... [options] [--node NODE]`
    pub(super) fn parse(words: &str) -> Result<Self> {
        let cli = parse(&["probe"], words)?;
        let Verb::Probe(args) = cli.verb else { bail!(Usage("write PEER:PORT and the options of probe".into())) };
        if !args.command.is_empty() || args.brief {
            bail!(Usage("-- COMMAND and --brief have no place in a scenario".into()));
        }
        Ok(Self { args, place: cli.place })
    }

    /// From where, and at whom, in the words of the scenario's nodes.
    pub(super) fn from(&self, world: &World) -> Result<(Place, Vec<PeerSpec>)> {
        let mut places = places(world, &self.place)?;
        let (Some(place), 0) = (places.pop(), places.len()) else {
            bail!(Usage("a look is from one place: name one by --node NODE".into()));
        };
        Ok((place, world.peers(&self.args.peers)))
    }
}

/// Splits as a shell does, and reads as the command line is read.
fn parse(before: &[&str], words: &str) -> Result<Cli> {
    let split = shlex::split(words).ok_or_else(|| Usage("a quotation mark is not closed".into()))?;
    let words = std::iter::once("playdead").chain(before.iter().copied()).map(str::to_owned).chain(split);
    Cli::try_parse_from(words).map_err(|error| Usage(crate::commands::one_line(&error)).into())
}

fn some_places(world: &World, args: &PlaceArgs) -> Result<Vec<Place>> {
    let places = places(world, args)?;
    if places.is_empty() {
        bail!(Usage("say where: --node NODE, or --netns, --pid, --container".into()));
    }
    Ok(places)
}

fn places(world: &World, args: &PlaceArgs) -> Result<Vec<Place>> {
    let others = PlaceArgs { node: Vec::new(), ..args.clone() };
    let mut places = if place::is_named(&others) { place::resolve(&others)? } else { Vec::new() };
    for node in &args.node {
        places.push(world.place(node)?);
    }
    place::without_doubles(places)
}
