//! The only effects: sockets and namespaces. This layer knows no kinds of fault.

pub mod forge;
pub mod netns;
pub mod owner;
pub mod sockets;
