//! Hosts a, b and c, each a namespace with an sshd, and the controller's namespace x, on one bridge.
#![allow(dead_code, reason = "every test program uses a part of it")]

use std::fmt::Write;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use playdead::kernel::netns::NetNs;
use serde_json::Value;

use crate::own_etc::OwnEtc;

/// Where everybody listens.
const PORT: u16 = 7000;
/// What a connect may take. Longer than the first retransmission of a SYN.
const CONNECT: Duration = Duration::from_millis(1300);
const HOSTS: [&str; 3] = ["a", "b", "c"];
const ALL: [&str; 4] = ["a", "b", "c", "x"];

pub(crate) struct Hosts {
    name: String,
    directory: PathBuf,
    sshds: Vec<Child>,
}

impl Hosts {
    pub(crate) fn up() -> Self {
        let random = RandomState::new().hash_one(std::process::id()) >> 32;
        let name = format!("pdh{random:08x}");
        let directory = std::env::temp_dir().join(&name);
        let mut hosts = Self { name, directory, sshds: Vec::new() };
        hosts.wire();
        hosts.prepare_ssh();
        hosts.sshds = HOSTS.iter().map(|host| hosts.sshd(host, &hosts.prepare_etc(host))).collect();
        for host in HOSTS {
            let start = Instant::now();
            while hosts.connect("x", host, 22).is_err() {
                assert!(start.elapsed() < Duration::from_secs(60), "no sshd on {host}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        hosts
    }

    /// The namespace of a host, or of the controller x.
    pub(crate) fn ns(&self, host: &str) -> String {
        format!("{}{host}", self.name)
    }

    fn address(host: &str) -> IpAddr {
        let number = ALL.iter().position(|other| *other == host).unwrap() + 1;
        format!("10.97.0.{number}").parse().unwrap()
    }

    fn wire(&self) {
        let switch = self.ns("s");
        drop(NetNs::create(&switch).unwrap());
        ip(&format!("-n {switch} link add br0 type bridge mcast_snooping 0"));
        ip(&format!("-n {switch} link set br0 up"));
        for host in ALL {
            let (ns, address) = (self.ns(host), Self::address(host));
            drop(NetNs::create(&ns).unwrap());
            ip(&format!("-n {ns} link set lo up"));
            ip(&format!("-n {ns} link add eth0 type veth peer name {host} netns {switch}"));
            ip(&format!("-n {switch} link set dev {host} master br0 up"));
            ip(&format!("-n {ns} addr add {address}/24 dev eth0"));
            ip(&format!("-n {ns} link set eth0 up"));
        }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// A file that goes with the hosts.
    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Keys, the client's configuration, and playdead where each session finds it.
    fn prepare_ssh(&self) {
        fs::create_dir_all(self.directory.join("bin")).unwrap();
        fs::create_dir_all("/run/sshd").unwrap();
        for key in ["host", "user"] {
            done(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &self.path(key)]));
        }
        let mut config = format!(
            "Host *\n  IdentityFile {}\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  LogLevel ERROR\n  \
             UserKnownHostsFile /dev/null\nHost gone\n  HostName 10.97.0.8\n",
            self.path("user")
        );
        for host in HOSTS {
            let _ = write!(config, "Host {host}\n  HostName {}\n", Self::address(host));
            fs::create_dir_all(self.directory.join(host)).unwrap();
            // A copy: whoever has no rights may not even look where it was built.
            let copy = self.directory.join(host).join("playdead");
            fs::hard_link(env!("CARGO_BIN_EXE_playdead"), &copy)
                .or_else(|_| fs::copy(env!("CARGO_BIN_EXE_playdead"), &copy).map(drop))
                .unwrap();
        }
        self.file("config", &config);
    }

    /// Users without rights and with few, and a root at whose home there is no file that a shell reads first.
    fn prepare_etc(&self, host: &str) -> OwnEtc {
        let program = self.path(host);
        let etc = OwnEtc::within(Path::new(&program));
        let passwd = fs::read_to_string(etc.path("passwd")).unwrap();
        let others: String = passwd.split_inclusive('\n').filter(|line| !line.starts_with("root:")).collect();
        let more = "plain:x:64321:64321::/:/bin/sh\nable:x:64322:64322::/:/bin/sh\n";
        fs::write(etc.path("passwd"), format!("root:x:0:0::{program}:/bin/bash\n{others}{more}")).unwrap();
        // sudo asks whether the account is still valid.
        let shadow = fs::read_to_string(etc.path("shadow")).unwrap();
        fs::write(etc.path("shadow"), shadow + "plain:*:20000::::::\nable:*:20000::::::\n").unwrap();
        let sudoers = format!(
            "Defaults secure_path=\"{program}:/usr/bin:/bin\"\n\
             able ALL = (root) NOPASSWD: {program}/playdead ^--here able share$\n"
        );
        fs::write(etc.path("sudoers"), sudoers).unwrap();
        fs::set_permissions(etc.path("sudoers"), fs::Permissions::from_mode(0o440)).unwrap();
        etc
    }

    fn sshd(&self, host: &str, etc: &OwnEtc) -> Child {
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.path(host));
        let config = format!(
            "ListenAddress {}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes no\n\
             PermitRootLogin yes\nPasswordAuthentication no\nSetEnv PATH={path}\nMaxStartups 100\n",
            Self::address(host),
            self.path("host"),
            self.path("user.pub")
        );
        let config = self.file(&format!("sshd_{host}"), &config);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.ns(host)]);
        if host == "b" {
            command.args(["unshare", "--time", "--monotonic", "86400", "--fork", "--kill-child"]);
        }
        command.args(etc.words()).args(["/usr/sbin/sshd", "-D", "-e", "-f"]).arg(config).stdin(Stdio::null());
        command.stderr(fs::File::create(self.directory.join(format!("log_{host}"))).unwrap());
        command.spawn().unwrap()
    }

    /// Puts a playdead of old onto a host: all that it knows is its version.
    pub(crate) fn old(&self, host: &str) {
        let text = "[ \"$1\" = --version ] && echo 'playdead 0.0.1' && exit\n\
                    echo \"playdead: unexpected argument\" >&2\nexit 2\n";
        self.pretend(host, text);
    }

    /// Puts a script in the place of a host's playdead.
    pub(crate) fn pretend(&self, host: &str, script: &str) {
        let path = self.directory.join(host).join("playdead");
        fs::remove_file(&path).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// From now on whoever logs in there waits for ever.
    pub(crate) fn hang(&self, host: &str) {
        self.file(&format!("{host}/.ssh/rc"), "exec sleep 4325\n");
    }

    /// Gives all hosts one more address, the same.
    pub(crate) fn share_address(&self, address: &str) {
        for host in HOSTS {
            ip(&format!("-n {} addr add {address}/16 dev lo", self.ns(host)));
        }
    }

    /// Until no host is asked to do anything any more.
    pub(crate) fn wait_for_parts(&self) {
        let start = Instant::now();
        while HOSTS.iter().any(|host| self.has_process(host, &format!("playdead --here {host} share"))) {
            assert!(start.elapsed() < Duration::from_secs(10), "a part has no end");
        }
    }

    /// Adds to ssh's configuration.
    pub(crate) fn configure(&self, more: &str) {
        let config = fs::read_to_string(self.path("config")).unwrap();
        self.file("config", &(config + more));
    }

    /// A file of nodes, with all hosts and what is added. `CONFIG` stands for ssh's configuration.
    pub(crate) fn nodes(&self, more: &str) -> String {
        let node = |host: &&str| format!("[nodes.{host}]\nssh = \"root@{host}\"\nssh-config = \"CONFIG\"\n");
        let text: String = HOSTS.iter().map(node).collect();
        let text = (text + more).replace("CONFIG", &self.path("config"));
        self.file("nodes.toml", &text).display().to_string()
    }

    /// The same, with a key and a program that nobody, the user of that name, may use.
    pub(crate) fn nodes_for_nobody(&self) -> String {
        let key = self.path("nobodys");
        fs::copy(self.path("user"), &key).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&key, Some(65534), Some(65534)).unwrap();
        let config = fs::read_to_string(self.path("config")).unwrap().replace(&self.path("user"), &key);
        self.file("config", &config);
        self.nodes("")
    }

    /// Runs playdead in the namespace of a host, without any rights.
    pub(crate) fn run_as_nobody(&self, at: &str, line: &str) -> Output {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.ns(at), "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(self.path("a/playdead")).args(line.split_whitespace()).stdin(Stdio::null());
        command.env_remove("XDG_RUNTIME_DIR").env("HOME", "/nonexistent").output().unwrap()
    }

    /// Any file, written as [`nodes`](Self::nodes) writes its own.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        self.file(name, &text.replace("CONFIG", &self.path("config"))).display().to_string()
    }

    pub(crate) fn playdead(&self, at: &str, line: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.ns(at), env!("CARGO_BIN_EXE_playdead")]).args(line.split_whitespace());
        command.stdin(Stdio::null());
        command
    }

    /// Runs playdead in the namespace of a host.
    pub(crate) fn run(&self, at: &str, line: &str) -> Output {
        self.playdead(at, line).output().unwrap()
    }

    #[track_caller]
    pub(crate) fn done(&self, at: &str, line: &str) -> String {
        let output = self.run(at, line);
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self, at: &str, line: &str) -> Value {
        serde_json::from_str(&self.done(at, &format!("--json {line}"))).unwrap()
    }

    /// Starts playdead, to be ended by a signal.
    pub(crate) fn start(&self, at: &str, line: &str) -> Controller {
        let mut command = self.playdead(at, line);
        // `ip netns exec` becomes what it runs.
        Controller(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Heals by a playdead on the host itself.
    pub(crate) fn heal(&self, hosts: &[&str]) {
        for host in hosts {
            self.done("x", &format!("--netns {} heal", self.ns(host)));
        }
    }

    /// The ruleset of a host.
    pub(crate) fn listed(&self, host: &str) -> String {
        ip(&format!("netns exec {} nft -s list ruleset", self.ns(host)))
    }

    /// Whether a process in a host's namespace is one of ssh's: one that somebody has started (`ssh\0`), or a connection
    /// that is shared (`ssh:`).
    pub(crate) fn has_ssh(&self, host: &str, which: &str) -> bool {
        let pids = ip(&format!("netns pids {}", self.ns(host)));
        let is_meant = |pid: &str| {
            fs::read(format!("/proc/{}/cmdline", pid.trim())).is_ok_and(|line| line.starts_with(which.as_bytes()))
        };
        pids.lines().any(is_meant)
    }

    /// Whether a process in a host's namespace has been started by these words.
    pub(crate) fn has_process(&self, host: &str, words: &str) -> bool {
        self.process(host, words).is_some()
    }

    /// That process.
    pub(crate) fn process(&self, host: &str, words: &str) -> Option<Pid> {
        let pids = ip(&format!("netns pids {}", self.ns(host)));
        let mut pids = pids.lines().filter_map(|pid| pid.trim().parse::<i32>().ok());
        let is_meant = |pid: &i32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.trim_end_matches('\0').replace('\0', " ") == words
        };
        pids.find(is_meant).map(Pid::from_raw)
    }

    /// Somebody to connect to on each host.
    pub(crate) fn listen(&self, hosts: &[&str]) -> Vec<TcpListener> {
        let listen = |host: &&str| {
            let at = SocketAddr::new(Self::address(host), PORT);
            NetNs::named(&self.ns(host)).unwrap().run(|| TcpListener::bind(at)).unwrap().unwrap()
        };
        hosts.iter().map(listen).collect()
    }

    /// A cluster of etcd, a member on each host. Killed when dropped.
    pub(crate) fn etcd(&self) -> Vec<Killed> {
        let url = |host: &str, port: u16| format!("http://{}:{port}", Self::address(host));
        let cluster = HOSTS.map(|host| format!("{host}={}", url(host, 2380))).join(",");
        let member = |host: &&str| {
            let (client, peer) = (url(host, 2379), url(host, 2380));
            let data = self.path(&format!("etcd_{host}"));
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.ns(host), "etcd", "--name", host, "--data-dir", &data]);
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &cluster, "--unsafe-no-fsync"]);
            Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
        };
        HOSTS.iter().map(member).collect()
    }

    /// Connects from one host to another, as any client does.
    pub(crate) fn connects(&self, from: &str, to: &str) -> io::Result<()> {
        self.connect(from, to, PORT).map(drop)
    }

    fn connect(&self, from: &str, to: &str, port: u16) -> io::Result<TcpStream> {
        let at = SocketAddr::new(Self::address(to), port);
        NetNs::named(&self.ns(from)).unwrap().run(|| TcpStream::connect_timeout(&at, CONNECT)).unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for host in HOSTS {
                eprintln!("{}", fs::read_to_string(self.path(&format!("log_{host}"))).unwrap_or_default());
            }
        }
        for sshd in &mut self.sshds {
            let _ = sshd.kill();
            let _ = sshd.wait();
        }
        // Sessions, and connections of playdeads that were killed.
        for ns in ALL.map(|host| self.ns(host)) {
            let pids = Command::new("ip").args(["netns", "pids", &ns]).output().unwrap();
            for pid in String::from_utf8_lossy(&pids.stdout).lines().filter_map(|pid| pid.trim().parse().ok()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            let _ = NetNs::delete(&ns);
        }
        let _ = NetNs::delete(&self.ns("s"));
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A process that ends with the value.
pub(crate) struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A playdead that runs.
pub(crate) struct Controller(Child);

impl Controller {
    pub(crate) fn end(mut self, signal: Signal) -> Output {
        // It may have ended.
        if self.0.try_wait().unwrap().is_none() {
            kill(Pid::from_raw(self.0.id().cast_signed()), signal).unwrap();
        }
        self.0.wait_with_output().unwrap()
    }

    /// Waits for its own end.
    pub(crate) fn ends(self) -> Output {
        self.0.wait_with_output().unwrap()
    }
}

pub(crate) fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn ip(line: &str) -> String {
    let output = Command::new("ip").args(line.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {line}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}
