//! Names, looked up where the rules will be.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};

use anyhow::{Context, Result, bail};

use super::netns::NetNs;

/// Every address, v4 and v6, that `name` has in the namespace, by its own `/etc/hosts` and resolver.
/// Errors if it has none.
pub fn addresses(ns: &NetNs, name: &str) -> Result<Vec<IpAddr>> {
    let found = ns.run_with_etc(|| (name, 0).to_socket_addrs().map(|all| all.map(|a| a.ip()).collect::<BTreeSet<_>>()));
    let found = found?.with_context(|| format!("{name:?} is not a name that is known there"))?;
    if found.is_empty() {
        bail!("{name:?} has no address there");
    }
    Ok(found.into_iter().collect())
}
