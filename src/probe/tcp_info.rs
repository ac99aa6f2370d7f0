//! The kernel's view of a TCP connection.

use std::os::fd::AsFd;

use anyhow::{Context, Result};
use nix::sys::socket::getsockopt;

use super::Tcp;

/// The beginning of the kernel's `struct tcp_info`, as far as Linux 4.6 has it. The kernel fills as much as is
/// asked for; libc's longer struct would be filled only in part by older kernels, which nix takes for a mistake.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct RawTcpInfo {
    state: u8,
    ca_state: u8,
    retransmits: u8,
    probes: u8,
    backoff: u8,
    options: u8,
    scales: [u8; 2],
    rto_to_rcv_mss: [u32; 4],
    unacked: u32,
    sacked_to_total: [u32; 18],
    total_retrans: u32,
    pacing: [u64; 2],
    bytes_acked: u64,
    bytes_received: u64,
    segs: [u32; 2],
    notsent_bytes: u32,
    min_rtt: u32,
}

#[derive(Debug, Clone, Copy)]
struct TcpInfo;

nix::getsockopt_impl!(
    TcpInfo,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    RawTcpInfo,
    nix::sys::socket::sockopt::GetStruct<RawTcpInfo>
);

/// Reads `TCP_INFO`; it works in every state, also after the connection has ended.
pub(super) fn tcp_info(socket: &impl AsFd) -> Result<Tcp> {
    let raw = getsockopt(socket, TcpInfo).context("cannot read TCP_INFO")?;
    Ok(Tcp {
        state: state_name(raw.state),
        unacked: raw.unacked,
        not_sent: raw.notsent_bytes,
        retransmits: raw.total_retrans,
        bytes_acked: raw.bytes_acked,
        bytes_received: raw.bytes_received,
    })
}

/// The names of `include/net/tcp_states.h`.
fn state_name(state: u8) -> &'static str {
    const NAMES: [&str; 13] = [
        "unknown",
        "ESTABLISHED",
        "SYN_SENT",
        "SYN_RECV",
        "FIN_WAIT1",
        "FIN_WAIT2",
        "TIME_WAIT",
        "CLOSE",
        "CLOSE_WAIT",
        "LAST_ACK",
        "LISTEN",
        "CLOSING",
        "NEW_SYN_RECV",
    ];
    NAMES.get(usize::from(state)).copied().unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn the_beginning_of_tcp_info_is_laid_out_as_the_kernel_does() {
        assert_eq!(offset_of!(RawTcpInfo, unacked), offset_of!(libc::tcp_info, tcpi_unacked));
        assert_eq!(offset_of!(RawTcpInfo, total_retrans), offset_of!(libc::tcp_info, tcpi_total_retrans));
        assert_eq!(offset_of!(RawTcpInfo, bytes_acked), offset_of!(libc::tcp_info, tcpi_bytes_acked));
        assert_eq!(offset_of!(RawTcpInfo, notsent_bytes), offset_of!(libc::tcp_info, tcpi_notsent_bytes));
        assert_eq!(size_of::<RawTcpInfo>(), 152);
    }
}
