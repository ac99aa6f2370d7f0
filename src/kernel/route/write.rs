//! What is made by rtnetlink: links, their ports, addresses and routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::link::{InfoBridge, InfoData, InfoVeth, LinkMessage};
use rtnetlink::{AddressMessageBuilder, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use super::{NetNs, RouteSocket};

impl RouteSocket {
    /// Makes a bridge that is up and behaves as a plain switch: no spanning tree, so that a port forwards at
    /// once, and no multicast snooping, which would eat neighbour solicitations while it learns.
    ///
    /// # Errors
    /// When the kernel refuses: the name is taken, say, or there is no bridge support.
    pub fn add_bridge(&mut self, name: &str) -> Result<()> {
        let bridge = LinkBridge::new(name).append_info_data(InfoBridge::MulticastSnooping(false));
        self.add_link(bridge.build()).with_context(|| format!("cannot make the bridge {name}"))
    }

    /// Makes a virtual cable: `name` here and `far_name` in `far`, both up.
    ///
    /// # Errors
    /// When the kernel refuses: one of the names is taken, say, or there is no veth support.
    pub fn add_veth(&mut self, name: &str, far: &NetNs, far_name: &str) -> Result<()> {
        let end = LinkMessageBuilder::<LinkUnspec>::new().name(far_name).setns_by_fd(far.as_raw_fd());
        let pair = LinkMessageBuilder::<LinkVeth>::new(name, far_name)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(end.build())))
            .up();
        self.add_link(pair.build()).with_context(|| format!("cannot make the veth pair {name} to {far_name}"))?;
        // Not as a part of the request: the far end is made first, and is ENOTCONN while it has no near one.
        RouteSocket::open(far)?.set_up(far_name)
    }

    /// Makes the interface a port of the bridge; it is one already: nothing happens.
    ///
    /// # Errors
    /// When one of them is missing, or the kernel refuses.
    pub fn attach(&mut self, name: &str, bridge: &str) -> Result<()> {
        let master = self.index(bridge)?;
        self.set_link(LinkUnspec::new_with_name(name).controller(master).build())
            .with_context(|| format!("cannot make {name} a port of {bridge}"))
    }

    /// Takes the interface out of its bridge and leaves it up, so that the far end keeps its carrier. It is
    /// in none: nothing happens.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel refuses.
    pub fn detach(&mut self, name: &str) -> Result<()> {
        self.set_link(LinkUnspec::new_with_name(name).nocontroller().build())
            .with_context(|| format!("cannot take {name} out of its bridge"))
    }

    /// Sets the interface up.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel refuses.
    pub fn set_up(&mut self, name: &str) -> Result<()> {
        self.set_link(LinkUnspec::new_with_name(name).up().build()).with_context(|| format!("cannot set {name} up"))
    }

    /// Gives the interface an address, at once usable: IPv6 without duplicate address detection, which would
    /// keep it tentative for a second or two.
    ///
    /// # Errors
    /// When there is no such interface, it has the address already, or the kernel lacks the family.
    pub fn add_address(&mut self, name: &str, address: IpNet) -> Result<()> {
        let index = self.index(name)?;
        let request = RouteNetlinkMessage::NewAddress(address_message(index, address));
        self.request(&request, NLM_F_CREATE | NLM_F_EXCL)
            .with_context(|| format!("cannot give {name} the address {address}"))?;
        Ok(())
    }

    /// Adds the default route of the gateway's family.
    ///
    /// # Errors
    /// When no interface reaches the gateway, or there is such a route already.
    pub fn add_default_route(&mut self, gateway: IpAddr) -> Result<()> {
        let anywhere: IpAddr =
            if gateway.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let route = RouteMessageBuilder::<IpAddr>::new().destination_prefix(anywhere, 0)?.gateway(gateway)?;
        self.request(&RouteNetlinkMessage::NewRoute(route.build()), NLM_F_CREATE | NLM_F_EXCL)
            .with_context(|| format!("cannot add the default route by {gateway}"))?;
        Ok(())
    }

    /// The index of an interface.
    fn index(&mut self, name: &str) -> Result<u32> {
        let query = RouteNetlinkMessage::GetLink(LinkUnspec::new_with_name(name).build());
        let replies = self.request(&query, 0).with_context(|| format!("cannot look up the interface {name}"))?;
        match replies.as_slice() {
            [RouteNetlinkMessage::NewLink(link)] => Ok(link.header.index),
            _ => bail!("the kernel did not say what the interface {name} is"),
        }
    }

    fn add_link(&mut self, link: LinkMessage) -> Result<()> {
        self.request(&RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    /// `RTM_SETLINK` finds the link by its name and, unlike `RTM_NEWLINK`, never makes one.
    fn set_link(&mut self, link: LinkMessage) -> Result<()> {
        self.request(&RouteNetlinkMessage::SetLink(link), 0).map(drop)
    }
}

fn address_message(index: u32, net: IpNet) -> AddressMessage {
    let length = net.prefix_len();
    match net.addr() {
        IpAddr::V4(v4) => AddressMessageBuilder::<Ipv4Addr>::new().index(index).address(v4, length).build(),
        IpAddr::V6(v6) => {
            let mut message = AddressMessageBuilder::<Ipv6Addr>::new().index(index).address(v6, length).build();
            message.header.flags |= AddressHeaderFlags::Nodad;
            message
        }
    }
}
