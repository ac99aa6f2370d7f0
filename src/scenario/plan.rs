//! From a file and a seed to a list of steps: everything that is left to chance is decided here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fastrand::Rng;
use toml::Spanned;

use super::file::{Action, Pick, Scenario, Sleep, Step};
use super::texts::{fill, is_name};

/// As many steps as a plan may have: a thousand rounds of a thousand steps are a slip of the pen.
const MOST_STEPS: usize = 100_000;

/// Names of nodes that only the live cluster can tell.
pub const LIVE: [&str; 2] = ["leader", "a-follower"];

/// What will happen.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Where the dice began.
    pub seed: u64,
    /// The steps in their order.
    pub steps: Vec<Planned>,
}

/// One step of a plan: nothing in it is a block or left to chance.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// Its number: `3`, or `3.2.1` for the first step of the second round of step 3.
    pub id: String,
    /// Where in the file: the line, and the path of the field.
    pub line: usize,
    /// `steps[2]`
    pub path: String,
    /// The earliest time at which it begins: waiting and commands take longer than nothing.
    pub earliest: Duration,
    /// The step. A `{{NAME}}` that is left stands for a node that the live cluster will tell.
    pub step: Step,
}

impl Planned {
    /// With the names that the live cluster told.
    ///
    /// # Errors
    /// A name that was never picked.
    pub fn filled(&self, live: &BTreeMap<String, String>) -> Result<Step, String> {
        let mut step = self.step.clone();
        fill(&mut step, live)?;
        Ok(step)
    }
}

/// In which line of the text it stands.
pub fn line<T>(text: &str, spanned: &Spanned<T>) -> usize {
    text.get(..spanned.span().start).unwrap_or_default().matches('\n').count() + 1
}

/// Makes the plan. The same text and seed make the same one.
///
/// # Errors
/// `LINE: FIELD: what is wrong`.
pub fn plan(scenario: &Scenario, text: &str, seed: u64) -> Result<Plan, String> {
    let mut planner = Planner { text, rng: Rng::with_seed(seed), ..Planner::default() };
    planner.block(&scenario.steps, "", "steps", true)?;
    Ok(Plan { seed, steps: planner.steps })
}

#[derive(Default)]
struct Planner<'a> {
    text: &'a str,
    rng: Rng,
    values: BTreeMap<String, String>,
    live: BTreeSet<String>,
    earliest: Duration,
    steps: Vec<Planned>,
}

impl Planner<'_> {
    fn block(&mut self, steps: &[Spanned<Step>], id: &str, path: &str, outermost: bool) -> Result<(), String> {
        for (index, spanned) in steps.iter().enumerate() {
            let line = line(self.text, spanned);
            let (id, path) = (format!("{id}{}", index + 1), format!("{path}[{index}]"));
            self.step(spanned.get_ref(), &id, line, &path, outermost).map_err(|error| {
                // An inner step has told where it is already.
                if error.starts_with(|c: char| c.is_ascii_digit()) { error } else { format!("{line}: {path}{error}") }
            })?;
        }
        Ok(())
    }

    /// The error begins behind the step's path.
    fn step(&mut self, step: &Step, id: &str, line: usize, path: &str, outermost: bool) -> Result<(), String> {
        if let Some(at) = step.at {
            if !outermost {
                return Err(".at: a time counts from the start of the scenario: inside a block use sleep".into());
            }
            if at < self.earliest {
                let earliest = self.earliest;
                return Err(format!(".at: the steps before this one take until {earliest:?} at least"));
            }
            self.earliest = at;
        }
        match &step.action {
            Action::Repeat(repeat) => {
                for round in 1..=repeat.times.get() {
                    self.block(&repeat.steps, &format!("{id}.{round}."), &format!("{path}.repeat.steps"), false)?;
                }
                Ok(())
            }
            Action::OneOf(branches) => {
                let Some(drawn) = self.draw(branches.len()) else { return Err(".one-of: it is empty".into()) };
                let inner = format!("{path}.one-of[{drawn}].steps");
                self.block(&branches[drawn].steps, &format!("{id}.{}.", drawn + 1), &inner, false)
            }
            _ => self.plain(step, id, line, path),
        }
    }

    fn plain(&mut self, step: &Step, id: &str, line: usize, path: &str) -> Result<(), String> {
        if self.steps.len() >= MOST_STEPS {
            return Err(format!(": this makes a plan of more than {MOST_STEPS} steps"));
        }
        let mut step = step.clone();
        // What is live keeps its braces until it is known.
        let mut values = self.values.clone();
        values.extend(self.live.iter().map(|name| (name.clone(), format!("{{{{{name}}}}}"))));
        fill(&mut step, &values).map_err(|error| format!(": {error}"))?;
        let mut took = Duration::ZERO;
        match &mut step.action {
            Action::Pick(pick) => self.pick(pick)?,
            Action::Run(run) if run.any_exit && run.exit.is_some() => {
                return Err(".run: exit and any-exit contradict each other: give one".into());
            }
            Action::Sleep(sleep) => {
                let time = self.between(*sleep);
                *sleep = Sleep { least: time, most: time };
                took = time;
            }
            _ => {}
        }
        let (id, path) = (id.to_owned(), path.to_owned());
        self.steps.push(Planned { id, line, path, earliest: self.earliest, step });
        self.earliest += took;
        Ok(())
    }

    /// Afterwards the pick names the one that was drawn.
    fn pick(&mut self, pick: &mut Pick) -> Result<(), String> {
        if !is_name(&pick.name) {
            return Err(format!(".pick.as: {:?} is not a name: use letters, digits, '-' and '_'", pick.name));
        }
        if pick.command.is_some() != pick.of.0.is_empty() {
            return Err(".pick: give of or command, one of them".into());
        }
        if pick.command.is_some() {
            self.values.remove(&pick.name);
            self.live.insert(pick.name.clone());
            return Ok(());
        }
        let Some(drawn) = self.draw(pick.of.0.len()) else { return Err(".pick.of: it is empty".into()) };
        let drawn = pick.of.0.swap_remove(drawn);
        if LIVE.contains(&drawn.as_str()) {
            self.values.remove(&pick.name);
            self.live.insert(pick.name.clone());
        } else {
            self.live.remove(&pick.name);
            self.values.insert(pick.name.clone(), drawn.clone());
        }
        pick.of.0 = vec![drawn];
        Ok(())
    }

    fn draw(&mut self, of: usize) -> Option<usize> {
        (of > 0).then(|| self.rng.usize(..of))
    }

    /// In whole milliseconds.
    fn between(&mut self, sleep: Sleep) -> Duration {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if sleep.least == sleep.most {
            return sleep.least;
        }
        Duration::from_millis(self.rng.u64(ms(sleep.least)..=ms(sleep.most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::file::{Verb, parse};

    const DICE: &str = r#"
        [[steps]]
        at = "1s"
        pick = { as = "victim", of = ["etcd1", "etcd2", "etcd3"] }
        [[steps]]
        repeat.times = 8
        [[steps.repeat.steps]]
        sleep = "1s..3s"
        [[steps.repeat.steps]]
        one-of = [{ steps = [{ kill = "{{victim}}" }] }, { steps = [{ pause = "{{victim}}" }] }]
        [[steps]]
        pick = { as = "old", of = "leader" }
        [[steps]]
        start = "{{old}}"
    "#;

    fn planned(text: &str, seed: u64) -> Result<Plan, String> {
        plan(&parse(text).unwrap(), text, seed)
    }

    #[test]
    fn the_same_seed_gives_the_same_plan_and_another_another() {
        assert_eq!(planned(DICE, 7), planned(DICE, 7));
        assert_ne!(planned(DICE, 7).unwrap().steps, planned(DICE, 8).unwrap().steps);
    }

    #[test]
    fn blocks_are_rolled_out_and_times_add_up() {
        let plan = planned(DICE, 7).unwrap();
        let ids: Vec<_> = plan.steps.iter().map(|step| step.id.as_str()).collect();
        assert_eq!((ids[0], ids[1], ids[3], ids.len()), ("1", "2.1.1", "2.2.1", 19));
        assert!(plan.steps[2].id.starts_with("2.1.2."));
        assert!(plan.steps.is_sorted_by_key(|step| step.earliest));
        let last = plan.steps.last().unwrap();
        assert!(last.earliest >= Duration::from_secs(9) && last.earliest <= Duration::from_secs(25));
        assert_eq!((plan.steps[1].line, plan.steps[1].path.as_str()), (7, "steps[1].repeat.steps[0]"));
    }

    #[test]
    fn what_the_live_cluster_must_tell_stays_open_until_it_has() {
        let plan = planned(DICE, 7).unwrap();
        let last = plan.steps.last().unwrap();
        assert!(last.filled(&BTreeMap::new()).is_err());
        let told = last.filled(&BTreeMap::from([("old".to_owned(), "etcd3".to_owned())])).unwrap();
        assert!(matches!(&told.action, Action::Do(Verb::Start, names) if names.0 == ["etcd3"]));
    }

    #[test]
    fn what_cannot_be_planned_is_told_with_line_and_field() {
        for (text, expected) in [
            ("[[steps]]\nat = \"5s\"\nsleep = \"1s\"\n[[steps]]\nat = \"5s\"\nsleep = \"1s\"", "4: steps[1].at: "),
            ("[[steps]]\nkill = \"{{x}}\"", "1: steps[0]: {{x}} stands for nothing"),
            (
                "[[steps]]\nrun = { command = \"true\", exit = 0, any-exit = true }",
                "1: steps[0].run: exit and any-exit",
            ),
            ("[[steps]]\npick = { as = \"x\" }", "1: steps[0].pick: "),
            (
                "[[steps]]\nrepeat.times = 1\n[[steps.repeat.steps]]\nat = \"1s\"\nsleep = \"1s\"",
                "3: steps[0].repeat.steps[0].at: ",
            ),
        ] {
            let error = planned(text, 1).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }
}
