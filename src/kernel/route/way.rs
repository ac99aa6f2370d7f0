//! How a packet would go to an address: one look-up in the routing tables.

use std::net::IpAddr;

use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::RouteSocket;

/// How an address is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It is an address of the namespace itself.
    Here,
    /// Without a router.
    OnLink,
    /// By a router, and maybe others behind it.
    Routed,
}

impl RouteSocket {
    /// How the namespace reaches the address; `None` where the kernel refuses to say since there is no route.
    pub fn way_to(&mut self, address: IpAddr) -> Option<Way> {
        let mut message = RouteMessage::default();
        let (family, length) = match address {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        message.header.address_family = family;
        message.header.destination_prefix_length = length;
        message.attributes.push(RouteAttribute::Destination(RouteAddress::from(address)));
        let replies = self.request(&RouteNetlinkMessage::GetRoute(message), 0).ok()?;
        replies.iter().find_map(|reply| match reply {
            RouteNetlinkMessage::NewRoute(route) => Some(way(route)),
            _ => None,
        })
    }
}

fn way(route: &RouteMessage) -> Way {
    let by_router =
        |attribute: &RouteAttribute| matches!(attribute, RouteAttribute::Gateway(_) | RouteAttribute::Via(_));
    match route.header.kind {
        RouteType::Local => Way::Here,
        _ if route.attributes.iter().any(by_router) => Way::Routed,
        _ => Way::OnLink,
    }
}
