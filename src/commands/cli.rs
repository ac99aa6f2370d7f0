//! What can be typed. What it means is for the other modules to find out.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand};
use ipnet::IpNet;

use super::flap::FlapArgs;
use super::lab::LabArgs;
use super::partition::PartitionArgs;
use super::probe::ProbeArgs;
use super::quorum::QuorumArgs;
use super::run::RunArgs;
use super::verify::VerifyArgs;
pub use crate::model::time::{duration, pause};
use crate::model::{Code, Direction, Kind, Lifetime, Loss, LossScope, Name, OpenConnections, PeerSpec, Proto, verb};

/// Make a peer of a distributed system look dead, exactly.
///
/// Writes nftables rules into network namespaces so that a peer looks like a dead machine, a dead process, a hung
/// process or a lost link to everyone who talks to it, and takes them away again.
#[derive(Debug, Parser)]
#[command(name = "playdead", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done and as expected; 1 failed; 2 wrong usage; 3 expectation not met; \
    4 rights or kernel support missing; with `-- COMMAND` the command's own.")]
pub struct Cli {
    /// In which network namespaces.
    #[command(flatten)]
    pub place: PlaceArgs,

    /// One JSON document on standard output instead of text.
    #[arg(long, global = true, help_heading = "Options")]
    pub json: bool,

    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// PLACE: the namespaces that are meant; none of these: the one that playdead runs in.
#[derive(Debug, Default, Clone, Args)]
#[command(next_help_heading = "Place")]
pub struct PlaceArgs {
    /// A network namespace, by the name that `ip netns` knows or by an absolute path [repeatable].
    #[arg(long, global = true, value_name = "NAME|PATH")]
    pub netns: Vec<String>,
    /// The network namespace of a running process [repeatable].
    #[arg(long, global = true, value_name = "PID")]
    pub pid: Vec<u32>,
    /// The network namespace of a running Docker or Podman container [repeatable].
    #[arg(long, global = true, value_name = "NAME")]
    pub container: Vec<String>,
    /// A node of the running lab (NODE, or LAB/NODE) or of the file of --nodes [repeatable].
    #[arg(long, global = true, value_name = "NODE")]
    pub node: Vec<String>,
    /// A file with a [nodes] table: who is meant by --node, and by verbs that are about a whole cluster. `heal`, `renew`,
    /// `status` and `verify` without a place look at all of its nodes, and not beyond them.
    #[arg(id = "nodes-file", long = "nodes", global = true, value_name = "FILE")]
    pub nodes: Option<PathBuf>,
    /// The namespace that playdead runs in, as a place of this name: what is another host to whoever started it there.
    #[arg(long, global = true, value_name = "NAME", hide = true)]
    pub here: Option<String>,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// The machine lost its power: nothing at all is seen of it, on one segment no ARP or ND answer either.
    #[command(alias = "deadhost")]
    DeadHost(FaultArgs),
    /// The process died: TCP is refused by RST, UDP by ICMP, open connections end as by `kill -9`.
    DeadProcess(DeadProcessArgs),
    /// The process is stopped for real; its refusals (RST, FIN, ICMP errors about its ports) are filtered.
    Hush(HushArgs),
    /// The process is stuck (SIGSTOP): connects, acknowledges, never answers.
    HungProcess(HungProcessArgs),
    /// A router says no: ICMP or ICMPv6 errors.
    Unreachable(UnreachableArgs),
    /// A bad link: some packets are gone, each direction.
    Lossy(LossyArgs),
    /// The machine came back without its connections: open ones are reset once they send, new ones work.
    Rebooted(FaultArgs),
    /// The network is split: groups of nodes no longer hear each other.
    ///
    /// The nodes are those of --nodes FILE or of the lab. Who is in two groups hears both; who is in none is connected
    /// to all, as a client that reaches both sides. `status` and `heal NAME` know the partition by one name everywhere.
    Partition(PartitionArgs),
    /// A fault comes and goes, on absolute deadlines.
    ///
    /// Begins with the fault. Ends after --cycles, after --for, with COMMAND, or by a signal, and then prints the
    /// planned and the actual edges. Exits with 0 after a signal, too, as with --hold: ending is what was asked for;
    /// with COMMAND, with its exit code. The fault ends with this process, however that ends.
    Flap(FlapArgs),
    /// Remove faults: those of these names, or all, in the given places or wherever playdead has some.
    Heal(HealArgs),
    /// Extend a lease.
    Renew(RenewArgs),
    /// What is in force, read from the kernel.
    Status(StatusArgs),
    /// Look at peers as a client does: TCP connect and request, UDP, ping, and open connections.
    Probe(ProbeArgs),
    /// Look at the peers of faults in force and judge whether they look as they must.
    ///
    /// Exits with 0 if all is as it must be, and for what no look can judge (lossy, some kinds in one direction: see
    /// their counters); with 3 if something differs or has expired; else with 1 if something could not be judged.
    /// ICMP errors are limited, so a look that has met none where one is due is taken again after 6 s.
    Verify(VerifyArgs),
    /// Ask every member of a cluster: is it live, does it reach enough of the others, does the cluster answer?
    ///
    /// Each is asked from its own place, and from every place that is named besides. LIVE: its process serves. ABLE: it
    /// reaches the peer ports of enough others for a quorum, itself counted unless its process does not answer. QUORUM:
    /// the cluster answers a linearizable read through it (ZooKeeper: the server says that it serves).
    Quorum(QuorumArgs),
    /// Play a scenario from a file, heal, and leave a record.
    ///
    /// Everything is checked before anything starts. All faults end with this process, however it ends, or with their
    /// lease (`--for`; those on other hosts always have one); what it paused, unplugged or killed is put right again as
    /// well. Exits with 3 when an expectation is not met.
    Run(RunArgs),
    /// Put right what a `run` has left that was killed.
    #[command(hide = true)]
    Guard,
    /// One host's part of what happens on several at one instant: a conversation on standard input and output.
    #[command(hide = true)]
    Share,
    /// What a member of a cluster sees of itself, for somebody on another host who asks on standard input.
    #[command(hide = true)]
    Look,
    /// Hosts in namespaces on this machine, with real etcd on them.
    Lab(LabArgs),
    /// What this kernel, these rights and this place allow, and what mends what they do not.
    Doctor,
    /// What a kind does, the rules it would write, and what each probe then sees.
    Explain(ExplainArgs),
    /// The man page or shell completions, from the definitions of this help.
    Generate(GenerateArgs),
}

/// What every kind of fault takes.
#[derive(Debug, Clone, Args)]
pub struct FaultArgs {
    /// Whom it is about.
    #[command(flatten)]
    pub aim: AimArgs,
    /// How long it lasts.
    #[command(flatten)]
    pub lifetime: LifetimeArgs,
}

/// What every kind of fault takes, however long it lasts.
#[derive(Debug, Clone, Args)]
pub struct AimArgs {
    /// Who is made to look dead: ADDR, ADDR/PREFIX, ADDR:PORT, ADDR:PORT-PORT, [ADDR6]:PORT, NAME[:PORT], a lab node,
    /// or etcd://HOST:PORT[?leader|followers|others].
    #[arg(value_name = "PEER", required = true)]
    pub peers: Vec<PeerSpec>,
    /// Which of their traffic.
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// What the fault is called [default: made of the kind and the peers].
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,
    /// Replace the fault of that name, and any that is about some of the same packets, in one transaction. What is replaced
    /// ends whole.
    #[arg(long)]
    pub replace: bool,
    /// Print the rules as `nft -f` text and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Do it even if it cuts the SSH connection that this runs by, its default gateway or its name server.
    #[arg(long)]
    pub allow_lockout: bool,
    /// What it lasts for.
    #[command(flatten)]
    pub under: CommandArgs,
}

/// Which traffic of the peers is affected.
#[derive(Debug, Clone, Args)]
pub struct ScopeArgs {
    /// Only traffic between the peers and these other ends: addresses or prefixes, several and behind the peers.
    #[arg(long, value_name = "ADDR", num_args = 1.., value_delimiter = ',', value_parser = address)]
    pub with: Vec<IpNet>,
    /// Which packets, seen from the peer: those to it, those from it, or both.
    #[arg(long, value_enum, default_value = "both")]
    pub direction: Direction,
    /// Which protocols.
    #[arg(long, value_enum, default_value = "all")]
    pub proto: Proto,
}

/// A command that a fault lasts for.
#[derive(Debug, Clone, Args)]
pub struct CommandArgs {
    /// Run the command, and heal when it ends; playdead exits with its exit code.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    /// Run COMMAND as this user [default: as the user who called sudo, else as the user who runs playdead]; it has no
    /// capabilities.
    #[arg(long, value_name = "USER", requires = "command")]
    pub user: Option<String>,
    /// Leave COMMAND all rights of playdead itself: root's capabilities, and its user (for `ip netns exec`, `playdead lab
    /// exec`, another user's processes).
    #[arg(long, requires = "command", conflicts_with = "user")]
    pub privileged: bool,
}

/// How long a fault lasts; neither: until it is healed.
#[derive(Debug, Clone, Args)]
#[group(multiple = false)]
pub struct LifetimeArgs {
    /// Let the kernel end it after this time (30s, 2m, 500ms), even if every playdead process is gone.
    #[arg(long = "for", value_name = "D", value_parser = duration, conflicts_with = "command")]
    pub lease: Option<Duration>,
    /// Keep it as long as this process lives, however it ends (under nohup not by SIGHUP).
    #[arg(long, conflicts_with = "command")]
    pub hold: bool,
}

impl LifetimeArgs {
    /// What was asked for; a fault that a command runs under is held for it.
    pub fn lasting(&self, with_command: bool) -> Lifetime {
        match (self.lease, self.hold || with_command) {
            (Some(lease), _) => Lifetime::Lease(lease),
            (None, true) => Lifetime::Held,
            (None, false) => Lifetime::Open,
        }
    }
}

/// `dead-process`
#[derive(Debug, Clone, Args)]
pub struct DeadProcessArgs {
    /// What every fault takes.
    #[command(flatten)]
    pub fault: FaultArgs,
    /// What this kind takes.
    #[command(flatten)]
    pub death: DeathArgs,
}

/// How a process dies.
#[derive(Debug, Clone, Args)]
pub struct DeathArgs {
    /// dead-process: how connections that are open are ended [default: fin].
    #[arg(long, value_enum, value_name = "HOW")]
    pub open_connections: Option<OpenConnections>,
}

impl DeathArgs {
    /// The kind.
    pub fn kind(&self) -> Kind {
        Kind::DeadProcess(self.open_connections.unwrap_or(OpenConnections::Fin))
    }
}

/// `hush`
#[derive(Debug, Clone, Args)]
pub struct HushArgs {
    /// What every fault takes.
    #[command(flatten)]
    pub fault: FaultArgs,
    /// Once the filter is armed, run this by `sh -c`: what stops the process, so that the order is right.
    #[arg(long, value_name = "COMMAND")]
    pub then: Option<OsString>,
}

/// `hung-process`
#[derive(Debug, Clone, Args)]
pub struct HungProcessArgs {
    /// What every fault takes.
    #[command(flatten)]
    pub fault: FaultArgs,
    /// What this kind takes.
    #[command(flatten)]
    pub hang: HangArgs,
}

/// How a process hangs.
#[derive(Debug, Clone, Args)]
pub struct HangArgs {
    /// hung-process: the backlog of its socket: one more connection is taken to each address and port, then SYNs vanish
    /// [default: what the listening socket here has left, else 4096, as net.core.somaxconn].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65_535))]
    pub backlog: Option<u32>,
}

/// `unreachable`
#[derive(Debug, Clone, Args)]
pub struct UnreachableArgs {
    /// What every fault takes.
    #[command(flatten)]
    pub fault: FaultArgs,
    /// What this kind takes.
    #[command(flatten)]
    pub error: ErrorArgs,
}

/// What a router says.
#[derive(Debug, Clone, Args)]
pub struct ErrorArgs {
    /// unreachable: which error the router sends [default: host].
    #[arg(long, value_enum)]
    pub code: Option<Code>,
}

impl ErrorArgs {
    /// The kind.
    pub fn kind(&self) -> Kind {
        Kind::Unreachable(self.code.unwrap_or(Code::Host))
    }
}

/// `lossy`
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("how-much").arg("percent").required(true))]
pub struct LossyArgs {
    /// What every fault takes.
    #[command(flatten)]
    pub fault: FaultArgs,
    /// What this kind takes.
    #[command(flatten)]
    pub loss: LossArgs,
    /// Which connections are lost; the same seed loses the same ones [default: random, and printed].
    #[arg(long, value_name = "N", requires = "per_connection")]
    pub seed: Option<u32>,
}

/// What a link loses.
#[derive(Debug, Clone, Args)]
pub struct LossArgs {
    /// lossy: how many of a hundred packets are lost (0.01 to 100).
    #[arg(long, value_name = "P", required = false, value_parser = per_myriad)]
    pub percent: u32,
    /// lossy: lose whole connections instead of packets: all packets of a connection, or none of them.
    #[arg(long, requires = "percent")]
    pub per_connection: bool,
}

impl LossArgs {
    /// The kind; the seed chooses the connections.
    pub fn kind(&self, seed: u64) -> Kind {
        #[expect(clippy::cast_possible_truncation, reason = "any 32 bits of it")]
        let seed = seed as u32;
        let scope = if self.per_connection { LossScope::Connection { seed } } else { LossScope::Packet };
        Kind::Lossy(Loss { per_myriad: self.percent, scope })
    }
}

/// `heal`
#[derive(Debug, Args)]
pub struct HealArgs {
    /// Which faults [default: all].
    #[arg(value_name = "NAME", conflicts_with = "all")]
    pub names: Vec<Name>,
    /// All of them, which is the default too.
    #[arg(long)]
    pub all: bool,
    /// How long to wait for a process that holds a fault to let go.
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration)]
    pub wait: Duration,
}

/// `renew`
#[derive(Debug, Args)]
pub struct RenewArgs {
    /// Which fault.
    #[arg(value_name = "NAME")]
    pub name: Name,
    /// How long it lasts from now on.
    #[arg(long = "for", value_name = "D", value_parser = duration)]
    pub lease: Duration,
}

/// `status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print it again every second, until interrupted.
    #[arg(long)]
    pub watch: bool,
}

/// `explain`
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Which kind.
    #[arg(value_name = "KIND", value_parser = verb::ALL)]
    pub kind: String,
}

/// `generate`
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// What to print.
    #[command(subcommand)]
    pub what: Generate,
}

/// What can be generated.
#[derive(Debug, Subcommand)]
pub enum Generate {
    /// The man page, or with --dir one page a verb.
    Man {
        /// Write all pages into this directory.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Completions for a shell.
    Completions {
        /// Which shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

fn address(text: &str) -> Result<IpNet, String> {
    match text.parse::<PeerSpec>()? {
        PeerSpec { host: crate::model::Host::Net(net), ports: None, .. } => Ok(net),
        _ => Err(format!("{text}: --with takes an address or a prefix, without a port")),
    }
}

/// Hundredths of a percent.
pub(super) fn per_myriad(text: &str) -> Result<u32, String> {
    let wrong = || format!("{text:?} is not a percentage from 0.01 to 100");
    let percent: f64 = text.strip_suffix('%').unwrap_or(text).parse().map_err(|_| wrong())?;
    let myriad = (percent * 100.0).round();
    if !(1.0..=10_000.0).contains(&myriad) {
        return Err(wrong());
    }
    if (percent * 100.0 - myriad).abs() > 1e-6 {
        return Err(format!("{text:?} has more digits than can be kept: percentages go in steps of 0.01"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be 1 to 10,000")]
    Ok(myriad as u32)
}
