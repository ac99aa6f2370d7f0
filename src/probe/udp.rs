//! Connected UDP: datagrams out, and whatever comes back.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::Result;
use socket2::{Protocol, Socket, Type};

use super::socket::{Received, errno_of, make, readable, receive, send};
use super::trace::{Ended, Trace};
use super::{Options, Outcome, Probe, error_queue};

/// Datagrams in the time of the timeout. ICMP errors are rate limited (a burst of six, then one a second and peer):
/// several, spread over the time, get one even when others ask too.
const DATAGRAMS: u32 = 4;

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
    let start = Instant::now();
    for turn in 1..=DATAGRAMS {
        if let Err(errno) = send(socket, b"playdead probe\n") {
            return Ok(trace.send_failed(errno));
        }
        trace.sent();
        let until = start + how.timeout * turn / DATAGRAMS;
        if let Some(outcome) = answer(trace, socket, until)? {
            return Ok(outcome);
        }
    }
    Ok(Outcome::Silence)
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
