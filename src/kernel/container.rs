//! Containers, known by their engine's own command.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Missing;
use super::netns::NetNs;

/// The network namespace of a running Docker or Podman container.
///
/// # Errors
/// When no engine is installed, none runs a container of that name, or its namespace cannot be opened.
pub fn namespace(name: &str) -> Result<NetNs> {
    NetNs::of_pid(first_process(name)?).with_context(|| format!("container {name:?}"))
}

fn first_process(name: &str) -> Result<u32> {
    let engines = ["docker", "podman"];
    let mut found = false;
    let mut reasons = Vec::new();
    for engine in engines {
        let arguments = ["inspect", "--type", "container", "--format", "{{.State.Pid}}", "--", name];
        let output = match Command::new(engine).args(arguments).output() {
            Ok(output) => output,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot run {engine}")),
        };
        found = true;
        let said = String::from_utf8_lossy(&output.stdout);
        match said.trim().parse::<u32>() {
            Ok(0) => bail!("the container {name:?} is not running: start it first"),
            Ok(pid) if output.status.success() => return Ok(pid),
            _ => {
                let error = String::from_utf8_lossy(&output.stderr);
                reasons.push(format!("{engine}: {}", error.lines().next().unwrap_or("no answer").trim()));
            }
        }
    }
    if !found {
        return Err(
            Missing(format!("cannot find the container {name:?}: neither docker nor podman is installed")).into()
        );
    }
    bail!("no running container is called {name:?} ({})", reasons.join("; "))
}
