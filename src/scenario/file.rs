//! A scenario as its author wrote it in TOML.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use toml::Spanned;

use crate::cluster::Nodes;
use crate::model::time;

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scenario {
    /// What it is about, for the record.
    #[serde(default)]
    pub about: String,
    /// Where its dice begin, unless the command line says.
    pub seed: Option<u64>,
    /// The lab that is meant where there is no table of nodes.
    pub lab: Option<String>,
    /// Who takes part.
    pub nodes: Option<Nodes>,
    /// What all of its commands find in their environment.
    #[serde(default, deserialize_with = "variables")]
    pub env: BTreeMap<String, String>,
    /// Whether a fault that no packet met makes it fail.
    #[serde(default)]
    pub require_hits: bool,
    /// How the cluster is watched meanwhile.
    #[serde(default)]
    pub telemetry: Telemetry,
    /// What happens.
    #[serde(deserialize_with = "some")]
    pub steps: Vec<Spanned<Step>>,
}

/// How the cluster is watched while the scenario plays.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Telemetry {
    /// From one look to the next; a look at a cluster that does not answer takes up to `patience`.
    #[serde(deserialize_with = "some_time")]
    pub every: Time,
    /// How long a member may take to answer.
    #[serde(deserialize_with = "some_time")]
    pub patience: Time,
    /// From which nodes, besides each member's own.
    pub from: Spanned<Names>,
    /// Whether it is watched at all.
    pub on: bool,
}

impl Default for Telemetry {
    fn default() -> Self {
        let time = |ms| Time(Duration::from_millis(ms));
        let from = Spanned::new(0..0, Names::default());
        Self { every: time(250), patience: time(1000), from, on: true }
    }
}

/// One thing that happens.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Raw")]
pub struct Step {
    /// Not before this time since the start; without it, right after the step before.
    pub at: Option<Duration>,
    /// What the record calls it.
    pub name: Option<String>,
    /// What happens.
    pub action: Action,
}

/// What can happen.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A fault, in the words of the command line.
    Fault(String),
    /// A fault that comes and goes, in the words of the command line.
    Flap(String),
    /// A partition, in the words of the command line.
    Partition(String),
    /// Faults go: those of these names, or `all`.
    Heal(Names),
    /// Something is done to the processes or cables of nodes.
    Do(Verb, Names),
    /// Nodes come back, in an order.
    Restart(Restart),
    /// A command.
    Run(Run),
    /// A look as a client has it, in the words of the command line.
    Probe(String),
    /// Nothing, for a time.
    Sleep(Sleep),
    /// The scenario goes on when something is so, and ends if it does not become so.
    Wait(Condition),
    /// Something must be so.
    Expect(Condition),
    /// Steps again and again.
    Repeat(Repeat),
    /// A name for one of several, drawn or asked of the live cluster.
    Pick(Pick),
    /// One of several lists of steps, drawn.
    OneOf(Vec<Branch>),
}

/// What is done to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// Its process dies at once.
    Kill,
    /// Its process is asked to end.
    Stop,
    /// Its process is started.
    Start,
    /// Its process stops in its tracks.
    Pause,
    /// Its process goes on.
    Resume,
    /// Its cable is pulled.
    Unplug,
    /// Its cable is put back.
    Plug,
}

impl Verb {
    /// As written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Start => "start",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Unplug => "unplug",
            Self::Plug => "plug",
        }
    }

    /// What puts it right again.
    pub fn undone_by(self) -> Option<Self> {
        match self {
            Self::Kill | Self::Stop => Some(Self::Start),
            Self::Pause => Some(Self::Resume),
            Self::Unplug => Some(Self::Plug),
            Self::Start | Self::Resume | Self::Plug => None,
        }
    }
}

/// Nodes come back.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Restart {
    /// Which, in this order.
    pub nodes: Names,
    /// One by one, or all at once.
    #[serde(default)]
    pub order: Order,
    /// When one is ready.
    pub ready: Ready,
    /// How long one may take to become ready.
    #[serde(default = "patience")]
    pub within: Time,
    /// The author knows that this can never end, and wants to see it found.
    #[serde(default)]
    pub deadlock: bool,
}

/// The order in which nodes come back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// The next one when the last is ready, as a `StatefulSet` does.
    #[default]
    OneByOne,
    /// All of them, then they are waited for.
    AllAtOnce,
}

/// When a node is ready.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ready {
    /// The cluster answers through it.
    Quorum,
    /// It reaches enough others for a quorum.
    Able,
    /// Its process serves.
    Live,
    /// This command succeeds, run in its place by `sh -c` with `PLAYDEAD_NODE`.
    Command(String),
}

/// A command.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Run {
    /// Given to `sh -c`.
    pub command: String,
    /// On which node; without it, where playdead runs.
    pub node: Option<String>,
    /// The exit code that it must have; unless `any-exit`.
    pub exit: Option<u8>,
    /// Whatever its exit code.
    #[serde(default)]
    pub any_exit: bool,
    /// What its output must contain.
    pub output: Option<String>,
    /// It runs while the scenario goes on, and is ended with it.
    #[serde(default)]
    pub background: bool,
    /// It is killed after that time, which is a failure.
    #[serde(default = "long_patience")]
    pub within: Time,
}

/// Steps again and again. Times inside are not since the start, so a step in here has no `at`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Repeat {
    /// How often.
    pub times: NonZeroU32,
    /// What.
    #[serde(deserialize_with = "some")]
    pub steps: Vec<Spanned<Step>>,
}

/// A list of steps that may be drawn.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Branch {
    /// What happens then.
    #[serde(deserialize_with = "some")]
    pub steps: Vec<Spanned<Step>>,
}

/// From then on `{{NAME}}` stands for one of several.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Pick {
    /// The name.
    #[serde(rename = "as")]
    pub name: String,
    /// Out of these; `leader` and `a-follower` are asked of the live cluster.
    #[serde(default)]
    pub of: Names,
    /// What this prints.
    pub command: Option<String>,
    /// On which node the command runs.
    pub node: Option<String>,
}

/// What must be so.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "RawCondition")]
pub struct Condition {
    /// What is looked at.
    pub test: Test,
    /// How long it may take to become so; none: it must be so at the first look.
    pub within: Option<Duration>,
}

/// What is looked at.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    /// What the members answer.
    Cluster(ClusterTest),
    /// What a client sees, in the words of `probe`; needs `--expect`.
    Probe(String),
    /// What a command does.
    Command(CommandTest),
    /// How many packets met a fault, in all of its places.
    Hits {
        /// The fault's name.
        fault: String,
        /// At least so many.
        at_least: u64,
        /// At most so many.
        at_most: Option<u64>,
    },
}

/// What a command does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandTest {
    /// Given to `sh -c`.
    pub command: String,
    /// On which node.
    pub node: Option<String>,
    /// Its exit code.
    pub exit: u8,
    /// What its output contains.
    pub output: Option<String>,
}

/// What the members answer; all of it must be so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterTest {
    /// The cluster answers through these.
    pub quorum: Option<Names>,
    /// It does not through these.
    pub no_quorum: Option<Names>,
    /// These reach enough others.
    pub able: Option<Names>,
    /// These do not.
    pub not_able: Option<Names>,
    /// These serve.
    pub live: Option<Names>,
    /// These do not.
    pub not_live: Option<Names>,
    /// One of these leads.
    pub leader: Option<Names>,
    /// None of these leads, but there is a leader.
    pub not_leader: Option<Names>,
    /// The cluster answers through every member, and neither leader nor term have changed for so long.
    pub steady: Option<Duration>,
    /// Seen from this node; without it, each member from its own place.
    pub from: Option<String>,
}

/// Names of nodes or faults: one, or a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(pub Vec<String>);

impl Names {
    /// Whether these are all there are.
    pub fn is_all(&self) -> bool {
        self.0 == ["all"]
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Names;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a name or a list of names")
            }

            fn visit_str<E>(self, name: &str) -> Result<Names, E> {
                Ok(Names(vec![name.to_owned()]))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element()? {
                    names.push(name);
                }
                if names.is_empty() { Err(A::Error::custom(EMPTY)) } else { Ok(Names(names)) }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// What would be passed over in silence.
const EMPTY: &str = "an empty list does nothing: put something in it, or leave it out";

/// A list with something in it.
fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let list = Vec::deserialize(deserializer)?;
    if list.is_empty() { Err(D::Error::custom(EMPTY)) } else { Ok(list) }
}

fn some_if_any<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<Vec<T>>, D::Error> {
    some(deserializer).map(Some)
}

/// A duration as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Time(pub Duration);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        time::pause(&text).map(Self)
    }
}

/// A duration, or `1s..3s`: one of that range, drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Sleep {
    /// At least.
    pub least: Duration,
    /// At most.
    pub most: Duration,
}

impl TryFrom<String> for Sleep {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (least, most) = text.split_once("..").unwrap_or((&text, &text));
        let (least, most) = (time::pause(least)?, time::pause(most)?);
        if least > most {
            return Err(format!("{text:?} runs backwards: write the shorter time first"));
        }
        Ok(Self { least, most })
    }
}

fn some_time<'de, D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
    let time = Time::deserialize(from)?;
    if time.0.is_zero() { Err(D::Error::custom("no time at all: write 100ms, say")) } else { Ok(time) }
}

/// What the kernel takes for the name of a variable (environ(7)).
fn variables<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    let all = BTreeMap::<String, String>::deserialize(from)?;
    let is_none = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
    match all.keys().find(is_none) {
        Some(name) => {
            Err(D::Error::custom(format!("{name:?} is no name of a variable: it has no '=' and is not empty")))
        }
        None if all.values().any(|value| value.contains('\0')) => Err(D::Error::custom("a value has a zero byte")),
        None => Ok(all),
    }
}

fn patience() -> Time {
    Time(Duration::from_secs(30))
}

fn long_patience() -> Time {
    Time(Duration::from_secs(60))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct Raw {
    at: Option<Time>,
    name: Option<String>,
    fault: Option<String>,
    flap: Option<String>,
    partition: Option<String>,
    heal: Option<Names>,
    kill: Option<Names>,
    stop: Option<Names>,
    start: Option<Names>,
    pause: Option<Names>,
    resume: Option<Names>,
    unplug: Option<Names>,
    plug: Option<Names>,
    restart: Option<Restart>,
    run: Option<Run>,
    probe: Option<String>,
    sleep: Option<Sleep>,
    wait: Option<Condition>,
    expect: Option<Condition>,
    repeat: Option<Repeat>,
    pick: Option<Pick>,
    #[serde(deserialize_with = "some_if_any")]
    one_of: Option<Vec<Branch>>,
}

/// The keys of which a step has one.
const ACTIONS: &str = "fault, flap, partition, heal, kill, stop, start, pause, resume, unplug, plug, restart, run, \
                       probe, sleep, wait, expect, repeat, pick, one-of";

impl TryFrom<Raw> for Step {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        let verbs = [
            (Verb::Kill, raw.kill),
            (Verb::Stop, raw.stop),
            (Verb::Start, raw.start),
            (Verb::Pause, raw.pause),
            (Verb::Resume, raw.resume),
            (Verb::Unplug, raw.unplug),
            (Verb::Plug, raw.plug),
        ];
        let verbs = verbs.into_iter().filter_map(|(verb, nodes)| Some(Action::Do(verb, nodes?)));
        let others = [
            raw.fault.map(Action::Fault),
            raw.flap.map(Action::Flap),
            raw.partition.map(Action::Partition),
            raw.heal.map(Action::Heal),
            raw.restart.map(Action::Restart),
            raw.run.map(Action::Run),
            raw.probe.map(Action::Probe),
            raw.sleep.map(Action::Sleep),
            raw.wait.map(Action::Wait),
            raw.expect.map(Action::Expect),
            raw.repeat.map(Action::Repeat),
            raw.pick.map(Action::Pick),
            raw.one_of.map(Action::OneOf),
        ];
        let mut actions: Vec<_> = others.into_iter().flatten().chain(verbs).collect();
        match (actions.pop(), actions.len()) {
            (Some(action), 0) => Ok(Self { at: raw.at.map(|time| time.0), name: raw.name, action }),
            (None, _) => Err(format!("a step that does nothing: give one of {ACTIONS}")),
            (Some(_), more) => Err(format!("a step does one thing, and this one does {}: make them steps", more + 1)),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct RawCondition {
    quorum: Option<Names>,
    no_quorum: Option<Names>,
    able: Option<Names>,
    not_able: Option<Names>,
    live: Option<Names>,
    not_live: Option<Names>,
    leader: Option<Names>,
    not_leader: Option<Names>,
    steady: Option<Time>,
    from: Option<String>,
    probe: Option<String>,
    command: Option<String>,
    node: Option<String>,
    exit: Option<u8>,
    output: Option<String>,
    hits: Option<String>,
    at_least: Option<u64>,
    at_most: Option<u64>,
    within: Option<Time>,
}

impl TryFrom<RawCondition> for Condition {
    type Error = String;

    fn try_from(raw: RawCondition) -> Result<Self, String> {
        let from = raw.from.clone();
        let cluster = ClusterTest {
            quorum: raw.quorum,
            no_quorum: raw.no_quorum,
            able: raw.able,
            not_able: raw.not_able,
            live: raw.live,
            not_live: raw.not_live,
            leader: raw.leader,
            not_leader: raw.not_leader,
            steady: raw.steady.map(|time| time.0),
            from: None,
        };
        let asks_cluster = cluster != ClusterTest::default();
        let misplaced = [
            (raw.from.is_some() && !asks_cluster, "from", "what the members answer (quorum, live, ...)"),
            (raw.command.is_none() && raw.node.is_some(), "node", "command"),
            (raw.command.is_none() && raw.exit.is_some(), "exit", "command"),
            (raw.command.is_none() && raw.output.is_some(), "output", "command"),
            (raw.hits.is_none() && raw.at_least.is_some(), "at-least", "hits"),
            (raw.hits.is_none() && raw.at_most.is_some(), "at-most", "hits"),
        ];
        if let Some((_, field, other)) = misplaced.iter().find(|(wrong, ..)| *wrong) {
            return Err(format!("{field} belongs to {other}, which is not given"));
        }
        let (exit, node, output) = (raw.exit.unwrap_or(0), raw.node, raw.output);
        let command = |command| Test::Command(CommandTest { command, node, exit, output });
        // At most so many may be none at all.
        let at_least = raw.at_least.unwrap_or(u64::from(raw.at_most.is_none()));
        let hits = |fault| Test::Hits { fault, at_least, at_most: raw.at_most };
        let tests = [
            asks_cluster.then_some(Test::Cluster(ClusterTest { from, ..cluster })),
            raw.probe.map(Test::Probe),
            raw.command.map(command),
            raw.hits.map(hits),
        ];
        let mut tests: Vec<_> = tests.into_iter().flatten().collect();
        match (tests.pop(), tests.len()) {
            (Some(test), 0) => Ok(Self { test, within: raw.within.map(|time| time.0) }),
            (None, _) => Err("nothing to look at: give quorum, no-quorum, able, not-able, live, not-live, leader, \
                              not-leader or steady, or one of probe, command and hits"
                .into()),
            (Some(_), _) => Err("probe, command, hits and what the members answer are looked at in steps of their \
                                 own: make them several"
                .into()),
        }
    }
}

/// Reads the text of a scenario file.
///
/// # Errors
/// `LINE: FIELD: what is wrong`.
pub fn parse(text: &str) -> Result<Scenario, String> {
    crate::cluster::parse_toml(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_read_as_what_it_does() {
        let text = r#"
            about = "x"
            [[steps]]
            fault = "dead-host etcd1 --node agent"
            at = "2s"
            [[steps]]
            kill = "etcd1"
            [[steps]]
            repeat.times = 2
            [[steps.repeat.steps]]
            sleep = "1s..3s"
            [[steps]]
            expect = { no-quorum = ["etcd1", "etcd2"], from = "agent", within = "5s" }
            [[steps]]
            heal = "all"
        "#;
        let scenario = parse(text).unwrap();
        let actions: Vec<_> = scenario.steps.iter().map(|step| &step.get_ref().action).collect();
        assert_eq!(*actions[0], Action::Fault("dead-host etcd1 --node agent".into()));
        assert_eq!(scenario.steps[0].get_ref().at, Some(Duration::from_secs(2)));
        assert_eq!(*actions[1], Action::Do(Verb::Kill, Names(vec!["etcd1".into()])));
        assert!(matches!(actions[2], Action::Repeat(Repeat { times, steps }) if times.get() == 2 && steps.len() == 1));
        let Action::Expect(Condition { test: Test::Cluster(asked), within }) = actions[3] else { panic!() };
        assert_eq!((asked.from.as_deref(), *within), (Some("agent"), Some(Duration::from_secs(5))));
        assert!(matches!(actions[4], Action::Heal(names) if names.is_all()));
    }

    #[test]
    fn what_is_wrong_is_told_with_line_and_field() {
        for (text, start, what) in [
            ("[[steps]]\nkill = \"a\"\n[[steps]]\nfault = 3", "4: steps[1].fault: ", "expected a string"),
            ("[[steps]]\nsleep = \"5\"", "2: steps[0].sleep: ", "is not a duration"),
            ("[[steps]]\nsleep = \"1s\"\nheal = \"x\"", "1: steps[0]: ", "does 2"),
            ("[[steps]]\nname = \"x\"", "1: steps[0]: ", "does nothing"),
            ("[[steps]]\nfautl = \"x\"", "2: steps[0].fautl: ", "unknown field `fautl`"),
            ("[[steps]]\nexpect = { exit = 3, quorum = \"all\" }", "2: steps[0].expect: ", "belongs to command"),
            ("[[steps]]\nwait = { within = \"3s\" }", "2: steps[0].wait: ", "nothing to look at"),
            (
                "[[steps]]\nrepeat.times = 2\n[[steps.repeat.steps]]\nkill = 3",
                "4: steps[0].repeat.steps[0].kill: ",
                "a name or a list",
            ),
            ("steps = [", "1: ", ""),
            ("", "1: ", "missing field `steps`"),
            ("\nsteps = []", "2: steps: ", "empty"),
            ("[[steps]]\nkill = []", "2: steps[0].kill: ", "empty"),
            ("telemetry = { every = \"0s\" }\nsteps = [{ sleep = \"1s\" }]", "1: telemetry.every: ", "no time"),
            ("telemetry = { patience = \"0s\" }\nsteps = [{ sleep = \"1s\" }]", "1: telemetry.patience: ", "no time"),
            ("env = { \"a=b\" = \"c\" }\nsteps = [{ sleep = \"1s\" }]", "1: env: ", "variable"),
            ("[[steps]]\nwait.quorum = []", "2: steps[0].wait.quorum: ", "empty"),
            ("[[steps]]\nrestart = { nodes = [], ready = \"live\" }", "2: steps[0].restart.nodes: ", "empty"),
            ("[[steps]]\npick = { as = \"x\", of = [] }", "2: steps[0].pick.of: ", "empty"),
            ("[[steps]]\none-of = []", "2: steps[0].one-of: ", "empty"),
            ("[[steps]]\none-of = [{ steps = [] }]", "2: steps[0].one-of[0].steps: ", "empty"),
            (
                "[[steps]]\nrepeat = { times = 0, steps = [{ heal = \"all\" }] }",
                "2: steps[0].repeat.times: ",
                "nonzero",
            ),
            ("[[steps]]\nrepeat = { times = 1, steps = [] }", "2: steps[0].repeat.steps: ", "empty"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(start) && error.contains(what) && !error.contains('\n'), "{text:?}: {error}");
        }
    }
}
