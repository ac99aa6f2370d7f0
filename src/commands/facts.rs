//! The facts about a place that rules are compiled for.

use anyhow::{Context, Result};

use crate::encode::{Builder, parse_chain_type, request_chains};
use crate::kernel::machine::{LegacyTables, legacy_tables};
use crate::kernel::netns::NetNs;
use crate::kernel::nft::Nft;
use crate::kernel::route::{self, Interface};
use crate::model::{BridgeReject, Device, Vantage};
use crate::rules::{Family, reject_trial};

/// Reads them. Without `nft` (a dry run without privilege) the kernel's abilities are taken for granted and address
/// translation for absent.
pub(super) fn vantage(ns: &NetNs, nft: Option<&Nft>) -> Result<Vantage> {
    let interfaces = route::interfaces(ns)?;
    let lo = interfaces.iter().find(|interface| interface.loopback).context("the namespace has no loopback device")?;
    let ports: Vec<_> = interfaces.iter().filter(|i| i.master_is_bridge && nft_can_name(&i.name)).map(device).collect();
    let bridge_reject = match nft {
        Some(nft) if !ports.is_empty() => bridge_reject(nft, lo.index)?,
        None if !ports.is_empty() => BridgeReject::Bridge,
        _ => BridgeReject::Missing,
    };
    Ok(Vantage {
        devices: interfaces.iter().filter(|i| sends_frames(i) && nft_can_name(&i.name)).map(device).collect(),
        loopback: lo.index,
        ports,
        translates: nft.map(|nft| translates(ns, nft)).transpose()?.unwrap_or(false),
        bridge_reject,
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
