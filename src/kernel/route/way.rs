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
        self.route_to(address).map(|route| way(&route))
    }

    /// The router by which the namespace reaches the address; `None` if it takes none, or there is no route.
    pub fn gateway_to(&mut self, address: IpAddr) -> Option<IpAddr> {
        let gateway = |attribute: &RouteAttribute| match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
            RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
            _ => None,
        };
        self.route_to(address)?.attributes.iter().find_map(gateway)
    }

    fn route_to(&mut self, address: IpAddr) -> Option<RouteMessage> {
        let mut message = RouteMessage::default();
        let (family, length) = match address {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        message.header.address_family = family;
        message.header.destination_prefix_length = length;
        message.attributes.push(RouteAttribute::Destination(RouteAddress::from(address)));
        let replies = self.request(&RouteNetlinkMessage::GetRoute(message), 0).ok()?;
        replies.into_iter().find_map(|reply| match reply {
            RouteNetlinkMessage::NewRoute(route) => Some(route),
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
