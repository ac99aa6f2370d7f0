//! Programs that are waited for, but not for ever.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::kernel::thread::ends_with_this;

/// How often is looked whether it has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// What the command prints, with nothing to read; nothing if it had to be killed since it took longer. It ends with the
/// thread that waits for it.
///
/// # Errors
/// When it cannot be started.
pub fn output(command: &mut Command, limit: Option<Duration>) -> io::Result<Option<Output>> {
    let [stdout, stderr] = [Scratch::new()?, Scratch::new()?];
    command.process_group(0).stdin(Stdio::null()).stdout(stdout.end()?).stderr(stderr.end()?);
    let mut child = ends_with_this(command).spawn()?;
    // A time that no clock shows never comes.
    let status = match limit.and_then(|limit| Instant::now().checked_add(limit)) {
        Some(until) => wait(&mut child, until),
        None => Some(child.wait()?),
    };
    let Some(status) = status else { return Ok(None) };
    Ok(Some(Output { status, stdout: stdout.read(usize::MAX)?, stderr: stderr.read(usize::MAX)? }))
}

/// Somewhere for a program to print to: unlike a pipe it is never full, and ends with the program that is waited for, not
/// with the last that it has started.
pub struct Scratch(File);

impl Scratch {
    /// # Errors
    /// When there is no room for it.
    pub fn new() -> io::Result<Self> {
        // Where no other kind may be made (`vm.memfd_noexec`, Linux 6.3): one that nobody can run.
        let sealed = memfd_create("output", MFdFlags::MFD_CLOEXEC | MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL));
        Ok(Self(sealed.or_else(|_| memfd_create("output", MFdFlags::MFD_CLOEXEC))?.into()))
    }

    /// The end that a program gets.
    ///
    /// # Errors
    /// When this process may have no more files.
    pub fn end(&self) -> io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }

    /// What is there by now, but no more than so many bytes.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(&self, most: usize) -> io::Result<Vec<u8>> {
        let len = usize::try_from(self.0.metadata()?.len()).map_err(io::Error::other)?;
        let mut all = vec![0; len.min(most)];
        self.0.read_exact_at(&mut all, 0)?;
        Ok(all)
    }
}

/// Its end; nothing if it had to be killed, with the process group that it leads.
pub(super) fn wait(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= until {
            // It has not been waited for, so the group is still its own.
            let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}
