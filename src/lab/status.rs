//! What of a lab is there and what it does, read from the machine.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::nodes::{self, Node};
use super::plan::Role;
use super::{Health, etcd, health, link};

/// A member without a quorum needs a second to say so; a status should not take longer.
const PATIENCE: Duration = Duration::from_millis(900);

/// A lab as it is now.
#[derive(Debug)]
pub struct Status {
    /// Its name.
    pub lab: String,
    /// Its nodes, the switch first.
    pub nodes: Vec<NodeStatus>,
}

/// A node as it is now.
#[derive(Debug)]
pub struct NodeStatus {
    /// Which one.
    pub node: Node,
    /// Whether its namespace is there; not so after a reboot, or when it was half made.
    pub exists: bool,
    /// Whether its port is in the switch; `None` where it has none.
    pub plugged: Option<bool>,
    /// Of its etcd; `None` where none belongs.
    pub etcd: Option<EtcdStatus>,
}

/// An etcd process as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EtcdStatus {
    /// The process; `None`: dead.
    pub pid: Option<u32>,
    /// Whether it is stopped by a signal.
    pub paused: bool,
    /// What the agent sees of it.
    pub health: Health,
}

impl Status {
    /// Whether a member serves, which it does only with a quorum.
    pub fn quorum(&self) -> bool {
        self.nodes.iter().filter_map(|node| node.etcd.as_ref()).any(|etcd| etcd.health.is_healthy())
    }
}

/// Looks at every node of the lab; takes up to a second where a member does not answer.
///
/// # Errors
/// When `/proc` or a namespace cannot be read. What is missing or half made is a value.
pub fn status(lab: &str) -> Result<Status> {
    let nodes = nodes::nodes(lab);
    let ports = link::ports(lab).unwrap_or_default();
    let mut answers = ask(&nodes).into_iter();
    let looked = nodes.into_iter().map(|node| {
        let exists = node.namespace().is_ok();
        let plugged = ports.iter().find(|(name, _)| *name == node.name).map(|(_, plugged)| *plugged);
        let etcd = if node.role.is_etcd() { Some(look_at_etcd(&node, exists, answers.next())?) } else { None };
        Ok(NodeStatus { node, exists, plugged, etcd })
    });
    Ok(Status { lab: lab.to_owned(), nodes: looked.collect::<Result<_>>()? })
}

fn look_at_etcd(node: &Node, exists: bool, health: Option<Health>) -> Result<EtcdStatus> {
    let process = if exists { etcd::running(node)? } else { None };
    Ok(EtcdStatus {
        pid: process.map(|process| process.pid),
        paused: process.is_some_and(|process| process.is_stopped()),
        health: health.unwrap_or_else(|| Health::Silent("there is no agent to ask from".to_owned())),
    })
}

/// An answer for every member, or none at all.
fn ask(nodes: &[Node]) -> Vec<Health> {
    let members: Vec<_> = nodes.iter().filter(|node| node.role.is_etcd()).collect();
    let agent = nodes.iter().find(|node| node.role == Role::Agent);
    let asked = agent.and_then(|agent| health::ask(&agent.namespace().ok()?, &members, PATIENCE).ok());
    asked.unwrap_or_default()
}
