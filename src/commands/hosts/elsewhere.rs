//! Verbs whose places are nodes on other hosts: the same words are run there.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use super::talk::{MOST_ERRORS, arrived, explain};
use super::{Lifetime, Logins, Part, commit, dry_rules, lease, rehearse, tell};
use crate::cluster::{self, ANSWER, Node, Scratch, no_ssh};
use crate::commands::cli::{Cli, FaultArgs, Verb};
use crate::commands::plan::check_usage;
use crate::commands::threads::at_once;
use crate::commands::{Usage, broken, is_of, nodes, out, shown};
use crate::kernel::Missing;
use crate::kernel::thread::ends_with_this;
use crate::model::Kind;
use crate::record::plain;

/// Does what was typed, if some of its places are on other hosts.
pub(in super::super) fn run(cli: &Cli) -> Result<Option<ExitCode>> {
    // They say themselves that no place may be named, or need none.
    if matches!(
        cli.verb,
        Verb::Partition(_) | Verb::Run(_) | Verb::Lab(_) | Verb::Explain(_) | Verb::Generate(_) | Verb::Guard
    ) {
        return Ok(None);
    }
    let Some(file) = cli.place.nodes.as_ref().filter(|_| !cli.place.node.is_empty()) else { return Ok(None) };
    let all = nodes::of_file(file)?;
    let nodes: Vec<_> = cli
        .place
        .node
        .iter()
        .map(|name| cluster::by_name(&all, name).cloned())
        .collect::<Result<_, _>>()
        .map_err(Usage)?;
    let Some(ssh) = nodes.iter().find_map(Node::ssh) else { return Ok(None) };
    if !(cli.place.netns.is_empty() && cli.place.pid.is_empty() && cli.place.container.is_empty()) {
        bail!(Usage("beside nodes on other hosts only nodes can be named: put the others into the file".into()));
    }
    let logins = Logins::begin()?;
    let pass_to_one = || match &nodes[..] {
        [node] => pass_on(node, cli.json).with_context(|| node.name.clone()),
        _ => Err(Usage("this looks from one place: name one".into()).into()),
    };
    let done = match &cli.verb {
        Verb::Flap(_) | Verb::Quorum(_) | Verb::Share | Verb::Look => {
            bail!(Usage(format!("this is not done on another host ({ssh}): name nodes of this machine")));
        }
        Verb::Status(status) if status.watch => pass_to_one(),
        Verb::Probe(probe) if !probe.command.is_empty() => {
            bail!(Usage(format!("-- COMMAND runs here, and the look would be on another host ({ssh})")));
        }
        Verb::Probe(_) => pass_to_one(),
        Verb::Heal(_) | Verb::Renew(_) | Verb::Status(_) | Verb::Verify(_) | Verb::Doctor => {
            pass(&nodes, cli.json, limit(&cli.verb))
        }
        verb => match broken(verb) {
            Some((kind, args, None)) => fault(&nodes, &all, kind, args, cli.json, logins),
            _ => bail!(Usage(format!("--then runs where the fault is, and is not run on another host ({ssh})"))),
        },
    };
    done.map(Some)
}

/// What was typed, but for where.
fn words(json: bool) -> Result<Vec<String>> {
    let typed: Result<Vec<_>, _> = std::env::args_os().skip(1).map(std::ffi::OsString::into_string).collect();
    let typed = typed.map_err(|word| Usage(format!("{} cannot be told to another host", word.display())))?;
    Ok(json.then(|| "--json".to_owned()).into_iter().chain(without_place(typed)).collect())
}

/// What follows `--` is somebody else's.
pub(in super::super) fn without_place(typed: Vec<String>) -> Vec<String> {
    let mut words = Vec::new();
    let mut typed = typed.into_iter();
    while let Some(word) = typed.next() {
        match word.as_str() {
            "--" => {
                words.push(word);
                words.extend(typed);
                return words;
            }
            "--node" | "--nodes" => drop(typed.next()),
            "--json" => {}
            other if other.starts_with("--node=") || other.starts_with("--nodes=") => {}
            _ => words.push(word),
        }
    }
    words
}

/// How long these verbs may take there; those that look at peers take as long as they were told to.
fn limit(verb: &Verb) -> Option<Duration> {
    match verb {
        Verb::Heal(heal) => Some(ANSWER.saturating_add(heal.wait)),
        Verb::Verify(_) => None,
        _ => Some(ANSWER),
    }
}

/// All at the same time. Each is tried; they are told in their order, and what went wrong with any at the end.
fn pass(nodes: &[Node], json: bool, limit: Option<Duration>) -> Result<ExitCode> {
    let words = words(json)?;
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let passing = nodes.iter().map(|node| || pass_to(node, &words, limit)).collect();
    let (mut code, mut printed, mut documents, mut failed) = (0, String::new(), Vec::new(), Vec::new());
    for (node, passed) in nodes.iter().zip(at_once(passing)) {
        let shown = passed.and_then(|passed| {
            code = code.max(passed.code);
            eprint(&passed.notes);
            if json {
                documents.extend(passed.document()?);
            } else {
                printed += &passed.printed;
            }
            Ok(())
        });
        failed.extend(shown.err().map(|error| error.context(node.name.clone())));
    }
    if !documents.is_empty() {
        printed = out::json(&merged(documents));
    }
    out::print(&printed)?;
    match failed.len() {
        0 => Ok(code.into()),
        1 => Err(failed.remove(0)),
        _ => {
            let text = failed.iter().map(|error| format!("{error:#}")).collect::<Vec<_>>().join("; ");
            let missing = failed.iter().any(is_of::<Missing>);
            if missing { Err(Missing(text).into()) } else { Err(anyhow!(text)) }
        }
    }
}

/// What a verb came to on another host.
pub(in super::super) struct Passed {
    code: u8,
    printed: String,
    /// What it said on standard error.
    notes: String,
}

impl Passed {
    /// The document that it printed, if it printed anything.
    pub(in super::super) fn document(&self) -> Result<Option<Value>> {
        let printed = Some(&self.printed).filter(|printed| !printed.is_empty());
        printed.map(|printed| serde_json::from_str(printed)).transpose().context("what it printed is no document")
    }
}

/// Waits for its end, but no longer than `limit` after the login.
pub(in super::super) fn pass_to(node: &Node, words: &[&str], limit: Option<Duration>) -> Result<Passed> {
    let Some(output) = cluster::output(&mut arrived(node, words)?, limit).map_err(no_ssh)? else {
        bail!("no answer in {} s", limit.unwrap_or_default().as_secs());
    };
    let [printed, notes] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    // `doctor` says by its code that something is missing, which is no failure to say what.
    let is_doctors = output.status.code() == Some(4) && !printed.is_empty();
    let code = if is_doctors { 4 } else { code(node, output.status, &notes)? };
    Ok(Passed { code, printed, notes })
}

/// The same of one that prints for as long as it runs: each line as it comes.
fn pass_on(node: &Node, json: bool) -> Result<ExitCode> {
    let words = words(json)?;
    let mut command = arrived(node, &words.iter().map(String::as_str).collect::<Vec<_>>())?;
    let errors = Scratch::new()?;
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors.end()?);
    let mut child = ends_with_this(&mut command).spawn().map_err(no_ssh)?;
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).split(b'\n')) {
        if !out::print_while_read(&(String::from_utf8_lossy(&line?).into_owned() + "\n"))? {
            child.kill()?;
            child.wait()?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    let status = child.wait()?;
    let notes = String::from_utf8_lossy(&errors.read(MOST_ERRORS)?).into_owned();
    let code = code(node, status, &notes)?;
    eprint(&notes);
    Ok(code.into())
}

/// Its exit code, if it did what it was told to.
fn code(node: &Node, status: ExitStatus, said: &str) -> Result<u8> {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.filter(|code| matches!(code, 0 | 1 | 3)).ok_or_else(|| failure(node, status, said))
}

/// What another host has said beside its result.
fn eprint(notes: &str) {
    let _ = std::io::stderr().lock().write_all(plain(notes).as_bytes());
}

fn failure(node: &Node, status: ExitStatus, said: &str) -> anyhow::Error {
    let error = explain(node, status, said);
    let is_usage = status.code() == Some(2) && !is_of::<Missing>(&error);
    if is_usage { Usage(format!("{error:#}")).into() } else { error }
}

/// One document of several: their lists one after the other, and of all else what the first says.
fn merged(documents: Vec<Value>) -> Value {
    let mut all = json!({});
    for document in documents {
        let Value::Object(fields) = document else { continue };
        for (name, value) in fields {
            match (&mut all[&name], value) {
                (Value::Array(list), Value::Array(more)) => list.extend(more),
                (known @ Value::Null, value) => *known = value,
                // Of a judgement the worse.
                (Value::Bool(known), Value::Bool(other)) => *known &= other,
                _ => {}
            }
        }
    }
    all
}

/// A fault on nodes of several hosts, at one instant.
fn fault(nodes: &[Node], all: &[Node], kind: Kind, typed: &FaultArgs, json: bool, logins: Logins) -> Result<ExitCode> {
    check_usage(&typed.aim, kind)?;
    let lease = lease(typed.lifetime.lasting(!typed.aim.under.command.is_empty()))?;
    let mut words = words(false)?;
    words.retain(|word| word != "--dry-run");
    let names = all.iter().flat_map(|node| node.addresses.iter().map(|address| (*address, node.name.clone())));
    let part = Part { words, names: names.collect(), gone: Vec::new() };
    let mut ready = rehearse(nodes, &part)?;
    if typed.aim.dry_run {
        let print = if json {
            out::print_json(&json!({ "format": shown::FORMAT, "dry_run": super::dry_documents(&ready) }))
        } else {
            out::print(&dry_rules(&ready))
        };
        return print.map(|()| ExitCode::SUCCESS);
    }
    // Whoever ends this process before has changed nothing.
    let mut signals = logins.give_way()?;
    let done = commit(&mut ready, lease, || signals.have_ended())?;
    if json {
        let mut document = json!({ "format": shown::FORMAT });
        done.add_to(&mut document);
        return tell(&mut ready, &done, &out::json(&document)).map(|()| ExitCode::SUCCESS);
    }
    let lines: String = done.committed().map(|(_, committed)| committed.line.as_str()).collect();
    tell(&mut ready, &done, &lines)?;
    let lifetime = shown::lifetime(Lifetime::Lease(lease));
    let accuracy = (done.count() > 1).then(|| format!("on {} nodes {lifetime}: {}", done.count(), done.accuracy()));
    accuracy.into_iter().chain(done.notes()).for_each(|note| out::note(&note));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_left_out_and_what_a_command_is_given_stays() {
        let typed = "--nodes f --node a --json probe --node=b x:1 -- sh --node c";
        let words = without_place(typed.split(' ').map(str::to_owned).collect());
        assert_eq!(words.join(" "), "probe x:1 -- sh --node c");
    }

    #[test]
    fn documents_become_one() {
        let one = json!({ "format": 1, "faults": [1], "usable": true });
        let other = json!({ "format": 1, "faults": [2], "usable": false });
        assert_eq!(merged(vec![one, other]), json!({ "format": 1, "faults": [1, 2], "usable": false }));
    }
}
