//! A few packets in the time of the timeout.

use std::time::Instant;

use anyhow::Result;

use super::trace::Trace;
use super::{Options, Outcome};

/// How many are sent. ICMP errors are rate limited (a burst of six, then one a second and peer): several packets, spread
/// over the time, get one even when others ask too.
const PACKETS: u32 = 4;

/// Sends at even intervals until an outcome is known, or the time is over.
///
/// `send` gets the number of the packet, from 1 on, and gives the outcome if it fails; `answer` waits until the time.
pub(super) fn exchange(
    trace: &mut Trace,
    how: &Options,
    send: impl Fn(&mut Trace, u32) -> Result<Option<Outcome>>,
    answer: impl Fn(&mut Trace, Instant) -> Result<Option<Outcome>>,
) -> Result<Outcome> {
    let start = Instant::now();
    for turn in 1..=PACKETS {
        if let Some(failed) = send(trace, turn)? {
            return Ok(failed);
        }
        trace.sent();
        let until = start + how.timeout * turn / PACKETS;
        if let Some(outcome) = answer(trace, until)? {
            return Ok(outcome);
        }
    }
    Ok(Outcome::Silence)
}
