//! Programs that see a device's frames before the network stack does.

use anyhow::{Context, Result};
use rtnetlink::packet_core::NLM_F_DUMP;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage, LinkXdp, XdpAttached};

use super::{NetNs, RouteSocket, interface};

/// The names of the devices of the namespace that have an XDP program (`IFLA_XDP_ATTACHED`).
///
/// # Errors
/// When the namespace cannot be entered, or the kernel does not answer.
pub fn programs(ns: &NetNs) -> Result<Vec<String>> {
    let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let replies = RouteSocket::open(ns)?.request(&request, NLM_F_DUMP).context("cannot list the interfaces")?;
    let with_program = replies.into_iter().filter_map(|reply| match reply {
        RouteNetlinkMessage::NewLink(link) if has_program(&link) => Some(interface(&link).name),
        _ => None,
    });
    Ok(with_program.collect())
}

fn has_program(link: &LinkMessage) -> bool {
    link.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::Xdp(xdp) => {
            xdp.iter().any(|xdp| matches!(xdp, LinkXdp::Attached(attached) if *attached != XdpAttached::None))
        }
        _ => false,
    })
}
