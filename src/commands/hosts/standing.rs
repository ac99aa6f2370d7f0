//! A fault that stands on several hosts, for as long as somebody here wants it: a scenario, say.

use anyhow::{Result, bail};

use super::talk::playdead;
use super::{Done, Ready};
use crate::cluster::{ANSWER, no_ssh, output};
use crate::commands::inforce::sum;
use crate::commands::share::Replaced;
use crate::commands::threads::at_once;

/// It is taken away by [`lift`](Self::lift), else by its leases.
pub(in super::super) struct Standing {
    pub(in super::super) name: String,
    /// The step that made it.
    pub(in super::super) step: String,
    /// The nodes where it is, as far as they were heard of.
    ready: Vec<Ready>,
    /// What it met where another has replaced it.
    pub(in super::super) met: Option<[u64; 2]>,
    replaced: Vec<(String, Replaced)>,
    ends: String,
}

impl Standing {
    pub(in super::super) fn new(name: String, step: &str, ready: Vec<Ready>, done: &Done) -> Self {
        let replaced = done.committed().flat_map(|(told, committed)| {
            committed.replaced.iter().map(|replaced| (told.node.clone(), replaced.clone()))
        });
        let (replaced, ends) = (replaced.collect(), done.ends.clone());
        // Where another was only taken away there is nothing to be lifted.
        let ready = ready.into_iter().filter(Ready::has_rules).collect();
        Self { name, step: step.to_owned(), ready, met: None, replaced, ends }
    }

    /// Those that it has replaced are no longer others' to lift, and what they met is known from then. Gives those that
    /// are nowhere any more.
    pub(in super::super) fn make_room(&self, others: &mut Vec<Self>) -> Vec<Self> {
        for (node, replaced) in &self.replaced {
            for other in others.iter_mut().filter(|other| other.name == replaced.name) {
                let before = other.ready.len();
                other.ready.retain(|one| one.node() != node);
                if other.ready.len() < before {
                    other.met = sum(other.met, Some(replaced.packets));
                }
            }
        }
        others.extract_if(.., |other| other.ready.is_empty()).collect()
    }

    /// Takes it away, and gives the packets that it met, as far as that is known.
    pub(in super::super) fn lift(self) -> Result<Option<[u64; 2]>> {
        let Self { name, ready, met, ends, .. } = self;
        let lifting = ready.into_iter().map(|one| {
            let (name, ends) = (&name, &ends);
            move || lift(one, name, ends)
        });
        at_once(lifting.collect()).into_iter().try_fold(met, |all, one| Ok(sum(all, one?)))
    }

    /// The packets that it has met so far.
    pub(in super::super) fn packets(&mut self) -> Result<Option<[u64; 2]>> {
        let met = self.met;
        self.ready.iter_mut().try_fold(met, |all, one| Ok(sum(all, one.talk.hits()?)))
    }
}

/// Who was cut off meanwhile may be back, but not so the conversation.
fn lift(mut one: Ready, name: &str, ends: &str) -> Result<Option<[u64; 2]>> {
    if let Ok(packets) = one.talk.heal() {
        return Ok(packets);
    }
    let healed = output(&mut playdead(&one.talk.node, &["heal", name])?, Some(ANSWER)).map_err(no_ssh)?;
    if !healed.is_some_and(|healed| healed.status.success()) {
        bail!("{name} was not healed on {}, which is not heard of: its lease ends by itself at {ends}", one.node());
    }
    Ok(None)
}
