//! Connected UDP: datagrams out, and whatever comes back.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::Result;
use socket2::{Protocol, Socket, Type};

use super::socket::{Received, errno_of, make, readable, receive, send};
use super::trace::{Ended, Trace};
use super::{Options, Outcome, Probe, error_queue, pace};

/// Sends datagrams until one draws an outcome or the time is over. With [`Probe::UdpRecverr`] the socket hears soft
/// errors as well and the error queue is read.
pub(super) fn probe(target: SocketAddr, probe: Probe, how: &Options) -> Result<Ended> {
    let mut trace = Trace::begin(target, probe);
    let socket = make(target, Type::DGRAM, Some(Protocol::UDP))?;
    if probe == Probe::UdpRecverr {
        error_queue::enable(&socket, target)?;
    }
    let outcome = match socket.connect(&target.into()) {
        Ok(()) => exchange(&mut trace, &socket, how)?,
        Err(error) => trace.send_failed(errno_of(&error)),
    };
    trace.errors = error_queue::drain(&socket, |_| true)?;
    Ok(trace.end(outcome))
}

fn exchange(trace: &mut Trace, socket: &Socket, how: &Options) -> Result<Outcome> {
    let send = |trace: &mut Trace, _| Ok(send(socket, b"playdead probe\n").err().map(|errno| trace.send_failed(errno)));
    pace::exchange(trace, how, send, |trace, until| answer(trace, socket, until))
}

fn answer(trace: &mut Trace, socket: &Socket, until: Instant) -> Result<Option<Outcome>> {
    let mut buffer = [0; 2048];
    while readable(socket, until)? {
        match receive(socket, &mut buffer) {
            Received::Data(bytes) => {
                trace.received(&buffer[..bytes]);
                return Ok(Some(Outcome::Answered));
            }
            // A datagram without data.
            Received::EndOfFile => return Ok(Some(Outcome::Answered)),
            Received::Failed(errno) => return Ok(Some(trace.receive_failed(errno))),
            Received::Nothing => {}
        }
    }
    Ok(None)
}
