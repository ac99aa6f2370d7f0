//! The only effects: sockets and namespaces. This layer knows no kinds of fault.

pub mod conntrack;
pub mod container;
pub mod distance;
pub mod file;
pub mod forge;
pub mod machine;
pub mod netns;
pub mod nft;
pub mod owner;
pub mod privilege;
pub mod resolve;
pub mod route;
pub mod session;
pub mod sockets;
pub mod sysctl;
pub mod thread;
pub mod timer;

use std::{fmt, io};

use nix::errno::Errno;

/// Rights or a part of the kernel are missing: the exit code is 4, and the text says which and what to do.
#[derive(Debug)]
pub struct Missing(pub String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// The kernel's words for an error, without Rust's "(os error N)".
pub fn reason(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |errno| Errno::from_raw(errno).desc().to_owned())
}
