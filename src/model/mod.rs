//! What is broken, where and for how long. Pure: no I/O, no clock.

mod code;
mod fault;
mod flap;
mod kind;
mod partition;
mod peer;
mod vantage;
mod verdict;

pub mod expect;
pub mod observation;
pub mod signature;
pub mod time;
pub mod verb;

pub use code::Code;
pub use fault::{Fault, Lifetime, MARKER, Meta, Name};
pub use flap::{Edge, Lateness, Rhythm};
pub use kind::{Direction, Kind, Loss, LossScope, OpenConnections, Proto};
pub use partition::{Partition, Split};
pub use peer::{Host, Members, PeerSpec, Ports, Target, checked, meet};
pub use vantage::{BridgeReject, Device, Vantage};
