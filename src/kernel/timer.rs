//! Waiting for moments of `CLOCK_MONOTONIC`.

use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId as Clock, clock_gettime};

/// What `CLOCK_MONOTONIC` shows.
///
/// # Errors
/// When the kernel has no such clock.
pub fn now() -> Result<Duration> {
    Ok(clock_gettime(Clock::CLOCK_MONOTONIC).context("cannot read the monotonic clock")?.into())
}

/// Waits for absolute moments, so that no lateness adds up; a timer of the kernel's has no slack as a sleep has.
#[derive(Debug)]
pub struct Timer {
    timer: TimerFd,
    stopped: PipeReader,
}

/// Ends the waiting of a [`Timer`] when dropped.
#[derive(Debug)]
pub struct Stop(#[expect(dead_code, reason = "the reader sees it closed")] PipeWriter);

impl Timer {
    /// A timer, and what stops it.
    ///
    /// # Errors
    /// When there is no room for more open files.
    pub fn new() -> Result<(Self, Stop)> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC).context("cannot make a timer")?;
        let (stopped, stop) = pipe().context("cannot make a pipe")?;
        Ok((Self { timer, stopped }, Stop(stop)))
    }

    /// Waits until the clock shows `at`; at once if that has passed. False: it was stopped.
    ///
    /// # Errors
    /// When the kernel refuses the timer.
    pub fn wait_until(&self, at: Duration) -> Result<bool> {
        // Zero would disarm it.
        let at = Expiration::OneShot(TimeSpec::from_duration(at.max(Duration::from_nanos(1))));
        self.timer.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME).context("cannot set a timer")?;
        let wants = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = [wants(self.stopped.as_fd()), wants(self.timer.as_fd())];
        loop {
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                polled => {
                    polled.context("cannot wait for a timer")?;
                    return Ok(fds[0].any() != Some(true));
                }
            }
        }
    }
}
