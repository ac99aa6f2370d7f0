//! What a client sees of the cluster: etcd's own `/health`, asked from inside the lab.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::nodes::Node;
use crate::kernel::netns::NetNs;
use crate::kernel::reason;
use crate::kernel::thread::start_in;

const CLIENT_PORT: u16 = 2379;

/// An answer to the question whether a member serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "answer", content = "why")]
pub enum Health {
    /// It made a linearizable read: it serves, and there is a quorum.
    Healthy,
    /// It answers, but could not make the read (or has an alarm).
    NoQuorum,
    /// It does not answer, and why not.
    Silent(String),
}

impl Health {
    /// Whether the member serves and has a quorum.
    pub fn is_healthy(&self) -> bool {
        *self == Self::Healthy
    }
}

/// Asks every member at once, over the first address of each, from the given namespace.
///
/// # Errors
/// When the namespace cannot be entered, or no thread can be made.
pub(super) fn ask(from: &NetNs, members: &[&Node], patience: Duration) -> Result<Vec<Health>> {
    from.run(|| {
        // Threads inherit the namespace of the one that starts them.
        thread::scope(|scope| {
            let ask = |address: &IpAddr| {
                let address = *address;
                start_in(scope, move || ask_one(address, patience))
            };
            let asked = members.iter().map(|member| member.addresses.first().map(ask).transpose());
            Ok(asked.collect::<Result<Vec<_>>>()?.into_iter().map(answer).collect())
        })
    })?
}

fn answer(asked: Option<thread::ScopedJoinHandle<'_, Health>>) -> Health {
    let silent = || Health::Silent("not asked".to_owned());
    asked.and_then(|thread| thread.join().ok()).unwrap_or_else(silent)
}

fn ask_one(member: IpAddr, patience: Duration) -> Health {
    let url = format!("http://{}/health", SocketAddr::new(member, CLIENT_PORT));
    // A proxy of the host's is not to be reached from a lab.
    let config = ureq::Agent::config_builder().timeout_global(Some(patience)).http_status_as_error(false).proxy(None);
    match ureq::Agent::new_with_config(config.build()).get(&url).call() {
        Ok(response) if response.status().is_success() => Health::Healthy,
        Ok(_) => Health::NoQuorum,
        Err(ureq::Error::Io(error)) => Health::Silent(reason(&error)),
        Err(ureq::Error::Timeout(_)) => Health::Silent(format!("no answer in {} ms", patience.as_millis())),
        Err(error) => Health::Silent(error.to_string()),
    }
}
