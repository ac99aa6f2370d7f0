//! A real ZooKeeper ensemble (Debian's package) in the namespaces of a lab.

use std::fs;
use std::process::{Child, Command, Stdio};

use super::Lab;

const SERVER: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// One server on each of etcd1, etcd2, etcd3. Killed when dropped.
pub(crate) struct Ensemble {
    pub(crate) servers: Vec<Child>,
}

impl Ensemble {
    pub(crate) fn start(lab: &Lab) -> Self {
        Self { servers: (1..=3).map(|number| start(lab, number)).collect() }
    }

    /// Kills the server on etcd1, etcd2 or etcd3.
    pub(crate) fn kill(&mut self, number: usize) {
        self.servers[number - 1].kill().unwrap();
        self.servers[number - 1].wait().unwrap();
    }
}

impl Drop for Ensemble {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn start(lab: &Lab, number: usize) -> Child {
    let data = lab.file(&format!("zk{number}/myid"), &number.to_string()).trim_end_matches("/myid").to_owned();
    let servers: String =
        (1..=3).map(|n| ["server.", &n.to_string(), "=10.77.0.1", &n.to_string(), ":2888:3888\n"].concat()).collect();
    let config = "tickTime=200\ninitLimit=50\nsyncLimit=5\nclientPort=2181\nadmin.enableServer=false\ndataDir=";
    let config = lab.file(&format!("zk{number}/zoo.cfg"), &format!("{config}{data}\n{servers}"));
    let log = fs::File::create(format!("{data}/log")).unwrap();
    let namespace = format!("{}-etcd{number}", lab.name);
    // `ip netns exec` becomes the server.
    let java = ["netns", "exec", &namespace, "java", "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp"];
    let rest = ["/usr/share/java/zookeeper.jar", SERVER, &config];
    let mut command = Command::new("ip");
    command.args(java).args(rest).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap()
}
