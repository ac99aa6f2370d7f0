//! `playdead probe`: looks at a peer as a client does, and judges what was seen.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use serde::Serialize;

use super::cli::{duration, pause};
use super::{hold, out, probe_text};
use crate::kernel::netns::NetNs;
use crate::model::PeerSpec;
use crate::model::observation::{Observation, Probe};
use crate::model::signature::{Expect, Verdict, judge};
use crate::probe::{Keepalive, Options, Request, Watch};

/// The version of the JSON document; it grows when a field changes its meaning or goes.
const FORMAT: &str = "playdead-probe/1";

/// Look at peers as a client does: TCP connect and request, UDP, ping, and open connections.
#[derive(Debug, Clone, clap::Args)]
pub struct ProbeArgs {
    /// The peers to look at.
    #[arg(value_name = "PEER:PORT", required = true)]
    pub peers: Vec<PeerSpec>,

    /// Also watch connections that are opened first: one idle, one that sends.
    #[arg(long)]
    pub established: bool,

    /// How long to wait for each outcome.
    #[arg(long, value_name = "D", default_value = "2s", value_parser = duration)]
    pub timeout: Duration,

    /// Exit with 3 unless what was seen is this kind of failure, `unreachable:CODE`, or `alive`.
    #[arg(long, value_name = "KIND|alive")]
    pub expect: Option<Expect>,

    /// What to send on a TCP connection instead of an HTTP GET of /health. Knows \r, \n, \t, \0, \\; empty: nothing
    /// (an open connection that is to send then sends zero bytes).
    #[arg(long, value_name = "TEXT", value_parser = request)]
    pub request: Option<Request>,

    /// Make only these probes: connect, idle, writing, udp, udp-recverr, ping, which are the usual ones, and
    /// poll-connect (a connect that does not block, and what poll says of it), user-timeout (an open connection with
    /// `TCP_USER_TIMEOUT` that sends once), keepalive (an idle one with `SO_KEEPALIVE`), raw-ping (from a raw socket that
    /// nobody tells of errors).
    #[arg(long, value_name = "PROBE", value_delimiter = ',')]
    pub only: Vec<Probe>,

    /// `TCP_USER_TIMEOUT` of the probe user-timeout, which watches at least twice so long.
    #[arg(long, value_name = "D", default_value = "1s", value_parser = duration)]
    pub user_timeout: Duration,

    /// `TCP_KEEPIDLE`, `TCP_KEEPINTVL` (both in whole seconds) and `TCP_KEEPCNT` of the probe keepalive, which watches
    /// at least IDLE + INTERVAL x COUNT.
    #[arg(long, value_name = "IDLE,INTERVAL,COUNT", default_value = "1,1,1", value_parser = keepalive)]
    pub keepalive: Keepalive,

    /// Print one line a peer for scripts: its address, then `PROBE: OUTCOME TIME` of each probe, separated by tabs.
    #[arg(long)]
    pub brief: bool,

    /// How long to wait between the end of COMMAND and the look: `kill` returns before a process is gone.
    #[arg(long, value_name = "D", default_value = "50ms", value_parser = pause, requires = "command")]
    pub settle: Duration,

    /// What makes the failure: open connections first, run this (not in the place, but here), and look when it has
    /// ended. Time zero is its start.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl ProbeArgs {
    /// What was typed, as what it means to the probes.
    pub fn options(&self) -> Options {
        let open = self.established || !self.command.is_empty();
        let usual = Probe::USUAL.into_iter().filter(|probe| open || !probe.opens_before());
        Options {
            timeout: self.timeout,
            probes: if self.only.is_empty() { usual.collect() } else { self.only.clone() },
            request: self.request.clone().unwrap_or(Request::HealthOverHttp),
            user_timeout: self.user_timeout,
            keepalive: self.keepalive,
        }
    }
}

/// The result of the command, also its JSON document. Times are milliseconds since time zero: the start of the
/// command that makes the failure, or else of the probes.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    format: &'static str,
    timeout_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<Ran>,
    pub(super) observations: Vec<Observation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verdict: Option<Verdict>,
}

/// The command that made the failure: it started at time zero.
#[derive(Debug, Serialize)]
pub(super) struct Ran {
    argv: Vec<String>,
    pub(super) ended_ms: f64,
    pub(super) exit_code: u8,
}

/// Looks at `targets` from inside `ns` and prints what was seen. Exits with 3 when that is not what was expected,
/// and with the code of a command that failed. Errors: the namespace cannot be entered, sockets cannot be made.
pub fn run(args: &ProbeArgs, ns: &NetNs, targets: &[SocketAddr], json: bool) -> Result<ExitCode> {
    let report = look(args, ns, targets)?;
    let text = match (json, args.brief) {
        (true, _) => serde_json::to_string_pretty(&report)? + "\n",
        (false, true) => probe_text::brief(&report.observations),
        (false, false) => probe_text::render(&report),
    };
    out::print(&text)?;
    Ok(exit_code(&report))
}

fn look(args: &ProbeArgs, ns: &NetNs, targets: &[SocketAddr]) -> Result<Report> {
    let how = args.options();
    let mut watch = Watch::open(ns, targets, &how)?;
    watch.event();
    let command = if args.command.is_empty() { None } else { Some(run_command(&args.command)) };
    if command.is_some() {
        thread::sleep(args.settle);
    }
    let progress = progress(targets.len(), args.timeout);
    let observations = watch.finish();
    progress.finish_and_clear();
    let observations = observations?;
    Ok(Report::of(args, command, observations))
}

impl Report {
    /// What was seen, and judged if something was expected.
    pub(super) fn of(args: &ProbeArgs, command: Option<Ran>, observations: Vec<Observation>) -> Self {
        let verdict = args.expect.map(|expect| judge(expect, &observations));
        Self { format: FORMAT, timeout_ms: args.timeout.as_secs_f64() * 1e3, command, observations, verdict }
    }
}

/// On a terminal only: indicatif draws on standard error and hides itself elsewhere.
pub(super) fn progress(targets: usize, timeout: Duration) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_message(format!("looking at {targets} address(es), up to {timeout:?} each step"));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Its standard output goes where ours does not: ours carries the result only.
fn run_command(argv: &[OsString]) -> Ran {
    let started = Instant::now();
    let status = Command::new(&argv[0]).args(&argv[1..]).stdout(io::stderr()).status();
    let exit_code = match status {
        Ok(status) => hold::code_of(status),
        Err(error) => hold::not_started(&argv[0], &error),
    };
    let argv = argv.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    Ran { argv, ended_ms: (started.elapsed().as_secs_f64() * 1e6).round() / 1e3, exit_code }
}

/// A command that failed made no failure to be judged, so its code comes first.
fn exit_code(report: &Report) -> ExitCode {
    match (&report.command, &report.verdict) {
        (Some(ran), _) if ran.exit_code != 0 => ExitCode::from(ran.exit_code),
        (_, Some(verdict)) if !verdict.met => ExitCode::from(3),
        _ => ExitCode::SUCCESS,
    }
}

/// The kernel's own limits (`MAX_TCP_KEEPIDLE`, `MAX_TCP_KEEPINTVL`, `MAX_TCP_KEEPCNT`).
fn keepalive(text: &str) -> Result<Keepalive, String> {
    let numbers: Vec<_> = text.split(',').map(|number| number.trim_end_matches('s').parse::<u16>()).collect();
    match numbers.as_slice() {
        [Ok(idle @ 1..=32767), Ok(interval @ 1..=32767), Ok(count @ 1..=127)] => {
            #[expect(clippy::cast_possible_truncation, reason = "at most 127")]
            let count = *count as u8;
            Ok(Keepalive { idle: *idle, interval: *interval, count })
        }
        _ => Err(format!("{text:?} is not IDLE,INTERVAL,COUNT: 1 to 32767 seconds, twice, and 1 to 127 times")),
    }
}

pub(super) fn request(text: &str) -> Result<Request> {
    let mut bytes = Vec::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        let plain = if char == '\\' { unescape(chars.next())? } else { char };
        bytes.extend(plain.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Ok(if bytes.is_empty() { Request::Nothing } else { Request::Bytes(bytes) })
}

fn unescape(char: Option<char>) -> Result<char> {
    Ok(match char {
        Some('r') => '\r',
        Some('n') => '\n',
        Some('t') => '\t',
        Some('0') => '\0',
        Some('\\') => '\\',
        Some(other) => bail!("\\{other} means nothing here; \\\\ is a backslash"),
        None => bail!("a backslash at the end means nothing; \\\\ is one"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: ProbeArgs,
    }

    fn parse(line: &str) -> Result<ProbeArgs, clap::Error> {
        use clap::Parser;
        Cli::try_parse_from(line.split(' ')).map(|cli| cli.args)
    }

    #[test]
    fn open_connections_are_made_on_request_and_before_a_command() {
        let probes = |line| parse(line).unwrap().options().probes;
        assert!(!probes("probe a:1").contains(&Probe::Idle));
        assert!(probes("probe a:1 --established").contains(&Probe::Idle));
        assert!(probes("probe a:1 -- kill -9 1").contains(&Probe::Writing));
        assert_eq!(probes("probe a:1 --only ping,udp"), [Probe::Ping, Probe::Udp]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for line in ["probe", "probe a:1 --timeout 0s", "probe a:1 --timeout x", "probe a:1 --expect lossy"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_request_is_written_with_escapes() {
        assert_eq!(request(r"PING\r\n").unwrap(), Request::Bytes(b"PING\r\n".to_vec()));
        assert_eq!(request("").unwrap(), Request::Nothing);
        assert!(request(r"\x").is_err());
    }

    #[test]
    fn a_command_that_is_not_there_gives_127_and_a_killed_one_128_and_its_signal() {
        let code = |argv: &[&str]| run_command(&argv.iter().map(OsString::from).collect::<Vec<_>>()).exit_code;
        assert_eq!(code(&["/nonexistent/command"]), 127);
        assert_eq!(code(&["sh", "-c", "kill -9 $$"]), 137);
        assert_eq!(code(&["sh", "-c", "exit 5"]), 5);
    }
}
