//! The facts about a place that rules are compiled for.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use ipnet::IpNet;

use crate::encode::{Builder, parse_chain_type, request_chains};
use crate::kernel::machine::{LegacyTables, legacy_tables};
use crate::kernel::netns::NetNs;
use crate::kernel::nft::Nft;
use crate::kernel::route::{self, Interface, RouteSocket, Way};
use crate::kernel::{distance, sockets, sysctl};
use crate::model::{BridgeReject, Device, Target, Vantage};
use crate::rules::{Family, reject_trial};

/// One more than the kernel's default of `net.core.somaxconn`, which is as much as any backlog can be.
pub(super) const DEFAULT_QUEUE: u32 = 4097;
/// A burst that a rule counts by the day is kept in nanoseconds, of which 64 bits hold no more.
const MAX_QUEUE: u32 = 65_536;
/// Of more peers than this the hops are not looked for: each has rules that every packet in a peer's name passes.
const MAX_PEERS: usize = 64;
/// How long a peer behind a router has to answer a ping.
const PATIENCE: Duration = Duration::from_millis(150);

/// Reads them. Without `nft` (a dry run without privilege) the kernel's abilities are taken for granted and address
/// translation for absent.
pub(super) fn vantage(ns: &NetNs, nft: Option<&Nft>) -> Result<Vantage> {
    let translates = nft.map(|nft| translates(ns, nft)).transpose()?.unwrap_or(false);
    Ok(Vantage { translates, ..devices(ns, nft, true)? })
}

/// Only the devices, which is cheap. How a bridge refuses takes dry transactions, and is read if `refuses`.
pub(super) fn devices(ns: &NetNs, nft: Option<&Nft>, refuses: bool) -> Result<Vantage> {
    let interfaces = route::interfaces(ns)?;
    let lo = interfaces.iter().find(|interface| interface.loopback).context("the namespace has no loopback device")?;
    let ports: Vec<_> = interfaces.iter().filter(|i| i.master_is_bridge && nft_can_name(&i.name)).map(device).collect();
    let bridge_reject = match nft {
        Some(nft) if refuses && !ports.is_empty() => bridge_reject(nft, lo.index)?,
        None if !ports.is_empty() => BridgeReject::Bridge,
        _ => BridgeReject::Missing,
    };
    let sending = interfaces.iter().filter(|interface| sends_frames(interface)).map(device);
    let (devices, unnamed) = sending.partition(|device| nft_can_name(&device.name));
    Ok(Vantage {
        devices,
        unnamed,
        loopback: lo.index,
        ports,
        translates: false,
        bridge_reject,
        hops: Vec::new(),
        accept_queue: DEFAULT_QUEUE,
    })
}

/// Frames of this host enter the stack's egress hook at the topmost device. What leaves by a bridge's port has
/// passed the bridge; a device without Ethernet has no header by which lo would know the frame for a stranger's.
fn sends_frames(interface: &Interface) -> bool {
    interface.ethernet && !interface.loopback && !interface.sends_for_master
}

/// Whether rules as text can be about the device: nft ends a string at the next quotation mark, and an asterisk stands
/// for the rest of any name. What leaves by such a device is judged as for one that came after the fault.
fn nft_can_name(device: &str) -> bool {
    !device.contains(['"', '*'])
}

fn device(interface: &Interface) -> Device {
    Device { index: interface.index, name: interface.name.clone() }
}

/// By nftables, or by the iptables of old, of whose tables `nf_tables` knows nothing.
fn translates(ns: &NetNs, nft: &Nft) -> Result<bool> {
    let chains = nft.dump(&request_chains())?;
    let by_nft = chains.iter().filter_map(|message| parse_chain_type(message)).any(|kind| kind == "nat");
    let of_old = match legacy_tables(ns)? {
        LegacyTables::Are(tables) => tables.iter().any(|table| table.ends_with(":nat")),
        LegacyTables::Hidden => false,
    };
    Ok(by_nft || of_old)
}

/// How a bridge of the namespace can refuse: two dry transactions.
pub(super) fn bridge_reject(nft: &Nft, lo: u32) -> Result<BridgeReject> {
    for (family, able) in [(Family::Bridge, BridgeReject::Bridge), (Family::Netdev, BridgeReject::Ports)] {
        let mut trial = Builder::new(lo);
        trial.add(&reject_trial(family));
        if nft.check(&trial.finalize_dry())?.is_none() {
            return Ok(able);
        }
    }
    Ok(BridgeReject::Missing)
}

/// Where the peers of a fault are, seen from a place.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// Some are addresses of the place itself.
    pub(super) here: bool,
    /// Some are behind a router.
    pub(super) routed: bool,
    /// How many routers away each is that is not here; those on link only where the place is a router itself.
    pub(super) hops: Vec<(IpNet, u8)>,
    /// Those behind routers of which nobody told how many there are.
    pub(super) guessed: Vec<IpNet>,
}

/// Looks up the routes. With `ping`, single addresses behind a router are asked how far away they are.
pub(super) fn ways(ns: &NetNs, peers: &[Target], ping: bool) -> Result<Ways> {
    let nets: BTreeSet<IpNet> = peers.iter().map(|peer| peer.net).collect();
    let mut socket = RouteSocket::open(ns)?;
    let found: Vec<_> =
        nets.iter().take(MAX_PEERS).filter_map(|net| Some((*net, socket.way_to(within(*net))?))).collect();
    let is = |wanted: Way| found.iter().any(|(_, way)| *way == wanted);
    let mut ways = Ways { here: is(Way::Here), routed: is(Way::Routed), ..Ways::default() };
    if nets.len() > MAX_PEERS {
        ways.guessed = nets.into_iter().collect();
        return Ok(ways);
    }
    let single = |net: &IpNet| net.prefix_len() == net.max_prefix_len();
    let asked: Vec<_> = found
        .iter()
        .filter(|(net, way)| ping && *way == Way::Routed && single(net))
        .map(|(net, _)| net.addr())
        .collect();
    let measured = distance::hops(ns, &asked, PATIENCE)?;
    let forwards = forwards(ns)?;
    for (net, way) in found {
        match (way, measured.get(&net.addr())) {
            (Way::Here, _) => {}
            (Way::OnLink, _) => ways.hops.extend(forwards.then_some((net, 0))),
            (Way::Routed, Some(hops)) => ways.hops.push((net, *hops)),
            (Way::Routed, None) => {
                ways.guessed.push(net);
                ways.hops.push((net, 1));
            }
        }
    }
    Ok(ways)
}

/// An address of the network that a host may have.
fn within(net: IpNet) -> IpAddr {
    net.hosts().next().unwrap_or(net.addr())
}

/// Whether the place is a router.
pub(super) fn forwards(ns: &NetNs) -> Result<bool> {
    for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        if sysctl::get(ns, key)?.is_some_and(|value| value != "0") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// How many more connections the peers take before their processes accept one: the fewest of those that listen here.
pub(super) fn accept_queue(ns: &NetNs, peers: &[Target]) -> Result<u32> {
    let is_peer = |at: std::net::SocketAddr| {
        let of_any = |peer: &Target| peer.ports.is_some_and(|ports| ports.contains(at.port()));
        peers.iter().any(|peer| peer.names(at.ip(), at.port()) || (at.ip().is_unspecified() && of_any(peer)))
    };
    let here =
        sockets::accept_queues(ns)?.into_iter().filter(|(at, _)| is_peer(*at)).map(|(_, left)| left.min(MAX_QUEUE));
    Ok(here.min().unwrap_or(DEFAULT_QUEUE))
}
