//! The failures: how each is really made, and what playdead is asked for instead.

use std::time::Duration;

use crate::net::{At, ip};
use crate::peer::BACKLOG;
use crate::places::{Location, Rig, Vantage};
use crate::probes::Probe;

/// Longer than the three seconds in which a connect with one repeated SYN, or a cold neighbour, fails.
const KERNEL_TIMERS: Duration = Duration::from_millis(4500);
/// Longer than the keepalive and the user timeout of the probes take.
const BRIEF: Duration = Duration::from_millis(3500);
/// Of a failure that heals, how long it lasts.
const CUT: Duration = Duration::from_secs(2);

const WIRED: &[Location] = &[Location::Segment, Location::Routed];
const ROUTED: &[Location] = &[Location::Routed];
const EVERYWHERE: &[Location] = &Location::ALL;

/// A failure, made for real and by playdead.
#[derive(Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) name: &'static str,
    /// What happens to the peer.
    pub(crate) what: &'static str,
    /// Where there is such a thing: nobody can unplug a machine from itself.
    pub(crate) locations: &'static [Location],
    pub(crate) probes: &'static [Probe],
    /// How long is looked.
    pub(crate) timeout: Duration,
    /// How the network is, before anything is opened.
    pub(crate) prepare: fn(&mut Rig),
    /// The last thing before the event.
    pub(crate) before: fn(&mut Rig),
    pub(crate) real: fn(&mut Rig),
    /// playdead's arguments; `HOST` and `PORTS` stand for the peer.
    pub(crate) command: &'static str,
    /// What is said besides where the peer's own process is elsewhere.
    pub(crate) elsewhere: &'static str,
    /// What really happens beside the simulation, once it is in force.
    pub(crate) beside: fn(&mut Rig),
    /// How the real one is mended, after [`CUT`]. The simulated one is healed then.
    pub(crate) mend: Option<fn(&Rig)>,
    /// It runs with every `cargo test`.
    pub(crate) fast: bool,
}

impl Failure {
    /// What the row is called, of a peer there.
    pub(crate) fn row(&self, location: Location) -> String {
        let by = if self.needs_etcd() { "-etcd" } else { "" };
        format!("{}-{}{by}", self.name, location.name())
    }

    pub(crate) fn needs_etcd(&self) -> bool {
        self.probes.iter().any(|probe| probe.needs_etcd())
    }

    /// playdead's arguments for a peer there.
    pub(crate) fn line(&self, location: Location) -> String {
        let [v4, v6] = crate::places::Family::ALL.map(|family| location.address(family));
        let ports = Probe::ports();
        self.command.replace("HOST", &format!("{v4} {v6}")).replace("PORTS", &format!("{v4}:{ports} [{v6}]:{ports}"))
    }

    /// How long after the event the repair comes.
    pub(crate) fn mended_after(&self) -> Option<Duration> {
        self.mend.map(|_| CUT)
    }

    /// Lets playdead do it.
    pub(crate) fn simulate(&self, rig: &mut Rig, vantage: Vantage) {
        let elsewhere = if vantage.at() == rig.peer_at() { "" } else { self.elsewhere };
        rig.segment.playdead(vantage.at(), &(self.line(rig.location) + elsewhere));
        (self.beside)(rig);
    }
}

fn nothing(_: &mut Rig) {}

/// While the peer cannot be reached, something happens there that etcd's watch must hear of later.
fn change(rig: &mut Rig) {
    if rig.etcd.is_some() {
        crate::etcd::change(rig);
    }
}

fn unplug_and_change(rig: &mut Rig) {
    unplug(rig);
    change(rig);
}

fn unplug(rig: &mut Rig) {
    rig.segment.unplug();
}

fn kill(rig: &mut Rig) {
    rig.server = None;
    rig.etcd = None;
}

fn stop(rig: &mut Rig) {
    rig.processes().for_each(crate::peer::Process::stop);
}

/// A neighbour is given up after three seconds, and so must not be the connect.
fn patient(rig: &mut Rig) {
    rig.segment.syn_retries(3);
}

fn forget_neighbours(rig: &mut Rig) {
    rig.segment.forget_neighbours();
}

/// A router that tells nobody that it cannot find a neighbour.
fn quiet(rig: &mut Rig) {
    rig.segment.nft(
        At::Router,
        "table inet quiet { chain out { type filter hook output priority 0; \
         icmp type destination-unreachable drop; icmpv6 type destination-unreachable drop; }; }",
    );
}

fn quiet_with_defaults(rig: &mut Rig) {
    quiet(rig);
    rig.segment.sysctl(At::Client, "net.ipv4.tcp_syn_retries=6");
    rig.segment.linear_syns(4);
}

/// A router that soon gives up a neighbour that it does not find.
fn impatient_router(rig: &mut Rig) {
    patient(rig);
    rig.segment.unlimited_errors();
    for family in ["ipv4", "ipv6"] {
        rig.segment.sysctl(At::Router, &format!("net.{family}.neigh.eth0.retrans_time_ms=100"));
    }
}

fn forget_at_router(rig: &mut Rig) {
    ip(&["-n", &rig.segment.name(At::Router), "neigh", "flush", "dev", "eth0"]);
}

/// The switch believes this address at another port than the one that it is at, so that what is sent to it goes back
/// where it comes from, and is lost.
fn misdirect(rig: &mut Rig, mac: &str, port: &str) {
    let switch = rig.segment.name(At::Switch);
    let entry = ["bridge", "fdb", "replace", mac, "dev", port, "master", "static", "sticky"];
    ip(&[&["netns", "exec", &switch], &entry[..]].concat());
}

fn lose_to(rig: &mut Rig) {
    let port = if rig.location == Location::Routed { "r" } else { "c" };
    misdirect(rig, "02:00:00:00:00:02", port);
}

fn lose_from(rig: &mut Rig) {
    let mac = if rig.location == Location::Routed { "02:00:00:00:00:fe" } else { "02:00:00:00:00:01" };
    misdirect(rig, mac, "p");
}

/// As many connections wait for the process as may.
fn fill_accept_queues(rig: &mut Rig) {
    let client = rig.segment.client();
    let targets: Vec<_> = FULL_QUEUE.iter().flat_map(|probe| rig.targets(probe.port())).collect();
    for target in targets.into_iter().flat_map(|target| (0..=BACKLOG).map(move |_| target)) {
        rig.kept.push(client.run(|| std::net::TcpStream::connect(target)).unwrap().unwrap());
    }
}

fn stop_and_fill(rig: &mut Rig) {
    stop(rig);
    fill_accept_queues(rig);
}

/// A firewall on the way that lets no refusal through, written as an administrator would.
fn filter_refusals(rig: &mut Rig) {
    let ports = Probe::ports();
    let rules = format!(
        "tcp sport {ports} tcp flags & (fin | rst) != 0 drop; \
         icmp type destination-unreachable drop; icmpv6 type destination-unreachable drop;"
    );
    let (at, table, hook) = match rig.location {
        Location::Segment => (At::Switch, "bridge", "forward"),
        Location::Routed => (At::Router, "inet", "forward"),
        Location::Loopback => (At::Client, "inet", "prerouting"),
    };
    rig.segment
        .nft(at, &format!("table {table} f {{ chain c {{ type filter hook {hook} priority -310; {rules} }}; }}"));
}

fn filter_and_kill(rig: &mut Rig) {
    filter_refusals(rig);
    kill(rig);
}

fn reboot(rig: &mut Rig) {
    let server = rig.server.take();
    let etcd = rig.etcd.take();
    let with_etcd = etcd.is_some();
    rig.segment.reboot_machine(|| drop((server, etcd)));
    rig.start(with_etcd);
}

fn plug_in_again(rig: &Rig) {
    rig.plug_in_again();
}

const UNPLUGGED: Failure = Failure {
    name: "unplugged",
    what: "unplugged at the switch, its neighbour entry warm",
    locations: &[Location::Segment],
    probes: Probe::PLAIN,
    timeout: KERNEL_TIMERS,
    prepare: nothing,
    before: nothing,
    real: unplug,
    command: "dead-host HOST",
    elsewhere: "",
    beside: nothing,
    mend: None,
    fast: true,
};

const KILLED: Failure = Failure {
    name: "killed",
    what: "its process killed (kill -9)",
    locations: EVERYWHERE,
    real: kill,
    command: "dead-process PORTS",
    timeout: BRIEF,
    ..UNPLUGGED
};

const STOPPED: Failure = Failure {
    name: "stopped",
    what: "its process stopped (SIGSTOP)",
    locations: EVERYWHERE,
    real: stop,
    command: "hung-process PORTS",
    timeout: BRIEF,
    ..UNPLUGGED
};

/// The probes that open nothing before.
const NEW: &[Probe] = &[Probe::Connect, Probe::PollConnect, Probe::Udp, Probe::UdpRecverr, Probe::Ping, Probe::RawPing];

/// The probes that a full accept queue is for: what is open already is not touched by it.
const FULL_QUEUE: &[Probe] = &[Probe::Connect, Probe::PollConnect];

const QUIET: Failure = Failure {
    name: "unplugged-quiet",
    what: "unplugged behind a router that stays quiet",
    locations: ROUTED,
    prepare: quiet,
    fast: false,
    ..UNPLUGGED
};

const FILTERED: Failure = Failure {
    name: "killed-filtered",
    what: "its process killed, its refusals filtered on the way",
    locations: EVERYWHERE,
    real: filter_and_kill,
    command: "hush PORTS",
    beside: kill,
    timeout: KERNEL_TIMERS,
    fast: false,
    ..KILLED
};

const LOST_TO: Failure = Failure {
    name: "lost-to",
    what: "what goes to it is lost",
    locations: WIRED,
    real: lose_to,
    command: "dead-host HOST --direction to",
    fast: false,
    ..UNPLUGGED
};

const LOST_FROM: Failure = Failure {
    name: "lost-from",
    what: "what comes from it is lost",
    locations: WIRED,
    real: lose_from,
    command: "dead-host HOST --direction from",
    fast: false,
    ..UNPLUGGED
};

const REBOOTED: Failure = Failure {
    name: "rebooted",
    what: "back without its connections",
    locations: WIRED,
    real: reboot,
    command: "rebooted HOST",
    timeout: BRIEF,
    ..UNPLUGGED
};

const HEALED: Failure = Failure {
    name: "unplugged-healed",
    what: "unplugged for two seconds, then plugged in",
    locations: WIRED,
    real: unplug_and_change,
    beside: change,
    timeout: Duration::from_secs(5),
    mend: Some(plug_in_again),
    fast: false,
    ..UNPLUGGED
};

/// A sample without shortened timers.
const DEFAULTS: Failure = Failure {
    name: "unplugged-quiet-defaults",
    what: "unplugged behind a quiet router, the kernel's default timers",
    prepare: quiet_with_defaults,
    probes: &[Probe::Connect, Probe::PollConnect],
    timeout: Duration::from_secs(150),
    ..QUIET
};

/// gRPC asks after ten seconds whether its peer is there, and waits a second for the answer.
const ETCD_KEEPALIVE: Duration = Duration::from_millis(12_500);

/// The same failure, looked at by etcd's client. It sees no more of the way to the peer than the other probes do, so
/// one location is enough.
const fn by_etcd(failure: Failure) -> Failure {
    let (first, _) = failure.locations.split_at(1);
    Failure { probes: Probe::ETCD, timeout: ETCD_KEEPALIVE, locations: first, fast: false, ..failure }
}

/// Every failure.
pub(crate) const ALL: &[Failure] = &[
    UNPLUGGED,
    by_etcd(UNPLUGGED),
    Failure {
        name: "unplugged-cold",
        what: "unplugged at the switch, its neighbour entry cold",
        prepare: patient,
        before: forget_neighbours,
        fast: false,
        ..UNPLUGGED
    },
    QUIET,
    by_etcd(QUIET),
    DEFAULTS,
    Failure {
        name: "unplugged-answering",
        what: "unplugged behind a router that answers host unreachable",
        locations: ROUTED,
        // What many senders hear at once is chance: what waits for a neighbour is dropped without an error when another
        // packet comes while the router gives the neighbour up (`neigh_timer_handler`).
        probes: NEW,
        prepare: impatient_router,
        before: forget_at_router,
        fast: false,
        ..UNPLUGGED
    },
    KILLED,
    by_etcd(KILLED),
    FILTERED,
    by_etcd(FILTERED),
    STOPPED,
    by_etcd(STOPPED),
    Failure {
        name: "stopped-full",
        what: "its process stopped, its accept queue full",
        probes: FULL_QUEUE,
        real: stop_and_fill,
        elsewhere: " --backlog 16",
        beside: fill_accept_queues,
        timeout: KERNEL_TIMERS,
        fast: false,
        ..STOPPED
    },
    LOST_TO,
    by_etcd(LOST_TO),
    LOST_FROM,
    by_etcd(LOST_FROM),
    REBOOTED,
    by_etcd(REBOOTED),
    HEALED,
    by_etcd(HEALED),
];
