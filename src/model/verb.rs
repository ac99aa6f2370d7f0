//! The kinds of failure by name: as typed, as read in tables, and as expected of a peer.

/// The machine lost its power.
pub const DEAD_HOST: &str = "dead-host";
/// The process died.
pub const DEAD_PROCESS: &str = "dead-process";
/// The process is gone and its refusals are filtered.
pub const HUSH: &str = "hush";
/// The process is stuck.
pub const HUNG_PROCESS: &str = "hung-process";
/// A router says no.
pub const UNREACHABLE: &str = "unreachable";
/// A bad link.
pub const LOSSY: &str = "lossy";
/// The machine came back.
pub const REBOOTED: &str = "rebooted";

/// Every one.
pub const ALL: [&str; 7] = [DEAD_HOST, DEAD_PROCESS, HUSH, HUNG_PROCESS, UNREACHABLE, LOSSY, REBOOTED];
