//! A member on another host, asked there: playdead on that host looks, and tells what it saw.

use std::io::Write;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::ask::{Answer, Live, Quorum};
use super::child::wait;
use super::look::{View, look};
use super::nodes::{Check, Commands, Node, Seat};
use super::ssh::{Ssh, no_ssh};
use crate::kernel::netns::NetNs;

/// How long logging in may take on top of what the members may.
const LOGIN: Duration = Duration::from_secs(5);

/// What a host is asked: what do you see of yourself?
#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    itself: String,
    members: Vec<Member>,
    patience: Duration,
}

#[derive(Debug, Serialize, Deserialize)]
struct Member {
    name: String,
    addresses: Vec<IpAddr>,
    client_port: Option<u16>,
    peer_port: Option<u16>,
    check: Option<Check>,
}

/// What the host saw from the namespace that it is asked in.
///
/// # Errors
/// When it is none of the members, or the kernel cannot be asked.
pub fn answer(question: Question) -> Result<View> {
    let Question { itself, members, patience } = question;
    let here = NetNs::current()?;
    let mut seats: Vec<_> = members.into_iter().map(|member| Seat { node: member.into(), ns: None }).collect();
    let own = seats.iter_mut().find(|seat| seat.node.name == itself).context("it asks for none of the members")?;
    own.ns = Some(here);
    look(&seats, &[], patience)?.views.pop().context("nothing was seen")
}

impl From<Member> for Node {
    fn from(member: Member) -> Self {
        let Member { name, addresses, client_port, peer_port, check } = member;
        let commands = Commands::default();
        Self { name, place: None, addresses, client_port, peer_port, check, commands, log: None }
    }
}

/// The member's own view. That it cannot be asked there is an answer, too.
pub(super) fn view(ssh: &Ssh, node: &Node, members: &[&Seat], patience: Duration) -> View {
    ask(ssh, node, members, patience).unwrap_or_else(|error| {
        let why = format!("not asked there: {error:#}");
        let answer = Answer::only(Live::No(why.clone()), Quorum::No(why));
        View { node: node.name.clone(), from: None, answer, able: None }
    })
}

fn ask(ssh: &Ssh, node: &Node, members: &[&Seat], patience: Duration) -> Result<View> {
    let member = |seat: &&Seat| Member {
        name: seat.node.name.clone(),
        addresses: seat.node.addresses.clone(),
        client_port: seat.node.client_port,
        peer_port: seat.node.peer_port,
        check: seat.node.check.clone(),
    };
    let question = Question { itself: node.name.clone(), members: members.iter().map(member).collect(), patience };
    // A look takes no rights, and a check that is a command shall not have them.
    let mut command = ssh.playdead_as_user(&["look"]);
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let until = Instant::now() + patience + LOGIN;
    let mut child = command.spawn().map_err(no_ssh)?;
    // It may have ended without reading; its end tells why.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(&serde_json::to_vec(&question).unwrap_or_default()));
    // What it prints fits into a pipe.
    if wait(&mut child, until).is_none() {
        bail!("{ssh}: no answer in {:.1} s", (patience + LOGIN).as_secs_f64());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(ssh.explain(output.status, &String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("{ssh}: its answer is not understood"))
}
