//! Packets made here in the name of a peer that is behind routers: each of these would have taken one off the time to
//! live on the way.

use ipnet::IpNet;

use super::{Compiler, Failure, Ip, Key, Order, Rule, Stmt, rule};

/// What Linux sends with, IPv4 (`net.ipv4.ip_default_ttl`) and IPv6 (`net.ipv6.conf.*.hop_limit`).
const TTL: u8 = 64;

impl Compiler<'_> {
    /// What leaves in a peer's name. Sent on to another host, it would have passed this one too.
    pub(super) fn in_their_name(&self) -> Vec<Rule> {
        if !self.resets() {
            return Vec::new();
        }
        let of = |(peers, hops): &(IpNet, u8)| {
            let ip = version(peers);
            let here = TTL.saturating_sub(*hops).max(1);
            let set = |order, ttl: u8| {
                let out = Stmt::Is(Key::Oif, order, self.vantage.loopback.to_ne_bytes().to_vec());
                rule([is_of(ip.saddr(), peers), out, Stmt::Write(ip.ttl(), vec![ttl])])
            };
            let to_others = set(Order::Ne, here.saturating_sub(1).max(1));
            (*hops > 0).then(|| set(Order::Eq, here)).into_iter().chain([to_others])
        };
        self.vantage.hops.iter().flat_map(of).collect()
    }

    /// An ICMP error quotes a packet as it was when it arrived.
    pub(super) fn after_the_way(&self, conditions: &[Stmt]) -> Vec<Rule> {
        let quotes = matches!(self.fault.kind, Failure::DeadProcess(_));
        let of = |(peers, hops): &(IpNet, u8)| {
            let ip = version(peers);
            let sent = [is_of(ip.daddr(), peers), Stmt::Is(ip.ttl(), Order::Eq, vec![TTL])];
            let arrived = Stmt::Write(ip.ttl(), vec![TTL.saturating_sub(*hops).max(1)]);
            rule(conditions.iter().cloned().chain(sent).chain([arrived]))
        };
        self.vantage.hops.iter().filter(|(_, hops)| quotes && *hops > 0).map(of).collect()
    }
}

fn version(net: &IpNet) -> Ip {
    if net.addr().is_ipv4() { Ip::V4 } else { Ip::V6 }
}

fn is_of(key: Key, net: &IpNet) -> Stmt {
    let [first, last] = match net {
        IpNet::V4(net) => [net.network().octets().to_vec(), net.broadcast().octets().to_vec()],
        IpNet::V6(net) => [net.network().octets().to_vec(), net.broadcast().octets().to_vec()],
    };
    if first == last { Stmt::Is(key, Order::Eq, first) } else { Stmt::Is(key, Order::Within, [first, last].concat()) }
}
