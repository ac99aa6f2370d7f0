//! Namespaces for the benchmarks. `scripts/bench` deletes by their prefix what an interrupted run leaves.

use std::process::Command;

use anyhow::{Result, ensure};
use playdead::kernel::netns::NetNs;

/// Namespaces with names of this process's own. Gone when dropped.
pub(crate) struct Places(Vec<String>);

impl Places {
    /// So many, each with `lo` up.
    pub(crate) fn new(of: &str, count: usize) -> Result<Self> {
        let mut places = Self(Vec::with_capacity(count));
        for number in 0..count {
            let name = format!("{}{of}{number}", prefix());
            NetNs::create(&name)?;
            places.0.push(name);
        }
        let up: Vec<_> = places.0.iter().map(|name| format!("-n {name} link set lo up")).collect();
        up.iter().try_for_each(|line| ip(line))?;
        Ok(places)
    }

    /// One that is plugged in with an address, its peer's namespace behind it: client and server.
    pub(crate) fn pair(of: &str) -> Result<Self> {
        let places = Self::new(of, 2)?;
        let [client, server] = [places.name(0), places.name(1)];
        ip(&format!("-n {client} link add eth0 type veth peer name eth0 netns {server}"))?;
        for (name, host) in [(client, 1), (server, 2)] {
            ip(&format!("-n {name} address add 10.99.0.{host}/24 dev eth0"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
        }
        Ok(places)
    }

    pub(crate) fn name(&self, number: usize) -> &str {
        &self.0[number]
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.0
    }

    pub(crate) fn open(&self, number: usize) -> Result<NetNs> {
        NetNs::named(self.name(number))
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = NetNs::delete(name);
        }
    }
}

/// What all names of this run begin with.
pub(crate) fn prefix() -> String {
    let given = std::env::var("PLAYDEAD_BENCH_PREFIX");
    given.unwrap_or_else(|_| format!("pdbench{}-", std::process::id()))
}

/// `ip(8)` with the words of a line.
pub(crate) fn ip(line: &str) -> Result<()> {
    let output = Command::new("ip").args(line.split_whitespace()).output()?;
    ensure!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
