//! The only effects: sockets and namespaces. This layer knows no kinds of fault.

pub mod netns;
pub mod route;
pub mod sysctl;
