//! What may be expected of a peer, and the ICMP codes by which a router refuses.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// What is expected of a peer: health, or one kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing is wrong.
    Alive,
    /// The machine lost its power.
    DeadHost,
    /// The process died, its machine lives.
    DeadProcess,
    /// The process is gone and its refusals are filtered.
    Hush,
    /// The process is stuck.
    HungProcess,
    /// A router refuses; with this code, or with any.
    Unreachable(Option<Code>),
    /// The machine came back without its connections.
    Rebooted,
}

/// The ICMP codes of `unreachable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Host unreachable; ICMPv6 address unreachable.
    Host,
    /// Network unreachable; ICMPv6 no route.
    Net,
    /// Port unreachable.
    Port,
    /// Protocol unreachable; ICMPv6 has a parameter problem instead, which nftables cannot send: port unreachable then.
    Protocol,
    /// Host prohibited; ICMPv6 administratively prohibited.
    HostProhibited,
    /// Network prohibited; ICMPv6 route rejected, or administratively prohibited.
    NetProhibited,
    /// Administratively prohibited.
    AdminProhibited,
}

pub(super) const CODES: [(Code, &str); 7] = [
    (Code::Host, "host"),
    (Code::Net, "net"),
    (Code::Port, "port"),
    (Code::Protocol, "protocol"),
    (Code::HostProhibited, "host-prohibited"),
    (Code::NetProhibited, "net-prohibited"),
    (Code::AdminProhibited, "admin-prohibited"),
];

pub(super) const KINDS: [(Expect, &str); 7] = [
    (Expect::Alive, "alive"),
    (Expect::DeadHost, "dead-host"),
    (Expect::DeadProcess, "dead-process"),
    (Expect::Hush, "hush"),
    (Expect::HungProcess, "hung-process"),
    (Expect::Unreachable(None), "unreachable"),
    (Expect::Rebooted, "rebooted"),
];

impl FromStr for Expect {
    type Err = String;

    /// A kind's name; `unreachable:CODE` for one code.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(code) = text.strip_prefix("unreachable:") {
            let found = CODES.iter().find(|(_, name)| *name == code);
            return found
                .map(|(code, _)| Self::Unreachable(Some(*code)))
                .ok_or_else(|| format!("no such code; there are {}", CODES.map(|(_, name)| name).join(", ")));
        }
        let found = KINDS.iter().find(|(_, name)| *name == text);
        found.map(|(kind, _)| *kind).ok_or_else(|| {
            format!(
                "one look cannot tell that; it can tell {}, unreachable:CODE",
                KINDS.map(|(_, name)| name).join(", ")
            )
        })
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Unreachable(Some(code)) = self {
            let name = CODES.iter().find(|(known, _)| known == code).map_or("", |(_, name)| name);
            return write!(f, "unreachable:{name}");
        }
        f.write_str(KINDS.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name))
    }
}

impl Serialize for Expect {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Code {
    /// The errnos that the kernel makes of what this code is sent as (`icmp_err_convert`, `icmpv6_err_convert`).
    pub fn errnos(self, v6: bool) -> &'static [&'static str] {
        match (self, v6) {
            (Self::Host, _) | (Self::HostProhibited | Self::AdminProhibited, false) => &["EHOSTUNREACH"],
            (Self::Net, _) | (Self::NetProhibited, false) => &["ENETUNREACH"],
            (Self::Port, _) => &["ECONNREFUSED"],
            (Self::Protocol, false) => &["ENOPROTOOPT"],
            (Self::Protocol, true) => &["EPROTO", "ECONNREFUSED"],
            (Self::HostProhibited | Self::NetProhibited | Self::AdminProhibited, true) => &["EACCES"],
        }
    }

    /// ICMP or ICMPv6 type and code, as hosts and routers send it, and as a firewall does that knows only type 1.
    pub fn icmp(self, v6: bool) -> &'static [(u8, u8)] {
        match (self, v6) {
            (Self::Net, false) => &[(3, 0)],
            (Self::Host, false) => &[(3, 1)],
            (Self::Protocol, false) => &[(3, 2)],
            (Self::Port, false) => &[(3, 3)],
            (Self::NetProhibited, false) => &[(3, 9)],
            (Self::HostProhibited, false) => &[(3, 10)],
            (Self::AdminProhibited, false) => &[(3, 13)],
            (Self::Net, true) => &[(1, 0)],
            (Self::HostProhibited | Self::AdminProhibited, true) => &[(1, 1)],
            (Self::NetProhibited, true) => &[(1, 6), (1, 1)],
            (Self::Host, true) => &[(1, 3)],
            (Self::Port, true) => &[(1, 4)],
            (Self::Protocol, true) => &[(4, 1), (1, 4)],
        }
    }

    /// Whether the kernel takes the error for a lasting one: a UDP socket hears of others only with `IP_RECVERR`.
    pub fn is_hard(self) -> bool {
        !matches!(self, Self::Host | Self::Net)
    }
}
