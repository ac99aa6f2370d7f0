//! The error queue of a socket with `IP_RECVERR` or `IPV6_RECVERR`.

use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use socket2::Socket;

use super::QueuedError;
use super::socket::name_of;

/// Asks the kernel to keep errors, the soft ones too, with who sent them.
pub(super) fn enable(socket: &Socket, target: SocketAddr) -> Result<()> {
    match target {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4RecvErr, &true),
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvErr, &true),
    }
    .context("cannot ask for the error queue")
}

/// Takes everything out of the queue. `about` sees the packet that each error is about, from its transport
/// header on, and says whether it is the caller's.
pub(super) fn drain(socket: &Socket, mut about: impl FnMut(&[u8]) -> bool) -> Result<Vec<QueuedError>> {
    let mut found = Vec::new();
    loop {
        let mut packet = [0; 512];
        let mut control = cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
        let mut parts = [IoSliceMut::new(&mut packet)];
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        match recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags) {
            Ok(message) => {
                let errors: Vec<_> = message.cmsgs()?.filter_map(|c| queued(&c)).collect();
                let bytes = message.bytes;
                if about(&packet[..bytes]) {
                    found.extend(errors);
                }
            }
            Err(Errno::EAGAIN) => return Ok(found),
            Err(errno) => return Err(errno).context("cannot read the error queue"),
        }
    }
}

fn queued(message: &ControlMessageOwned) -> Option<QueuedError> {
    let (error, from) = match message {
        ControlMessageOwned::Ipv4RecvErr(error, from) => {
            (error, from.map(|from| IpAddr::V4(Ipv4Addr::from(u32::from_be(from.sin_addr.s_addr)))))
        }
        ControlMessageOwned::Ipv6RecvErr(error, from) => {
            (error, from.map(|from| IpAddr::V6(Ipv6Addr::from(from.sin6_addr.s6_addr))))
        }
        _ => return None,
    };
    Some(QueuedError {
        origin: origin_name(error.ee_origin),
        kind: error.ee_type,
        code: error.ee_code,
        errno: name_of(Errno::from_raw(error.ee_errno.cast_signed())),
        from,
    })
}

fn origin_name(origin: u8) -> String {
    match origin {
        libc::SO_EE_ORIGIN_LOCAL => "local".to_owned(),
        libc::SO_EE_ORIGIN_ICMP => "icmp".to_owned(),
        libc::SO_EE_ORIGIN_ICMP6 => "icmp6".to_owned(),
        other => other.to_string(),
    }
}
