//! Makes the namespaces of a lab and the cables between them.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};

use super::nodes::{self, Node};
use super::plan::{Layout, Role, Segment};
use crate::kernel::netns::{NAMES, NetNs};
use crate::kernel::route::RouteSocket;
use crate::kernel::sysctl;

/// The name of the bridge in the switch's namespace; its ports are named after the nodes behind them.
pub(super) const BRIDGE: &str = "br0";

/// A new namespace takes IPv4's settings from the host, which may forward or have turned IPv6 off.
const NODE: [(&str, &str); 4] = [
    ("ipv4/ip_forward", "0"),
    ("ipv6/conf/all/disable_ipv6", "0"),
    ("ipv6/conf/default/disable_ipv6", "0"),
    // Link-local addresses, too, shall be usable at once.
    ("ipv6/conf/default/accept_dad", "0"),
];
const ROUTER: [(&str, &str); 2] = [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];
/// An unplugged port is an interface of the switch's own: without IPv6 (and with no IPv4 address) nothing
/// in the switch answers a node that talks into it.
const SWITCH: [(&str, &str); 2] = [("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1")];
/// Where `br_netfilter` is loaded, bridged packets would pass the IP hooks as well. A switch has none.
const PLAIN_SWITCH: [(&str, &str); 3] = [
    ("bridge/bridge-nf-call-iptables", "0"),
    ("bridge/bridge-nf-call-ip6tables", "0"),
    ("bridge/bridge-nf-call-arptables", "0"),
];

/// Takes the lab's name. Of several that try at once, one succeeds.
///
/// # Errors
/// When there is such a lab, whole or in part, or something of somebody else's in its place.
pub(super) fn claim(layout: &Layout) -> Result<()> {
    for role in Role::every() {
        refuse_what_is_there(layout, role)?;
    }
    let etc = nodes::etc(&layout.name, Role::Switch);
    fs::create_dir_all(&etc).with_context(|| format!("cannot make {} (use sudo)", etc.display()))?;
    let hosts =
        File::options().append(true).create(true).open(etc.join("hosts")).context("cannot make a hosts file")?;
    let Ok(mut hosts) = Flock::lock(hosts, FlockArg::LockExclusiveNonblock) else {
        bail!("another lab {} is being made", layout.name);
    };
    ensure!(hosts.metadata()?.len() == 0, "another lab {} is being made", layout.name);
    hosts.write_all(layout.hosts().as_bytes()).context("cannot write a hosts file")
}

fn refuse_what_is_there(layout: &Layout, role: Role) -> Result<()> {
    let lab = &layout.name;
    let netns = Node::of(layout, role).netns;
    let named = Path::new(NAMES).join(&netns).exists();
    ensure!(
        !nodes::is_ours(lab, role),
        "the lab {lab} is there already ({netns}{}): `playdead lab down --lab {lab}` removes it",
        if named { "" } else { ", left over" }
    );
    ensure!(!named, "a network namespace {netns} is there that playdead did not make: give the lab another --lab NAME");
    let etc = nodes::etc(lab, role);
    ensure!(
        nodes::is_nobodys(lab, role),
        "{} is there and is not playdead's: give the lab another --lab NAME",
        etc.display()
    );
    Ok(())
}

/// Makes every namespace with its hosts file and its cables. The name must be claimed.
///
/// # Errors
/// When the kernel refuses something (the rest stays as it is then), or when `cancelled`.
pub(super) fn build(layout: &Layout, cancelled: &AtomicBool) -> Result<()> {
    for role in layout.roles() {
        ensure!(!cancelled.load(Ordering::Relaxed), "interrupted");
        make_node(layout, role).with_context(|| format!("cannot make the node {role}"))?;
    }
    let switch = Node::of(layout, Role::Switch).namespace()?;
    let mut bridge = RouteSocket::open(&switch)?;
    bridge.add_bridge(BRIDGE)?;
    for role in layout.roles() {
        ensure!(!cancelled.load(Ordering::Relaxed), "interrupted");
        wire(layout, role, &switch, &mut bridge).with_context(|| format!("cannot plug in the node {role}"))?;
    }
    if layout.routed { wire_agent_to_router(layout) } else { Ok(()) }
}

/// The mark is made before the namespace, so that whatever is made can be known and removed.
fn make_node(layout: &Layout, role: Role) -> Result<()> {
    let etc = nodes::etc(&layout.name, role);
    fs::create_dir_all(&etc).with_context(|| format!("cannot make {}", etc.display()))?;
    let hosts = etc.join("hosts");
    fs::write(&hosts, layout.hosts()).with_context(|| format!("cannot write {}", hosts.display()))?;
    let ns = NetNs::create(&Node::of(layout, role).netns)?;
    sysctl::set(&ns, if role == Role::Switch { &SWITCH } else { &NODE })?;
    match role {
        Role::Router => sysctl::set(&ns, &ROUTER)?,
        Role::Switch => sysctl::set_if_there(&ns, &PLAIN_SWITCH)?,
        Role::Agent | Role::Etcd(_) => {}
    }
    RouteSocket::open(&ns)?.set_up("lo")
}

/// Lays the cable from a node to the switch, if it has one, and gives it its addresses there.
fn wire(layout: &Layout, role: Role, switch: &NetNs, bridge: &mut RouteSocket) -> Result<()> {
    if !layout.segments(role).contains(&Segment::Switch) {
        return Ok(());
    }
    let port = role.to_string();
    let mut node = RouteSocket::open(&Node::of(layout, role).namespace()?)?;
    node.add_veth("eth0", switch, &port)?;
    bridge.attach(&port, BRIDGE)?;
    add_addresses(&mut node, "eth0", role, Segment::Switch)?;
    if layout.routed && role != Role::Router {
        add_default_routes(&mut node, Segment::Switch)?;
    }
    Ok(())
}

/// The agent's cable ends in the router itself, so that its packets cross the switch once.
fn wire_agent_to_router(layout: &Layout) -> Result<()> {
    let router = Node::of(layout, Role::Router).namespace()?;
    let mut agent = RouteSocket::open(&Node::of(layout, Role::Agent).namespace()?)?;
    agent.add_veth("eth0", &router, "eth1")?;
    add_addresses(&mut RouteSocket::open(&router)?, "eth1", Role::Router, Segment::Agent)?;
    add_addresses(&mut agent, "eth0", Role::Agent, Segment::Agent)?;
    add_default_routes(&mut agent, Segment::Agent)
}

fn add_addresses(node: &mut RouteSocket, interface: &str, role: Role, segment: Segment) -> Result<()> {
    role.nets(segment).into_iter().flatten().try_for_each(|net| node.add_address(interface, net))
}

fn add_default_routes(node: &mut RouteSocket, segment: Segment) -> Result<()> {
    let gateways = Role::Router.nets(segment).into_iter().flatten();
    gateways.map(|net| net.addr()).try_for_each(|gateway| node.add_default_route(gateway))
}
