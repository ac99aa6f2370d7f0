//! What kernels may lack, each as a table that a kernel takes only if it has it: for dry transactions.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::compile::FIRST;
use super::key::{Base, Key, Kind};
use super::value::{
    Chain, Element, Family, Hook, Order, Per, Rate, Reject, Rule, Ruleset, Set, Span, Stmt, Table, Update, Verdict,
};

/// The names do not matter to the kernel's check; no packet ever meets these rules.
const SET: &str = "trial";

/// A part of the kernel that rules use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facility {
    /// What it is.
    pub what: &'static str,
    /// What does not work without it.
    pub serves: &'static str,
    /// The kernel option and the module that it comes with, or the version of Linux.
    pub source: Source,
    /// Taken only by a kernel that has it.
    pub trial: Ruleset,
}

/// Where a part of the kernel comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A module of that name.
    Module(&'static str),
    /// Every kernel from this version on.
    Linux(&'static str),
}

/// Everything that some kind or lifetime of a fault cannot do without.
pub fn facilities() -> Vec<Facility> {
    let every = "every kind";
    vec![
        facility("inet tables", every, Source::Module("nf_tables"), vec![], inet(vec![verdict()])),
        facility("netdev tables", every, Source::Module("nf_tables"), vec![], ingress(vec![verdict()])),
        facility("bridge tables", every, Source::Module("nf_tables_bridge"), vec![], bridge()),
        facility("arp tables", "dead-host, lossy", Source::Module("nf_tables"), vec![], arp()),
        owner(),
        facility("egress hook", every, Source::Linux("5.16 (CONFIG_NETFILTER_EGRESS)"), vec![], egress(verdict())),
        facility("fwd", every, Source::Module("nft_fwd_netdev"), vec![], egress(Stmt::StealToLo)),
        rerouting(),
        copies(),
        of_stmt("meta pkttype", "dead-process, unreachable, rebooted", Source::Linux("4.1"), ingress(for_this_host())),
        of_stmt("inner headers (@ih)", "dead-process, hung-process", Source::Linux("5.16"), inet(carries_data())),
        of_stmt("fib", every, Source::Module("nft_fib_inet"), inet(is(Key::FibDaddrType, Order::Eq, &[2, 0, 0, 0]))),
        of_stmt("numgen", "lossy", Source::Module("nft_numgen"), inet(is(Key::Random(2), Order::Lt, &[0, 0, 0, 1]))),
        of_stmt("jhash", "hung-process, lossy --per-connection", Source::Module("nft_hash"), inet(jhash())),
        of_stmt("meta iifkind", "lossy", Source::Linux("5.6"), inet(is(Key::IifKind, Order::Eq, &[0; 16]))),
        rates(),
        of_stmt(
            "reject, inet",
            "dead-process, unreachable, rebooted",
            Source::Module("nft_reject_inet"),
            inet(reject()),
        ),
        counters(),
        timeouts(),
        ranges(),
        dynamic_sets(),
    ]
}

fn facility(what: &'static str, serves: &'static str, source: Source, sets: Vec<Set>, at: (Family, Chain)) -> Facility {
    Facility { what, serves, source, trial: trial(sets, at) }
}

fn trial(sets: Vec<Set>, at: (Family, Chain)) -> Ruleset {
    let (family, chain) = at;
    let table = Table {
        family,
        name: "playdead:trial".into(),
        comment: String::new(),
        owner: false,
        counters: Vec::new(),
        sets,
        chains: vec![chain],
    };
    Ruleset { tables: vec![table] }
}

/// A table that a kernel accepts only if it can refuse TCP in that family.
pub fn reject_trial(family: Family) -> Ruleset {
    let hook = match family {
        Family::Netdev => Hook::Ingress(FIRST, vec!["lo".into()]),
        _ => Hook::Prerouting(FIRST),
    };
    trial(Vec::new(), (family, chain(hook, reject())))
}

fn of_stmt(what: &'static str, serves: &'static str, source: Source, at: (Family, Chain)) -> Facility {
    facility(what, serves, source, Vec::new(), at)
}

fn owner() -> Facility {
    let mut owner =
        facility("tables with an owner", "--hold, -- COMMAND", Source::Linux("5.12"), vec![], inet(vec![verdict()]));
    owner.trial.tables[0].owner = true;
    owner
}

fn counters() -> Facility {
    let count = inet(vec![Stmt::Count(SET)]);
    let mut counters = facility("named counters", "every kind, status", Source::Module("nft_objref"), vec![], count);
    counters.trial.tables[0].counters.push(SET);
    counters
}

/// A packet with a new address is routed again in a chain of this type only.
fn rerouting() -> Facility {
    let doom =
        vec![Stmt::Write(Key::Mark, vec![0; 4]), Stmt::Write(Key::Daddr4, Ipv4Addr::LOCALHOST.octets().to_vec())];
    let at = (Family::Inet, chain(Hook::Reroute(FIRST), doom));
    facility("rerouting", "every kind on devices without Ethernet", Source::Linux("5.2"), vec![], at)
}

/// What this host sends is refused by a copy where no egress hook can.
fn copies() -> Facility {
    let copy = vec![Stmt::CopyOnward(Key::Daddr4)];
    let at = (Family::Ip, chain(Hook::Reroute(FIRST), copy));
    facility("dup", "dead-process, unreachable, rebooted", Source::Module("nft_dup_ipv4"), vec![], at)
}

fn timeouts() -> Facility {
    let key = vec![Span::one(Kind::EtherType, [0x08, 0x00])];
    let element = Element { key, timeout: Some(Duration::from_secs(1)), comment: None };
    let set = Set { timeout: true, elements: [element].into(), ..plain_set(vec![Key::Protocol]) };
    let at = inet(vec![Stmt::NotIn(vec![Key::Protocol], SET), verdict()]);
    facility("set timeouts", "--for", Source::Linux("4.1"), vec![set], at)
}

/// An address, a protocol and a range of ports side by side.
fn ranges() -> Facility {
    let keys = || vec![Key::Daddr4, Key::L4proto, Key::Dport];
    let key = vec![
        Span::one(Kind::Ipv4, [192, 0, 2, 1]),
        Span::one(Kind::Proto, [6]),
        Span::range(Kind::Port, 1u16.to_be_bytes(), 9u16.to_be_bytes()),
    ];
    let element = Element { key, timeout: None, comment: None };
    let set = Set { interval: true, elements: [element].into(), ..plain_set(keys()) };
    facility("sets of ranges", "every kind", Source::Linux("5.6"), vec![set], inet(vec![Stmt::In(keys(), SET)]))
}

fn dynamic_sets() -> Facility {
    let (set, update) = filled(None);
    facility("sets that rules fill", "hung-process, rebooted", Source::Linux("4.1"), vec![set], inet(vec![update]))
}

fn rates() -> Facility {
    let (set, update) = filled(Some(Rate { packets: 1, per: Per::Second, burst: 1 }));
    let serves = "dead-process, hung-process, unreachable";
    facility("limit", serves, Source::Module("nft_limit"), vec![set], inet(vec![update]))
}

fn filled(over: Option<Rate>) -> (Set, Stmt) {
    let timeout = Duration::from_secs(1);
    let key = || vec![Key::Saddr4, Key::Sport];
    let set = Set { timeout: true, dynamic: Some((16, timeout)), ..plain_set(key()) };
    (set, Stmt::Update(Update { set: SET, key: key(), timeout, over }))
}

fn plain_set(key: Vec<Key>) -> Set {
    Set { name: SET, key, data: None, interval: false, timeout: false, dynamic: None, elements: [].into() }
}

fn inet(stmts: Vec<Stmt>) -> (Family, Chain) {
    (Family::Inet, chain(Hook::Prerouting(FIRST), stmts))
}

fn ingress(stmts: Vec<Stmt>) -> (Family, Chain) {
    (Family::Netdev, chain(Hook::Ingress(FIRST, vec!["lo".into()]), stmts))
}

fn egress(stmt: Stmt) -> (Family, Chain) {
    (Family::Netdev, chain(Hook::Egress(FIRST, vec!["lo".into()]), vec![stmt]))
}

fn bridge() -> (Family, Chain) {
    (Family::Bridge, chain(Hook::Prerouting(FIRST), vec![verdict()]))
}

fn arp() -> (Family, Chain) {
    (Family::Arp, chain(Hook::Input(FIRST), is(Key::ArpSaddr, Order::Eq, &[192, 0, 2, 1])))
}

fn chain(hook: Hook, stmts: Vec<Stmt>) -> Chain {
    Chain { name: SET.into(), hook: Some(hook), rules: vec![Rule(stmts)] }
}

fn verdict() -> Stmt {
    Stmt::Do(Verdict::Accept)
}

fn is(key: Key, order: Order, value: &[u8]) -> Vec<Stmt> {
    vec![Stmt::Is(key, order, value.to_vec())]
}

fn is_tcp() -> Stmt {
    Stmt::Is(Key::L4proto, Order::Eq, vec![6])
}

fn carries_data() -> Vec<Stmt> {
    vec![is_tcp(), Stmt::Is(Key::Raw(Base::Inner, 0, 8), Order::Within, vec![0, 255])]
}

fn jhash() -> Vec<Stmt> {
    is(Key::Hash(vec![Key::Saddr4], 2, 0), Order::Lt, &[0, 0, 0, 1])
}

fn for_this_host() -> Vec<Stmt> {
    vec![Stmt::ForThisHost]
}

fn reject() -> Vec<Stmt> {
    vec![is_tcp(), Stmt::Reject(Reject::TcpReset)]
}
