//! The kinds of failure, one variant each, named for what happened in the world.
//! What each promises to the other side stands in `docs/fidelity.md`.

use std::fmt;
use std::str::FromStr;

use super::code::Code;
use super::verb;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The machine lost its power: nothing at all is seen of it any more.
    DeadHost,
    /// The process died and its machine lives: refused, and its open connections closed.
    DeadProcess(OpenConnections),
    /// The process is stopped for real and its refusals are filtered.
    Hush,
    /// The process is stuck: its kernel acknowledges, nothing answers, and connections are taken until the accept queue
    /// has one more than this backlog; `None`: than that of the process, or as the place says.
    HungProcess(Option<u32>),
    /// A router says no.
    Unreachable(Code),
    /// A bad link.
    Lossy(Loss),
    /// The machine came back without its connections.
    Rebooted,
}

impl Kind {
    /// The verb of the command line.
    pub fn verb(self) -> &'static str {
        match self {
            Self::DeadHost => verb::DEAD_HOST,
            Self::DeadProcess(_) => verb::DEAD_PROCESS,
            Self::Hush => verb::HUSH,
            Self::HungProcess(_) => verb::HUNG_PROCESS,
            Self::Unreachable(_) => verb::UNREACHABLE,
            Self::Lossy(_) => verb::LOSSY,
            Self::Rebooted => verb::REBOOTED,
        }
    }

    /// Whether it happens to a process, so that its peers need a port.
    pub fn needs_port(self) -> bool {
        matches!(self, Self::DeadProcess(_) | Self::Hush | Self::HungProcess(_))
    }

    /// Whether packets to the peer are answered by a refusal in its stead.
    pub fn refuses(self) -> bool {
        matches!(self, Self::DeadProcess(_) | Self::Unreachable(_) | Self::Rebooted)
    }

    /// Whether ARP and neighbour discovery for the peer fail too.
    pub fn affects_neighbours(self) -> bool {
        matches!(self, Self::DeadHost | Self::Lossy(_))
    }
}

/// As it stands in a table's comment: the verb, and after a colon what it was told besides.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verb())?;
        match self {
            Self::DeadProcess(open) => write!(f, ":{}", open.name()),
            Self::Unreachable(code) => write!(f, ":{}", code.name()),
            Self::HungProcess(Some(backlog)) => write!(f, ":{backlog}"),
            Self::Lossy(loss) => write!(f, ":{loss}"),
            _ => Ok(()),
        }
    }
}

impl FromStr for Kind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (verb, detail) = text.split_once(':').unwrap_or((text, ""));
        Ok(match verb {
            verb::DEAD_HOST => Self::DeadHost,
            verb::DEAD_PROCESS => Self::DeadProcess(OpenConnections::from_name(detail).ok_or(())?),
            verb::HUSH => Self::Hush,
            verb::HUNG_PROCESS if detail.is_empty() => Self::HungProcess(None),
            verb::HUNG_PROCESS => Self::HungProcess(Some(detail.parse().map_err(drop)?)),
            verb::UNREACHABLE => Self::Unreachable(Code::from_name(detail).ok_or(())?),
            verb::LOSSY => Self::Lossy(detail.parse()?),
            verb::REBOOTED => Self::Rebooted,
            _ => return Err(()),
        })
    }
}

/// How the connections that are open when a process dies are ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OpenConnections {
    /// As `kill -9` ends them: FIN, or RST where the process had not read all it was sent.
    Fin,
    /// By RST.
    Reset,
    /// Not at all: each gets its RST with the next packet it sends.
    Keep,
}

impl OpenConnections {
    /// As typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fin => "fin",
            Self::Reset => "reset",
            Self::Keep => "keep",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Fin, Self::Reset, Self::Keep].into_iter().find(|open| open.name() == name)
    }
}

/// A share of packets or connections that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Hundredths of a percent, 1 to 10,000.
    pub per_myriad: u32,
    /// What the dice are rolled for.
    pub scope: LossScope,
}

/// What the dice are rolled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossScope {
    /// Each packet for itself.
    Packet,
    /// Each connection once: all of its packets are lost, or none. The seed decides which.
    Connection {
        /// The same seed loses the same connections.
        seed: u32,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}%", self.per_myriad / 100, self.per_myriad % 100)?;
        match self.scope {
            LossScope::Packet => Ok(()),
            LossScope::Connection { seed } => write!(f, ":seed={seed}"),
        }
    }
}

impl FromStr for Loss {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (share, scope) = text.split_once(":seed=").map_or((text, None), |(share, seed)| (share, Some(seed)));
        let (whole, part) = share.strip_suffix('%').and_then(|share| share.split_once('.')).ok_or(())?;
        let number = |text: &str| text.parse::<u32>().map_err(drop);
        let scope = match scope {
            Some(seed) => LossScope::Connection { seed: number(seed)? },
            None => LossScope::Packet,
        };
        let per_myriad = number(whole)?.checked_mul(100).and_then(|whole| whole.checked_add(number(part).ok()?));
        let per_myriad = per_myriad.filter(|share| (1..=10_000).contains(share)).ok_or(())?;
        Ok(Self { per_myriad, scope })
    }
}

/// Which way packets are affected, seen from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// To the peer and from it.
    Both,
    /// Only packets on their way to the peer.
    To,
    /// Only packets that come from the peer.
    From,
}

impl Direction {
    /// As typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::To => "to",
            Self::From => "from",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::Both, Self::To, Self::From].into_iter().find(|direction| direction.name() == name)
    }

    /// Whether packets to the peer are affected.
    pub fn to(self) -> bool {
        self != Self::From
    }

    /// Whether packets from the peer are affected.
    pub fn from(self) -> bool {
        self != Self::To
    }
}

/// Which protocols are affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Proto {
    /// Every one; for peers with ports: TCP and UDP.
    All,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Proto {
    /// As typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::All, Self::Tcp, Self::Udp].into_iter().find(|proto| proto.name() == name)
    }

    /// Whether one is in both.
    pub fn meets(self, other: Self) -> bool {
        self == Self::All || other == Self::All || self == other
    }

    /// The IP protocol numbers of peers with ports.
    pub fn numbers(self) -> &'static [u8] {
        match self {
            Self::All => &[6, 17],
            Self::Tcp => &[6],
            Self::Udp => &[17],
        }
    }
}
