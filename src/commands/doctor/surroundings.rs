//! One place: what its kernel takes, what else is in it, and how its clients wait.

use std::time::Duration;

use anyhow::Result;

use super::super::{inforce, place::Place, shown};
use super::{Finding, State, facilities, foreign};
use crate::kernel::machine::{Capability, Rights};
use crate::kernel::nft::Nft;
use crate::kernel::route::{self, Interface};
use crate::kernel::sysctl;

pub(super) fn look(place: &Place) -> Result<Vec<Finding>> {
    let nft = match Nft::open(&place.ns) {
        Ok(nft) => nft,
        Err(error) if inforce::is_closed(&error) => return Ok(closed(&format!("{error:#}"))),
        Err(error) => return Err(error),
    };
    let mut findings = rules(place, &nft)?;
    findings.push(foreign::legacy(place)?);
    findings.extend(foreign::programs(place)?);
    let interfaces = route::interfaces(&place.ns)?;
    findings.push(devices(&interfaces));
    findings.push(bridges(place, &interfaces)?);
    findings.push(conntrack(place)?);
    findings.push(room(place)?);
    findings.push(connect_timeout(place)?);
    Ok(findings)
}

/// A place that may not even be entered.
fn closed(why: &str) -> Vec<Finding> {
    let mut findings = vec![Finding::new("rules", State::Missing, why).mend("sudo playdead ...")];
    findings.extend(facilities::unknown());
    findings
}

fn rules(place: &Place, nft: &Nft) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    if let Some(refused) = facilities::may_write(nft)? {
        let found = format!("{:?}: they belong to another user namespace, or CAP_NET_ADMIN is missing", refused.errno);
        findings.push(Finding::new("rules", State::Missing, found).mend("sudo playdead ..., or unshare -rnm"));
        findings.extend(facilities::unknown());
        findings.extend(["other tables", "flow offload"].map(Finding::unknown));
    } else {
        findings.push(Finding::ok("rules", "may be changed"));
        findings.extend(facilities::look(&place.ns, nft)?);
        findings.extend(foreign::look(nft)?);
    }
    Ok(findings)
}

fn devices(interfaces: &[Interface]) -> Finding {
    let what = "devices";
    let bare: Vec<_> = interfaces.iter().filter(|i| !i.ethernet && !i.loopback).map(|i| i.name.as_str()).collect();
    if bare.is_empty() {
        return Finding::ok(what, "all with Ethernet");
    }
    Finding::new(what, State::Limited, format!("without Ethernet: {}", bare.join(", ")))
        .costs("refused UDP that leaves by them gives its sender EPERM, a cold neighbour ETIMEDOUT")
        .mend("make the fault on the peer, or on a router between")
}

/// Frames on their way through a bridge are judged in the bridge, with or without `br_netfilter`.
fn bridges(place: &Place, interfaces: &[Interface]) -> Result<Finding> {
    let what = "bridges";
    let names: Vec<_> =
        interfaces.iter().filter(|i| i.kind.as_deref() == Some("bridge")).map(|i| i.name.as_str()).collect();
    if names.is_empty() {
        return Ok(Finding::ok(what, "none"));
    }
    let names = names.join(", ");
    let calls = |family: &str| sysctl::get(&place.ns, &format!("bridge/bridge-nf-call-{family}tables"));
    let with = [calls("ip")?, calls("ip6")?].iter().flatten().any(|value| value != "0");
    let netfilter = if with {
        "with br_netfilter: their frames also pass the rules of the IP stack"
    } else {
        "without br_netfilter"
    };
    Ok(Finding::ok(what, format!("{names}, {netfilter}")))
}

fn conntrack(place: &Place) -> Result<Finding> {
    let count = sysctl::get(&place.ns, "netfilter/nf_conntrack_count")?;
    let found = match count.as_deref() {
        None => "not loaded, and no fault needs it".into(),
        Some("0") => "loaded, tracks nothing here".into(),
        Some(count) => format!("tracks {count} connections here"),
    };
    Ok(Finding::ok("conntrack", found))
}

/// Only rights in the first user namespace go beyond the limit (`SO_SNDBUFFORCE`).
fn room(place: &Place) -> Result<Finding> {
    let what = "net.core.wmem_max";
    let Some(limit) = sysctl::get(&place.ns, "core/wmem_max")? else {
        return Ok(Finding::ok(what, "not shown in this namespace"));
    };
    let rights = Rights::read()?;
    let unlimited = rights.first_user_namespace && rights.has(Capability::NetAdmin);
    let found = format!("{limit} bytes");
    Ok(if unlimited {
        Finding::ok(what, format!("{found}, no limit for us"))
    } else {
        Finding::ok(what, found).costs("a fault whose rules need more is refused")
    })
}

/// How long a client waits for a dead machine, which nothing that playdead does may change.
fn connect_timeout(place: &Place) -> Result<Finding> {
    let number = |key: &str, default: u64| -> Result<u64> {
        Ok(sysctl::get(&place.ns, key)?.and_then(|text| text.parse().ok()).unwrap_or(default))
    };
    let retries = number("ipv4/tcp_syn_retries", 6)?;
    // Linux 6.5.
    let linear = number("ipv4/tcp_syn_linear_timeouts", 0)?;
    // Linux 6.15; TCP_RTO_MAX before.
    let longest = Duration::from_millis(number("ipv4/tcp_rto_max_ms", 120_000)?);
    let waits = shown::time(syn_timeout(retries, linear, longest));
    let found = format!("tcp_syn_retries is {retries}: ETIMEDOUT after {waits}");
    Ok(Finding::ok("connect to a dead host", found))
}

/// When a connect that nobody answers ends: `tcp_write_timeout` of the kernel, which counts repeated SYNs and the
/// time, and gives up with whichever is first. The first `linear` are a second apart, then the pause doubles.
fn syn_timeout(retries: u64, linear: u64, longest: Duration) -> Duration {
    let first = Duration::from_secs(1);
    let doubled = |pause: Duration| (pause * 2).min(longest);
    let pauses = std::iter::successors(Some(first), |pause| Some(doubled(*pause)));
    let enough: Duration = pauses.take(usize::try_from(retries).unwrap_or(255).min(255) + 1).sum();
    let (mut now, mut pause) = (first, first);
    for repeated in 1..=retries + linear {
        if now >= enough {
            break;
        }
        if repeated > linear {
            pause = doubled(pause);
        }
        now += pause;
    }
    now
}

#[cfg(test)]
mod tests {
    use super::{Duration, syn_timeout};

    /// Measured on Linux 6.18: retries, linear timeouts, seconds until ETIMEDOUT.
    #[test]
    fn the_time_of_a_connect_is_the_one_that_was_measured() {
        for (retries, linear, seconds) in
            [(1, 0, 3), (1, 4, 3), (1, 6, 3), (2, 0, 7), (2, 4, 7), (2, 2, 9), (3, 4, 19), (6, 0, 127), (6, 4, 131)]
        {
            let waits = syn_timeout(retries, linear, Duration::from_secs(120));
            assert_eq!(waits, Duration::from_secs(seconds), "{retries} {linear}");
        }
    }
}
