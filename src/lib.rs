//! Make a peer of a distributed system look dead, exactly.
//!
//! Data flows one way: what was typed becomes a [`model`] (pure), the model becomes [`rules`]
//! (values that print as nft text, pure), [`encode`] turns those into netlink messages, and only
//! [`kernel`] touches the machine. [`probe`] looks at a peer as a client does, [`lab`] makes hosts in
//! namespaces, [`cluster`] asks the members of a system who is alive; both know nothing of faults.
//! [`commands`] is the one place where all of them meet.
//! What every kind of fault promises stands in `docs/fidelity.md`.

pub mod cluster;
pub mod commands;
pub mod encode;
pub mod kernel;
pub mod lab;
pub mod model;
pub mod probe;
pub mod record;
pub mod rules;
pub mod scenario;
