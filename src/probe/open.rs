//! Connections that were open before the event: one that stays idle, one that sends after it.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags};
use socket2::{Socket, TcpKeepalive};

use super::socket::{Received, readable, receive, send, wait};
use super::tcp::{Dial, dial, leave_quietly, unanswered};
use super::tcp_info::tcp_info;
use super::trace::{Ended, Trace};
use super::watch::Gate;
use super::{Keepalive, Options, Outcome, Probe, What};

/// From one request to the next of the connection that sends: several fit into any timeout.
fn pace(watched: Duration) -> Duration {
    Duration::from_millis(100).min(watched / 4)
}

/// A connection, or why there is none, with the trace of it.
pub(super) struct Opened {
    trace: Trace,
    socket: Result<Socket, String>,
}

/// Opens the connection of one probe.
pub(super) fn open(target: SocketAddr, probe: Probe, how: &Options) -> Result<Opened> {
    let mut trace = Trace::begin(target, probe);
    let socket = match dial(target, how.timeout)? {
        Dial::Connected(socket) => {
            trace.note(What::Connected);
            set_timers(&socket, probe, how).context("cannot set the timers of an open connection")?;
            Ok(socket)
        }
        Dial::Failed(errno) => Err(format!("no connection before the event ({errno:?})")),
        Dial::Silent(_) => Err("no connection before the event (silence)".to_owned()),
    };
    Ok(Opened { trace, socket })
}

fn set_timers(socket: &Socket, probe: Probe, how: &Options) -> std::io::Result<()> {
    let seconds = |number: u16| Duration::from_secs(number.into());
    match probe {
        Probe::UserTimeout => socket.set_tcp_user_timeout(Some(how.user_timeout)),
        Probe::Keepalive => {
            let Keepalive { idle, interval, count } = how.keepalive;
            let timers = TcpKeepalive::new().with_time(seconds(idle)).with_interval(seconds(interval));
            socket.set_tcp_keepalive(&timers.with_retries(count.into()))
        }
        _ => Ok(()),
    }
}

impl Opened {
    /// Watches the connection until the gate opens, and from then on for the timeout.
    pub(super) fn watch(self, gate: &Arc<Gate>, how: &Options) -> Result<Ended> {
        let socket = match self.socket {
            Ok(socket) => socket,
            Err(why) => return Ok(self.trace.end(Outcome::Untried { why })),
        };
        let mut connection = Connection { trace: self.trace, socket, read: None, write: None, answered: false };
        if connection.read_until_gate(gate)? {
            let watched = how.watched(connection.trace.probe);
            let until = Instant::now() + watched;
            match connection.trace.probe {
                Probe::Writing => connection.write_until(how.request.repeated(), pace(watched), until)?,
                Probe::UserTimeout => {
                    connection.write_once(how.request.repeated());
                    connection.wait_for_reset(until)?;
                }
                _ => {}
            }
            connection.read_until(until)?;
        }
        connection.end()
    }
}

struct Connection {
    trace: Trace,
    socket: Socket,
    /// How reading ended, if it did.
    read: Option<Outcome>,
    /// How writing ended, if it did.
    write: Option<Outcome>,
    /// Something was received after the first write.
    answered: bool,
}

impl Connection {
    /// False when the watch was given up.
    fn read_until_gate(&mut self, gate: &Gate) -> Result<bool> {
        while self.read.is_none() && !gate.is_open()? {
            let both = [self.socket.as_fd(), gate.as_fd()];
            wait(&mut both.map(|fd| PollFd::new(fd, PollFlags::POLLIN)), None)?;
            self.read_once();
        }
        gate.wait()
    }

    fn read_until(&mut self, until: Instant) -> Result<()> {
        while self.read.is_none() && readable(&self.socket, until)? {
            self.read_once();
        }
        Ok(())
    }

    fn read_once(&mut self) {
        let mut buffer = [0; 4096];
        match receive(&self.socket, &mut buffer) {
            Received::Data(bytes) => {
                self.answered |= self.trace.sent > 0;
                self.trace.received(&buffer[..bytes]);
            }
            Received::EndOfFile => {
                self.trace.note(What::EndOfFile);
                self.read = Some(Outcome::EndOfFile);
            }
            Received::Failed(errno) => self.read = Some(self.trace.receive_failed(errno)),
            Received::Nothing => {}
        }
    }

    /// Sends at this pace. After the peer's FIN it goes on: only the write after the next one fails, for the first
    /// draws the RST.
    fn write_until(&mut self, request: &[u8], pace: Duration, until: Instant) -> Result<()> {
        let mut next = Instant::now();
        // The last request has a whole pace to be acknowledged in.
        while next + pace <= until && !self.is_over() {
            self.write_once(request);
            next += pace;
            self.read_until(next)?;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// What is sent behind the peer's FIN draws the RST. It has no part in the outcome, but in what the kernel says.
    fn wait_for_reset(&self, until: Instant) -> Result<()> {
        if self.read == Some(Outcome::EndOfFile) {
            // The end of the file is always readable: only an error or a hang-up ends the wait.
            wait(&mut [PollFd::new(self.socket.as_fd(), PollFlags::empty())], Some(until))?;
        }
        Ok(())
    }

    fn write_once(&mut self, request: &[u8]) {
        match send(&self.socket, request) {
            Ok(()) => self.trace.sent(),
            // The buffer is full of what nobody took: no end of the connection.
            Err(nix::errno::Errno::EAGAIN) => {}
            Err(errno) => self.write = Some(self.trace.send_failed(errno)),
        }
    }

    /// An HTTP server may well close after it answered; that is the end of it.
    fn is_over(&self) -> bool {
        match &self.read {
            Some(Outcome::EndOfFile) => self.answered || self.write.is_some(),
            Some(_) => true,
            None => self.write.is_some(),
        }
    }

    fn end(mut self) -> Result<Ended> {
        self.trace.tcp = Some(tcp_info(&self.socket)?);
        if let Some(outcome) = self.ended_by() {
            return Ok(self.trace.end_at_last_step(outcome));
        }
        let outcome = if self.trace.sent > 0 { unanswered(&self.socket)? } else { Outcome::Silence };
        leave_quietly(&self.socket, &outcome);
        Ok(self.trace.end(outcome))
    }

    /// An error tells more than an answer before it, an answer more than the FIN behind it.
    fn ended_by(&mut self) -> Option<Outcome> {
        match self.read.take() {
            Some(error @ Outcome::Errno { .. }) => Some(error),
            _ if self.answered => Some(Outcome::Answered),
            Some(end) => Some(end),
            None => self.write.take(),
        }
    }
}
