//! Machines with container engines, in namespaces of their own: nothing of them is seen outside, and all of it is gone
//! with their first process. Needs root and the packages of `scripts/provision test`, and fails without.
#![allow(dead_code, reason = "every test program uses a part of it")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use playdead::kernel::netns::NetNs;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// The machine's address on the network outside, on which its `client` is, too.
pub(crate) const OUTSIDE: &str = "10.97.0.1";
/// What every container's engine is told about etcd: fast elections.
const FAST: &str = "--heartbeat-interval 50 --election-timeout 500 --logger zap --log-level error";

/// A machine with one engine or more.
pub(crate) struct Machine {
    unshare: Child,
    /// Its first process, as it is counted out here.
    first: u32,
    name: String,
    logs: PathBuf,
}

impl Machine {
    #[track_caller]
    pub(crate) fn with(engines: &[&str]) -> Self {
        let name = format!("playdead-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let logs = std::env::temp_dir().join(&name);
        fs::create_dir(&logs).unwrap();
        // Whatever becomes of the test, the machine dies with it.
        let mut unshare = Command::new("setpriv")
            .args("--pdeathsig KILL unshare --net --mount --pid --ipc --fork --kill-child --mount-proc bash".split(' '))
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/engines/machine.sh"))
            .args([&logs, Path::new(&name)])
            .args(engines)
            .env_remove("DOCKER_HOST")
            .env_remove("CONTAINER_HOST")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = Vec::new();
        for line in BufReader::new(unshare.stdout.take().unwrap()).lines().map(Result::unwrap) {
            said.push(line);
            if said.last().is_some_and(|line| line == "ready") {
                break;
            }
        }
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", unshare.id())).unwrap();
        let machine = Self { first: children.trim().parse().unwrap_or(0), unshare, name, logs };
        assert_eq!(said.last().map(String::as_str), Some("ready"), "the machine did not start: {said:?}");
        machine
    }

    /// A command in there.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.first.to_string(), "--net", "--mount", "--pid", "--ipc", program]);
        command.env_remove("DOCKER_HOST").env_remove("CONTAINER_HOST").stdin(Stdio::null());
        command
    }

    /// Runs what the line says: words without quotes.
    pub(crate) fn run(&self, line: &str) -> Output {
        let (program, words) = line.split_once(' ').unwrap();
        self.command(program).args(words.split_whitespace()).output().unwrap()
    }

    /// The same, and it must succeed; gives what it printed.
    #[track_caller]
    pub(crate) fn done(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Runs playdead in there.
    pub(crate) fn try_playdead(&self, line: &str) -> Output {
        self.run(&format!("{} {line}", env!("CARGO_BIN_EXE_playdead")))
    }

    /// The same, and it must succeed.
    #[track_caller]
    pub(crate) fn playdead(&self, line: &str) -> String {
        self.done(&format!("{} {line}", env!("CARGO_BIN_EXE_playdead")))
    }

    /// It fails with this code and one line, which says all of this.
    #[track_caller]
    pub(crate) fn refuses(&self, line: &str, code: i32, says: &[&str]) {
        assert_refused(line, &self.try_playdead(line), code, says);
    }

    /// The id of its first process, as it is counted out here.
    pub(crate) const fn first(&self) -> u32 {
        self.first
    }

    /// Writes a file that is gone with the machine.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.logs.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// The network of the client outside.
    pub(crate) fn client(&self) -> NetNs {
        NetNs::open(Path::new(&format!("/proc/{}/root/run/netns/client", self.first))).unwrap()
    }

    /// The network of the machine itself.
    pub(crate) fn host(&self) -> NetNs {
        NetNs::of_pid(self.first).unwrap()
    }

    /// The network of a container, found without playdead: by the file of its first process in there.
    #[track_caller]
    pub(crate) fn inside(&self, engine: &str, name: &str) -> NetNs {
        let pid = self.done(&format!("{engine} inspect --format {{{{.State.Pid}}}} {name}"));
        NetNs::open(Path::new(&format!("/proc/{}/root/proc/{pid}/ns/net", self.first))).unwrap()
    }

    /// A container's address on the engine's bridge.
    #[track_caller]
    pub(crate) fn address(&self, engine: &str, name: &str) -> IpAddr {
        let format = "{{.NetworkSettings.Networks.pdtest.IPAddress}}";
        self.done(&format!("{engine} inspect --format {format} {name}")).parse().unwrap()
    }

    /// Starts a container on the bridge.
    #[track_caller]
    pub(crate) fn start(&self, engine: &str, name: &str, options: &str, command: &str) {
        let group = if engine == "podman" { format!("--cgroup-parent /{}", self.name) } else { String::new() };
        self.done(&format!("{engine} run -d --name {name} {group} {options} localhost/etcd {command}"));
    }

    /// Three members that are called by their names; clients reach them by ports 12371 to 12373 of the machine, too.
    #[track_caller]
    pub(crate) fn start_cluster(&self, engine: &str) {
        let all = "etcd1=http://etcd1:2380,etcd2=http://etcd2:2380,etcd3=http://etcd3:2380";
        for number in 1..=3 {
            let name = format!("etcd{number}");
            let etcd = format!(
                "etcd --name {name} --data-dir /tmp/data --listen-client-urls http://0.0.0.0:2379 \
                 --advertise-client-urls http://{name}:2379 --listen-peer-urls http://0.0.0.0:2380 \
                 --initial-advertise-peer-urls http://{name}:2380 --initial-cluster {all} {FAST}"
            );
            self.start(engine, &name, &format!("--network pdtest -p 1237{number}:2379"), &etcd);
        }
    }

    /// One etcd of its own.
    #[track_caller]
    pub(crate) fn start_etcd(&self, engine: &str, name: &str, options: &str) {
        let etcd = format!(
            "etcd --data-dir /tmp/data --listen-client-urls http://0.0.0.0:2379 \
             --advertise-client-urls http://{name}:2379 {FAST}"
        );
        self.start(engine, name, options, &etcd);
    }

    /// Takes the container's cable out of the bridge, by its end on the machine.
    #[track_caller]
    pub(crate) fn unplug(&self, engine: &str, name: &str) {
        let index = self
            .inside(engine, name)
            .run(|| Command::new("ip").args(["-o", "link", "show", "eth0"]).output().unwrap())
            .unwrap();
        let shown = String::from_utf8(index.stdout).unwrap();
        let index = shown.split_once("eth0@if").unwrap().1.split_once(':').unwrap().0;
        let links = self.done("ip -o link");
        let line = links.lines().find(|line| line.starts_with(&format!("{index}: "))).unwrap();
        let port = line.split([' ', '@', ':']).filter(|word| !word.is_empty()).nth(1).unwrap();
        self.done(&format!("ip link set {port} nomaster"));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        let until = Instant::now() + Duration::from_secs(5);
        while Path::new(&format!("/proc/{}", self.first)).exists() && Instant::now() < until {
            sleep(Duration::from_millis(10));
        }
        // The control groups are the one thing that is not of the machine's own.
        let find = ["/sys/fs/cgroup", "-depth", "-type", "d", "-path", &format!("*/{}*", self.name)];
        let _ = Command::new("find").args(find).args(["-exec", "rmdir", "{}", "+"]).status();
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.logs);
        }
    }
}

/// Until a member answers that it is healthy.
#[track_caller]
pub(crate) fn wait_until_served(from: &NetNs, at: SocketAddr) {
    let until = Instant::now() + Duration::from_secs(60);
    let url = format!("http://{at}/health");
    let answers = || from.run(|| Command::new("curl").args(["-sfm1", &url]).output().unwrap()).unwrap();
    while !answers().status.success() {
        assert!(Instant::now() < until, "{at} is not healthy");
        sleep(Duration::from_millis(50));
    }
}

/// It failed with this code and one line, which says all of this.
#[track_caller]
pub(crate) fn assert_refused(what: &str, output: &Output, code: i32, says: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(code), 1), "{what}: {said}");
    for word in says {
        assert!(said.contains(word), "{what} does not say {word:?}: {said}");
    }
}
