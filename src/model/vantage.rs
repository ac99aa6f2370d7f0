//! What rules have to know of the place they are written in.

use ipnet::IpNet;

/// The facts about a namespace that rules are compiled for. They name interfaces and what the kernel can do;
/// nothing in them decides who is affected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vantage {
    /// Devices by which packets of this host leave: Ethernet, not loopback, and no part of a bridge, bond or team.
    pub devices: Vec<Device>,
    /// The same, but with names that nft cannot write: they are judged in the IP stack only.
    pub unnamed: Vec<Device>,
    /// The index of the loopback device.
    pub loopback: u32,
    /// Devices that are ports of a bridge.
    pub ports: Vec<Device>,
    /// Whether addresses are translated here (a chain of type `nat` is there).
    pub translates: bool,
    /// How a frame on its way through a bridge can be refused here.
    pub bridge_reject: BridgeReject,
    /// How many routers are between this host and peers in whose name it may send: what they send arrives here with a
    /// time to live that is smaller by so many. Peers at this host are left out.
    pub hops: Vec<(IpNet, u8)>,
    /// How many more connections the kernel takes for a process that does not accept them, where nobody says.
    pub accept_queue: u32,
}

/// A host without devices, bridges and translation; its loopback device is the first, as the kernel makes it.
impl Default for Vantage {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            unnamed: Vec::new(),
            loopback: 1,
            ports: Vec::new(),
            translates: false,
            bridge_reject: BridgeReject::Missing,
            hops: Vec::new(),
            accept_queue: 1,
        }
    }
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
}

/// How a frame on its way through a bridge can be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BridgeReject {
    /// In the bridge itself (`CONFIG_NFT_BRIDGE_REJECT`).
    Bridge,
    /// At the bridge's ports that exist when the fault is armed (`CONFIG_NFT_REJECT_NETDEV`, Linux 5.12).
    Ports,
    /// Not at all.
    Missing,
}
