//! Steps in words, for the plan, the terminal and the record.

use std::time::Duration;

use crate::scenario::file::{Action, ClusterTest, CommandTest, Condition, Names, Order, Ready, Restart, Step, Test};

/// What a step does, in a line. A command that has a name is called by it: scripts are no names.
pub(super) fn of(step: &Step) -> String {
    let what = action(&step.action);
    match (&step.name, &step.action) {
        (None, _) => what,
        (Some(name), Action::Run(_) | Action::Pick(_) | Action::Expect(_)) => name.clone(),
        (Some(name), _) => format!("{name} ({what})"),
    }
}

/// The first line of a script.
fn one_line(script: &str) -> String {
    let script = script.trim();
    script.split_once('\n').map_or_else(|| script.to_owned(), |(first, _)| format!("{first} ..."))
}

fn action(action: &Action) -> String {
    match action {
        Action::Fault(words) => words.clone(),
        Action::Flap(words) => format!("flap {words}"),
        Action::Partition(words) => format!("partition {words}"),
        Action::Probe(words) => format!("probe {words}"),
        Action::Heal(names) => format!("heal {}", list(names)),
        Action::Do(verb, nodes) => format!("{} {}", verb.name(), list(nodes)),
        Action::Restart(how) => restart(how),
        Action::Run(run) => {
            let place = run.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
            let rest = if run.background { ", in the background" } else { "" };
            format!("run{place}{rest}: {}", one_line(&run.command))
        }
        Action::Sleep(sleep) => format!("sleep {:?}", sleep.least),
        Action::Wait(what) => format!("wait for {}", condition(what)),
        Action::Expect(what) => format!("expect {}", condition(what)),
        Action::Pick(pick) => {
            let of = pick
                .command
                .as_ref()
                .map_or_else(|| list(&pick.of), |command| format!("what `{}` prints", one_line(command)));
            format!("pick {{{{{}}}}}: {of}", pick.name)
        }
        // Blocks have been rolled out.
        Action::Repeat(_) | Action::OneOf(_) => "a block".into(),
    }
}

fn restart(how: &Restart) -> String {
    let order = match how.order {
        Order::OneByOne => "one by one, each once the last",
        Order::AllAtOnce => "all at once, until each",
    };
    let known = if how.deadlock { "; this must be found to be a deadlock" } else { "" };
    format!("restart {} {order} {}{known}", list(&how.nodes), ready(&how.ready))
}

/// `has a quorum`, ...
pub(super) fn ready(ready: &Ready) -> String {
    match ready {
        Ready::Quorum => "has a quorum".into(),
        Ready::Able => "is able to join one".into(),
        Ready::Live => "is live".into(),
        Ready::Command(command) => format!("passes `{command}`"),
    }
}

/// What must be so.
pub(super) fn condition(condition: &Condition) -> String {
    let what = test(&condition.test);
    condition.within.map_or(what.clone(), |within| format!("{what} within {}", time(within)))
}

fn test(test: &Test) -> String {
    match test {
        Test::Cluster(test) => cluster(test),
        Test::Probe(words) => format!("probe {words}"),
        Test::Command(CommandTest { command, node, exit, output }) => {
            let place = node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
            let says = output.as_ref().map(|output| format!(" and to say {output:?}")).unwrap_or_default();
            format!("`{}`{place} to end with {exit}{says}", one_line(command))
        }
        Test::Hits { fault, at_least, at_most } => {
            let most = at_most.map(|most| format!(" and at most {most}")).unwrap_or_default();
            format!("at least {at_least}{most} packets to have met {fault}")
        }
    }
}

fn cluster(test: &ClusterTest) -> String {
    let lists = [
        ("quorum through", &test.quorum),
        ("no quorum through", &test.no_quorum),
        ("able:", &test.able),
        ("not able:", &test.not_able),
        ("live:", &test.live),
        ("not live:", &test.not_live),
        ("a leader out of", &test.leader),
        ("a leader other than", &test.not_leader),
    ];
    let mut said: Vec<_> = lists
        .iter()
        .filter_map(|(what, names)| Some(format!("{what} {}", list(names.as_ref()?))))
        .chain(test.steady.map(|steady| format!("a steady cluster for {}", time(steady))))
        .collect();
    said.extend(test.from.as_ref().map(|from| format!("seen from {from}")));
    said.join(", ")
}

fn list(names: &Names) -> String {
    names.0.join(", ")
}

/// `2.00 s`
pub(super) fn time(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
