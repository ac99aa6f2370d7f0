//! The ICMP codes by which a router refuses.

/// Why a router says no (RFC 792 and 1812 for IPv4, RFC 4443 for IPv6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Code {
    /// Host unreachable; IPv6: address unreachable.
    Host,
    /// Network unreachable; IPv6: no route.
    Net,
    /// Port unreachable.
    Port,
    /// Protocol unreachable; IPv6 knows it as a parameter problem only, so port unreachable is sent there.
    Protocol,
    /// Host prohibited; IPv6: administratively prohibited.
    HostProhibited,
    /// Network prohibited; IPv6: route rejected.
    NetProhibited,
    /// Administratively prohibited.
    AdminProhibited,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 7] = [
        Self::Host,
        Self::Net,
        Self::Port,
        Self::Protocol,
        Self::HostProhibited,
        Self::NetProhibited,
        Self::AdminProhibited,
    ];

    /// As typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Net => "net",
            Self::Port => "port",
            Self::Protocol => "protocol",
            Self::HostProhibited => "host-prohibited",
            Self::NetProhibited => "net-prohibited",
            Self::AdminProhibited => "admin-prohibited",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.name() == name)
    }

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
