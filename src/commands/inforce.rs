//! What is in force in a namespace, read from the kernel: there is no other record.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use ipnet::IpNet;

use super::place::Place;
use super::{facts, is_of};
use crate::encode::{
    ElementInfo, TableInfo, family, parse_counter, parse_elements, parse_table, request_counters, request_elements,
    request_rules, request_tables,
};
use crate::kernel::Missing;
use crate::kernel::nft::Nft;
use crate::model::{Fault, Lifetime, Meta, Name, Target};
use crate::rules::{COVERED_SET, Family, GATE_SET, READ_BACK, read_back, uncovered};

/// Packets and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct Hits {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl Hits {
    /// What came since then.
    pub(super) fn since(self, then: Self) -> Self {
        let Self { packets, bytes } = then;
        Self { packets: self.packets.saturating_sub(packets), bytes: self.bytes.saturating_sub(bytes) }
    }
}

/// Packets to the peers and from them, of two that may not be known.
pub(super) fn sum(one: Option<[u64; 2]>, other: Option<[u64; 2]>) -> Option<[u64; 2]> {
    match (one, other) {
        (Some([to, from]), Some([more_to, more_from])) => Some([to + more_to, from + more_from]),
        (one, other) => one.or(other),
    }
}

/// A fault as the kernel has it.
#[derive(Debug, Clone)]
pub(super) struct InForce {
    pub(super) name: Name,
    pub(super) meta: Meta,
    pub(super) families: Vec<Family>,
    /// It is a node's share of a partition, and the moment of the partition has not come.
    pub(super) is_shut: bool,
    /// Whether its tables have rules: who heals takes these first, and may be killed then. Only a complete reading tells.
    pub(super) has_rules: bool,
    /// The netlink port of the socket that holds it.
    pub(super) owner: Option<u32>,
    pub(super) peers: Vec<Target>,
    pub(super) with: Vec<IpNet>,
    pub(super) to: Hits,
    pub(super) from: Hits,
    /// What is left of a lease; zero once it has expired.
    pub(super) left: Option<Duration>,
    /// Devices that came, or got another name, after it was made: only a survey looks for them.
    pub(super) late: Vec<String>,
}

impl InForce {
    /// Whether its rules still apply.
    pub(super) fn is_active(&self) -> bool {
        self.has_rules && !self.is_shut && self.left.is_none_or(|left| !left.is_zero())
    }

    /// What the user must know of it: parts that were taken away, devices that it does not know.
    pub(super) fn notes(&self) -> Vec<String> {
        let damage = self.damage().map(|damage| format!("INCOMPLETE: {damage}: apply it again"));
        damage.into_iter().chain(self.not_exact()).collect()
    }

    /// By which devices it may differ from the real failure, and what to do about it.
    pub(super) fn not_exact(&self) -> Option<String> {
        let late = (!self.late.is_empty()).then(|| self.late.join(", "))?;
        Some(format!("{late} came after it: apply it again to have it exact there too"))
    }

    /// What is amiss with it, if somebody has taken a part of it away.
    pub(super) fn damage(&self) -> Option<String> {
        if !self.has_rules {
            return Some("its rules were taken away".into());
        }
        if self.is_shut {
            return Some("it has not begun, or whoever made it was ended before it did".into());
        }
        let (left, all) = (self.families.len(), self.meta.tables);
        let families: Vec<_> = self.families.iter().map(|family| family.name()).collect();
        (left < all).then(|| format!("only {left} of its {all} tables are left ({})", families.join(", ")))
    }

    /// The fault that would write the same rules for what is left of its time.
    pub(super) fn fault(&self) -> Fault {
        let lifetime = match (self.owner, self.left) {
            (Some(_), _) => Lifetime::Held,
            (None, Some(left)) => Lifetime::Lease(left),
            (None, None) => Lifetime::Open,
        };
        Fault {
            name: self.name.clone(),
            kind: self.meta.kind,
            peers: self.peers.clone(),
            with: self.with.clone(),
            direction: self.meta.direction,
            proto: self.meta.proto,
            lifetime,
            since: self.meta.since.clone(),
        }
    }
}

/// The tables of a namespace at one moment, whoever made them.
pub(super) struct Tables(Vec<TableInfo>);

impl Tables {
    pub(super) fn read(nft: &Nft) -> Result<Self> {
        Ok(Self(nft.dump(&request_tables())?.iter().filter_map(|message| parse_table(message)).collect()))
    }

    /// Whether one has a name as ours have, but is somebody else's.
    pub(super) fn is_foreign(&self, name: &Name) -> bool {
        self.0.iter().any(|table| table.name == name.table() && meta_of(table).is_none())
    }

    /// All faults, by name: only what their tables say, which is cheap.
    pub(super) fn outline(&self) -> Vec<InForce> {
        let mut faults: BTreeMap<Name, InForce> = BTreeMap::new();
        for table in &self.0 {
            let (Some((name, meta)), Some(family)) = (meta_of(table), family(table.family)) else { continue };
            let fault = faults.entry(name.clone()).or_insert_with(|| InForce {
                name,
                meta,
                families: Vec::new(),
                is_shut: false,
                has_rules: true,
                owner: table.owner,
                peers: Vec::new(),
                with: Vec::new(),
                to: Hits::default(),
                from: Hits::default(),
                left: None,
                late: Vec::new(),
            });
            fault.families.push(family);
        }
        faults.into_values().collect()
    }
}

fn meta_of(table: &TableInfo) -> Option<(Name, Meta)> {
    let meta = table.comment.as_ref()?.parse().ok()?;
    Some((Name::of_table(&table.name)?, meta))
}

/// All faults of the namespace behind `nft`, by name: only what their tables say, which is cheap.
pub(super) fn outline(nft: &Nft) -> Result<Vec<InForce>> {
    Ok(Tables::read(nft)?.outline())
}

/// What a dry run asks the kernel by; `None` without privilege: what it can do is taken for granted then.
pub(super) fn readable(nft: &Nft) -> Option<&Nft> {
    outline(nft).ok().map(|_| nft)
}

/// All faults of the namespace behind `nft`, with peers, hits and what is left of their leases.
pub(super) fn read(nft: &Nft) -> Result<Vec<InForce>> {
    complete(nft, outline(nft)?)
}

/// Adds peers, hits and what is left of the leases.
pub(super) fn complete(nft: &Nft, mut faults: Vec<InForce>) -> Result<Vec<InForce>> {
    for fault in &mut faults {
        fault.has_rules = has_rules(nft, fault)?;
        read_sets(nft, fault)?;
    }
    if !faults.is_empty() {
        for family in [Family::Inet, Family::Netdev, Family::Bridge, Family::Arp] {
            count(nft, family, &mut faults)?;
        }
    }
    Ok(faults)
}

fn count(nft: &Nft, family: Family, faults: &mut [InForce]) -> Result<()> {
    for counter in nft.dump(&request_counters(family))?.iter().filter_map(|message| parse_counter(message)) {
        let Some(fault) = faults.iter_mut().find(|fault| fault.name.table() == counter.table) else { continue };
        let hits = match counter.name.as_str() {
            "to" => &mut fault.to,
            "from" => &mut fault.from,
            _ => continue,
        };
        hits.packets += counter.packets;
        hits.bytes += counter.bytes;
    }
    Ok(())
}

/// They go from all tables at once, and no table is made without.
fn has_rules(nft: &Nft, fault: &InForce) -> Result<bool> {
    let of = |family: &Family| nft.dump(&request_rules(*family, &fault.name.table()));
    fault.families.first().map_or(Ok(false), |family| Ok(!of(family)?.is_empty()))
}

fn read_sets(nft: &Nft, fault: &mut InForce) -> Result<()> {
    let table = fault.name.table();
    for set in READ_BACK {
        let mut seen: Vec<(Target, Option<u8>)> = Vec::new();
        for family in &fault.families {
            if seen.is_empty() {
                seen = ranges(&elements(nft, *family, &table, set)?);
            }
        }
        let targets = seen.into_iter().map(|(target, _)| target);
        if set.starts_with("with") {
            fault.with.extend(targets.map(|target| target.net));
        } else {
            fault.peers.extend(targets);
        }
    }
    // A peer with a port has an element a protocol.
    fault.peers.sort();
    fault.peers.dedup();
    if fault.meta.lease.is_some() || fault.meta.is_share() {
        let gate = gate(nft, fault)?;
        let left = gate.iter().filter_map(|element| element.expires_ms).max();
        fault.left = fault.meta.lease.map(|_| Duration::from_millis(left.unwrap_or(0)));
        fault.is_shut = fault.meta.lease.is_none() && gate.is_empty();
    }
    Ok(())
}

fn gate(nft: &Nft, fault: &InForce) -> Result<Vec<ElementInfo>> {
    let mut gate = Vec::new();
    for family in &fault.families {
        gate.extend(elements(nft, *family, &fault.name.table(), GATE_SET)?);
    }
    Ok(gate)
}

fn elements(nft: &Nft, family: Family, table: &str, set: &str) -> Result<Vec<ElementInfo>> {
    let messages = nft.dump(&request_elements(family, table, set))?;
    Ok(messages.iter().flat_map(|message| parse_elements(message)).collect())
}

/// Single values, ranges of concatenations, and plain intervals, which the kernel shows as their first value and the
/// first value behind them, in whatever order.
fn ranges(elements: &[ElementInfo]) -> Vec<(Target, Option<u8>)> {
    let mut ends: Vec<_> = elements.iter().filter(|element| element.ends_interval).map(|end| &end.key).collect();
    ends.sort();
    let last_of = |element: &ElementInfo| {
        if !element.key_end.is_empty() {
            return element.key_end.clone();
        }
        match ends.get(ends.partition_point(|end| **end <= element.key)) {
            Some(end) => predecessor(end),
            None if ends.is_empty() => element.key.clone(),
            None => vec![0xff; element.key.len()],
        }
    };
    let starts = elements.iter().filter(|element| !element.ends_interval);
    starts.filter_map(|start| read_back(&start.key, &last_of(start), start.comment.clone())).collect()
}

fn predecessor(bytes: &[u8]) -> Vec<u8> {
    let mut previous = bytes.to_vec();
    for byte in previous.iter_mut().rev() {
        let (difference, borrow) = byte.overflowing_sub(1);
        *byte = difference;
        if !borrow {
            break;
        }
    }
    previous
}

/// A place with an open socket, and what is in force there.
pub(super) struct Surveyed {
    pub(super) place: Place,
    pub(super) nft: Nft,
    pub(super) faults: Vec<InForce>,
}

/// All of their faults.
pub(super) fn faults_of(surveyed: &[Surveyed]) -> impl Iterator<Item = (&Surveyed, &InForce)> {
    surveyed.iter().flat_map(|one| one.faults.iter().map(move |fault| (one, fault)))
}

/// Whether a namespace of somebody else may not be looked into: whatever is in it is not ours.
pub(super) fn is_closed(error: &anyhow::Error) -> bool {
    is_of::<Missing>(error)
}

/// Looks for devices that are newer than the faults of a place.
fn find_late(place: &Place, nft: &Nft, faults: &mut [InForce]) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    let refuses = faults.iter().any(|fault| fault.meta.kind.refuses());
    let present = facts::devices(&place.ns, Some(nft), refuses)?;
    for fault in faults.iter_mut().filter(|fault| fault.families.contains(&Family::Inet)) {
        let covered = elements(nft, Family::Inet, &fault.name.table(), COVERED_SET)?;
        let covered: Vec<_> = covered.into_iter().map(|element| element.key).collect();
        fault.late = uncovered(fault.meta.kind, &present, &covered).into_iter().map(|late| late.name.clone()).collect();
    }
    Ok(())
}

/// Reads every place. With `lenient`, those that are closed to us are left out.
pub(super) fn survey(places: Vec<Place>, lenient: bool) -> Result<Vec<Surveyed>> {
    let mut surveyed = Vec::new();
    for place in places {
        let faults = Nft::open(&place.ns).and_then(|nft| {
            let mut faults = read(&nft)?;
            find_late(&place, &nft, &mut faults)?;
            Ok((nft, faults))
        });
        match faults {
            Ok((nft, faults)) => surveyed.push(Surveyed { place, nft, faults }),
            Err(error) if lenient && place.label != "here" && is_closed(&error) => {}
            Err(error) => return Err(error.context(format!("place {}", place.label))),
        }
    }
    Ok(surveyed)
}
