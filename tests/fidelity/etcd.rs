//! etcd's own client: gRPC over HTTP/2, with its own timeouts and its own keepalive.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::net::At;
use crate::peer::{ETCD_LOCAL_PORT, wait_until};
use crate::places::Rig;
use crate::record::Seen;

/// gRPC asks no more often than every ten seconds, whatever it is told.
const KEEPALIVE: &[&str] = &["--keepalive-time=10s", "--keepalive-timeout=1s"];
const START: Duration = Duration::from_secs(20);

fn etcdctl(rig: &Rig, at: At, target: SocketAddr, words: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &rig.segment.name(at), "etcdctl", "--endpoints"]);
    command.arg(format!("http://{target}")).args(words).env("ETCDCTL_API", "3").stdin(Stdio::null());
    command
}

/// Changes what the watches look at, on the peer itself.
pub(crate) fn change(rig: &Rig) {
    let target = SocketAddr::from(([127, 0, 0, 1], ETCD_LOCAL_PORT));
    let output = etcdctl(rig, rig.peer_at(), target, &["put", "key", "changed"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Exit code and the client's last words, without the time of day in front of them and the addresses.
fn ending(code: Option<i32>, said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let last = said.lines().last().unwrap_or_default();
    let error = last.rsplit_once("error\":\"").map_or(last, |(_, error)| error);
    format!("exit code {code:?}: {}", error.trim_end_matches("\"}"))
}

/// A watch that is open before the event.
pub(crate) struct Watch {
    child: Child,
    events: Receiver<()>,
}

impl Watch {
    /// Open once an event has come through it.
    pub(crate) fn open(rig: &Rig, target: SocketAddr) -> Self {
        let words = [KEEPALIVE, &["watch", "key"]].concat();
        let mut child =
            etcdctl(rig, At::Client, target, &words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, events) = channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|_| sender.send(())));
        wait_until("etcd's watch tells of a change", START, || {
            let put = etcdctl(rig, At::Client, target, &["put", "key", "value"]).output().unwrap();
            put.status.success() && events.recv_timeout(Duration::from_millis(300)).is_ok()
        });
        while events.recv_timeout(Duration::from_millis(100)).is_ok() {}
        Self { child, events }
    }

    /// How it ended, or that it goes on. When it noticed the event shows in the packets: it connects anew.
    pub(crate) fn end(mut self, happened: Instant, until: Instant) -> Seen {
        let told = self.events.recv_timeout(until.saturating_duration_since(Instant::now()));
        let took_ms = Some(happened.elapsed().as_secs_f64() * 1e3);
        match told {
            Ok(()) => Seen { outcome: "told of a change".to_owned(), took_ms, ..Seen::default() },
            Err(RecvTimeoutError::Timeout) => Seen { outcome: "still watches".to_owned(), ..Seen::default() },
            Err(RecvTimeoutError::Disconnected) => {
                let mut said = Vec::new();
                self.child.stderr.take().unwrap().read_to_end(&mut said).unwrap();
                let code = self.child.wait().unwrap().code();
                Seen { outcome: ending(code, &said), took_ms, ..Seen::default() }
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
