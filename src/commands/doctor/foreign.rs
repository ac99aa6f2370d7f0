//! Rules and programs of others that see a packet before a fault's rules do, or lead it round them.

use anyhow::Result;

use super::super::{inforce, place::Place};
use super::{Finding, State};
use crate::encode::{BaseChainInfo, parse_base_chain, parse_flowtable, request_chains, request_flowtables};
use crate::kernel::machine::{self, LegacyTables};
use crate::kernel::nft::Nft;
use crate::kernel::route;
use crate::rules::FIRST;

/// Hooks at which faults judge first: `NFPROTO_*`, its name, the number that the hook has in that family, its name.
const HOOKS: [(u8, &str, u32, &str); 12] = [
    (1, "inet", 0, "prerouting"),
    (1, "inet", 3, "output"),
    (1, "inet", 5, "ingress"),
    (2, "ip", 0, "prerouting"),
    (2, "ip", 3, "output"),
    (10, "ip6", 0, "prerouting"),
    (10, "ip6", 3, "output"),
    (3, "arp", 0, "input"),
    (3, "arp", 1, "output"),
    (5, "netdev", 0, "ingress"),
    (5, "netdev", 1, "egress"),
    (7, "bridge", 0, "prerouting"),
];

/// Needs the right to read rules.
pub(super) fn look(nft: &Nft) -> Result<Vec<Finding>> {
    let ours: Vec<_> = inforce::read(nft)?.iter().map(|fault| fault.name.table()).collect();
    let chains = nft.dump(&request_chains())?;
    let chains = chains.iter().filter_map(|message| parse_base_chain(message));
    let foreign = chains.filter(|chain| !ours.contains(&chain.table));
    let mut findings: Vec<_> = foreign.filter_map(|chain| rival(&chain)).collect();
    if findings.is_empty() {
        findings.push(Finding::ok("other tables", "none judges before a fault, or at its priority"));
    }
    findings.extend(flowtables(nft)?);
    Ok(findings)
}

fn rival(chain: &BaseChainInfo) -> Option<Finding> {
    let (_, family, _, hook) =
        HOOKS.iter().find(|(family, _, number, _)| (*family, *number) == (chain.family, chain.hook))?;
    let BaseChainInfo { table, name, priority, .. } = chain;
    let what = format!("table {family} {table}");
    let found = format!("chain {name}, {hook}, priority {priority}");
    match priority.cmp(&FIRST) {
        std::cmp::Ordering::Greater => None,
        // The kernel puts a chain before those of the same priority that are there already.
        std::cmp::Ordering::Equal => Some(
            Finding::ok(what, found).costs("judges after a fault, but before one that was there when it was loaded"),
        ),
        std::cmp::Ordering::Less => Some(
            Finding::new(what, State::Limited, found)
                .costs("judges before a fault: what it drops, steals or rewrites is not as the fault would have it")
                .mend(format!("nft list chain {family} {table} {name}")),
        ),
    }
}

fn flowtables(nft: &Nft) -> Result<Vec<Finding>> {
    let found = nft.dump(&request_flowtables())?;
    let found = found.iter().filter_map(|message| parse_flowtable(message));
    let mut findings: Vec<_> = found
        .map(|flowtable| {
            let (by, costs) = if flowtable.hardware {
                ("hardware", "connections that it knows pass by every rule")
            } else {
                (
                    "software",
                    "connections that it knows pass by the rules in prerouting and forward, not by those at egress",
                )
            };
            let found = format!("in {by}, {}", flowtable.devices.join(", "));
            Finding::new(format!("flowtable {} {}", flowtable.table, flowtable.name), State::Limited, found)
                .costs(costs)
                .mend("nft list flowtables")
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::ok("flow offload", "none"));
    }
    Ok(findings)
}

/// The old iptables: not part of nftables, so only their names are known.
pub(super) fn legacy(place: &Place) -> Result<Finding> {
    let what = "legacy iptables";
    let tables = match machine::legacy_tables(&place.ns)? {
        LegacyTables::Hidden => return Ok(Finding::unknown(what)),
        LegacyTables::Are(tables) => tables,
    };
    if tables.is_empty() {
        return Ok(Finding::ok(what, "no tables"));
    }
    let found = tables.join(", ");
    Ok(Finding::ok(what, found).costs("judge beside nftables, and are not in nft list"))
}

pub(super) fn programs(place: &Place) -> Result<Vec<Finding>> {
    let devices = route::programs(&place.ns)?;
    if devices.is_empty() {
        return Ok(vec![Finding::ok("XDP", "no programs")]);
    }
    let of = |device: String| {
        Finding::new(format!("XDP on {device}"), State::Limited, "a program")
            .costs("frames that it drops, answers or redirects never meet a rule")
            .mend(format!("ip link set dev {device} xdp off"))
    };
    Ok(devices.into_iter().map(of).collect())
}
