//! Whoever works on a machine from elsewhere must not cut themselves off by a slip.

use std::fs;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Result;

use super::Usage;
use super::plan::Planned;
use crate::kernel::netns::NetNs;
use crate::kernel::nft::Nft;
use crate::kernel::route::RouteSocket;
use crate::kernel::session;
use crate::model::{Fault, Kind, Target};

/// Any address behind the default route, of each family: those of the documentation (RFC 5737, RFC 3849).
const FAR: [&str; 2] = ["198.51.100.1", "2001:db8::1"];
const RESOLVER: &str = "/etc/resolv.conf";

/// Refuses a fault about the connection that the caller works by, or, where there is one, about the default gateway or
/// a name server unless these were named themselves.
///
/// # Errors
/// A usage error that says whom the fault would cut off.
pub(super) fn check(ns: &NetNs, fault: &Fault) -> Result<()> {
    // What hush filters no living connection needs.
    if fault.kind == Kind::Hush {
        return Ok(());
    }
    let sessions = session::connections(ns)?;
    if let Some(one) = sessions.iter().find(|one| fault.is_about(one.local, one.remote)) {
        return Err(refused(&format!("the SSH connection from {} to {} that you work by", one.remote, one.local)));
    }
    if sessions.is_empty() {
        return Ok(());
    }
    let mut routes = RouteSocket::open(ns)?;
    let gateways = FAR.iter().filter_map(|far| routes.gateway_to(far.parse().ok()?)).map(|ip| ("default gateway", ip));
    let servers = name_servers().into_iter().map(|ip| ("name server", ip));
    match gateways.chain(servers).find(|(_, ip)| fault.peers.iter().any(|peer| includes(peer, *ip))) {
        Some((what, ip)) => Err(refused(&format!("the {what} {ip}, which is only meant among others"))),
        None => Ok(()),
    }
}

/// The same for all parts of a partition, unless the caller says that it is meant.
pub(super) fn check_all(planned: &[(Planned, Arc<Nft>)], allowed: bool) -> Result<()> {
    if allowed {
        return Ok(());
    }
    planned.iter().try_for_each(|(plan, _)| check(&plan.place.ns, &plan.fault))
}

fn refused(whom: &str) -> anyhow::Error {
    Usage(format!("this would cut off {whom}: leave it out, or say --allow-lockout")).into()
}

/// Whether it is one of many.
fn includes(peer: &Target, ip: IpAddr) -> bool {
    peer.ports.is_none() && peer.net.prefix_len() < peer.net.max_prefix_len() && peer.net.contains(&ip)
}

fn name_servers() -> Vec<IpAddr> {
    let text = fs::read_to_string(RESOLVER).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix("nameserver")?.trim().parse().ok()).collect()
}
