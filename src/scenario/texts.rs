//! Names that stand for something: `{{NAME}}` in any text of a step.

use std::collections::BTreeMap;

use super::file::{Action, ClusterTest, CommandTest, Condition, Names, Ready, Step, Test};

/// Puts values for names into every text of a step.
///
/// # Errors
/// The first name that stands for nothing.
pub(super) fn fill(step: &mut Step, values: &BTreeMap<String, String>) -> Result<(), String> {
    texts(step).into_iter().try_for_each(|text| {
        *text = filled(text, values)?;
        Ok(())
    })
}

/// Braces that hold anything else than a plain name are left alone: commands have uses for them.
fn filled(text: &str, values: &BTreeMap<String, String>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        if let Some((name, behind)) = after.split_once("}}").filter(|(name, _)| is_name(name)) {
            let value = values.get(name).ok_or_else(|| format!("{{{{{name}}}}} stands for nothing: pick it first"))?;
            out.push_str(value);
            rest = behind;
        } else {
            out.push_str("{{");
            rest = after;
        }
    }
    Ok(out + rest)
}

/// Letters, digits, dashes and underscores.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

fn texts(step: &mut Step) -> Vec<&mut String> {
    let mut texts = match &mut step.action {
        Action::Fault(words) | Action::Flap(words) | Action::Partition(words) | Action::Probe(words) => vec![words],
        Action::Heal(names) | Action::Do(_, names) => of_names(names),
        Action::Restart(restart) => {
            let mut texts = of_names(&mut restart.nodes);
            if let Ready::Command(command) = &mut restart.ready {
                texts.push(command);
            }
            texts
        }
        Action::Run(run) => std::iter::once(&mut run.command).chain(&mut run.node).chain(&mut run.output).collect(),
        Action::Wait(condition) | Action::Expect(condition) => of_condition(condition),
        Action::Pick(pick) => {
            of_names(&mut pick.of).into_iter().chain(&mut pick.command).chain(&mut pick.node).collect()
        }
        Action::Sleep(_) | Action::Repeat(_) | Action::OneOf(_) => Vec::new(),
    };
    texts.extend(&mut step.name);
    texts
}

fn of_names(names: &mut Names) -> Vec<&mut String> {
    names.0.iter_mut().collect()
}

fn of_condition(condition: &mut Condition) -> Vec<&mut String> {
    match &mut condition.test {
        Test::Probe(words) => vec![words],
        Test::Command(CommandTest { command, node, output, .. }) => {
            std::iter::once(command).chain(node).chain(output).collect()
        }
        Test::Hits { fault, .. } => vec![fault],
        Test::Cluster(test) => of_cluster(test),
    }
}

fn of_cluster(test: &mut ClusterTest) -> Vec<&mut String> {
    let ClusterTest { quorum, no_quorum, able, not_able, live, not_live, leader, not_leader, steady: _, from } = test;
    let lists = [quorum, no_quorum, able, not_able, live, not_live, leader, not_leader];
    lists.into_iter().flatten().flat_map(of_names).chain(from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_filled_in_and_other_braces_left_alone() {
        let values = BTreeMap::from([("victim".to_owned(), "etcd2".to_owned())]);
        for (text, expected) in [
            ("dead-host {{victim}} --node {{victim}}", "dead-host etcd2 --node etcd2"),
            ("awk '{print $1}' {{.State.Pid}} ${x}", "awk '{print $1}' {{.State.Pid}} ${x}"),
            ("{{victim", "{{victim"),
        ] {
            assert_eq!(filled(text, &values).as_deref(), Ok(expected));
        }
        assert!(filled("{{other}}", &values).unwrap_err().contains("{{other}} stands for nothing"));
    }
}
