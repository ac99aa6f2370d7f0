//! Refusing what this host itself sends, where no egress hook can.
//!
//! A sender whose packet is refused in the output hook gets EPERM, since it is dropped there. So it is a copy that is
//! refused, and the packet itself ends on lo, unnoticed. This works for devices that have no hook, and for datagrams
//! that are yet to be cut into fragments, of which none can be refused.

use super::fates::{accept, doomed, is_mark, is_not_tcp, is_tcp, mark};
use super::sites::{goto, rerouting};
use super::{
    Base, COPY_MARK, Chain, Compiler, FIRST, Failure, Family, Hook, Ip, Key, Order, REFUSED_MARK, Rule, Stmt, Table,
    Way, chain, rule, when,
};

/// The MTU that every link has that carries IPv6: what is longer may be cut.
const MIN_MTU: u16 = 1280;
/// An IPv6 packet states its length without its header.
const HEADER6: u16 = 40;

impl Compiler<'_> {
    /// Where the copies are made. Only the tables of one IP version know how to.
    pub(super) fn copies(&self, ip: Ip) -> Option<Table> {
        if !self.refuses() || self.matches_of(Way::To, ip).is_empty() {
            return None;
        }
        let aside = |conditions: Option<Stmt>, copy: Stmt| {
            let refused = [is_mark(REFUSED_MARK)].into_iter().chain(conditions);
            rule(refused.chain([mark(COPY_MARK), copy]).chain(doomed(ip)))
        };
        // To lo, where those who end open connections listen for what the client says.
        let by_tcp = self.resets().then(|| aside(Some(is_tcp()), Stmt::CopyTo(ip.loopback())));
        // An ICMP error about a packet that leaves by lo would be signed with the peer's address, which the kernel
        // has not got.
        let by_icmp = aside(None, Stmt::CopyOnward(ip.daddr()));
        let family = if ip == Ip::V4 { Family::Ip } else { Family::Ip6 };
        let rules = by_tcp.into_iter().chain([by_icmp]).collect();
        self.table(family, Vec::new(), vec![chain("copy", Some(Hook::Reroute(FIRST + 2)), rules)])
    }

    /// Copies on their way out; those that go to lo are refused when they come in there.
    pub(super) fn answer(&self) -> Chain {
        let mut rules = Vec::new();
        if self.refuses() {
            rules.extend(self.resets().then(|| rule([is_tcp(), accept()])));
            rules.extend(self.after_the_way(&[is_mark(COPY_MARK)]));
            rules.extend(self.refused_unlimited(&[is_mark(COPY_MARK)]));
        }
        chain("answer", Some(Hook::Output(FIRST + 1)), rules)
    }

    /// Spares copies, and has datagrams refused as long as they are whole.
    pub(super) fn whole(&self) -> Vec<Rule> {
        if !self.refuses() {
            return Vec::new();
        }
        let out = || Stmt::Is(Key::Oif, Order::Ne, self.vantage.loopback.to_ne_bytes().to_vec());
        let of = |ip: Ip| {
            let long = [is_not_tcp(), is_long(ip), out()];
            let whole = self.matches_of(Way::To, ip).into_iter().map(move |stmts| [&stmts[..], &long].concat());
            when(&whole.collect::<Vec<_>>(), &goto(rerouting(Way::To)))
        };
        let datagrams = (self.fault.kind != Failure::Rebooted).then(|| Ip::BOTH.into_iter().flat_map(of));
        [rule([is_mark(COPY_MARK), accept()])].into_iter().chain(datagrams.into_iter().flatten()).collect()
    }

    fn refuses(&self) -> bool {
        self.fault.kind.refuses() && self.fault.direction.to()
    }

    /// Whether TCP is refused by TCP.
    pub(super) fn resets(&self) -> bool {
        matches!(self.fault.kind, Failure::DeadProcess(_) | Failure::Rebooted)
    }
}

fn is_long(ip: Ip) -> Stmt {
    let (bit, longest) = match ip {
        Ip::V4 => (16, MIN_MTU),
        Ip::V6 => (32, MIN_MTU - HEADER6),
    };
    let lengths = [(longest + 1).to_be_bytes(), u16::MAX.to_be_bytes()].concat();
    Stmt::Is(Key::Raw(Base::Network, bit, 16), Order::Within, lengths)
}
