//! Interfaces, addresses and routes, by rtnetlink.
//!
//! A netlink socket belongs for ever to the namespace of the thread that opened it, so only opening it
//! happens inside; every request after that is sent from wherever the caller is.

mod names;
mod way;
mod write;
mod xdp;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};

use super::netns::NetNs;

pub use way::Way;
pub use xdp::programs;

/// An interface of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts that the kernel states, not a state machine")]
pub struct Interface {
    /// Its index in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// Whether it carries Ethernet frames (`ARPHRD_ETHER`), and so ARP.
    pub ethernet: bool,
    /// The index of the bridge, bond or VRF that it is a port of.
    pub master: Option<u32>,
    /// Whether that master is a bridge of the same namespace.
    pub master_is_bridge: bool,
    /// Whether what the namespace sends by it has left by its master before: that is a bridge, a bond or a team.
    /// A VRF only routes; it sends nothing itself.
    pub sends_for_master: bool,
    /// What the kernel calls its kind (`veth`, `bridge`, `ifb`); hardware and `lo` have none.
    pub kind: Option<String>,
    /// Whether it is set up. This says nothing about its carrier.
    pub up: bool,
}

/// Every interface of the namespace, in the kernel's order.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel does not answer.
pub fn interfaces(ns: &NetNs) -> Result<Vec<Interface>> {
    RouteSocket::open(ns)?.interfaces()
}

/// Every address of the namespace, each with the index of its interface and the length of its prefix.
/// Of a point-to-point interface it is the near end.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel does not answer.
pub fn addresses(ns: &NetNs) -> Result<Addresses> {
    RouteSocket::open(ns)?.addresses()
}

/// Addresses with the length of their prefixes, each with the index of its interface.
pub type Addresses = Vec<(u32, IpNet)>;

/// A socket for requests to the routing part of the kernel, bound to one namespace.
pub struct RouteSocket {
    socket: Socket,
    sequence: u32,
}

impl RouteSocket {
    /// Opens a socket in the namespace. It keeps working after the namespace has lost its name.
    ///
    /// # Errors
    /// When the namespace cannot be entered (that needs `CAP_SYS_ADMIN`) or has no rtnetlink.
    pub fn open(ns: &NetNs) -> Result<Self> {
        let socket = ns.run(|| -> io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // A request that is echoed with its error could be larger than any reply: only the error is wanted.
            socket.set_cap_ack(true)?;
            Ok(socket)
        })?;
        Ok(Self { socket: socket.context("cannot open an rtnetlink socket")?, sequence: 0 })
    }

    /// Every interface, in the kernel's order.
    ///
    /// # Errors
    /// When the kernel refuses, or answers what cannot be read.
    pub fn interfaces(&mut self) -> Result<Vec<Interface>> {
        let replies = self
            .request(&RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP)
            .context("cannot list the interfaces")?;
        Ok(interfaces_in(&replies))
    }

    /// Every address with the index of its interface.
    ///
    /// # Errors
    /// When the kernel refuses, or answers what cannot be read.
    pub fn addresses(&mut self) -> Result<Addresses> {
        let replies = self
            .request(&RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)
            .context("cannot list the addresses")?;
        Ok(addresses_in(&replies))
    }

    /// Sends one request and gives the messages of its answer, up to the acknowledgement or the end of the dump.
    /// The error is an [`io::Error`] with the kernel's errno where the kernel refused.
    fn request(&mut self, message: &RouteNetlinkMessage, flags: u16) -> Result<Vec<RouteNetlinkMessage>> {
        for _ in 0..5 {
            self.send(message.clone(), flags)?;
            let mut answer = Answer::default();
            while !answer.complete {
                self.receive(&mut answer)?;
            }
            if !answer.interrupted {
                return Ok(answer.messages);
            }
        }
        bail!("what was to be listed keeps changing")
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> Result<()> {
        self.sequence += 1;
        let mut request = NetlinkMessage::from(message);
        // An acknowledgement after a dump would come behind its end and be taken for the next answer.
        let ack = if flags & NLM_F_DUMP == NLM_F_DUMP { 0 } else { NLM_F_ACK };
        request.header.flags = NLM_F_REQUEST | ack | flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        Ok(())
    }

    /// Reads one datagram of the answer.
    fn receive(&self, answer: &mut Answer) -> Result<()> {
        let (mut datagram, _) = self.socket.recv_from_full()?;
        names::make_text(&mut datagram);
        answer.read(&datagram, self.sequence)
    }
}

/// An answer as it comes in.
#[derive(Default)]
struct Answer {
    messages: Vec<RouteNetlinkMessage>,
    complete: bool,
    /// Something came or went while the kernel was listing, so the list may lack what was there all the time.
    interrupted: bool,
}

impl Answer {
    /// Takes up what a datagram says to the request of that number.
    fn read(&mut self, datagram: &[u8], sequence: u32) -> Result<()> {
        let mut rest = datagram;
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)?;
            let length = (message.header.length as usize).next_multiple_of(4).clamp(1, rest.len());
            rest = &rest[length..];
            if message.header.sequence_number != sequence {
                continue;
            }
            self.interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
            match message.payload {
                NetlinkPayload::InnerMessage(inner) => self.messages.push(inner),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io().into()),
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => self.complete = true,
                NetlinkPayload::Overrun(_) => bail!("the kernel dropped a part of its answer"),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The interfaces and addresses in a datagram that answers request 1.
///
/// # Errors
/// When it cannot be read, or tells of an error.
#[doc(hidden)] // For the fuzzer, which has no kernel to ask.
pub fn read_datagram(datagram: &[u8]) -> Result<(Vec<Interface>, Addresses)> {
    let (mut answer, mut datagram) = (Answer::default(), datagram.to_vec());
    names::make_text(&mut datagram);
    answer.read(&datagram, 1)?;
    Ok((interfaces_in(&answer.messages), addresses_in(&answer.messages)))
}

fn interfaces_in(messages: &[RouteNetlinkMessage]) -> Vec<Interface> {
    let links = messages.iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewLink(link) => Some(interface(link)),
        _ => None,
    });
    with_masters(links.collect())
}

fn addresses_in(messages: &[RouteNetlinkMessage]) -> Addresses {
    let addresses = messages.iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewAddress(message) => address(message),
        _ => None,
    });
    addresses.collect()
}

fn interface(link: &LinkMessage) -> Interface {
    let flags = link.header.flags;
    let mut interface = Interface {
        index: link.header.index,
        name: String::new(),
        loopback: flags.contains(LinkFlags::Loopback),
        ethernet: link.header.link_layer_type == LinkLayerType::Ether,
        master: None,
        master_is_bridge: false,
        sends_for_master: false,
        kind: None,
        up: flags.contains(LinkFlags::Up),
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Controller(index) if *index != 0 => interface.master = Some(*index),
            LinkAttribute::LinkInfo(infos) => interface.kind = kind(infos),
            _ => {}
        }
    }
    interface
}

fn kind(infos: &[LinkInfo]) -> Option<String> {
    infos.iter().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind.to_string()),
        _ => None,
    })
}

/// A port names its master by index only, so what the master is shows when all of them are known.
fn with_masters(mut interfaces: Vec<Interface>) -> Vec<Interface> {
    let kinds: HashMap<u32, String> =
        interfaces.iter().filter_map(|interface| Some((interface.index, interface.kind.clone()?))).collect();
    for interface in &mut interfaces {
        let kind = interface.master.and_then(|master| kinds.get(&master)).map(String::as_str);
        interface.master_is_bridge = kind == Some("bridge");
        interface.sends_for_master = matches!(kind, Some("bridge" | "bond" | "team"));
    }
    interfaces
}

/// `IFA_ADDRESS` is the far end of a point-to-point interface and `IFA_LOCAL` the near one; IPv6 mostly has
/// no `IFA_LOCAL`.
fn address(message: &AddressMessage) -> Option<(u32, IpNet)> {
    let mut found: Option<IpAddr> = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(local) => found = Some(*local),
            AddressAttribute::Address(address) => found = found.or(Some(*address)),
            _ => {}
        }
    }
    let net = IpNet::new(found?, message.header.prefix_len).ok()?;
    Some((message.header.index, net))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(index: u32, kind: Option<&str>, master: Option<u32>) -> Interface {
        Interface {
            index,
            name: format!("i{index}"),
            loopback: false,
            ethernet: true,
            master,
            master_is_bridge: false,
            sends_for_master: false,
            kind: kind.map(str::to_owned),
            up: true,
        }
    }

    #[test]
    fn what_a_master_is_shows_at_its_ports() {
        let all = with_masters(vec![
            plain(1, Some("veth"), Some(2)),
            plain(2, Some("bridge"), None),
            plain(3, Some("veth"), Some(4)),
            plain(4, Some("bond"), None),
            plain(5, None, Some(6)),
            plain(6, Some("vrf"), None),
        ]);
        let of_bridges: Vec<_> = all.iter().filter(|i| i.master_is_bridge).map(|i| i.index).collect();
        assert_eq!(of_bridges, [1]);
        let senders: Vec<_> = all.iter().filter(|i| i.sends_for_master).map(|i| i.index).collect();
        assert_eq!(senders, [1, 3]);
    }

    #[test]
    fn the_near_end_of_a_point_to_point_address_counts_in_either_order() {
        let (near, far): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        for swapped in [false, true] {
            let mut message = AddressMessage::default();
            message.header.index = 7;
            message.header.prefix_len = 32;
            message.attributes = vec![AddressAttribute::Address(far), AddressAttribute::Local(near)];
            if swapped {
                message.attributes.reverse();
            }
            assert_eq!(address(&message), Some((7, IpNet::new(near, 32).unwrap())));
        }
    }

    #[test]
    fn this_namespace_has_a_loopback_interface() {
        let all = interfaces(&NetNs::current().unwrap()).unwrap();
        let lo = all.iter().find(|i| i.loopback).expect("an interface with IFF_LOOPBACK");
        assert_eq!((lo.name.as_str(), lo.ethernet, lo.master), ("lo", false, None));
    }
}
