//! From what was typed to what is to be written in one place: a value, and nothing written yet.

use std::sync::Arc;

use anyhow::Result;
use ipnet::IpNet;
use serde_json::Value;

use super::cli::{AimArgs, FaultArgs};
use super::facts::{self, Ways};
use super::peers::targets;
use super::place::Place;
use super::{Usage, lockout, shown};
use crate::kernel::conntrack;
use crate::kernel::nft::Nft;
use crate::model::{
    BridgeReject, Fault, Host, Kind, Loss, LossScope, Name, OpenConnections, PeerSpec, Proto, Target, Vantage,
};
use crate::rules::{Ruleset, compile};

/// One place, and what is to be written there.
pub(super) struct Planned {
    pub(super) place: Place,
    pub(super) fault: Fault,
    pub(super) vantage: Vantage,
    pub(super) rules: Ruleset,
    /// What the user must know of it.
    pub(super) notes: Vec<String>,
}

/// What is to be written in each place, and by which socket: only the one that made a held fault can replace it.
pub(super) type Plans = Vec<(Planned, Arc<Nft>)>;

impl Planned {
    /// As `--dry-run` prints it.
    pub(super) fn text(&self) -> String {
        shown::rules(&self.fault.name, &self.place.label, &self.rules)
    }

    /// As `--dry-run --json` prints it.
    pub(super) fn document_with_rules(&self) -> Value {
        let mut document = shown::document(&self.place.label, &self.fault);
        document["rules"] = self.rules.to_string().into();
        document
    }
}

/// Looks the peers up in the place and compiles. Without `nft` (a dry run without privilege) the kernel's abilities
/// are taken for granted.
pub(super) fn plan(place: Place, kind: Kind, typed: &FaultArgs, nft: Option<&Nft>) -> Result<Planned> {
    let mut notes = Vec::new();
    let peers = reached(targets(&place, &typed.aim.peers, kind)?, &typed.aim.scope.with, &mut notes)?;
    notes.extend(typed.aim.peers.iter().filter_map(maybe_a_port));
    let first = typed.aim.peers[0].canonical();
    let mut fault = Fault {
        // Until the digest is known.
        name: Name::made_up(kind, &first, 0),
        kind,
        peers,
        with: typed.aim.scope.with.clone(),
        direction: typed.aim.scope.direction,
        proto: typed.aim.scope.proto,
        lifetime: typed.lifetime.lasting(!typed.aim.under.command.is_empty()),
        since: now(),
    };
    fault.name = typed.aim.name.clone().unwrap_or_else(|| Name::made_up(kind, &first, fault.digest()));
    if !typed.aim.dry_run && !typed.aim.allow_lockout {
        lockout::check(&place.ns, &fault)?;
    }
    let mut vantage = facts::vantage(&place.ns, nft)?;
    let resets = matches!(kind, Kind::DeadProcess(_) | Kind::Rebooted);
    let mut ways = facts::ways(&place.ns, &fault.peers, resets && nft.is_some())?;
    if resets {
        vantage.hops = std::mem::take(&mut ways.hops);
    }
    if matches!(kind, Kind::HungProcess(None)) && ways.here {
        vantage.accept_queue = facts::accept_queue(&place.ns, &fault.peers)?;
    }
    let rules = compile(&fault, &vantage);
    notes.extend(limits(&place, &fault, &vantage, &ways)?);
    Ok(Planned { place, fault, vantage, rules, notes })
}

/// What can be said of the words alone, before anything is looked up.
pub(super) fn check_usage(typed: &AimArgs, kind: Kind) -> Result<()> {
    if let Some(command) = typed.under.command.first()
        && command.is_empty()
    {
        return Err(Usage("the command after -- is empty".into()).into());
    }
    let is_etcd = |host: &Host| matches!(host, Host::Etcd { .. });
    if kind.needs_port()
        && let Some(peer) = typed.peers.iter().find(|peer| peer.ports.is_none() && !is_etcd(&peer.host))
    {
        let text = &peer.text;
        return Err(Usage(format!("{text}: {} happens to a process: name its port, {text}:PORT", kind.verb())).into());
    }
    let addresses = typed.peers.iter().filter_map(|peer| match peer.host {
        Host::Net(net) => Some((&peer.text, net)),
        _ => None,
    });
    for (text, net) in addresses {
        if !typed.scope.with.is_empty() && !typed.scope.with.iter().any(|with| same_family(net, *with)) {
            let family = family_name(net);
            return Err(Usage(format!(
                "{text}: --with names no {family} address, so nothing could happen between them: add one to --with"
            ))
            .into());
        }
    }
    Ok(())
}

/// To the microsecond, by which two faults of one name are told apart.
pub(super) fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}

/// The addresses of the peers that have traffic with the other ends. A name may have addresses of a family of which
/// `--with` names none: they stay as they are, and the user is told.
fn reached(peers: Vec<Target>, with: &[IpNet], notes: &mut Vec<String>) -> Result<Vec<Target>> {
    if with.is_empty() {
        return Ok(peers);
    }
    let (reached, left): (Vec<_>, Vec<_>) =
        peers.into_iter().partition(|peer| with.iter().any(|with| same_family(peer.net, *with)));
    let left: Vec<_> = left.iter().map(ToString::to_string).collect();
    if reached.is_empty() {
        let left = left.join(", ");
        return Err(Usage(format!("--with names no address of the family of any peer ({left}): add one")).into());
    }
    if !left.is_empty() {
        notes.push(format!("{} left alone: --with names no address of that family", left.join(", ")));
    }
    Ok(reached)
}

fn same_family(one: IpNet, other: IpNet) -> bool {
    one.max_prefix_len() == other.max_prefix_len()
}

fn family_name(net: IpNet) -> &'static str {
    match net {
        IpNet::V4(_) => "IPv4",
        IpNet::V6(_) => "IPv6",
    }
}

/// An IPv6 address whose end looks like a port.
fn maybe_a_port(peer: &PeerSpec) -> Option<String> {
    let Host::Net(IpNet::V6(_)) = peer.host else { return None };
    let (host, end) = peer.text.rsplit_once(':').filter(|_| peer.ports.is_none())?;
    let is_port = end.len() > 3 && end.bytes().all(|byte| byte.is_ascii_digit());
    let is_address = host.parse::<std::net::Ipv6Addr>().is_ok();
    (is_port && is_address).then(|| format!("{} is an address: a port of {host} is written [{host}]:{end}", peer.text))
}

/// What this vantage cannot do exactly.
fn limits(place: &Place, fault: &Fault, vantage: &Vantage, ways: &Ways) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let refuses = fault.kind.refuses() && fault.direction.to();
    if refuses && !vantage.ports.is_empty() && vantage.bridge_reject == BridgeReject::Missing {
        notes.push(format!(
            "this kernel cannot refuse frames that a bridge of {} passes on (CONFIG_NFT_BRIDGE_REJECT): they go through",
            place.label
        ));
    }
    if fault.direction.to() && !vantage.unnamed.is_empty() {
        let names: Vec<_> = vantage.unnamed.iter().map(|device| device.name.as_str()).collect();
        notes.push(format!(
            "{}: nft cannot write such a name of a device: through it a cold neighbour gives ETIMEDOUT, not EHOSTUNREACH",
            names.join(", ")
        ));
    }
    match fault.kind {
        Kind::DeadProcess(open) => notes.extend(limits_of_death(place, fault, vantage, open, ways)?),
        Kind::Lossy(Loss { scope: LossScope::Connection { seed }, .. }) => {
            notes.push(format!("seed {seed}: --seed {seed} loses the same connections again"));
        }
        Kind::HungProcess(_) if fault.proto != Proto::Udp => {
            notes.push("a request whose answer acknowledges it is acknowledged only when it is sent again".into());
            notes.push("the process reads on: who sends more than a receive buffer holds meets no zero window".into());
        }
        Kind::DeadHost if fault.direction.to() && ways.routed => {
            notes.push("the router is not asked: no host unreachable comes from it".into());
        }
        _ => {}
    }
    if matches!(fault.kind, Kind::DeadProcess(_) | Kind::Rebooted)
        && let Some(first) = ways.guessed.first()
    {
        let more = match ways.guessed.len() {
            1 => String::new(),
            all => format!(" and {} more", all - 1),
        };
        notes.push(format!("not known how many routers away {first}{more} is: the time to live of RST may differ"));
    }
    Ok(notes)
}

fn limits_of_death(
    place: &Place,
    fault: &Fault,
    vantage: &Vantage,
    open: OpenConnections,
    ways: &Ways,
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let ends = open != OpenConnections::Keep && fault.proto != Proto::Udp && fault.direction.from();
    let listed = || conntrack::established(&place.ns).map(|tracked| !tracked.is_empty());
    if ends && (!vantage.ports.is_empty() || facts::forwards(&place.ns)? && !listed()?) {
        let note = "open connections that only pass through here are not listed: each ends with the next data that its \
                    client sends";
        notes.push(note.into());
    }
    if ends && !ways.here && open != OpenConnections::Reset {
        notes.push("open connections end by FIN also where the peer has not read data, which only it can tell".into());
    }
    Ok(notes)
}
