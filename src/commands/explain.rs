//! `playdead explain`: what a kind does, the rules it would write, and what each probe then sees.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::cli::ExplainArgs;
use super::{out, shown};
use crate::model::observation::Probe;
use crate::model::signature::{Expect, allowed};
use crate::model::{
    BridgeReject, Code, Device, Direction, Fault, Kind, Lifetime, Loss, LossScope, OpenConnections, PeerSpec, Proto,
    Target, Vantage, verb,
};
use crate::rules::compile;

pub(super) fn run(args: &ExplainArgs, json: bool) -> Result<ExitCode> {
    if json {
        out::print_json(&document(&args.kind))?;
    } else {
        out::print(&page(&args.kind))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The fields are listed in `docs/json.md`. A kind without a signature has no probes.
fn document(verb: &str) -> Value {
    let (kind, text) = kind(verb);
    let fault = example(kind);
    let probes =
        verb.parse().map_or_else(|_| Vec::new(), |expect| Probe::ALL.map(|probe| outcomes(expect, probe)).into());
    json!({
        "format": shown::FORMAT,
        "kind": verb,
        "text": text.replace('\n', " "),
        "probes": probes,
        "example": fault.peers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "rules": compile(&fault, &vantage()).to_string(),
    })
}

fn outcomes(expect: Expect, probe: Probe) -> Value {
    json!({ "probe": probe, "v4": allowed(expect, probe, false), "v6": allowed(expect, probe, true) })
}

fn page(verb: &str) -> String {
    let mut page = String::new();
    let (kind, text) = kind(verb);
    let _ = writeln!(page, "{verb}\n\n{text}\n");
    let _ = writeln!(page, "What each probe then sees (where several outcomes stand, place and time decide):");
    match verb.parse::<Expect>() {
        Ok(expect) => write_signature(&mut page, expect),
        Err(_) => page.push_str("  a share of lost packets has no single signature: compare rates\n"),
    }
    let fault = example(kind);
    let _ = writeln!(page, "\nThe rules, for {} in a namespace with one device, eth0:\n", shown_peers(&fault));
    let _ = write!(page, "{}", compile(&fault, &vantage()));
    page
}

fn shown_peers(fault: &Fault) -> String {
    fault.peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

fn write_signature(page: &mut String, expect: Expect) {
    for probe in Probe::ALL {
        let [v4, v6] = [false, true]
            .map(|v6| allowed(expect, probe, v6).iter().map(ToString::to_string).collect::<Vec<_>>().join(", or "));
        let _ = writeln!(page, "  {:<12} {v4}", probe.to_string());
        if v4 != v6 {
            let _ = writeln!(page, "  {:<12} {v6} (IPv6)", "");
        }
    }
}

/// An example of the kind that goes by this verb, and what it does.
pub(super) fn kind(verb: &str) -> (Kind, &'static str) {
    match verb {
        verb::DEAD_HOST => (
            Kind::DeadHost,
            "The machine lost its power. Nothing is answered and nothing arrives: packets to the peer and from it\n\
             vanish, on the same segment ARP and neighbour discovery too. Senders see no error; connects and open\n\
             connections run into the timers of their own kernel.",
        ),
        verb::DEAD_PROCESS => (
            Kind::DeadProcess(OpenConnections::Fin),
            "The process was killed and its machine lives. A new TCP connection is refused by RST, UDP by ICMP port\n\
             unreachable; open connections end at once by FIN, as kill -9 ends them (--open-connections reset: by RST;\n\
             keep: not before they send). Ping and other ports work.",
        ),
        verb::HUSH => (
            Kind::Hush,
            "For a process that is stopped for real: filters what would give that away, RST and FIN from its ports and\n\
             ICMP errors about them, whoever sends these. Arm it first (--then COMMAND stops the process afterwards).\n\
             On those ports the machine seems gone; ping, SSH and other ports work.",
        ),
        verb::HUNG_PROCESS => (
            Kind::HungProcess(None),
            "The process is stuck, as by SIGSTOP. Its kernel accepts connections and acknowledges data; no answer ever\n\
             comes, over UDP neither. Once the accept queue of an address and port has one connection more than its\n\
             backlog, SYNs vanish: the backlog of --backlog, else what the listening socket in this place has left,\n\
             else 4096 (net.core.somaxconn).",
        ),
        verb::UNREACHABLE => (
            Kind::Unreachable(Code::Host),
            "A router says no: every packet to the peer draws an ICMP or ICMPv6 error of the given --code. Packets from\n\
             the peer vanish.",
        ),
        verb::LOSSY => (
            Kind::Lossy(Loss { per_myriad: 2000, scope: LossScope::Packet }),
            "A bad link: that share of packets is lost, in each direction, whole packets only. With --per-connection a\n\
             connection loses all of its packets or none, for as long as it lives; --seed repeats the choice.",
        ),
        _ => (
            Kind::Rebooted,
            "The machine came back without its connections: those that were open draw an RST with the next segment\n\
             they send (an idle one notices nothing, as in reality); new ones work.",
        ),
    }
}

/// A fault of this kind about addresses that nobody has.
pub(super) fn example(kind: Kind) -> Fault {
    let texts = if kind.needs_port() { ["192.0.2.1:2379", "[2001:db8::1]:2379"] } else { ["192.0.2.1", "2001:db8::1"] };
    let peers = texts.iter().filter_map(|text| text.parse::<PeerSpec>().ok()).filter_map(|spec| match spec.host {
        crate::model::Host::Net(net) => Some(Target { net, ports: spec.ports, label: None }),
        _ => None,
    });
    let mut fault = Fault {
        name: crate::model::Name::made_up(kind, "example", 0),
        kind,
        peers: peers.collect(),
        with: Vec::new(),
        direction: Direction::Both,
        proto: Proto::All,
        lifetime: Lifetime::Open,
        since: "2026-01-01T00:00:00Z".into(),
    };
    fault.name = crate::model::Name::made_up(kind, "example", fault.digest());
    fault
}

fn vantage() -> Vantage {
    Vantage {
        devices: vec![Device { index: 2, name: "eth0".into() }],
        bridge_reject: BridgeReject::Bridge,
        accept_queue: super::facts::DEFAULT_QUEUE,
        ..Vantage::default()
    }
}
