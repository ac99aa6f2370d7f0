//! Makes a lab and waits until its cluster serves.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow, bail};

use super::etcd::{self, Etcd};
use super::health::{self, Health};
use super::nodes::Node;
use super::plan::{Layout, Role};
use super::{build, down};

const PATIENCE: Duration = Duration::from_secs(30);
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(50);

/// What lab to make.
#[derive(Debug)]
pub struct Options {
    /// Its name and nodes.
    pub layout: Layout,
    /// etcd's heartbeat interval in milliseconds, its election timeout being ten times that; `None`: etcd's own,
    /// 100 ms and 1 s.
    pub heartbeat: Option<u32>,
    /// More flags for every etcd, as they stand on its command line; these win over the lab's own.
    pub etcd_flags: Vec<String>,
}

/// A lab whose members all serve.
#[derive(Debug)]
pub struct Made {
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// From the start of the first member until every member served.
    pub quorum_after: Duration,
}

/// Makes a lab, starts its etcd cluster and waits until every member serves.
///
/// # Errors
/// When etcd is not installed or does not know a flag, or something of that name is there: nothing is made then. When the kernel
/// refuses something or `cancelled` becomes true: what was made is removed again. When a member does not serve
/// within 30 s: the lab stays, for its logs to be read.
pub fn up(options: &Options, cancelled: &AtomicBool) -> Result<Made> {
    let etcd = Etcd::installed(&options.etcd_flags)?;
    build::claim(&options.layout)?;
    let nodes: Vec<_> = options.layout.roles().into_iter().map(|role| Node::of(&options.layout, role)).collect();
    let start = make(options, etcd, &nodes, cancelled).map_err(|error| undo(&options.layout, &error, false))?;
    wait_for_quorum(&nodes, start, cancelled)?;
    if cancelled.load(Ordering::Relaxed) {
        return Err(undo(&options.layout, &anyhow!("interrupted"), true));
    }
    Ok(Made { nodes, quorum_after: start.elapsed() })
}

/// Gives the time when the first member was started.
fn make(options: &Options, etcd: Etcd, nodes: &[Node], cancelled: &AtomicBool) -> Result<Instant> {
    build::build(&options.layout, cancelled)?;
    let members = || nodes.iter().filter(|node| node.role.is_etcd());
    for member in members() {
        etcd.prepare(&options.layout, member, options.heartbeat, &options.etcd_flags)?;
    }
    let start = Instant::now();
    members().try_for_each(etcd::spawn)?;
    Ok(start)
}

/// The error, with what could not be undone. The logs go, too, once they are this lab's and not those of an earlier one.
fn undo(layout: &Layout, error: &Error, purge: bool) -> Error {
    let lab = &layout.name;
    match down::down(lab, purge) {
        Ok(_) => anyhow!("cannot make the lab {lab}, what was made is removed again: {error:#}"),
        Err(left) => anyhow!("cannot make the lab {lab}: {error:#}; {left:#}: `playdead lab down --lab {lab}`"),
    }
}

/// Returns early, without an error, when `cancelled`.
fn wait_for_quorum(nodes: &[Node], start: Instant, cancelled: &AtomicBool) -> Result<()> {
    let members: Vec<_> = nodes.iter().filter(|node| node.role.is_etcd()).collect();
    let Some(agent) = nodes.iter().find(|node| node.role == Role::Agent) else { bail!("a lab without an agent") };
    let agent = agent.namespace()?;
    while !cancelled.load(Ordering::Relaxed) {
        // A member listens before it answers, and then never answers what it was asked too early: ask anew, soon
        // at first, and give a slow machine more time later.
        let patience = (start.elapsed() / 4).clamp(Duration::from_millis(200), Duration::from_secs(2));
        let answers = health::ask(&agent, &members, patience)?;
        if answers.iter().all(Health::is_healthy) {
            break;
        }
        for member in &members {
            if etcd::running(member)?.is_none() {
                return Err(still_there(member, &etcd::ended(member)));
            }
        }
        if start.elapsed() > PATIENCE {
            return Err(missing(&members, &answers));
        }
        std::thread::sleep(BETWEEN_QUESTIONS);
    }
    Ok(())
}

fn missing(members: &[&Node], answers: &[Health]) -> Error {
    let mut text = format!("after {} s", PATIENCE.as_secs());
    let sick: Vec<_> = members.iter().zip(answers).filter(|(_, answer)| !answer.is_healthy()).collect();
    for (member, answer) in &sick {
        let why = match answer {
            Health::Silent(why) => why,
            Health::Healthy | Health::NoQuorum => "it has no quorum",
        };
        let _ = write!(text, ", {} does not serve ({why}; its log: {})", member.name, member.log().display());
    }
    sick.first().map_or_else(|| anyhow!("{text}"), |(member, _)| still_there(member, &anyhow!("{text}")))
}

fn still_there(member: &Node, error: &Error) -> Error {
    let lab = &member.lab;
    anyhow!("the lab {lab} is made but does not serve: {error:#}; `playdead lab down --lab {lab}` removes it")
}
