//! ARP and neighbour discovery: a machine that is gone answers neither.

use super::fates::{FROM_PEER, TO_PEER};
use super::sites::goto;
use super::{
    Compiler, FIRST, Failure, Family, Hook, Ip, Key, Order, Rule, Stmt, Table, Vanish, Way, chain, rule, sets,
};
use crate::model::Direction;

/// An NDP neighbour solicitation (RFC 4861).
const SOLICITATION: u8 = 135;

impl Compiler<'_> {
    /// Whether this host's own questions for a neighbour leave it: the answers are silenced anyway.
    pub(super) fn asks_aloud(&self) -> bool {
        self.fault.kind == Failure::DeadHost && self.fault.direction == Direction::Both
    }

    /// Questions by IPv6 for a peer that is this host, or that a bridge leads to.
    pub(super) fn sought(&self, end: Stmt) -> Vec<Rule> {
        let scope = self.scope(Ip::V6, Key::Saddr6);
        match (self.set(sets::SOUGHT), scope, self.silences_neighbours()) {
            (Some(set), Some(scope), true) => {
                let target = Stmt::In(vec![sets::sought_key()], set.name);
                vec![rule([asks(), target].into_iter().chain(scope).chain([end]))]
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn arp(&self) -> Option<Table> {
        if !self.silences_neighbours() {
            return None;
        }
        let fates = [self.fate(Way::To, Vanish::Drop), self.fate(Way::From, Vanish::Drop)];
        let [to, from] = [0, 1].map(|i| !fates[i].rules.is_empty());
        let inward = self.arp_rules(Family::Arp, to, from);
        let outward = self.arp_rules(Family::Arp, to && !self.asks_aloud(), from);
        let [to_peer, from_peer] = fates;
        let chains = vec![
            to_peer,
            from_peer,
            chain("arrive", Some(Hook::Input(FIRST)), inward),
            chain("leave", Some(Hook::Output(FIRST)), outward),
        ];
        self.table(Family::Arp, self.sets.clone(), chains)
    }

    pub(super) fn arp_rules(&self, family: Family, to: bool, from: bool) -> Vec<Rule> {
        let Some(hosts) = self.set(Ip::V4.name(sets::HOSTS)) else { return Vec::new() };
        let ends = [(from, Key::ArpSaddr, Key::ArpDaddr, FROM_PEER), (to, Key::ArpDaddr, Key::ArpSaddr, TO_PEER)];
        let of = |(_, peer, other, fate): (bool, Key, Key, &'static str)| {
            let scope = self.scope(Ip::V4, other)?;
            let is_arp = (family == Family::Bridge).then(|| Stmt::Is(Key::Protocol, Order::Eq, vec![0x08, 0x06]));
            let stmts = is_arp.into_iter().chain([Stmt::In(vec![peer], hosts.name)]).chain(scope);
            Some(rule(stmts.chain([goto(fate)])))
        };
        ends.into_iter().filter(|(judged, ..)| *judged).filter_map(of).collect()
    }
}

/// Asks for a neighbour by IPv6.
pub(super) fn asks() -> Stmt {
    Stmt::Is(Key::Icmp6Type, Order::Eq, vec![SOLICITATION])
}
