//! `playdead share`: one host's part of what happens on several hosts at one instant.
//!
//! It is started on each host by one controller, and they talk in lines of JSON: it says what it is and what its clock
//! shows, compiles and checks its part, waits for the instant, and commits. Until then the end of the conversation is the
//! end of it all; from then on only the kernel's lease counts, as the fault may be what cuts the controller off.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cli::{Cli, PlaceArgs, Verb};
use super::inforce::read;
use super::place::{self, Place};
use super::plan::{Planned, check_usage, plan};
use super::written::{Written, take_back};
use super::{Usage, apply, broken, one_line, out, partition, together};
use crate::cluster;
use crate::kernel::nft::Nft;
use crate::kernel::thread::start;
use crate::kernel::timer::{self, Timer};
use crate::model::{Host, Lifetime, PeerSpec};
use crate::rules::compile;

/// The version of the conversation; it grows when a side would no longer understand the other.
pub(super) const PROTOCOL: u32 = 2;
/// How long the controller may say nothing before the instant is known.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the controller says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "ask")]
pub(super) enum Ask {
    /// What does the clock show?
    Clock,
    /// Compile this and check it.
    Prepare(Part),
    /// Commit it when the monotonic clock here shows this.
    Commit { at_ns: u64 },
    /// What has it met so far?
    Hits,
    /// Take it back.
    Heal,
}

/// What a host is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Part {
    /// As on the command line: a fault with a lease, or `heal NAME`.
    pub(super) words: Vec<String>,
    /// What their addresses are called, also by the words.
    pub(super) names: Vec<(IpAddr, String)>,
    /// Partitions of which the share here goes, because another host's has to make room.
    pub(super) gone: Vec<String>,
}

/// A host's share of a partition that is in force.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Share {
    pub(super) name: String,
    /// Whom it does not hear.
    pub(super) peers: Vec<IpAddr>,
}

/// What the host says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "say")]
pub(super) enum Say {
    /// At first, and only with the rights to change rules.
    Hello {
        protocol: u32,
        version: String,
        addresses: Vec<IpAddr>,
        /// The same for two conversations only if they are about one network namespace.
        namespace: String,
        /// The partitions that are in force there.
        shares: Vec<Share>,
    },
    /// The monotonic clock here.
    Clock { ns: u64 },
    /// It was compiled and checked; the kernel would take it.
    Prepared { rules: String, document: Value },
    /// It is in force since then by the monotonic clock here.
    Committed { at_ns: u64, line: String, document: Value, notes: Vec<String>, replaced: Vec<Replaced> },
    /// Packets to the peers and from them; `None` if somebody else has taken it away.
    Hits { packets: Option<[u64; 2]> },
    /// It is gone, and has met so many.
    Healed { packets: Option<[u64; 2]> },
}

/// A fault that had to make room.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Replaced {
    pub(super) name: String,
    pub(super) packets: [u64; 2],
}

pub(super) fn run(args: &PlaceArgs) -> Result<ExitCode> {
    let mut places = place::resolve(args)?;
    let (Some(place), 0) = (places.pop(), places.len()) else {
        return Err(Usage("a share is one place's: name one".into()).into());
    };
    let nft = Arc::new(Nft::open(&place.ns)?);
    // Whoever may not read rules may not write them either, and is told so before anything else.
    let shares = read(&nft)?.into_iter().filter(|there| there.meta.is_share()).map(|there| {
        let peers = there.peers.iter().map(|peer| peer.net.addr()).collect();
        Share { name: there.name.to_string(), peers }
    });
    let shares = shares.collect();
    let (protocol, version) = (PROTOCOL, env!("CARGO_PKG_VERSION").to_owned());
    let (addresses, namespace) = (cluster::addresses(&place.ns)?, which(&place)?);
    say(&Say::Hello { protocol, version, addresses, namespace, shares })?;
    let asked = listen()?;
    while let Some(ask) = next(&asked, PATIENCE)? {
        match ask {
            Ask::Clock => tell_time()?,
            Ask::Prepare(part) => return share(place, &part, nft, &asked),
            Ask::Commit { .. } | Ask::Hits | Ask::Heal => bail!("nothing was prepared"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Numbers of namespaces are a machine's own.
fn which(place: &Place) -> Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("cannot read the boot id")?;
    let (device, inode) = place.ns.id()?;
    Ok(format!("{} {device} {inode}", boot.trim()))
}

fn share(place: Place, part: &Part, nft: Arc<Nft>, asked: &Receiver<Result<Ask>>) -> Result<ExitCode> {
    let (planned, replace) = planned(place, part, &nft)?;
    let prepared = Say::Prepared {
        rules: planned.rules.to_string(),
        document: super::shown::document(&planned.place.label, &planned.fault),
    };
    let gone = part.gone.iter().map(|name| name.parse()).collect::<Result<_, _>>().map_err(Usage)?;
    let mut done = together::write_when(vec![(planned, nft)], replace, &gone, || {
        say(&prepared)?;
        wait_for_instant(asked)
    })?;
    apply::end_connections(&mut done.written).map_err(|error| take_back(&done.written, error))?;
    // Both clocks are the monotonic one.
    let since = done.last.map_or(Duration::ZERO, |last| last.elapsed());
    let at_ns = nanos(timer::now()?.saturating_sub(since));
    // From here on nobody may be there any more.
    if say(&committed(at_ns, &done.written)).is_err() {
        return Ok(ExitCode::SUCCESS);
    }
    while let Ok(ask) = asked.recv() {
        match ask? {
            Ask::Hits => say(&Say::Hits { packets: packets(&done.written, Written::packets)? })?,
            Ask::Heal => {
                say(&Say::Healed { packets: packets(&done.written, Written::lift)? })?;
                break;
            }
            Ask::Clock | Ask::Prepare(_) | Ask::Commit { .. } => bail!("it is in force already"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn packets(written: &[Written], count: impl Fn(&Written) -> Result<Option<[u64; 2]>>) -> Result<Option<[u64; 2]>> {
    written.first().map_or(Ok(None), count)
}

fn committed(at_ns: u64, written: &[Written]) -> Say {
    let mut replaced = Vec::new();
    for there in written.iter().flat_map(|one| &one.replaced) {
        replaced.push(Replaced { name: there.name.to_string(), packets: [there.to.packets, there.from.packets] });
    }
    let Some(one) = written.first().filter(|one| !one.planned.rules.tables.is_empty()) else {
        return Say::Committed { at_ns, line: String::new(), document: Value::Null, notes: Vec::new(), replaced };
    };
    Say::Committed { at_ns, line: one.line(), document: one.document(), notes: one.notes(), replaced }
}

/// What the words mean in this place, and whether it replaces.
fn planned(place: Place, part: &Part, nft: &Nft) -> Result<(Planned, bool)> {
    let words = std::iter::once("playdead").chain(part.words.iter().map(String::as_str));
    let cli = Cli::try_parse_from(words).map_err(|error| Usage(one_line(&error)))?;
    if let Verb::Heal(heal) = &cli.verb
        && let [name] = heal.names.as_slice()
    {
        let mut nothing = partition::plan_one(place, Vec::new(), Lifetime::Open, nft)?;
        nothing.fault.name = name.clone();
        return Ok((nothing, true));
    }
    let Some((kind, args, None)) = broken(&cli.verb) else {
        bail!(Usage("a host's part is a fault, or to heal one by name".into()));
    };
    check_usage(&args.aim, kind)?;
    if args.lifetime.lease.is_none() || !args.aim.under.command.is_empty() {
        bail!(Usage("a host's part needs a lease: --for D".into()));
    }
    let mut args = args.clone();
    args.aim.peers = args.aim.peers.iter().flat_map(|peer| called(peer, part)).collect();
    // The controller may be cut off: the lease ends by itself.
    args.aim.allow_lockout = true;
    let mut planned = plan(place, kind, &args, Some(nft))?;
    for peer in &mut planned.fault.peers {
        let name = part.names.iter().find(|(address, _)| peer.net.addr() == *address);
        peer.label = name.map(|(_, name)| name.clone()).or(peer.label.take());
    }
    planned.rules = compile(&planned.fault, &planned.vantage);
    Ok((planned, args.aim.replace))
}

/// A peer by a name that the controller knows is its addresses; the place may not know the name.
fn called(peer: &PeerSpec, part: &Part) -> Vec<PeerSpec> {
    let named =
        |name: &str| part.names.iter().filter(|(_, other)| other == name).map(|(address, _)| *address).collect();
    let addresses: Vec<IpAddr> = if let Host::Name(name) = &peer.host { named(name) } else { Vec::new() };
    if addresses.is_empty() {
        return vec![peer.clone()];
    }
    let at = |address| PeerSpec { host: Host::Net(IpNet::from(address)), ..peer.clone() };
    addresses.into_iter().map(at).collect()
}

fn wait_for_instant(asked: &Receiver<Result<Ask>>) -> Result<()> {
    // Held until the end, else it would stop the timer.
    let (timer, _stop) = Timer::new()?;
    loop {
        match next(asked, PATIENCE)? {
            Some(Ask::Clock) => tell_time()?,
            Some(Ask::Commit { at_ns }) => return timer.wait_until(Duration::from_nanos(at_ns)).map(drop),
            Some(Ask::Prepare(_) | Ask::Hits | Ask::Heal) | None => bail!("the controller gave it up"),
        }
    }
}

fn tell_time() -> Result<()> {
    say(&Say::Clock { ns: nanos(timer::now()?) })
}

/// Of 64 bits the clock needs more only after 584 years.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn say(say: &Say) -> Result<()> {
    let heard = out::print_while_read(&format!("{}\n", serde_json::to_string(say)?))?;
    if heard { Ok(()) } else { bail!("the controller is gone") }
}

/// Reads on a thread of its own, so that waiting for a line can end.
fn listen() -> Result<Receiver<Result<Ask>>> {
    let (send, asked) = channel();
    start(move || {
        for line in BufReader::new(std::io::stdin()).lines() {
            let ask = line
                .context("cannot read")
                .and_then(|line| serde_json::from_str(&line).with_context(|| format!("not understood: {line}")));
            if send.send(ask).is_err() {
                return;
            }
        }
    })?;
    Ok(asked)
}

/// `None`: the controller is gone, or says nothing for so long.
fn next(asked: &Receiver<Result<Ask>>, patience: Duration) -> Result<Option<Ask>> {
    asked.recv_timeout(patience).ok().transpose()
}
