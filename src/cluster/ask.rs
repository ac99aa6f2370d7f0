//! Questions over TCP and HTTP that end in time, whatever the other side does.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

use crate::kernel::reason;

/// Whether a member's process serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer", content = "why")]
pub enum Live {
    /// Its client port answers.
    Yes,
    /// Only the port for the other members answers, as etcd's does that is alone after a restart.
    PeerPort,
    /// It does not answer, and why not.
    No(String),
    /// It was not asked, and why not.
    Unknown(String),
}

/// Whether the cluster answers through a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer", content = "why")]
pub enum Quorum {
    /// It does, so there is a quorum.
    Yes,
    /// It does not, and why.
    No(String),
    /// This kind of check cannot tell, and why.
    Unknown(String),
}

/// What a member answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether its process serves.
    pub live: Live,
    /// Whether the cluster answers through it.
    pub quorum: Quorum,
    /// What the cluster calls it.
    pub id: Option<String>,
    /// Whom it takes for the leader, as the cluster calls that one.
    pub leader: Option<String>,
    /// The term or epoch that it knows.
    pub term: Option<u64>,
}

impl Answer {
    /// Of one that tells nothing more.
    pub(super) fn only(live: Live, quorum: Quorum) -> Self {
        Self { live, quorum, id: None, leader: None, term: None }
    }
}

/// A member as one place reaches it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) name: &'a str,
    pub(super) addresses: &'a [IpAddr],
    pub(super) client_port: Option<u16>,
    pub(super) peer_port: Option<u16>,
}

impl Target<'_> {
    /// Its addresses with a port; none without one.
    pub(super) fn at(&self, port: Option<u16>) -> Vec<SocketAddr> {
        port.map_or_else(Vec::new, |port| self.addresses.iter().map(|a| SocketAddr::new(*a, port)).collect())
    }
}

/// Tries to connect to all at the same time. Of each group the first address that takes the connection, or why the
/// last of them did not.
pub(super) fn reach(groups: &[Vec<SocketAddr>], until: Instant) -> Vec<Result<SocketAddr, String>> {
    let mut found: Vec<_> = groups.iter().map(|_| Err("no address".to_owned())).collect();
    let mut open = Vec::new();
    for (group, addresses) in groups.iter().enumerate() {
        for address in addresses {
            match start(*address) {
                Ok(socket) => open.push((group, *address, socket)),
                Err(error) => found[group] = Err(reason(&error)),
            }
        }
    }
    let started = Instant::now();
    loop {
        open.retain(|(group, address, socket)| match ready(socket) {
            None => found[*group].is_err(),
            Some(Ok(())) => {
                found[*group] = Ok(*address);
                false
            }
            Some(Err(error)) => {
                if found[*group].is_err() {
                    found[*group] = Err(reason(&error));
                }
                false
            }
        });
        if open.is_empty() {
            return found;
        }
        if Instant::now() >= until || !wait(&open, until) {
            // A refusal by one address says less than the silence of another.
            for (group, _, _) in open {
                if found[group].is_err() {
                    found[group] = Err(silence(started.elapsed()));
                }
            }
            return found;
        }
    }
}

fn start(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// `None` while it is still on its way.
fn ready(socket: &Socket) -> Option<io::Result<()>> {
    match socket.take_error() {
        Ok(Some(error)) | Err(error) => Some(Err(error)),
        Ok(None) => socket.peer_addr().is_ok().then_some(Ok(())),
    }
}

/// Until something happens; false when the time is over.
fn wait(open: &[(usize, SocketAddr, Socket)], until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    // Rounded up, or the last millisecond would be spun away.
    let left = PollTimeout::try_from(left.as_millis().saturating_add(1)).unwrap_or(PollTimeout::MAX);
    let mut fds: Vec<_> = open.iter().map(|(_, _, socket)| PollFd::new(socket.as_fd(), PollFlags::POLLOUT)).collect();
    !matches!(poll(&mut fds, left), Ok(0))
}

/// Asks by HTTP: POST with a body, else GET. Gives the status and the body.
pub(super) fn http(url: &str, body: Option<&str>, until: Instant) -> Result<(u16, String), String> {
    let patience = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    // A proxy of the host's is not to be reached from another namespace.
    let config = ureq::Agent::config_builder().timeout_global(Some(patience)).http_status_as_error(false).proxy(None);
    let agent = ureq::Agent::new_with_config(config.build());
    let asked = match body {
        Some(body) => agent.post(url).send(body),
        None => agent.get(url).call(),
    };
    let read = asked.and_then(|answer| {
        let status = answer.status().as_u16();
        answer.into_body().read_to_string().map(|text| (status, text))
    });
    read.map_err(|error| match error {
        // However ureq calls it, and in whatever it has wrapped it.
        _ if Instant::now() >= until => silence(patience),
        ureq::Error::Io(error) => reason(&error),
        other => other.to_string(),
    })
}

/// Sends a word and reads until the other side closes.
pub(super) fn word(address: SocketAddr, word: &str, until: Instant) -> Result<String, String> {
    let patience = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let exchange = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(word.as_bytes())?;
        let mut text = Vec::new();
        // More than any of them answers; and one that never closes shall not be listened to for ever.
        Read::by_ref(&mut stream).take(0x1_0000).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    };
    exchange().map_err(|error| if is_timeout(&error) { silence(patience) } else { reason(&error) })
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

pub(super) fn silence(patience: Duration) -> String {
    format!("no answer within {:.1} s", patience.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_answer_that_stops_in_the_middle_is_none_in_words_of_our_own() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", server.local_addr().unwrap());
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let (mut client, _) = server.accept().unwrap();
                client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab").unwrap();
                client
            });
            let answer = http(&url, None, Instant::now() + Duration::from_millis(300));
            drop(serving.join());
            assert_eq!(answer.unwrap_err(), "no answer within 0.3 s");
        });
    }
}
