//! The etcd processes: started, killed, paused and stopped for real.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;

use super::nodes::Node;
use super::plan::{Layout, Role};
use super::process::{DYING, Process, wait_until};

const PEER_PORT: u16 = 2380;
/// How long a signal may take to act.
const AT_ONCE: Duration = Duration::from_secs(5);
/// A leader first hands over, which takes up to nine seconds where no other member answers.
const LEAVING: Duration = Duration::from_secs(30);
/// How long a member may take until it listens to the other members.
const STARTING: Duration = Duration::from_secs(10);

/// The etcd that is installed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Etcd {
    /// It knows `--unsafe-no-fsync`.
    no_fsync: bool,
}

impl Etcd {
    /// Looks for etcd on the `PATH`, and whether it takes the flags.
    ///
    /// # Errors
    /// When it is not there, or does not know one of the flags.
    pub(super) fn installed(flags: &[String]) -> Result<Self> {
        let output = ask_for_version(flags)?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("etcd does not take these flags: {}", text.lines().next().unwrap_or("it does not say why"));
        }
        let no_fsync = ask_for_version(&["--unsafe-no-fsync".to_owned()])?.status.success();
        Ok(Self { no_fsync })
    }

    /// The flags of one member. They would be the same for a member that joins again: etcd heeds
    /// `--initial-cluster` only while it has no data.
    fn flags(self, layout: &Layout, node: &Node, heartbeat: Option<u32>) -> Vec<String> {
        let mut flags = vec![
            format!("--name={}", node.name),
            data_flag(node),
            format!("--initial-cluster-token={}", layout.name),
            format!("--initial-cluster={}", initial_cluster(layout)),
            format!("--initial-advertise-peer-urls={}", peer_url(node)),
            // The unspecified IPv6 address takes IPv4 as well.
            format!("--listen-peer-urls=http://[::]:{PEER_PORT}"),
            "--listen-client-urls=http://[::]:2379".to_owned(),
            // By name: it stands for every address of the member, in both families.
            format!("--advertise-client-urls=http://{}:2379", node.name),
        ];
        if self.no_fsync {
            flags.push("--unsafe-no-fsync".to_owned());
        }
        if let Some(ms) = heartbeat {
            flags.push(format!("--heartbeat-interval={ms}"));
            flags.push(format!("--election-timeout={}", ms.saturating_mul(10)));
        }
        flags
    }

    /// Makes the node's directory, empty but for its flags. A log of an earlier lab goes.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(super) fn prepare(self, layout: &Layout, node: &Node, heartbeat: Option<u32>, more: &[String]) -> Result<()> {
        let directory = node.directory();
        if directory.exists() {
            fs::remove_dir_all(&directory).with_context(|| format!("cannot clear {}", directory.display()))?;
        }
        fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let mut flags = self.flags(layout, node, heartbeat);
        flags.extend_from_slice(more);
        let file = directory.join("flags");
        fs::write(&file, flags.join("\n") + "\n").with_context(|| format!("cannot write {}", file.display()))
    }
}

/// etcd looks at all of its flags before it prints its version.
fn ask_for_version(flags: &[String]) -> Result<Output> {
    let mut etcd = Command::new("etcd");
    let asked = etcd.args(flags).arg("--version").env_clear().envs(environment()).stdin(Stdio::null()).output();
    asked.map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!("etcd is not installed: install the Debian package etcd-server"),
        _ => anyhow!(error).context("cannot run etcd"),
    })
}

fn data_flag(node: &Node) -> String {
    format!("--data-dir={}", node.directory().join("data").display())
}

fn peer_url(node: &Node) -> String {
    node.addresses.first().map_or_else(String::new, |address| format!("http://{address}:{PEER_PORT}"))
}

fn initial_cluster(layout: &Layout) -> String {
    let members = layout.roles().into_iter().filter(|role| role.is_etcd()).map(|role| Node::of(layout, role));
    members.map(|member| format!("{}={}", member.name, peer_url(&member))).collect::<Vec<_>>().join(",")
}

/// Of the caller's environment only what finds programs: etcd takes flags from `ETCD_*`, and would talk to
/// its peers through a proxy.
fn environment() -> Vec<(String, String)> {
    let wanted = ["PATH", "ETCD_UNSUPPORTED_ARCH"];
    wanted.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?))).collect()
}

/// Starts etcd on the node with the flags in its directory, in a session of its own: neither the end of
/// this process nor a closed terminal reaches it.
///
/// # Errors
/// When the flags cannot be read or the process cannot be started. Whether etcd likes its flags shows later.
pub(super) fn spawn(node: &Node) -> Result<()> {
    let file = node.directory().join("flags");
    let flags = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let words = std::iter::once("etcd").chain(flags.lines().filter(|flag| !flag.is_empty()));
    let arguments = words.map(CString::new).collect::<Result<Vec<_>, _>>().context("a flag of etcd has a NUL in it")?;
    let ns = node.namespace()?;
    let pid = ns
        .run_with_etc(|| spawn_here(&arguments, &node.log()))?
        .with_context(|| format!("cannot start etcd on {}", node.name))?;
    // It is in the middle of `execve`: until that is over, `/proc` shows our command line or none, and `running`
    // would not know it.
    let (process, data) = (Process::new(pid.as_raw().cast_unsigned(), &ns)?, data_flag(node));
    wait_until(AT_ONCE, || !process.is_alive() || process.command_line().contains(&data));
    Ok(())
}

fn spawn_here(arguments: &[CString], log: &Path) -> Result<Pid> {
    let nothing = File::open("/dev/null").context("cannot open /dev/null")?;
    let log = File::options().append(true).create(true).open(log).context("cannot open its log")?;
    let mut files = PosixSpawnFileActions::init()?;
    files.add_dup2(nothing.as_raw_fd(), 0)?;
    files.add_dup2(log.as_raw_fd(), 1)?;
    files.add_dup2(log.as_raw_fd(), 2)?;

    let mut attributes = PosixSpawnAttr::init()?;
    let session = PosixSpawnFlags::from_bits_retain(libc::POSIX_SPAWN_SETSID.into());
    attributes.set_flags(session | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK)?;
    attributes.set_sigdefault(&SigSet::all())?;
    attributes.set_sigmask(&SigSet::empty())?;

    let environment = environment().into_iter().map(|(name, value)| CString::new(format!("{name}={value}")));
    let environment = environment.collect::<Result<Vec<_>, _>>()?;
    Ok(posix_spawnp(c"etcd", &files, &attributes, arguments, &environment)?)
}

/// The node's etcd process, if it runs or is stopped. A client's `etcd` in the same namespace is another one.
///
/// # Errors
/// When the namespace is gone or `/proc` cannot be read.
pub(super) fn running(node: &Node) -> Result<Option<Process>> {
    let data = data_flag(node);
    let all = Process::all_in(&node.namespace()?)?;
    Ok(all.into_iter().find(|process| process.command_line().contains(&data)))
}

/// Starts a node's etcd again with the data that it had, and waits until it listens to its peers. (It
/// serves clients only once there is a quorum.) Gives its process id.
///
/// # Errors
/// When it runs already, cannot be started, or ends at once.
pub fn start(node: &Node) -> Result<u32> {
    ensure_etcd(node)?;
    if let Some(process) = running(node)? {
        bail!("etcd on {} runs already as process {}", node.name, process.pid);
    }
    spawn(node)?;
    let mut process = None;
    wait_until(STARTING, || {
        process = running(node).ok().flatten();
        process.is_none_or(|process| process.listens(PEER_PORT))
    });
    let process = process.ok_or_else(|| ended(node))?;
    ensure!(
        process.listens(PEER_PORT),
        "etcd on {} runs as process {}, but does not listen to its peers after {} s; its log: {}",
        node.name,
        process.pid,
        STARTING.as_secs(),
        node.log().display()
    );
    Ok(process.pid)
}

/// Kills a node's etcd with `SIGKILL`, as a crash would, and waits until it is gone.
///
/// # Errors
/// When it does not run, or cannot be killed.
pub fn kill(node: &Node) -> Result<u32> {
    let process = required(node)?;
    process.signal(Signal::SIGKILL)?;
    process.wait_for_end(DYING)?;
    Ok(process.pid)
}

/// Asks a node's etcd to end with `SIGTERM`, and waits until it has: up to nine seconds where it is the
/// leader of members that do not answer. One that is paused goes on for that.
///
/// # Errors
/// When it does not run, or has not ended after 30 s.
pub fn stop(node: &Node) -> Result<u32> {
    let process = required(node)?;
    process.signal(Signal::SIGTERM)?;
    process.signal(Signal::SIGCONT)?;
    process.wait_for_end(LEAVING)?;
    Ok(process.pid)
}

/// Stops a node's etcd in its tracks with `SIGSTOP`; it is already: nothing happens.
///
/// # Errors
/// When it does not run.
pub fn pause(node: &Node) -> Result<u32> {
    let process = required(node)?;
    process.signal(Signal::SIGSTOP)?;
    process.wait_for_stop(true, AT_ONCE)?;
    Ok(process.pid)
}

/// Lets a paused etcd go on with `SIGCONT`; it is not paused: nothing happens.
///
/// # Errors
/// When it does not run.
pub fn resume(node: &Node) -> Result<u32> {
    let process = required(node)?;
    process.signal(Signal::SIGCONT)?;
    process.wait_for_stop(false, AT_ONCE)?;
    Ok(process.pid)
}

fn required(node: &Node) -> Result<Process> {
    ensure_etcd(node)?;
    running(node)?.with_context(|| {
        format!("etcd on {} does not run: `playdead lab start {}/{}` starts it", node.name, node.lab, node.name)
    })
}

fn ensure_etcd(node: &Node) -> Result<()> {
    ensure!(matches!(node.role, Role::Etcd(_)), "no etcd belongs on {}: it is for the etcd nodes", node.name);
    Ok(())
}

/// The error for a member that ended by itself, with the last that it said.
pub(super) fn ended(node: &Node) -> anyhow::Error {
    let log = fs::read_to_string(node.log()).unwrap_or_default();
    let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing");
    anyhow!("etcd on {} has ended; the last of its log {}: {}", node.name, node.log().display(), last.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_knows_the_others_by_address_and_is_known_to_clients_by_name() {
        let layout = Layout::new("x", 2, false).unwrap();
        let node = Node::of(&layout, Role::Etcd(2));
        let flags = Etcd { no_fsync: true }.flags(&layout, &node, Some(20));
        for flag in [
            "--name=etcd2",
            "--data-dir=/var/lib/playdead/x/etcd2/data",
            "--initial-cluster=etcd1=http://10.77.0.11:2380,etcd2=http://10.77.0.12:2380",
            "--advertise-client-urls=http://etcd2:2379",
            "--unsafe-no-fsync",
            "--heartbeat-interval=20",
            "--election-timeout=200",
        ] {
            assert!(flags.iter().any(|given| given == flag), "{flag} is missing in {flags:?}");
        }
    }

    #[test]
    fn timers_and_fsync_are_etcds_own_unless_asked_and_able() {
        let layout = Layout::new("x", 1, false).unwrap();
        let flags = Etcd { no_fsync: false }.flags(&layout, &Node::of(&layout, Role::Etcd(1)), None).join(" ");
        assert!(!flags.contains("fsync") && !flags.contains("heartbeat") && !flags.contains("election"), "{flags}");
    }
}
