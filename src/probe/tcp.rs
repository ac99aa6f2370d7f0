//! A new TCP connection, and whether a process answers on it.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use socket2::{Protocol, Socket, Type};

use super::socket::{Received, errno_of, make, readable, receive, send, wait, writable};
use super::tcp_info::tcp_info;
use super::trace::{Ended, Trace};
use super::{Options, Outcome, Probe, Tcp, What};

/// What became of a connect.
pub(super) enum Dial {
    Connected(Socket),
    Failed(Errno),
    Silent(Tcp),
}

/// Connects; waits for the outcome no longer than `timeout`.
pub(super) fn dial(target: SocketAddr, timeout: Duration) -> Result<Dial> {
    let until = Instant::now() + timeout;
    let socket = make(target, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&target.into()).map_err(|error| errno_of(&error)) {
        Ok(()) => return Ok(Dial::Connected(socket)),
        Err(Errno::EINPROGRESS) => {}
        Err(errno) => return Ok(Dial::Failed(errno)),
    }
    if !writable(&socket, until)? {
        return Ok(Dial::Silent(tcp_info(&socket)?));
    }
    Ok(match socket.take_error()? {
        Some(error) => Dial::Failed(errno_of(&error)),
        None => Dial::Connected(socket),
    })
}

/// Connects and asks.
pub(super) fn probe(target: SocketAddr, how: &Options) -> Result<Ended> {
    let mut trace = Trace::begin(target, Probe::Connect);
    match dial(target, how.timeout)? {
        Dial::Connected(socket) => {
            trace.note(What::Connected);
            ask(trace, &socket, how)
        }
        Dial::Failed(errno) => {
            let outcome = trace.receive_failed(errno);
            Ok(trace.end(outcome))
        }
        Dial::Silent(tcp) => {
            trace.tcp = Some(tcp);
            Ok(trace.end(Outcome::Silence))
        }
    }
}

/// Connects and lets `poll` tell what comes of it, as an event loop does.
pub(super) fn poll_probe(target: SocketAddr, how: &Options) -> Result<Ended> {
    let mut trace = Trace::begin(target, Probe::PollConnect);
    let socket = make(target, Type::STREAM, Some(Protocol::TCP))?;
    let outcome = match socket.connect(&target.into()).map_err(|error| errno_of(&error)) {
        Ok(()) => connected(&mut trace),
        Err(Errno::EINPROGRESS) => polled(&mut trace, &socket, Instant::now() + how.timeout)?,
        Err(errno) => trace.receive_failed(errno),
    };
    trace.tcp = Some(tcp_info(&socket)?);
    Ok(trace.end(outcome))
}

fn polled(trace: &mut Trace, socket: &Socket, until: Instant) -> Result<Outcome> {
    let interest = PollFlags::POLLIN | PollFlags::POLLOUT | PollFlags::POLLPRI;
    let mut fds = [PollFd::new(socket.as_fd(), interest)];
    if !wait(&mut fds, Some(until))? {
        return Ok(Outcome::Silence);
    }
    let raised = fds[0].revents().unwrap_or(PollFlags::empty());
    let names: Vec<_> = raised.iter_names().map(|(name, _)| name).collect();
    trace.note(What::Polled { events: names.join("|") });
    Ok(match socket.take_error()? {
        Some(error) => trace.receive_failed(errno_of(&error)),
        None => connected(trace),
    })
}

fn connected(trace: &mut Trace) -> Outcome {
    trace.note(What::Connected);
    Outcome::Connected
}

/// Sends the request and waits for the first byte of an answer. A stopped process is told from a healthy one only
/// here: its kernel goes on to accept and to acknowledge.
fn ask(mut trace: Trace, socket: &Socket, how: &Options) -> Result<Ended> {
    let request = how.request.once();
    let outcome = if request.is_empty() {
        Outcome::Connected
    } else if let Err(errno) = send(socket, request) {
        trace.send_failed(errno)
    } else {
        trace.sent();
        answer(&mut trace, socket, Instant::now() + how.timeout)?
    };
    trace.tcp = Some(tcp_info(socket)?);
    leave_quietly(socket, &outcome);
    Ok(trace.end(outcome))
}

fn answer(trace: &mut Trace, socket: &Socket, until: Instant) -> Result<Outcome> {
    let mut buffer = [0; 4096];
    while readable(socket, until)? {
        match receive(socket, &mut buffer) {
            Received::Data(bytes) => {
                trace.received(&buffer[..bytes]);
                return Ok(Outcome::Answered);
            }
            Received::EndOfFile => {
                trace.note(What::EndOfFile);
                return Ok(Outcome::EndOfFile);
            }
            Received::Failed(errno) => return Ok(trace.receive_failed(errno)),
            Received::Nothing => {}
        }
    }
    unanswered(socket)
}

/// No answer: did at least the peer's kernel take the data?
pub(super) fn unanswered(socket: &Socket) -> Result<Outcome> {
    let tcp = tcp_info(socket)?;
    let taken = tcp.unacked == 0 && tcp.not_sent == 0;
    Ok(if taken { Outcome::Acknowledged } else { Outcome::Unacknowledged })
}

/// A connection without an answer is reset, not closed: its kernel would else go on to send data and FIN again
/// long after the probe, and a process that is continued would find the requests of the dead.
pub(super) fn leave_quietly(socket: &Socket, outcome: &Outcome) {
    if matches!(outcome, Outcome::Acknowledged | Outcome::Unacknowledged) {
        let _ = socket.set_linger(Some(Duration::ZERO));
    }
}
