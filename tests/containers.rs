//! Containers of Docker and Podman, on a bridge and with published ports: what is seen of one that plays dead, beside
//! one that is.

mod engines;
mod net;

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use engines::{Machine, OUTSIDE, assert_refused, wait_until_served};
use net::view::{assert_alike, assert_met};
use playdead::kernel::netns::NetNs;
use playdead::model::signature::Expect;
use playdead::probe::{Observation, Options, Outcome, Probe, Watch};
use serde_json::Value;

/// From another container of the bridge, and from outside by the published port.
type Views = [Vec<Observation>; 2];

/// A container that serves and whose network is another's, so that its process can die and leave the network behind.
struct Served {
    engine: &'static str,
    machine: Machine,
    agent: NetNs,
    client: NetNs,
    /// As the agent calls it, and as the client does.
    at: [SocketAddr; 2],
}

impl Served {
    fn by(engine: &'static str) -> Self {
        let machine = Machine::with(&[engine]);
        machine.start(engine, "agent", "--network pdtest", "sleep infinity");
        machine.start(engine, "holder", "--network pdtest -p 12379:2379", "sleep infinity");
        let at =
            [SocketAddr::new(machine.address(engine, "holder"), 2379), format!("{OUTSIDE}:12379").parse().unwrap()];
        let (agent, client) = (machine.inside(engine, "agent"), machine.client());
        let served = Self { engine, machine, agent, client, at };
        served.serve();
        served
    }

    fn serve(&self) {
        self.machine.start_etcd(self.engine, "etcd", "--network container:holder --rm");
        self.wait();
    }

    fn wait(&self) {
        wait_until_served(&self.agent, self.at[0]);
        wait_until_served(&self.client, self.at[1]);
    }

    /// Both open, the event happens, and both look.
    fn watch(&self, event: impl FnOnce()) -> Views {
        let probes = vec![Probe::Connect, Probe::Idle, Probe::Writing, Probe::Ping];
        // Between the retransmissions of a request (after 0.2 and 0.6 s) and that of a SYN (after 1 s).
        let how = Options { timeout: Duration::from_millis(800), probes, ..Options::default() };
        let open = |ns, at| Watch::open(ns, &[at], &how).unwrap();
        let [mut inside, mut outside] = [open(&self.agent, self.at[0]), open(&self.client, self.at[1])];
        self.wait();
        event();
        inside.event();
        outside.event();
        std::thread::scope(|scope| {
            let outside = scope.spawn(|| outside.finish().unwrap());
            [inside.finish().unwrap(), outside.join().unwrap()]
        })
    }

    /// In the container's own network, by its own address.
    fn inside(&self, kind: &str) -> Views {
        let ports = if kind == "dead-host" { String::new() } else { ":2379".into() };
        self.fault("--container holder", &format!("{kind} {}{ports}", self.at[0].ip()))
    }

    /// On the machine, by the published port.
    fn published(&self, kind: &str) -> Views {
        self.fault("--netns /proc/self/ns/net", &format!("{kind} {}", self.at[1]))
    }

    fn fault(&self, place: &str, line: &str) -> Views {
        let views = self.watch(|| drop(self.machine.playdead(&format!("{place} {line}"))));
        self.machine.playdead(&format!("{place} heal"));
        self.wait();
        views
    }

    fn really(&self, line: &str) -> Views {
        self.watch(|| drop(self.machine.done(&format!("{} {line}", self.engine))))
    }
}

fn without(views: &[Observation], probes: &[Probe]) -> Vec<Observation> {
    views.iter().filter(|seen| !probes.contains(&seen.probe)).cloned().collect()
}

fn outcome(views: &[Observation], probe: Probe) -> &Outcome {
    &views.iter().find(|seen| seen.probe == probe).unwrap().outcome
}

/// The process answers and its answers are dropped, so that a request may be acknowledged by its retransmission only: a
/// difference that docs/fidelity.md names.
#[track_caller]
fn assert_hung(simulated: &[Observation], real: &[Observation]) {
    assert_alike("paused", &without(simulated, &[Probe::Writing]), &without(real, &[Probe::Writing]));
    assert_eq!(outcome(simulated, Probe::Writing), outcome(real, Probe::Writing));
}

fn a_container_looks_dead_as_a_real_one_does(engine: &'static str) {
    let served = Served::by(engine);
    let [host, process, hung] = ["dead-host", "dead-process", "hung-process"].map(|kind| served.inside(kind));
    let published = ["dead-host", "dead-process", "hung-process"].map(|kind| served.published(kind));

    let paused = served.really("pause etcd");
    served.machine.done(&format!("{engine} unpause etcd"));
    served.wait();
    let killed = served.really("kill etcd");
    served.serve();
    let unplugged = served.watch(|| served.machine.unplug(engine, "holder"));

    for from in [0, 1] {
        assert_hung(&hung[from], &paused[from]);
        assert_alike("killed", &process[from], &killed[from]);
        assert_alike("unplugged", &host[from], &unplugged[from]);
    }
    // By the published port it is the port that dies, for those who come from outside; on the bridge nothing happens.
    let [host, process, hung] = published.each_ref().map(|views| &views[1]);
    assert_hung(hung, &paused[1]);
    assert_alike("unplugged, by its port", host, &unplugged[1]);
    // The host is in between and has neither socket: open connections end with the next data.
    let open = [Probe::Idle, Probe::Writing];
    assert_alike("killed, by its port", &without(process, &open), &without(&killed[1], &open));
    assert_eq!(*outcome(process, Probe::Idle), Outcome::Silence);
    assert!(matches!(outcome(process, Probe::Writing), Outcome::Errno { errno } if errno == "ECONNRESET"));
    for views in &published {
        assert_met(Expect::Alive, &views[0]);
    }
}

#[test]
fn a_container_of_docker_looks_dead_as_a_real_one_does() {
    a_container_looks_dead_as_a_real_one_does("docker");
}

#[test]
fn a_container_of_podman_looks_dead_as_a_real_one_does() {
    a_container_looks_dead_as_a_real_one_does("podman");
}

/// What each member sees from its own place.
fn own_views(machine: &Machine, nodes: &str) -> Vec<Value> {
    let seen: Value = serde_json::from_str(&machine.playdead(&format!("--nodes {nodes} --json quorum"))).unwrap();
    seen["views"].as_array().unwrap().iter().filter(|view| view["from"].is_null()).cloned().collect()
}

/// Of each member: live, able and quorum.
fn told(views: &[Value]) -> Value {
    let of = |view: &Value| serde_json::json!([view["live"]["answer"], view["able"]["able"], view["quorum"]["answer"]]);
    views.iter().map(|view| (view["member"].as_str().unwrap().to_owned(), of(view))).collect()
}

/// An election takes as long as the machine is slow: that there is an end is what counts.
#[track_caller]
fn until(what: &str, expected: &Value, look: impl Fn() -> Vec<Value>) {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let seen = look();
        if told(&seen) == *expected {
            return;
        }
        assert!(Instant::now() < limit, "never {what}: {}", Value::from(seen));
        sleep(Duration::from_millis(100));
    }
}

fn a_cluster_of_containers_is_cut_by_name(engine: &str) {
    let machine = Machine::with(&[engine]);
    machine.start_cluster(engine);
    machine.start(engine, "agent", "--network pdtest", "sleep infinity");
    let agent = machine.inside(engine, "agent");
    let at = ["etcd1", "etcd2", "etcd3"].map(|name| SocketAddr::new(machine.address(engine, name), 2379));
    for at in at {
        wait_until_served(&agent, at);
    }

    // By a name that only the engine's name server knows.
    let made = machine.playdead("--container agent dead-host etcd2");
    assert!(made.contains(&at[1].ip().to_string()), "{made}");
    let probe = |at: SocketAddr, kind: &str| {
        machine.playdead(&format!("--container agent probe {at} --only connect --timeout 500ms --expect {kind}"));
    };
    probe(at[1], "dead-host");
    probe(at[0], "alive");
    machine.playdead("--container agent heal");
    probe(at[1], "alive");

    let node = |name| format!("nodes.{name} = {{ container = \"{name}\", check = \"etcd\" }}\n");
    let file = machine.file("nodes.toml", &["etcd1", "etcd2", "etcd3"].map(node).concat());
    let (well, cut) = (serde_json::json!(["yes", true, "yes"]), serde_json::json!(["yes", false, "no"]));
    let whole = serde_json::json!({ "etcd1": well, "etcd2": well, "etcd3": well });
    let alone = serde_json::json!({ "etcd1": cut, "etcd2": well, "etcd3": well });
    until("whole", &whole, || own_views(&machine, &file));
    machine.playdead(&format!("--nodes {file} partition --isolate etcd1 --name split"));
    until("etcd1 without a quorum", &alone, || own_views(&machine, &file));
    for name in ["etcd1", "etcd2", "etcd3"] {
        assert!(machine.playdead(&format!("--container {name} status")).contains("split"));
        machine.playdead(&format!("--container {name} heal split"));
    }
    until("whole again", &whole, || own_views(&machine, &file));
    machine.unplug(engine, "etcd1");
    until("the same with its cable out", &alone, || own_views(&machine, &file));
}

#[test]
fn a_cluster_in_containers_of_docker_is_cut_by_name() {
    a_cluster_of_containers_is_cut_by_name("docker");
}

#[test]
fn a_cluster_in_containers_of_podman_is_cut_by_name() {
    a_cluster_of_containers_is_cut_by_name("podman");
}

#[test]
fn a_container_is_called_by_its_name_or_id_and_whatever_is_unclear_is_told() {
    let machine = Machine::with(&["docker", "podman"]);
    for engine in ["docker", "podman"] {
        machine.start(engine, "both", "--network pdtest", "sleep infinity");
        machine.start(engine, engine, "--network pdtest", "sleep infinity");
        let id = machine.done(&format!("{engine} inspect --format {{{{.Id}}}} both"));
        for known in [engine, &id, &id[..12]] {
            machine.playdead(&format!("--container {known} dead-host 192.0.2.1 --name x"));
            machine.playdead(&format!("--container {known} heal x"));
        }
        a_restarted_container_has_no_fault(&machine, engine);
    }
    machine.refuses("--container both status", 1, &["two engines", "by its id", "(docker)", "(podman)"]);
    machine.done("podman stop -t 0 both");
    machine.playdead("--container both status");
    machine.done("docker stop -t 0 both");
    machine.refuses("--container both status", 1, &["\"both\" is not running: start it"]);
    machine.refuses("--container=-x status", 1, &["no running container is called \"-x\"", "docker: ", "podman: "]);
    machine.refuses("--container both\" status", 1, &["no running container"]);
    machine.refuses("--container ../both status", 1, &["no running container"]);

    // The same engine, asked from a machine on which the process of that number is another or none. What podman makes
    // of its own accord is for nobody to see.
    let script = "mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/lib; exec \"$0\" --container docker status";
    let output = Command::new("nsenter")
        .arg(format!("--net=/proc/{}/ns/net", machine.first()))
        .args(["unshare", "--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_playdead")])
        .env("DOCKER_HOST", "tcp://127.0.0.1:2375")
        .output()
        .unwrap();
    assert_refused("an engine elsewhere", &output, 1, &["DOCKER_HOST=tcp://127.0.0.1:2375", "where the engine runs"]);
    let output = machine
        .command("env")
        .args(["DOCKER_HOST=tcp://127.0.0.1:1", env!("CARGO_BIN_EXE_playdead"), "--container", "docker", "status"])
        .output()
        .unwrap();
    assert_refused("no engine there", &output, 1, &["Cannot connect", "tcp://127.0.0.1:1"]);
}

/// Its new network has none; the old one's is gone, and so is what held it once it is told to end.
fn a_restarted_container_has_no_fault(machine: &Machine, name: &str) {
    machine.playdead(&format!("--container {name} dead-host 192.0.2.1 --name leased --for 10m"));
    let held = machine
        .command(env!("CARGO_BIN_EXE_playdead"))
        .args(["--container", name, "dead-host", "192.0.2.2", "--name", "held", "--", "sleep", "4"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let status = || machine.playdead(&format!("--container {name} status"));
    let limit = Instant::now() + Duration::from_secs(60);
    while !status().contains("held") {
        assert!(Instant::now() < limit, "{}", status());
    }
    assert!(status().contains("leased"), "{}", status());
    machine.done(&format!("{name} restart -t 0 {name}"));
    assert_eq!(status(), "nothing is in force");
    machine.refuses(&format!("--container {name} renew leased --for 1m"), 1, &["leased"]);
    let healed = machine.playdead(&format!("--container {name} heal leased held"));
    assert_eq!(healed, "nothing to heal: no fault is called leased or held");
    let ended = held.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.contains("the fault ended with its former network"), "{ended:?}");
}

#[test]
fn a_rootless_container_is_its_users_and_what_is_missing_is_told() {
    let machine = Machine::with(&["user", "docker"]);
    let as_user = |line: &str| {
        let line = format!("cd; export XDG_RUNTIME_DIR=/run/user/$(id -u); {line}");
        let user = ["--reuid", "user", "--regid", "user", "--init-groups", "--reset-env", "bash", "-c", &line];
        machine.command("setpriv").args(user).output().unwrap()
    };
    let playdead = env!("CARGO_BIN_EXE_playdead");
    machine.start("docker", "roots", "", "sleep infinity");
    let run = "tar -C /run/image -c . | podman import - localhost/etcd && \
               podman run -d --name mine localhost/etcd sleep infinity";
    let started = as_user(run);
    assert!(started.status.success(), "{started:?}");

    let fault = |container: &str| format!("{playdead} --container {container} dead-host 192.0.2.1 --name x");
    assert_refused("rootless", &as_user(&fault("mine")), 4, &["CAP_SYS_ADMIN", "use sudo (or podman unshare"]);
    assert_refused("root's", &as_user(&fault("roots")), 4, &["\"roots\"", "use sudo", "permission denied"]);
    let done = as_user(&format!("podman unshare {}", fault("mine")));
    assert!(done.status.success(), "{done:?}");

    machine.refuses("--container mine status", 1, &["\"mine\"", "rootless"]);
    let uid = machine.done("id -u user");
    let by_sudo = |line: &str| {
        machine.done(&format!("env SUDO_USER=user SUDO_UID={uid} SUDO_GID={uid} {playdead} --container mine {line}"))
    };
    assert!(by_sudo("status").contains("dead-host"));
    by_sudo("heal x");
    assert_eq!(by_sudo("status"), "nothing is in force");
}
