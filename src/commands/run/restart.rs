//! Nodes come back in an order, and what can never come back is found at once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::player::{Failure, Player};
use super::text;
use crate::cluster::{Snapshot, View};
use crate::record::Event;
use crate::scenario::file::{Order, Ready, Restart, Verb};

const PAUSE: Duration = Duration::from_millis(20);
/// How long a command may take that says whether a node is ready.
const ONE_CHECK: Duration = Duration::from_secs(10);

impl Player<'_> {
    pub(super) fn restart(&mut self, how: &Restart) -> Result<(), Failure> {
        let (nodes, start) = (self.nodes(&how.nodes)?, Instant::now());
        match (self.bring_back(how, &nodes), how.deadlock) {
            (Err(Failure::Deadlock(why)), true) => {
                self.record.add(Some(&self.step), Event::Note { text: format!("as was to be found: {why}") });
                // In the picture, too: how the nodes waited is what such a scenario is about.
                let what = format!("deadlock: none {}", text::ready(&how.ready));
                let took_ms = start.elapsed().as_secs_f64() * 1e3;
                self.record.add(Some(&self.step), Event::Expect { what, met: true, seen: why, took_ms });
                Ok(())
            }
            (Ok(()), true) => Err(Failure::Unmet("the nodes came back, and a deadlock was to be found".into())),
            (other, _) => other,
        }
    }

    fn bring_back(&mut self, how: &Restart, nodes: &[String]) -> Result<(), Failure> {
        if how.order == Order::AllAtOnce {
            self.start_if_down(nodes)?;
            return nodes.iter().try_for_each(|node| self.wait_ready(how, node, nodes, &[]));
        }
        for (index, node) in nodes.iter().enumerate() {
            self.start_if_down(std::slice::from_ref(node))?;
            self.wait_ready(how, node, nodes, &nodes[index + 1..])?;
        }
        Ok(())
    }

    fn start_if_down(&mut self, nodes: &[String]) -> Result<(), Failure> {
        let seen = self.members_now()?;
        let runs = |node: &String| seen.as_ref().and_then(|seen| seen.view(node, None)).is_some_and(View::is_live);
        let (running, down): (Vec<_>, Vec<_>) = nodes.iter().cloned().partition(runs);
        for node in &running {
            self.note(&format!("{node} runs already"));
        }
        self.do_to_all(&down, Verb::Start)
    }

    /// Of all that come back, `later` do only after this one is ready.
    fn wait_ready(&mut self, how: &Restart, node: &str, all: &[String], later: &[String]) -> Result<(), Failure> {
        let (start, ready) = (Instant::now(), text::ready(&how.ready));
        loop {
            let seen = self.members_now()?;
            let view = seen.as_ref().and_then(|seen| seen.view(node, None));
            let left = how.within.0.saturating_sub(start.elapsed());
            let (is_ready, why) = self.is_ready(&how.ready, view, node, left)?;
            if is_ready {
                let took_ms = start.elapsed().as_secs_f64() * 1e3;
                let what = format!("{node} {ready}");
                self.record.add(Some(&self.step), Event::Expect { what, met: true, seen: why, took_ms });
                return Ok(());
            }
            let over = start.elapsed() >= how.within.0;
            // A command may be about anything: only once its time is over is its need of a quorum a good guess.
            if !matches!(how.ready, Ready::Live) && (over || !matches!(how.ready, Ready::Command(_))) {
                seen.map_or(Ok(()), |seen| self.find_deadlock(how, node, [all, later], &seen))?;
            }
            if over {
                let took = how.within.0.as_secs_f64();
                return Err(Failure::Unmet(format!("{node} was started and never {ready} in {took:.1} s ({why})")));
            }
            if !self.stop.sleep_until(Instant::now() + PAUSE) {
                return Err(Failure::Interrupted);
            }
        }
    }

    /// What the members answer; nothing where none of the nodes is one.
    fn members_now(&self) -> Result<Option<Snapshot>> {
        if self.world.members().is_empty() {
            return Ok(None);
        }
        self.look(&[]).map(Some)
    }

    /// Whether it is ready, and what was seen.
    fn is_ready(
        &mut self,
        ready: &Ready,
        view: Option<&View>,
        node: &str,
        within: Duration,
    ) -> Result<(bool, String), Failure> {
        if let Ready::Command(command) = ready {
            return self.passes(command, node, within.min(ONE_CHECK));
        }
        let view = view.with_context(|| format!("{node} is no member that can be asked: use ready.command"))?;
        let why = super::telemetry::why(view).unwrap_or_else(|| "the cluster answers through it".into());
        Ok(match ready {
            Ready::Quorum => (view.has_quorum(), why),
            Ready::Live => (view.is_live(), why),
            Ready::Able => {
                let able = view.able.as_ref().context("the members' peer ports are not known")?;
                let misses: Vec<_> = able.misses.iter().map(|(name, why)| format!("{name}: {why}")).collect();
                let misses = if misses.is_empty() { "it reaches all".into() } else { misses.join(", ") };
                (view.is_live() && able.is_enough(), misses)
            }
            Ready::Command(_) => (false, why),
        })
    }

    fn passes(&mut self, command: &str, node: &str, within: Duration) -> Result<(bool, String), Failure> {
        self.outputs = 0;
        let command = format!("export PLAYDEAD_NODE={node}\n{command}");
        let mut shell = self.start(&command, Some(node))?;
        let code = self.wait_for(&mut shell, within)?;
        shell.keep(self.record);
        Ok((code == Some(0), code.map_or("the check hangs".into(), |code| format!("the check ends with {code}"))))
    }

    /// Those that are down and come later, or do not come back at all, cannot be part of the quorum that this one waits
    /// for. If the others are not enough for one, it waits for ever: those that come later wait for it.
    fn find_deadlock(
        &self,
        how: &Restart,
        node: &str,
        [all, later]: [&[String]; 2],
        seen: &Snapshot,
    ) -> Result<(), Failure> {
        let members = self.world.members();
        let down = |name: &&String| members.contains(*name) && !seen.view(name, None).is_some_and(View::is_live);
        let held_back: Vec<_> = later.iter().filter(down).map(String::as_str).collect();
        let needs = members.len() / 2 + 1;
        let absent: Vec<_> =
            members.iter().filter(|name| !all.contains(*name)).filter(down).map(String::as_str).collect();
        let possible = members.len() - held_back.len() - absent.len();
        if possible >= needs || held_back.is_empty() {
            return Ok(());
        }
        let (check, demands) = match &how.ready {
            Ready::Quorum => ("ready = \"quorum\"".to_owned(), "demands a quorum"),
            Ready::Able => ("ready = \"able\"".to_owned(), "demands that it reaches enough others for a quorum"),
            Ready::Live => ("ready = \"live\"".to_owned(), "demands nothing of others"),
            Ready::Command(command) => (format!("ready.command = {command:?}"), "has not passed in its time"),
        };
        let missing = held_back.join(" and ");
        let of = members.len();
        let absent = match absent.as_slice() {
            [] => String::new(),
            absent => format!(", and {}, down and not restarted here", absent.join(" and ")),
        };
        let perhaps = if matches!(how.ready, Ready::Command(_)) { "if it demands a quorum, this is " } else { "" };
        Err(Failure::Deadlock(format!(
            "{perhaps}a deadlock: {node} is waited for by {check}, which {demands} ({needs} of {of} members); missing \
             are {missing}, which are down and are started only after {node} is ready{absent}: use a check of the process \
             alone (ready = \"live\"), or order = \"all-at-once\""
        )))
    }
}
