//! Hosts in network namespaces on this machine, with a real etcd cluster on them. Knows nothing of faults.
//!
//! There is no state file. A lab is what the machine shows: its namespaces are named `LAB-NODE`, the hosts
//! files of `/etc/netns/LAB-NODE` begin with a line that says whose they are (a namespace without that line is
//! somebody else's and never touched), its processes are those in the namespaces, and a node is plugged in when
//! its port is in the bridge.

mod build;
mod down;
mod etcd;
mod health;
mod link;
mod nodes;
mod plan;
mod process;
mod status;
mod up;

pub use down::{Removed, down};
pub use etcd::{kill, pause, resume, start, stop};
pub use health::Health;
pub use link::{plug, unplug};
pub use nodes::{Node, choose, find, labs, log_directory, node, nodes};
pub use plan::{DEFAULT_NAME, Layout, MOST_MEMBERS, Role, check_name};
pub use status::{EtcdStatus, NodeStatus, Status, status};
pub use up::{Made, Options, up};
