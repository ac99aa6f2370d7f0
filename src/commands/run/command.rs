//! Steps that run commands.

use std::time::Duration;

use anyhow::{Result, bail};

use super::player::{Failure, PATIENCE, Player};
use super::shell::{Shell, last_line};
use super::undo::Undo;
use crate::record::Event;
use crate::scenario::file::{Pick, Run};

impl Player<'_> {
    pub(super) fn run(&mut self, run: &Run) -> Result<(), Failure> {
        let mut shell = self.start(&run.command, run.node.as_deref())?;
        if run.background {
            self.background.push((self.step.clone(), shell, run.clone()));
            return Ok(());
        }
        let code = self.wait_for(&mut shell, run.within.0)?;
        self.record.add(Some(&self.step), shell.event(self.record));
        judge(run, code, &shell.output()).map_err(Failure::Unmet)
    }

    /// Starts a command that ends with the scenario, however that ends.
    pub(super) fn start(&mut self, command: &str, node: Option<&str>) -> Result<Shell> {
        let name = self.output_name();
        let mut shell = Shell::start(self.world, command, node, &name)?;
        shell.begin(self.guard)?;
        Ok(shell)
    }

    /// Waits for the end of a command. `None`: it was killed.
    pub(super) fn wait_for(&mut self, shell: &mut Shell, within: Duration) -> Result<Option<u8>> {
        let code = shell.wait(self.stop, within);
        self.guard.undone(&Undo::End { group: shell.group() })?;
        code
    }

    pub(super) fn pick(&mut self, pick: &Pick) -> Result<()> {
        let value = match (&pick.command, pick.of.0.as_slice()) {
            (Some(command), _) => self.printed(command, pick.node.as_deref())?,
            (None, [drawn]) => self.node(drawn)?,
            (None, _) => bail!("nothing was drawn"),
        };
        self.live.insert(pick.name.clone(), value.clone());
        self.record.add(Some(&self.step), Event::Picked { name: pick.name.clone(), value });
        Ok(())
    }

    fn printed(&mut self, command: &str, node: Option<&str>) -> Result<String> {
        let mut shell = self.start(command, node)?;
        let code = self.wait_for(&mut shell, PATIENCE)?;
        self.record.add(Some(&self.step), shell.event(self.record));
        let said = last_line(&shell.output());
        if code != Some(0) || said.is_empty() {
            bail!("the command gives no name; it said: {said:?}");
        }
        Ok(said)
    }

    /// One that has ended by itself must have ended well.
    pub(super) fn end_in_background(&mut self, mut shell: Shell, run: &Run) -> Result<()> {
        let ended = shell.ended()?;
        shell.end()?;
        self.guard.undone(&Undo::End { group: shell.group() })?;
        self.record.add(Some(&self.step), shell.event(self.record));
        let says = || run.output.as_ref().is_none_or(|wanted| shell.output().contains(wanted));
        let judged = match ended {
            Some(code) => judge(run, Some(code), &shell.output()),
            None if says() => Ok(()),
            None => judge(&Run { any_exit: true, ..run.clone() }, Some(0), &shell.output()),
        };
        if let Err(why) = judged {
            self.failed.push(format!("step {}, {}: {why}", self.step, run.command.trim()));
        }
        Ok(())
    }
}

/// Whether a command did what it had to.
fn judge(run: &Run, code: Option<u8>, output: &str) -> Result<(), String> {
    let Some(code) = code else {
        return Err(format!("not ended after {:?}; it said: {}", run.within.0, last_line(output)));
    };
    let exit = run.exit.unwrap_or(0);
    if code != exit && !run.any_exit {
        return Err(format!("exit code {code} instead of {exit}; it said: {}", last_line(output)));
    }
    match &run.output {
        Some(wanted) if !output.contains(wanted) => {
            Err(format!("its output has no {wanted:?}; it said: {}", last_line(output)))
        }
        _ => Ok(()),
    }
}
