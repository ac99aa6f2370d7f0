//! `playdead doctor`: what this kernel, these rights and this place allow, and what mends what they do not.

mod facilities;
mod foreign;
mod machine;
mod surroundings;

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::cli::PlaceArgs;
use super::{out, place, shown};

/// How it stands with one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Ok,
    /// Something works less well, or only in some cases.
    Limited,
    /// A kind or a lifetime of a fault does not work at all.
    Missing,
    /// Only root may know.
    Unknown,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
        }
    }
}

/// One line of the answer.
#[derive(Debug, Serialize)]
struct Finding {
    /// `None`: the machine, or this process.
    place: Option<String>,
    what: String,
    state: State,
    /// What was found.
    found: String,
    /// What that costs.
    costs: Option<String>,
    /// A command that mends it, or shows what is to be mended.
    mend: Option<String>,
}

impl Finding {
    fn new(what: impl Into<String>, state: State, found: impl Into<String>) -> Self {
        Self { place: None, what: what.into(), state, found: found.into(), costs: None, mend: None }
    }

    fn ok(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(what, State::Ok, found)
    }

    fn unknown(what: impl Into<String>) -> Self {
        Self::new(what, State::Unknown, "needs root to know")
    }

    fn costs(self, costs: impl Into<String>) -> Self {
        Self { costs: Some(costs.into()), ..self }
    }

    fn mend(self, mend: impl Into<String>) -> Self {
        Self { mend: Some(mend.into()), ..self }
    }
}

pub(super) fn run(args: &PlaceArgs, json: bool) -> Result<ExitCode> {
    let mut findings = machine::look()?;
    for place in place::resolve(args)? {
        let found = surroundings::look(&place)?;
        findings.extend(found.into_iter().map(|finding| Finding { place: Some(place.label.clone()), ..finding }));
    }
    let usable = findings.iter().all(|finding| finding.state != State::Missing);
    if json {
        out::print_json(&json!({ "format": shown::FORMAT, "usable": usable, "findings": findings }))?;
    } else {
        out::print(&text(&findings))?;
    }
    Ok(ExitCode::from(if usable { 0 } else { 4 }))
}

/// One line a finding, so that it can be searched by line.
fn text(findings: &[Finding]) -> String {
    let place = |finding: &Finding| finding.place.clone().unwrap_or_else(|| "machine".into());
    let width = |of: &dyn Fn(&Finding) -> usize| findings.iter().map(of).max().unwrap_or(0);
    let places = width(&|finding| place(finding).len());
    let whats = width(&|finding| finding.what.len());
    let mut text = String::new();
    for finding in findings {
        let Finding { what, state, found, .. } = finding;
        let _ = write!(text, "{:<7}  {:<places$}  {what:<whats$}  {found}", state.name(), place(finding));
        let more = [(&finding.costs, ": "), (&finding.mend, "; mend: ")];
        for (more, before) in more.into_iter().filter_map(|(more, before)| Some((more.as_ref()?, before))) {
            let _ = write!(text, "{before}{more}");
        }
        text.push('\n');
    }
    text
}
