//! Sockets that never block, waiting on them, and the names of errors.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// The errno's name, `ECONNREFUSED`; of one that nix does not know its text.
pub(super) fn name_of(errno: Errno) -> String {
    match errno {
        Errno::UnknownErrno => "unknown errno".to_owned(),
        known => format!("{known:?}"),
    }
}

/// The errno behind an error of std or socket2.
pub(super) fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

/// A socket of the target's family that does not block.
pub(super) fn make(target: SocketAddr, kind: Type, protocol: Option<Protocol>) -> Result<Socket> {
    let socket = Socket::new(Domain::for_address(target), kind, protocol)
        .with_context(|| format!("cannot make a socket to probe {target}"))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A socket for the ICMP of the target's family that does not block.
pub(super) fn icmp(target: SocketAddr, kind: Type) -> Result<Socket, Errno> {
    let protocol = if target.is_ipv6() { Protocol::ICMPV6 } else { Protocol::ICMPV4 };
    let socket = Socket::new(Domain::for_address(target), kind, Some(protocol));
    let socket = socket.and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
    socket.map_err(|error| errno_of(&error))
}

/// A raw IPv6 socket takes the port for a protocol number and refuses any but its own.
pub(super) fn without_port(mut target: SocketAddr) -> SockAddr {
    target.set_port(0);
    target.into()
}

/// Waits until the socket can be read or has an error; false when `until` came first.
pub(super) fn readable(socket: &impl AsFd, until: Instant) -> Result<bool> {
    wait(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], Some(until))
}

/// Waits until a connection is made or has failed; false when `until` came first.
pub(super) fn writable(socket: &impl AsFd, until: Instant) -> Result<bool> {
    wait(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)], Some(until))
}

/// Waits for any of `fds`; without `until` for ever. `ppoll` because `poll` counts in whole milliseconds.
pub(super) fn wait(fds: &mut [PollFd<'_>], until: Option<Instant>) -> Result<bool> {
    loop {
        let left = until.map(|until| TimeSpec::from_duration(until.saturating_duration_since(Instant::now())));
        match ppoll(fds, left, None) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for a socket"),
        }
    }
}

/// What a receiving call that does not block gave.
pub(super) enum Received {
    Data(usize),
    EndOfFile,
    Nothing,
    Failed(Errno),
}

/// One receiving call; `EndOfFile` is a read of no bytes.
pub(super) fn receive(socket: &Socket, buffer: &mut [u8]) -> Received {
    match io::Read::read(&mut &*socket, buffer) {
        Ok(0) => Received::EndOfFile,
        Ok(bytes) => Received::Data(bytes),
        Err(error) => match errno_of(&error) {
            Errno::EAGAIN | Errno::EINTR => Received::Nothing,
            errno => Received::Failed(errno),
        },
    }
}

/// One sending call. `MSG_NOSIGNAL`: a connection that is gone is an observation, not the end of this process.
pub(super) fn send(socket: &Socket, data: &[u8]) -> Result<(), Errno> {
    socket.send_with_flags(data, libc::MSG_NOSIGNAL).map(drop).map_err(|error| errno_of(&error))
}
