//! Faults that last as long as this process or a command: signals, the command's end, its exit code.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{self, Child, ExitCode, ExitStatus};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::{Cause, Origin};

use super::cli::CommandArgs;
use super::{Usage, out};
use crate::kernel::machine;
use crate::kernel::privilege::Privilege;

/// Signals that end a hold.
const ENDING: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT];

/// Which of them are caught: who started this under `nohup` wants it to outlive the terminal.
pub(super) fn ending() -> impl Iterator<Item = i32> {
    ENDING.into_iter().filter(|signal| *signal != SIGHUP || !machine::ignores(SIGHUP))
}

/// Signals, caught from the moment on at which there is something to undo.
pub(super) struct Signals(SignalsInfo<WithOrigin>);

impl Signals {
    /// From now on they are collected instead of ending the process.
    pub(super) fn catch() -> Result<Self> {
        let caught = ending().chain([SIGCHLD, SIGUSR1, SIGUSR2]);
        Ok(Self(SignalsInfo::new(caught).context("cannot catch signals")?))
    }

    /// Whether one that ends a hold has come meanwhile.
    pub(super) fn have_ended(&mut self) -> bool {
        self.0.pending().any(|origin| ENDING.contains(&origin.signal))
    }

    /// What ends [`wait`](Self::wait) as a signal would.
    pub(super) fn closer(&self) -> Handle {
        self.0.handle()
    }

    /// Tells each that ends a hold, for ever.
    pub(super) fn each(mut self, mut tell: impl FnMut()) {
        self.0.forever().filter(|origin| ENDING.contains(&origin.signal)).for_each(|_| tell());
    }

    /// Waits for the first that ends a hold, lets go, and gives the exit code of success: ending is what was asked for.
    pub(super) fn wait(mut self, let_go: impl FnOnce()) -> ExitCode {
        let _ = self.0.forever().find(|origin| ENDING.contains(&origin.signal));
        let_go();
        ExitCode::SUCCESS
    }
}

/// The command that a fault lasts for.
pub(super) struct Command {
    program: OsString,
    arguments: Vec<OsString>,
    privilege: Privilege,
}

impl Command {
    /// The words after `--`, if any. Fails if the user is not known.
    pub(super) fn new(typed: &CommandArgs) -> Result<Option<Self>> {
        let Some((program, arguments)) = typed.command.split_first() else { return Ok(None) };
        Ok(Some(Self { program: program.clone(), arguments: arguments.to_vec(), privilege: privilege(typed)? }))
    }

    /// Runs it, passes signals on to it, lets go when it ends or when a signal tells this process to end, and gives its
    /// exit code as a shell would.
    pub(super) fn run(self, mut signals: Signals, let_go: impl FnOnce()) -> Result<ExitCode> {
        let mut let_go = Some(let_go);
        let mut child = match self.spawn() {
            Ok(child) => child,
            Err(error) => return Ok(not_started(&self.program, &error).into()),
        };
        loop {
            for origin in signals.0.wait().collect::<Vec<_>>() {
                if ENDING.contains(&origin.signal) {
                    // Whatever the command does with it: who ends playdead wants the fault gone now.
                    let_go.take().into_iter().for_each(|let_go| let_go());
                }
                pass_on(&child, &origin);
            }
            if let Some(status) = child.try_wait()? {
                let_go.take().into_iter().for_each(|let_go| let_go());
                return Ok(code_of(status).into());
            }
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        let mut command = process::Command::new(&self.program);
        self.privilege.apply(command.args(&self.arguments)).spawn()
    }
}

/// Waits for the command to end, or with `hold` for a signal, and lets go then; without either, what is in force stays.
pub(super) fn as_long_as(
    command: Option<Command>,
    hold: bool,
    signals: Signals,
    let_go: impl FnOnce(),
) -> Result<ExitCode> {
    match command {
        Some(command) => command.run(signals, let_go),
        None if hold => Ok(signals.wait(let_go)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// What COMMAND keeps: no more than the user who stands behind it, unless asked.
fn privilege(typed: &CommandArgs) -> Result<Privilege> {
    Ok(match &typed.user {
        _ if typed.privileged => Privilege::Kept,
        Some(name) => Privilege::Dropped(Some(find_user(name)?)),
        None => Privilege::of_caller()?,
    })
}

fn find_user(name: &str) -> Result<User> {
    let by_id = name.parse().ok().and_then(|uid| User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten());
    let found = by_id.or(User::from_name(name).context("cannot read the list of users")?);
    found.ok_or_else(|| Usage(format!("--user {name}: there is no such user")).into())
}

/// What a terminal sends goes to the whole foreground group, so the command has had it already.
fn pass_on(child: &Child, origin: &Origin) {
    if origin.signal == SIGCHLD || matches!(origin.cause, Cause::Kernel) {
        return;
    }
    if let (Ok(signal), Ok(pid)) = (Signal::try_from(origin.signal), i32::try_from(child.id())) {
        // It may just have ended, and has not been waited for, so its id is still its own.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Says why, and gives the code of a shell for a command that it cannot run.
pub(super) fn not_started(program: &OsString, error: &io::Error) -> u8 {
    out::error(&format!("cannot run {}: {error}", program.display()));
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

/// As a shell gives it: its own, or 128 and the number of the signal.
pub(super) fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code & 0xff).unwrap_or(1)
}
