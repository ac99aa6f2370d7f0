//! Cables pulled for real, at the switch.
//!
//! A node is unplugged by taking its port out of the bridge; the port itself stays up. The node keeps its
//! carrier and its addresses and talks into a void, and to the others it is a machine that is gone: no answer to
//! anything, nor to ARP or neighbour solicitations. (Were the port set down, the node's own carrier would go,
//! which its kernel tells its programs; a dead *other* machine never does that.) The bridge forgets at once
//! behind which port the node was, as a switch does that sees a cable pulled.

use anyhow::{Context, Result, bail};

use super::build::BRIDGE;
use super::nodes::Node;
use super::plan::{Role, netns_name};
use crate::kernel::netns::NetNs;
use crate::kernel::route::{self, RouteSocket};

/// Takes the node's port out of the switch; it is out already: nothing happens.
///
/// # Errors
/// When the node has no port there, or the kernel refuses.
pub fn unplug(node: &Node) -> Result<()> {
    switch_socket(node)?.detach(&node.name).with_context(|| why(node))
}

/// Puts the node's port back into the switch; it is in already: nothing happens.
///
/// # Errors
/// When the node has no port there, or the kernel refuses.
pub fn plug(node: &Node) -> Result<()> {
    switch_socket(node)?.attach(&node.name, BRIDGE).with_context(|| why(node))
}

/// The nodes of the lab whose port is in the switch, and those whose port is not.
pub(super) fn ports(lab: &str) -> Result<Vec<(String, bool)>> {
    let switch = NetNs::named(&netns_name(lab, Role::Switch))?;
    let interfaces = route::interfaces(&switch)?;
    let ports = interfaces.into_iter().filter(|interface| Role::named(&interface.name).is_some());
    Ok(ports.map(|port| (port.name, port.master_is_bridge)).collect())
}

fn switch_socket(node: &Node) -> Result<RouteSocket> {
    if node.role == Role::Switch {
        bail!("the switch has no cable of its own: unplug the nodes");
    }
    if !ports(&node.lab)?.iter().any(|(name, _)| *name == node.name) {
        bail!("{} is not plugged into the switch but into the router: unplug the router", node.name);
    }
    RouteSocket::open(&NetNs::named(&netns_name(&node.lab, Role::Switch))?)
}

fn why(node: &Node) -> String {
    format!("at the switch of the lab {}", node.lab)
}
