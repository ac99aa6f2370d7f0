//! With which rights somebody else's program is started.

use std::ffi::CString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::prctl::{get_no_new_privs, set_no_new_privs};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{Uid, User, geteuid, getgrouplist, setgid, setgroups, setuid};

use super::machine::Rights;

/// `_LINUX_CAPABILITY_VERSION_3`: sets of 64 bits, in two halves.
const VERSION: u32 = 0x2008_0522;

/// What a program keeps of the rights of this process.
#[derive(Debug, Clone, PartialEq)]
pub enum Privilege {
    /// All.
    Kept,
    /// No capabilities. As another user also that user's id and groups, `HOME`, `USER` and `LOGNAME`, and so what this
    /// user may do anyway, by sudo as well. Who stays root has no way back to capabilities (`no_new_privs`), but what
    /// belongs to root on disks still does.
    Dropped(Option<User>),
}

impl Privilege {
    /// Dropped to those of the user who called sudo, if somebody did.
    ///
    /// # Errors
    /// When `SUDO_UID` names nobody who is known here.
    pub fn of_caller() -> Result<Self> {
        behind_sudo().map(Self::Dropped)
    }

    /// The user that a program changes to.
    pub fn user(&self) -> Option<&User> {
        if let Self::Dropped(user) = self { user.as_ref() } else { None }
    }

    /// Makes the command start so. Starting it fails where the kernel does not let this process become that user.
    pub fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let Self::Dropped(user) = self else { return command };
        if let Some(user) = user {
            command.env("HOME", &user.dir).env("USER", &user.name).env("LOGNAME", &user.name);
        }
        let user = user.as_ref().map(|user| (user.uid, user.gid, groups(user)));
        before_exec(command, move || {
            if let Some((uid, gid, groups)) = &user {
                // The user's groups instead of root's, and then the user: in this order, since setting groups takes rights.
                setgroups(groups)?;
                setgid(*gid)?;
                setuid(*uid)?;
            }
            drop_capabilities()
        })
    }
}

fn groups(user: &User) -> Vec<nix::unistd::Gid> {
    let name = CString::new(user.name.as_str()).unwrap_or_default();
    getgrouplist(&name, user.gid).unwrap_or_else(|_| vec![user.gid])
}

/// For between fork and exec: what this process does at that signal is forgotten.
#[expect(unsafe_code, reason = "nix calls setting a signal unsafe for its handlers, of which the default has none")]
pub(super) fn reset_to_default(of: Signal) -> nix::Result<()> {
    // SAFETY: no handler is set, and signal(2) may be called between fork and exec.
    unsafe { signal(of, SigHandler::SigDfl) }.map(drop)
}

/// Has the program's process do that before it becomes the program: system calls, and nothing else.
#[expect(unsafe_code, reason = "std has no stable way to set supplementary groups, capabilities, or a signal")]
pub(super) fn before_exec(
    command: &mut Command,
    act: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) -> &mut Command {
    // SAFETY: the closure runs between fork and exec and makes system calls only, all async-signal-safe.
    unsafe { command.pre_exec(act) }
}

/// A program that root executes gets all of its bounding set again, unless it may not have more than before.
fn drop_capabilities() -> io::Result<()> {
    set_capabilities(&[0; 6])?;
    if geteuid().is_root() {
        set_no_new_privs()?;
    }
    Ok(())
}

/// Effective, permitted and inheritable ones, in halves; the ambient ones cannot be more.
#[expect(unsafe_code, reason = "neither std nor nix nor libc has capset(2)")]
fn set_capabilities(sets: &[u32; 6]) -> io::Result<()> {
    // The version, and this thread.
    let header = [VERSION, 0];
    // SAFETY: both arrays are laid out as the kernel reads them and outlive the call.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) })?;
    Ok(())
}

/// Whether this process and all that it starts get no more rights by executing a program.
pub fn is_bound() -> bool {
    get_no_new_privs().unwrap_or(false)
}

/// The user who called sudo, if this process is root by it. In a user namespace of its own there may be no other user.
///
/// # Errors
/// When `SUDO_UID` names nobody who is known here: who is meant shall not be guessed.
pub fn behind_sudo() -> Result<Option<User>> {
    let Some(named) = std::env::var_os("SUDO_UID") else { return Ok(None) };
    let first = Rights::read().is_ok_and(|rights| rights.first_user_namespace);
    if !first || !geteuid().is_root() {
        return Ok(None);
    }
    let uid = named.to_str().and_then(|named| named.parse().ok()).map(Uid::from_raw);
    if uid.is_some_and(Uid::is_root) {
        return Ok(None);
    }
    let user = uid.and_then(|uid| User::from_uid(uid).ok().flatten());
    user.map(Some).with_context(|| format!("SUDO_UID={}: there is no such user here: unset it", named.display()))
}
