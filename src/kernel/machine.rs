//! What the machine is, and what this process may do on it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::utsname::uname;
use nix::unistd::{AccessFlags, access, geteuid};

use super::netns::{NAMES, NetNs};

/// A right, by its number in `linux/capability.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Change rules, links and addresses.
    NetAdmin = 12,
    /// Send and capture packets as they are.
    NetRaw = 13,
    /// Look into processes of other users.
    SysPtrace = 19,
    /// Enter namespaces, and mount.
    SysAdmin = 21,
}

/// What a process may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    effective: u64,
    /// The effective user id.
    pub user: u32,
    /// Whether it is in the first user namespace: in another one, rights end with the namespaces that belong to it.
    pub first_user_namespace: bool,
}

impl Rights {
    /// Those of this process.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn read() -> Result<Self> {
        let status = fs::read_to_string("/proc/thread-self/status").context("cannot read /proc/thread-self/status")?;
        let map = fs::read_to_string("/proc/thread-self/uid_map").unwrap_or_default();
        Ok(Self {
            effective: mask(&status, "CapEff:"),
            user: geteuid().as_raw(),
            first_user_namespace: maps_everybody(&map),
        })
    }

    /// Whether it has this one, in its own user namespace.
    pub fn has(self, capability: Capability) -> bool {
        self.effective & (1 << capability as u32) != 0
    }
}

/// Whether this process was started with that signal ignored, as `nohup` does with `SIGHUP`; `false` without `/proc`.
/// One that is caught is not ignored any more.
pub fn ignores(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    mask(&status, "SigIgn:") & (1 << (signal - 1)) != 0
}

/// A set of bits in what `/proc/PID/status` says (`proc_pid_status(5)`).
fn mask(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

/// The first user namespace maps all ids to themselves; another one can only be made to look so by root.
fn maps_everybody(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// The release of the kernel, as `uname -r` has it.
///
/// # Errors
/// When the kernel does not tell.
pub fn release() -> Result<String> {
    Ok(uname().context("cannot ask for the kernel's release")?.release().to_string_lossy().into_owned())
}

/// A setting below `/proc/sys` that is the machine's and no namespace's; `None` if this kernel does not have it.
pub fn setting(key: &str) -> Option<String> {
    Some(fs::read_to_string(Path::new("/proc/sys").join(key)).ok()?.trim().to_owned())
}

/// Where a program is on the `PATH`.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| access(file, AccessFlags::X_OK).is_ok())
}

/// How the directory of named namespaces is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamesMount {
    /// No namespace has had a name yet.
    Absent,
    /// Others see names come and go.
    Shared,
    /// They do not.
    Private,
}

/// How it is mounted, by `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`): the mount that it lies in counts.
///
/// # Errors
/// When `/proc` is not there.
pub fn names_mount() -> Result<NamesMount> {
    let info = fs::read_to_string("/proc/thread-self/mountinfo").context("cannot read /proc/thread-self/mountinfo")?;
    Ok(match mount_of(&info, NAMES) {
        _ if !Path::new(NAMES).exists() => NamesMount::Absent,
        Some(true) => NamesMount::Shared,
        _ => NamesMount::Private,
    })
}

/// Whether the mount at `path` is shared; `None` if nothing is mounted there. Of several the last hides the others.
fn mount_of(info: &str, path: &str) -> Option<bool> {
    let mut fields = info.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = fields.rfind(|fields| fields.get(4) == Some(&path))?;
    let optional = mount.iter().skip(6).take_while(|field| **field != "-");
    Some(optional.into_iter().any(|field| field.starts_with("shared:")))
}

/// The tables of the old xtables in a namespace, as `ip:nat`; they are not nftables', and `nft list` does not show
/// them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LegacyTables {
    /// These.
    Are(Vec<String>),
    /// Only root of the namespace may know.
    Hidden,
}

/// Reads them.
///
/// # Errors
/// When the namespace cannot be entered, or `/proc` is not there.
pub fn legacy_tables(ns: &NetNs) -> Result<LegacyTables> {
    ns.run(|| {
        let mut tables = Vec::new();
        for protocol in ["ip", "ip6", "arp"] {
            match fs::read_to_string(format!("/proc/thread-self/net/{protocol}_tables_names")) {
                Ok(names) => tables.extend(names.lines().map(|name| format!("{protocol}:{name}"))),
                // Its module is not there.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(LegacyTables::Hidden),
                Err(error) => return Err(error).context("cannot read the names of the old iptables tables"),
            }
        }
        Ok(LegacyTables::Are(tables))
    })?
}

#[cfg(test)]
mod tests {
    use super::{maps_everybody, mask, mount_of};

    #[test]
    fn the_effective_set_is_read_and_not_the_permitted_one() {
        let status = "CapInh:\t0000000000000000\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000003000\n";
        assert_eq!(mask(status, "CapEff:"), 1 << 12 | 1 << 13);
        assert_eq!(mask("", "CapEff:"), 0);
    }

    #[test]
    fn a_map_of_one_user_is_not_the_first_namespace() {
        assert!(maps_everybody("         0          0 4294967295\n"));
        assert!(!maps_everybody("         0       1000          1\n"));
        assert!(!maps_everybody(""));
    }

    #[test]
    fn the_last_mount_at_a_path_tells_whether_it_is_shared() {
        let info = "\
25 1 254:0 / / rw shared:1 - ext4 /dev/vda rw
40 25 0:22 / /run/netns rw - tmpfs tmpfs rw
41 25 0:22 / /run/netns rw,nosuid shared:7 master:2 - tmpfs shared:9 rw
42 25 0:4 net:[1] /run/netns/a rw - nsfs nsfs rw
";
        assert_eq!(mount_of(info, "/run/netns"), Some(true));
        assert_eq!(mount_of(info, "/run/netns/a"), Some(false));
        assert_eq!(mount_of(info, "/run"), None);
    }
}
