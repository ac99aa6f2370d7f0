//! Kernel settings of one namespace.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::netns::NetNs;

/// Sets `net.*` settings in the namespace; keys are paths below `/proc/sys/net`, as in `ipv4/ip_forward`.
/// What `/proc/sys/net` shows depends on the thread that opens it.
///
/// # Errors
/// When the namespace cannot be entered, or a setting is missing or read-only (as in most containers).
pub fn set(ns: &NetNs, settings: &[(&str, &str)]) -> Result<()> {
    ns.run(|| {
        for (key, value) in settings {
            fs::write(path(key), value).with_context(|| format!("cannot set net/{key} to {value}"))?;
        }
        Ok(())
    })?
}

/// As [`set`], but a setting that this kernel does not have (its module is not loaded) is left out.
///
/// # Errors
/// When the namespace cannot be entered, or a setting is read-only.
pub fn set_if_there(ns: &NetNs, settings: &[(&str, &str)]) -> Result<()> {
    ns.run(|| {
        for (key, value) in settings {
            match fs::write(path(key), value) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => other.with_context(|| format!("cannot set net/{key} to {value}"))?,
            }
        }
        Ok(())
    })?
}

/// What a `net.*` setting is; `None` if this kernel does not have it or shows it to others only.
///
/// # Errors
/// When the namespace cannot be entered.
pub fn get(ns: &NetNs, key: &str) -> Result<Option<String>> {
    ns.run(|| fs::read_to_string(path(key)).ok().map(|text| text.trim().to_owned()))
}

fn path(key: &str) -> PathBuf {
    Path::new("/proc/sys/net").join(key)
}
