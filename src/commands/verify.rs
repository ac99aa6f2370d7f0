//! `playdead verify`: whether a fault in force looks as its kind must, judged by what is seen of its peers.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail};

use super::cli::{PlaceArgs, duration};
use super::inforce::{Hits, InForce, Surveyed, faults_of, read};
use super::place::{self, Place};
use super::{Usage, nodes, out, peers, probe, status, verify_text};
use crate::model::observation::{Observation, Probe};
use crate::model::signature::{Expect, Verdict, judge};
use crate::model::{Direction, Kind, Name, PeerSpec, Proto, Target};
use crate::probe::{Options, Request, look, source_address};
use crate::rules::ICMP_REST;

/// The port of a peer without one, where any will do: discard.
const ANY_PORT: u16 = 9;

/// So many addresses of a fault are looked at unless some are named.
const ENOUGH: usize = 8;

/// `verify`
#[derive(Debug, Clone, clap::Args)]
pub struct VerifyArgs {
    /// Which faults [default: all, in the given places or everywhere].
    #[arg(value_name = "NAME")]
    pub names: Vec<Name>,

    /// Look from here: a lab node, a namespace by its name or its absolute path [repeatable; default: from where the
    /// fault is in force, unless that is the peer itself].
    #[arg(long, value_name = "NAME|PATH")]
    pub from: Vec<String>,

    /// Look at this peer of the fault [repeatable; default: the first addresses, each by its first port].
    #[arg(long, value_name = "PEER[:PORT]")]
    pub peer: Vec<PeerSpec>,

    /// How long to wait for each outcome.
    #[arg(long, value_name = "D", default_value = "2s", value_parser = duration)]
    pub timeout: Duration,

    /// What to send on a TCP connection instead of an HTTP GET of /health, as of `probe`.
    #[arg(long, value_name = "TEXT", value_parser = probe::request)]
    pub request: Option<Request>,
}

/// A fault, looked at.
pub(super) struct Verified {
    /// Where its rules are.
    pub(super) place: String,
    /// As it was before the look.
    pub(super) fault: InForce,
    /// What the look added to its counters, to the peer and from it; nothing if none was taken.
    pub(super) hits: Option<[Hits; 2]>,
    /// What was seen, from each place that it was looked at from.
    pub(super) looks: Vec<Look>,
    /// What is not as it should be, besides what the verdicts say.
    pub(super) differs: Vec<String>,
    /// What could not be judged, and what to do about it.
    pub(super) open: Vec<String>,
    /// What to bear in mind.
    pub(super) notes: Vec<String>,
}

/// What was seen from one place.
pub(super) struct Look {
    pub(super) from: String,
    pub(super) observations: Vec<Observation>,
    pub(super) verdict: Verdict,
}

impl Verified {
    /// `None`: nothing was found wrong, but not all could be judged.
    pub(super) fn as_expected(&self) -> Option<bool> {
        let wrong = !self.differs.is_empty() || self.looks.iter().any(|look| !look.verdict.met);
        match (wrong, self.open.is_empty() && !self.looks.is_empty()) {
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => None,
        }
    }

    fn add(&mut self, from: &Place, observations: Vec<Observation>, expect: Expect) {
        let verdict = judge(expect, &observations);
        self.looks.push(Look { from: from.label.clone(), observations, verdict });
    }
}

/// Exits with 3 if something differs, else with 1 if something could not be judged. Errors: no such fault.
pub(super) fn run(args: &PlaceArgs, verify: &VerifyArgs, json: bool) -> Result<ExitCode> {
    let surveyed = status::look(args)?;
    let chosen = choose(&surveyed, &verify.names)?;
    let verify = &VerifyArgs { peer: nodes::peers_of_file(args, &verify.peer)?, ..verify.clone() };
    let from = verify.from.iter().map(|name| place::called(name)).collect::<Result<Vec<_>>>()?;
    let mut verified = Vec::new();
    for (surveyed, fault) in chosen {
        verified.push(one(surveyed, fault, &from, verify)?);
    }
    if json {
        out::print_json(&verify_text::document(&verified))?;
    } else {
        out::print(&verify_text::render(&verified))?;
    }
    Ok(match () {
        () if verified.iter().any(|one| one.as_expected() == Some(false)) => ExitCode::from(3),
        () if verified.iter().any(|one| !one.open.is_empty()) => ExitCode::FAILURE,
        () => ExitCode::SUCCESS,
    })
}

fn choose<'a>(surveyed: &'a [Surveyed], names: &[Name]) -> Result<Vec<(&'a Surveyed, &'a InForce)>> {
    let all = || faults_of(surveyed);
    if let Some(name) = names.iter().find(|name| !all().any(|(_, fault)| fault.name == **name)) {
        bail!("no fault called {name} is in force there (playdead status lists those that are)");
    }
    let chosen: Vec<_> = all().filter(|(_, fault)| names.is_empty() || names.contains(&fault.name)).collect();
    if chosen.is_empty() {
        bail!("no fault is in force there: nothing to verify");
    }
    Ok(chosen)
}

fn one(surveyed: &Surveyed, fault: &InForce, from: &[Place], how: &VerifyArgs) -> Result<Verified> {
    let (looks, differs, open, notes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let place = surveyed.place.label.clone();
    let mut verified = Verified { place, fault: fault.clone(), hits: None, looks, differs, open, notes };
    if !fault.is_active() {
        match fault.owner {
            Some(_) => verified.open.push("it comes and goes, and is away just now: look again".into()),
            None => verified.differs.push("it has expired: its rules apply no more".into()),
        }
        return Ok(verified);
    }
    verified.differs.extend(fault.damage());
    verified.notes.extend(fault.not_exact());
    let expect = match expected(fault) {
        Ok(expect) => expect,
        Err(why) => {
            verified.notes.push(why.into());
            return Ok(verified);
        }
    };
    let targets = targets(surveyed, fault, how, &mut verified)?;
    let own = std::slice::from_ref(&surveyed.place);
    for from in if from.is_empty() { own } else { from } {
        let targets = in_sight(from, fault, &targets, &mut verified)?;
        if !targets.is_empty() {
            let mut seen = see(from, fault, &targets, how)?;
            if matches!(fault.meta.kind, Kind::Unreachable(_)) && !judge(expect, &seen).met {
                verified
                    .notes
                    .push(format!("looked twice: after others, no ICMP error is sent for up to {ICMP_REST:?}"));
                sleep(ICMP_REST);
                seen = see(from, fault, &targets, how)?;
            }
            verified.add(from, seen, expect);
        }
    }
    count_hits(surveyed, &mut verified)?;
    Ok(verified)
}

/// What its peers must look like, or why no look can tell.
fn expected(fault: &InForce) -> Result<Expect, &'static str> {
    let one_way = Err("a look cannot judge one direction of this kind: see what it hit");
    match (fault.meta.kind, fault.meta.direction) {
        (Kind::Lossy(_), _) => {
            Err("a share of lost packets has no signature that one look could judge: see what it hit")
        }
        (Kind::DeadHost, _) => Ok(Expect::DeadHost),
        (Kind::Hush, Direction::Both | Direction::From) => Ok(Expect::Hush),
        (Kind::HungProcess(_), Direction::Both | Direction::From) => Ok(Expect::HungProcess),
        (Kind::DeadProcess(_), Direction::Both) => Ok(Expect::DeadProcess),
        (Kind::Unreachable(code), Direction::Both) => Ok(Expect::Unreachable(Some(code))),
        (Kind::Rebooted, Direction::Both) => Ok(Expect::Rebooted),
        _ => one_way,
    }
}

/// The addresses to look at, each with a port.
fn targets(surveyed: &Surveyed, fault: &InForce, how: &VerifyArgs, verified: &mut Verified) -> Result<Vec<SocketAddr>> {
    let named = named(surveyed, fault, &how.peer)?;
    let peers = if how.peer.is_empty() { &fault.peers } else { &named };
    let single = |peer: &&Target| peer.net.prefix_len() == peer.net.max_prefix_len();
    for prefix in peers.iter().filter(|peer| !single(peer)) {
        verified.open.push(format!("{prefix} is a prefix: name an address of it by --peer ADDR:PORT"));
    }
    let address = |peer: &Target| SocketAddr::new(peer.net.addr(), peer.ports.map_or(ANY_PORT, |ports| ports.first));
    let mut targets: Vec<_> = peers.iter().filter(single).map(address).collect();
    targets.dedup();
    if how.peer.is_empty() && targets.len() > ENOUGH {
        let note = format!("{ENOUGH} of {} addresses were looked at: name others by --peer", targets.len());
        verified.notes.push(note);
        targets.truncate(ENOUGH);
    }
    if targets.is_empty() && verified.open.is_empty() {
        verified.open.push("no peer of it can be looked at".into());
    }
    Ok(targets)
}

/// Those that were named and are peers of the fault; without a port, by the fault's first.
fn named(surveyed: &Surveyed, fault: &InForce, specs: &[PeerSpec]) -> Result<Vec<Target>> {
    let mut named = Vec::new();
    for mut target in peers::plain(&surveyed.place, specs)? {
        let of = |peer: &&Target| {
            peer.meets(&target) && target.ports.is_none_or(|own| peer.names(target.net.addr(), own.first))
        };
        let Some(peer) = fault.peers.iter().find(of) else {
            return Err(Usage(format!("{target} is no peer of {}", fault.name)).into());
        };
        target.ports = target.ports.or(peer.ports);
        named.push(target);
    }
    Ok(named)
}

/// Those that can be judged from here: neither this very machine, nor out of reach, nor out of the fault's scope.
fn in_sight(from: &Place, fault: &InForce, targets: &[SocketAddr], verified: &mut Verified) -> Result<Vec<SocketAddr>> {
    let mut seen = Vec::new();
    for target in targets {
        let label = &from.label;
        let why = match source_address(&from.ns, *target)? {
            None => format!("{label} has no route to {}", target.ip()),
            Some(own) if own == target.ip() && !own.is_loopback() => format!("{label} is {} itself", target.ip()),
            Some(own) if !fault.with.is_empty() && !fault.with.iter().any(|with| with.contains(&own)) => {
                format!("it is not about what {label} ({own}) sends to {}", target.ip())
            }
            Some(_) => {
                seen.push(*target);
                continue;
            }
        };
        verified.open.push(format!("{why}: name a place to look from by --from"));
    }
    Ok(seen)
}

fn see(from: &Place, fault: &InForce, targets: &[SocketAddr], how: &VerifyArgs) -> Result<Vec<Observation>> {
    let options = Options {
        timeout: how.timeout,
        probes: probes(fault),
        request: how.request.clone().unwrap_or(Request::HealthOverHttp),
        ..Options::default()
    };
    let progress = probe::progress(targets.len(), how.timeout);
    let seen = look(&from.ns, targets, &options);
    progress.finish_and_clear();
    seen
}

/// The probes that need no connection from before the fault, as far as the fault is about them.
fn probes(fault: &InForce) -> Vec<Probe> {
    let has_ports = fault.peers.iter().all(|peer| peer.ports.is_some());
    // Any port of a machine that is gone will do, but not of one that is back.
    let by_port = has_ports || matches!(fault.meta.kind, Kind::DeadHost | Kind::Unreachable(_));
    // A machine is dead, but if only some of its ports are, it answers pings.
    let whole = fault.meta.kind != Kind::DeadHost || fault.peers.iter().all(|peer| peer.ports.is_none());
    let about = |probe: &Probe| match probe {
        Probe::Connect => by_port && fault.meta.proto != Proto::Udp,
        Probe::Udp | Probe::UdpRecverr => by_port && fault.meta.proto != Proto::Tcp,
        Probe::Ping => whole && fault.meta.proto == Proto::All,
        _ => false,
    };
    Probe::USUAL.into_iter().filter(about).collect()
}

/// A fault that bit nothing of what was looked at is not what was seen. One that is about connections from before bites
/// only those.
fn count_hits(surveyed: &Surveyed, verified: &mut Verified) -> Result<()> {
    let fault = &verified.fault;
    let Some(after) = read(&surveyed.nft)?.into_iter().find(|after| after.name == fault.name) else {
        verified.differs.push("it was healed during the look".into());
        return Ok(());
    };
    let hits = [after.to.since(fault.to), after.from.since(fault.from)];
    if !after.is_active() {
        verified.differs.push("it expired during the look".into());
    }
    let bit = hits.iter().any(|hits| hits.packets > 0);
    if !bit && !verified.looks.is_empty() && fault.meta.kind != Kind::Rebooted {
        let missed = "it hit no packet of the look";
        // In a partition the peer does not hear the question, so that nothing comes from it.
        if fault.meta.direction == Direction::From {
            verified.open.push(format!("{missed}: the peer sent none, as it may not hear this side either"));
        } else {
            verified.differs.push(missed.into());
        }
    }
    verified.hits = Some(hits);
    Ok(())
}
