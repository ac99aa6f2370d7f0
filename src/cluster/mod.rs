//! The machines of a distributed system: where each is, how it is reached, how it is checked, and what it answers.
//!
//! Knows nothing of faults. [`nodes`] reads them from a file or from a lab, [`look`] asks all of them at once.

mod afar;
mod ask;
mod child;
mod command;
mod etcd;
mod file;
mod look;
mod nodes;
mod ssh;
mod zookeeper;

pub use afar::{Question, answer};
pub use ask::{Answer, Live, Quorum};
pub use child::{Scratch, output};
pub use etcd::question as ask_etcd;
pub use file::{parse as parse_toml, read};
pub use look::{Able, From, PATIENCE, Snapshot, View, look, wait};
pub use nodes::{
    Check, Commands, Node, Nodes, Place, Seat, addresses, by_name, drop_shared, members, names, of_lab, open,
    open_needed, read_nodes, seat,
};
pub use ssh::{ANSWER, Ssh, close_connections, last_line, no_ssh};
