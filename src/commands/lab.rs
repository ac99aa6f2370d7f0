//! `playdead lab`: hosts in namespaces on this machine, with real etcd on them.

mod show;

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};

use super::threads::at_once;
use crate::kernel::Missing;
use crate::kernel::machine::{Capability, Rights};
use crate::lab::{self, DEFAULT_NAME, Layout, MOST_MEMBERS, Node, Options};

/// Make and use hosts in network namespaces on this machine, with a real etcd cluster on them.
///
/// A lab has a node etcd1, etcd2, ... for every member, an agent for the clients, and a switch that they are plugged
/// into. Each is a network namespace named LAB-NODE, as `ip netns` shows; every node knows the others by name.
#[derive(Debug, Args)]
pub struct LabArgs {
    /// The lab's name; without it the lab named "lab", else the only one that is up
    #[arg(long, global = true, value_name = "NAME", value_parser = lab_name)]
    lab: Option<String>,
    #[command(subcommand)]
    verb: LabVerb,
}

#[derive(Debug, Subcommand)]
enum LabVerb {
    /// Make a lab and wait until every etcd member serves
    Up(UpArgs),
    /// Kill what runs in a lab and remove it, but for its logs; none there is success
    Down {
        /// Remove the logs, too
        #[arg(long)]
        purge: bool,
    },
    /// Show the nodes of the lab, or of every lab: addresses, link, etcd process, and whether it serves
    Status,
    /// Run a command on a node; its exit code is that of the command
    Exec {
        /// The node: etcd1, agent, switch, ..., or LAB/NODE
        node: String,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Kill a node's etcd with SIGKILL, as a crash would
    Kill(Nodes),
    /// Ask a node's etcd to end with SIGTERM and wait until it has (a lone leader takes up to 9 s)
    Stop(Nodes),
    /// Start a node's etcd again with the data that it had; returns when it listens to its peers
    Start(Nodes),
    /// Stop a node's etcd in its tracks with SIGSTOP
    Pause(Nodes),
    /// Let a paused etcd go on with SIGCONT
    Resume(Nodes),
    /// Pull a node's cable at the switch: to the others its machine is gone; it keeps its own carrier
    Unplug(Nodes),
    /// Put the cable back
    Plug(Nodes),
}

#[derive(Debug, Args)]
struct UpArgs {
    /// How many etcd members, 1 to 9
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_MEMBERS)))]
    etcd: u8,
    /// Put the agent on a subnet of its own, behind a router
    #[arg(long)]
    routed: bool,
    /// etcd's heartbeat interval in milliseconds; the election timeout is ten times that [etcd's own: 100]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=5000))]
    heartbeat_interval: Option<u32>,
    /// One more flag for every etcd, as in --etcd-flag=--enable-v2; may be repeated
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    etcd_flag: Vec<String>,
}

#[derive(Debug, Args)]
struct Nodes {
    /// The nodes: etcd1, agent, ..., or LAB/NODE; several at once are done at the same time
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
}

pub(super) fn lab_name(text: &str) -> Result<String> {
    lab::check_name(text).map(|()| text.to_owned())
}

/// Does what the arguments say.
///
/// # Errors
/// What the lab could not do, in one line.
pub fn run(args: &LabArgs, json: bool) -> Result<ExitCode> {
    // Without it nothing of a lab can be seen, and all of it would look dead.
    if !Rights::read()?.has(Capability::SysAdmin) {
        return Err(
            Missing("a lab lives in network namespaces: entering them needs CAP_SYS_ADMIN: use sudo".into()).into()
        );
    }
    let lab = args.lab.as_deref();
    match &args.verb {
        LabVerb::Up(up) => run_up(up, lab.unwrap_or(DEFAULT_NAME), json),
        LabVerb::Down { purge } => run_down(lab.unwrap_or(DEFAULT_NAME), *purge, json),
        LabVerb::Status => run_status(lab, json),
        LabVerb::Exec { node, command } => exec(&lab::node(lab, node)?, command),
        LabVerb::Kill(nodes) => on_each(nodes, lab, json, "killed", |node| lab::kill(node).map(Some)),
        LabVerb::Stop(nodes) => on_each(nodes, lab, json, "stopped", |node| lab::stop(node).map(Some)),
        LabVerb::Start(nodes) => on_each(nodes, lab, json, "started", |node| lab::start(node).map(Some)),
        LabVerb::Pause(nodes) => on_each(nodes, lab, json, "paused", |node| lab::pause(node).map(Some)),
        LabVerb::Resume(nodes) => on_each(nodes, lab, json, "resumed", |node| lab::resume(node).map(Some)),
        LabVerb::Unplug(nodes) => on_each(nodes, lab, json, "unplugged", |node| lab::unplug(node).map(|()| None)),
        LabVerb::Plug(nodes) => on_each(nodes, lab, json, "plugged", |node| lab::plug(node).map(|()| None)),
    }
}

/// The result, and success.
fn print(text: &str) -> Result<ExitCode> {
    super::out::print(text).map(|()| ExitCode::SUCCESS)
}

fn run_up(args: &UpArgs, name: &str, json: bool) -> Result<ExitCode> {
    let broken = args.etcd_flag.iter().find(|flag| flag.contains('\n'));
    ensure!(broken.is_none(), "a flag of etcd has more than one line");
    let options = Options {
        layout: Layout::new(name, args.etcd, args.routed)?,
        heartbeat: args.heartbeat_interval,
        etcd_flags: args.etcd_flag.clone(),
    };
    let cancelled = Arc::new(AtomicBool::new(false));
    for signal in super::hold::ending() {
        signal_hook::flag::register(signal, Arc::clone(&cancelled)).context("cannot watch for signals")?;
    }
    let made = lab::up(&options, &cancelled)?;
    print(&if json { show::made_json(name, &made) } else { show::made_text(name, &made) })
}

/// Only the lab that is named goes, or the default one: the second of two `down`s shall not find another.
fn run_down(name: &str, purge: bool, json: bool) -> Result<ExitCode> {
    let removed = lab::down(name, purge)?;
    print(&if json { show::removed_json(name, &removed) } else { show::removed_text(name, &removed) })
}

fn run_status(lab: Option<&str>, json: bool) -> Result<ExitCode> {
    let labs = match lab {
        Some(name) => vec![lab::choose(Some(name))?],
        None => lab::labs(),
    };
    let all = labs.iter().map(|lab| lab::status(lab)).collect::<Result<Vec<_>>>()?;
    print(&if json { show::status_json(&all) } else { show::status_text(&all) })
}

/// Becomes the command. A thread that calls `execve` takes the whole process along, into its own namespaces; so
/// signals, the terminal and the exit code need no passing on.
fn exec(node: &Node, command: &[String]) -> Result<ExitCode> {
    let [program, arguments @ ..] = command else { bail!("no command") };
    let failed = node.namespace()?.run_with_etc(|| Command::new(program).args(arguments).exec())?;
    let (code, why) = match failed.kind() {
        ErrorKind::NotFound => (127, "it is not there".to_owned()),
        _ => (126, failed.to_string()),
    };
    super::out::error(&format!("cannot run {program} on {}: {why}", node.name));
    Ok(ExitCode::from(code))
}

/// All at the same time, so that a quorum goes or comes back as a whole; every one is tried.
fn on_each(
    nodes: &Nodes,
    lab: Option<&str>,
    json: bool,
    done: &str,
    act: impl Fn(&Node) -> Result<Option<u32>> + Sync,
) -> Result<ExitCode> {
    let nodes = nodes.nodes.iter().map(|name| lab::node(lab, name)).collect::<Result<Vec<_>>>()?;
    let act = &act;
    let results = at_once(nodes.iter().map(|node| move || act(node)).collect());
    let pids: Vec<_> =
        nodes.iter().zip(&results).filter_map(|(node, result)| Some((node, *result.as_ref().ok()?))).collect();
    let text = if json { show::done_json(done, &pids) } else { show::done_text(done, &pids) };
    let code = print(&text)?;
    let errors: Vec<_> = results.iter().filter_map(|result| Some(format!("{:#}", result.as_ref().err()?))).collect();
    ensure!(errors.is_empty(), "{}", errors.join("; "));
    Ok(code)
}
