//! Three questions about every member, which must not be mixed up, asked of all at once:
//!
//! - *live*: does its process serve?
//! - *able*: does it reach enough of the others to take part in a quorum?
//! - *quorum*: does the cluster answer through it?

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::ask::{Answer, Live, Quorum, Target, reach};
use super::nodes::{Check, Node, Seat};
use super::{afar, command, etcd, zookeeper};
use crate::kernel::netns::NetNs;
use crate::kernel::reason;
use crate::kernel::thread::start_in;

/// How long each question may take, if nobody says otherwise. An etcd that has a quorum answers in milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks of [`wait`].
const PAUSE: Duration = Duration::from_millis(20);

/// A place from which all members are asked.
#[derive(Debug, Clone, Copy)]
pub struct From<'a> {
    /// What it is called.
    pub label: &'a str,
    /// Where it is.
    pub ns: &'a NetNs,
}

/// Which of the other members' peer ports take a connection from a member's own place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Able {
    /// Those that do.
    pub reaches: Vec<String>,
    /// Those that do not, each with the reason.
    pub misses: Vec<(String, String)>,
    /// How many members make a quorum, itself counted.
    pub needs: usize,
    /// Whether it can be counted: not if its own process does not answer.
    pub serves: bool,
}

impl Able {
    /// Whether those that it reaches are enough, with itself if it serves.
    pub fn is_enough(&self) -> bool {
        self.reaches.len() + usize::from(self.serves) >= self.needs
    }
}

/// What one place has seen of one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The member.
    pub node: String,
    /// The place; `None`: the member's own.
    pub from: Option<String>,
    /// What it answered there; its leader is a name where the name is known.
    pub answer: Answer,
    /// Only from its own place, and only where the members' peer ports are known.
    pub able: Option<Able>,
}

impl View {
    /// Whether the cluster answered through the member.
    pub fn has_quorum(&self) -> bool {
        self.answer.quorum == Quorum::Yes
    }

    /// Why something is not so.
    fn reasons(&self) -> impl Iterator<Item = &String> {
        let live = match &self.answer.live {
            Live::No(why) | Live::Unknown(why) => Some(why),
            Live::Yes | Live::PeerPort => None,
        };
        let quorum = match &self.answer.quorum {
            Quorum::No(why) | Quorum::Unknown(why) => Some(why),
            Quorum::Yes => None,
        };
        let misses = self.able.iter().flat_map(|able| &able.misses).map(|(_, why)| why);
        live.into_iter().chain(quorum).chain(misses)
    }

    /// Whether its process serves, if only the other members.
    pub fn is_live(&self) -> bool {
        matches!(self.answer.live, Live::Yes | Live::PeerPort)
    }
}

/// What was seen of all members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The members' own views in their order, then those of each place.
    pub views: Vec<View>,
    /// How long the look took.
    pub took: Duration,
}

impl Snapshot {
    /// The view of a member from a place; `None`: its own.
    pub fn view(&self, node: &str, from: Option<&str>) -> Option<&View> {
        self.views.iter().find(|view| view.node == node && view.from.as_deref() == from)
    }

    /// Of the views through which the cluster answered, the one of the highest term that names a leader.
    fn leading(&self) -> Option<&View> {
        let answered = self.views.iter().filter(|view| view.has_quorum() && view.answer.leader.is_some());
        answered.max_by_key(|view| view.answer.term)
    }

    /// The leader that a member with a quorum names.
    pub fn leader(&self) -> Option<&str> {
        self.leading()?.answer.leader.as_deref()
    }

    /// The term of that leader.
    pub fn term(&self) -> Option<u64> {
        self.leading()?.answer.term
    }

    /// Whether the cluster answered in every view.
    pub fn is_whole(&self) -> bool {
        self.views.iter().all(View::has_quorum)
    }

    /// The members through which the cluster answered, from whatever place, each once.
    pub fn with_quorum(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for view in self.views.iter().filter(|view| view.has_quorum()) {
            if !names.contains(&view.node.as_str()) {
                names.push(view.node.as_str());
            }
        }
        names
    }
}

/// Asks every member among `seats`, each from its own place (if it has one) and from all of `from`, at the same
/// time. Takes little more than `patience`, whoever does not answer; up to 5 s more where a host of theirs cannot be
/// logged in to.
///
/// # Errors
/// When a namespace cannot be entered, no thread can be made, or nobody can be asked from anywhere. What a member does not answer is a value.
pub fn look(seats: &[Seat], from: &[From], patience: Duration) -> Result<Snapshot> {
    let start = Instant::now();
    let members: Vec<_> = seats.iter().filter(|seat| seat.node.check.is_some()).collect();
    let places = std::iter::once(None).chain(from.iter().map(Some));
    let jobs = places.flat_map(|from| members.iter().map(move |seat| (*seat, from)));
    let jobs: Vec<_> =
        jobs.filter(|(seat, from)| from.is_some() || seat.ns.is_some() || seat.node.ssh().is_some()).collect();
    if jobs.is_empty() {
        bail!("there is no member to ask, or no place to ask from: give the nodes a check and a place");
    }
    let until = start + patience;
    let views = thread::scope(|scope| {
        let asked = jobs.iter().map(|(seat, from)| start_in(scope, || view(seat, *from, &members, until)));
        let asked = asked.collect::<Result<Vec<_>>>()?;
        asked.into_iter().map(|view| view.join().map_err(|_| anyhow!("a thread panicked"))?).collect::<Result<_>>()
    });
    let mut views: Vec<View> = views?;
    let short_of = [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM].map(|errno| reason(&errno.into()));
    if let Some(why) = views.iter().flat_map(View::reasons).find(|why| short_of.contains(why)) {
        bail!("the members could not be asked: {why}");
    }
    name_leaders(&mut views);
    Ok(Snapshot { views, took: start.elapsed() })
}

/// Looks again and again until it is `so`: that look. After `limit`: the last look, as the inner error.
///
/// # Errors
/// As [`look`].
pub fn wait(
    seats: &[Seat],
    from: &[From],
    patience: Duration,
    limit: Duration,
    so: impl Fn(&Snapshot) -> bool,
) -> Result<Result<Snapshot, Snapshot>> {
    let start = Instant::now();
    loop {
        let seen = look(seats, from, patience)?;
        if so(&seen) {
            return Ok(Ok(seen));
        }
        if start.elapsed() > limit {
            return Ok(Err(seen));
        }
        thread::sleep(PAUSE);
    }
}

fn view(seat: &Seat, from: Option<&From>, members: &[&Seat], until: Instant) -> Result<View> {
    let node = &seat.node;
    if let (None, Some(ssh)) = (from, node.ssh()) {
        return Ok(afar::view(ssh, node, members, until.saturating_duration_since(Instant::now())));
    }
    let ns = from.map(|from| from.ns).or(seat.ns.as_ref()).context("no place to ask from")?;
    let others = if from.is_none() { others(node, members) } else { None };
    // Threads inherit the namespace of the one that starts them.
    let (answer, able) = in_place(ns, node, || {
        thread::scope(|scope| -> Result<_> {
            let able = others.as_deref().map(|others| start_in(scope, || able(others, members.len(), until)));
            let able = able.transpose()?;
            Ok((ask(node, until)?, able.and_then(|able| able.join().ok())))
        })
    })??;
    let serves = !matches!(answer.live, Live::No(_));
    let able = able.map(|able| Able { serves, ..able });
    Ok(View { node: node.name.clone(), from: from.map(|from| from.label.to_owned()), answer, able })
}

/// A command looks names up, and so needs the place's own files; nothing else does, and it takes a while.
fn in_place<T: Send>(ns: &NetNs, node: &Node, f: impl FnOnce() -> T + Send) -> Result<T> {
    if matches!(node.check, Some(Check::Command(_))) { ns.run_with_etc(f) } else { ns.run(f) }
}

type Other = (String, Vec<SocketAddr>);

/// The other members with their peer ports; `None` where one has none.
fn others(node: &Node, members: &[&Seat]) -> Option<Vec<Other>> {
    let others = members.iter().filter(|other| other.node.name != node.name);
    others
        .map(|other| {
            let port = other.node.peer_port?;
            Some((other.node.name.clone(), target(&other.node).at(Some(port))))
        })
        .collect()
}

fn able(others: &[Other], members: usize, until: Instant) -> Able {
    let groups: Vec<_> = others.iter().map(|(_, addresses)| addresses.clone()).collect();
    let mut able = Able { reaches: Vec::new(), misses: Vec::new(), needs: members / 2 + 1, serves: true };
    for ((name, _), reached) in others.iter().zip(reach(&groups, until)) {
        match reached {
            Ok(_) => able.reaches.push(name.clone()),
            Err(why) => able.misses.push((name.clone(), why)),
        }
    }
    able
}

fn target(node: &Node) -> Target<'_> {
    let (client_port, peer_port) = (node.client_port, node.peer_port);
    Target { name: &node.name, addresses: &node.addresses, client_port, peer_port }
}

fn ask(node: &Node, until: Instant) -> Result<Answer> {
    let target = target(node);
    Ok(match node.check.as_ref() {
        Some(Check::Etcd) => etcd::ask(target, until)?,
        Some(Check::Zookeeper) => zookeeper::ask(target, until),
        Some(Check::Http(path)) => ask_http(target, path, until),
        Some(Check::Command(text)) => Answer::only(connects(target, until), command::ask(target, text, until)),
        Some(Check::Tcp) | None => {
            let unknown = Quorum::Unknown("a connection says nothing about a quorum".into());
            Answer::only(connects(target, until), unknown)
        }
    })
}

fn ask_http(target: Target, path: &str, until: Instant) -> Answer {
    let asked = first(target, until)
        .and_then(|client| super::ask::http(&format!("http://{client}/{}", path.trim_start_matches('/')), None, until));
    match asked {
        Ok((200..=299, _)) => Answer::only(Live::Yes, Quorum::Yes),
        Ok((status, _)) => Answer::only(Live::Yes, Quorum::No(format!("{path} says {status}"))),
        Err(why) => Answer::only(Live::No(why.clone()), Quorum::No(why)),
    }
}

fn connects(target: Target, until: Instant) -> Live {
    if target.client_port.is_none() {
        return Live::Unknown("no client-port".into());
    }
    first(target, until).map_or_else(Live::No, |_| Live::Yes)
}

fn first(target: Target, until: Instant) -> Result<SocketAddr, String> {
    reach(&[target.at(target.client_port)], until).pop().unwrap_or_else(|| Err("no address".into()))
}

/// Members call each other by numbers; every one that was heard has told its own.
fn name_leaders(views: &mut [View]) {
    let known: Vec<_> = views.iter().filter_map(|view| Some((view.answer.id.clone()?, view.node.clone()))).collect();
    for leader in views.iter_mut().filter_map(|view| view.answer.leader.as_mut()) {
        if let Some((_, name)) = known.iter().find(|(id, _)| id == leader) {
            leader.clone_from(name);
        }
    }
}
