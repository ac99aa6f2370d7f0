//! The socket to `nf_tables` of one namespace: sends transactions, reads dumps.

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname, recv, send, setsockopt,
    socket, sockopt,
};

use super::Missing;
use super::netns::NetNs;
use crate::encode::netlink::{HEADER, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, u16_at, u32_at};
use crate::encode::{Finalized, Sent, parse_generation, request_generation, split};

/// A dump that the kernel says was disturbed is read again, but not for ever.
const TRIES: usize = 50;
/// Room for one datagram of answers; the kernel sends at most 32 KiB at once.
const ANSWER_ROOM: usize = 0x1_0000;

/// An open connection to `nf_tables`. Tables made with the owner flag are the kernel's to delete when it is closed.
#[derive(Debug)]
pub struct Nft {
    socket: OwnedFd,
}

/// The kernel's no to a transaction: nothing of it was done.
#[derive(Debug)]
pub struct Refused {
    /// Its reason.
    pub errno: Errno,
    /// What it refused, as nft text.
    pub what: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel refused `{}`: {} ({:?}){}", self.what, self.errno.desc(), self.errno, self.hint())
    }
}

impl std::error::Error for Refused {}

impl Refused {
    /// What the kernel would say of a table that is no longer there.
    pub fn gone(table: &str) -> Self {
        Self { errno: Errno::ENOENT, what: format!("table {table}") }
    }

    /// Whether somebody else was faster: what was to be made is there, what was to be deleted or filled is gone, or
    /// it belongs to another process by now (EPERM for a table; who has no rights at all cannot begin a batch).
    pub fn is_race(&self) -> bool {
        let about = |kinds: &[&str]| kinds.iter().any(|kind| self.what.starts_with(kind));
        match self.errno {
            Errno::EEXIST | Errno::EPERM => about(&["table ", "delete table ", "flush table "]),
            Errno::ENOENT => about(&["table ", "delete table ", "flush table ", "flush set ", "elements of set "]),
            // Something has changed since what the transaction builds on was read.
            Errno::ERESTART => true,
            _ => false,
        }
    }

    /// Whether rights or a part of the kernel are missing.
    fn is_missing(&self) -> bool {
        matches!(
            self.errno,
            Errno::EPERM | Errno::EACCES | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT | Errno::EPROTONOSUPPORT
        ) || (self.errno == Errno::ENOENT && !self.what.starts_with("delete"))
    }

    /// As an error: [`Missing`] where rights or a part of the kernel are, itself otherwise.
    pub fn into_error(self) -> anyhow::Error {
        if self.is_missing() && !self.is_race() { Missing(self.to_string()).into() } else { self.into() }
    }

    fn hint(&self) -> String {
        let wants = |part: &str| self.what.contains(part);
        let module = match self.errno {
            Errno::EPERM => {
                return ": changing rules needs CAP_NET_ADMIN in the user namespace that owns the network namespace; \
                        use sudo, or a user namespace of your own (unshare -rn)"
                    .into();
            }
            Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT => match () {
                () if wants("reject") => "the module nft_reject of this table's family",
                () if wants("hook egress") => "egress hooks (Linux 5.16, CONFIG_NETFILTER_EGRESS)",
                () if wants("@ih,") => "matches behind the transport header (Linux 5.16)",
                () if wants("fwd to") => "the module nft_fwd_netdev (CONFIG_NFT_FWD_NETDEV)",
                () if wants("fib ") => "the module nft_fib_inet (CONFIG_NFT_FIB_INET)",
                () if wants("numgen") => "the module nft_numgen (CONFIG_NFT_NUMGEN)",
                () if wants("jhash") => "the module nft_hash (CONFIG_NFT_HASH)",
                () if wants("counter") => "named counters (CONFIG_NFT_OBJREF, built in from Linux 5.0 on)",
                () => "a part of nf_tables (CONFIG_NF_TABLES and its families)",
            },
            Errno::EINVAL if wants("flags owner") => "tables with an owner need Linux 5.12",
            _ => return String::new(),
        };
        format!(": this kernel seems to lack {module}")
    }
}

/// Whether an error comes of it that somebody else was faster: [`Refused::is_race`].
pub fn is_race(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<Refused>().is_some_and(Refused::is_race))
}

impl Nft {
    /// Opens it in that namespace, where it stays.
    pub fn open(ns: &NetNs) -> Result<Self> {
        let socket = ns.run(|| -> nix::Result<OwnedFd> {
            let socket = socket(
                AddressFamily::Netlink,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                Some(SockProtocol::NetlinkNetFilter),
            )?;
            bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
            Ok(socket)
        })?;
        let socket = socket.context("cannot open a netlink socket to nf_tables (CONFIG_NETFILTER_NETLINK)")?;
        Ok(Self { socket })
    }

    /// Its netlink port: the owner of the tables that it makes with the owner flag.
    pub fn port(&self) -> Result<u32> {
        let name: NetlinkAddr = getsockname(self.socket.as_raw_fd()).context("cannot ask for a socket's own name")?;
        Ok(name.pid())
    }

    /// Sends a transaction: all of it is done, or nothing.
    pub fn commit(&self, batch: &Finalized) -> Result<()> {
        match self.transact(batch)? {
            None => Ok(()),
            Some(refused) => Err(refused.into_error()),
        }
    }

    /// Sends a transaction made by [`finalize_dry`](crate::encode::Builder::finalize_dry): the kernel checks all
    /// of it and changes nothing. Gives the first real refusal.
    pub fn check(&self, batch: &Finalized) -> Result<Option<Refused>> {
        Ok(self.transact(batch)?.filter(|refused| refused.what != batch.sent.meaning(batch.sent.last)))
    }

    fn transact(&self, batch: &Finalized) -> Result<Option<Refused>> {
        self.make_room(batch.bytes.len());
        send(self.socket.as_raw_fd(), &batch.bytes, MsgFlags::empty()).map_err(|errno| match errno {
            Errno::EMSGSIZE => anyhow::anyhow!(
                "one transaction of {} KiB is more than net.core.wmem_max allows here: raise it, or name fewer peers",
                batch.bytes.len() / 1024
            ),
            errno => anyhow::Error::new(errno).context("cannot send to nf_tables"),
        })?;
        self.read_verdict(&batch.sent)
    }

    /// The kernel takes a batch in one piece. Forcing needs `CAP_NET_ADMIN` in the first user namespace.
    fn make_room(&self, len: usize) {
        let room = len * 2 + ANSWER_ROOM;
        if setsockopt(&self.socket, sockopt::SndBufForce, &room).is_err() {
            let _ = setsockopt(&self.socket, sockopt::SndBuf, &room);
        }
        if setsockopt(&self.socket, sockopt::RcvBufForce, &room).is_err() {
            let _ = setsockopt(&self.socket, sockopt::RcvBuf, &room);
        }
    }

    /// Reads until the last message is answered. An error for the batch as a whole carries the number of its
    /// begin; of several errors the first is the cause.
    fn read_verdict(&self, sent: &Sent) -> Result<Option<Refused>> {
        let mut refused = None;
        loop {
            for message in self.receive()? {
                let Some((kind, seq, errno)) = verdict(&message) else { continue };
                if kind == NLMSG_ERROR && errno != 0 {
                    let cause = || Refused { errno: Errno::from_raw(errno), what: sent.meaning(seq).into() };
                    refused.get_or_insert_with(cause);
                }
                if seq == sent.last || (errno != 0 && seq == 0) {
                    return Ok(refused);
                }
            }
        }
    }

    /// The generation of the ruleset now.
    pub fn generation(&self) -> Result<u32> {
        send(self.socket.as_raw_fd(), &request_generation(), MsgFlags::empty()).context("cannot send to nf_tables")?;
        self.receive()?.iter().find_map(|message| parse_generation(message)).context("nf_tables tells no generation")
    }

    /// The messages that the kernel answers a dump request with.
    pub fn dump(&self, request: &[u8]) -> Result<Vec<Vec<u8>>> {
        for _ in 0..TRIES {
            send(self.socket.as_raw_fd(), request, MsgFlags::empty()).context("cannot send to nf_tables")?;
            if let Some(messages) = self.read_dump()? {
                return Ok(messages);
            }
        }
        bail!("rules change here faster than they can be read: {TRIES} dumps in a row were disturbed")
    }

    fn read_dump(&self) -> Result<Option<Vec<Vec<u8>>>> {
        let mut messages = Vec::new();
        let mut whole = true;
        loop {
            for message in self.receive()? {
                let (Some(kind), Some(flags)) = (u16_at(&message, 4), u16_at(&message, 6)) else { continue };
                whole &= flags & NLM_F_DUMP_INTR == 0;
                match kind {
                    // A dump that breaks off tells why in the message that ends it.
                    NLMSG_DONE | NLMSG_ERROR => match verdict(&message) {
                        Some((_, _, errno)) if errno > 0 => return dump_error(Errno::from_raw(errno)),
                        _ if kind == NLMSG_DONE => return Ok(whole.then_some(messages)),
                        _ => {}
                    },
                    _ => messages.push(message),
                }
            }
        }
    }

    fn receive(&self) -> Result<Vec<Vec<u8>>> {
        let mut room = vec![0; ANSWER_ROOM];
        let len = loop {
            match recv(self.socket.as_raw_fd(), &mut room, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                other => break other.context("cannot read the answer of nf_tables")?,
            }
        };
        Ok(split(&room[..len]))
    }
}

fn dump_error(errno: Errno) -> Result<Option<Vec<Vec<u8>>>> {
    match errno {
        // The table or set has just gone.
        Errno::ENOENT => Ok(Some(Vec::new())),
        Errno::EINTR => Ok(None),
        Errno::EPERM => Err(Missing(
            "reading the rules of a network namespace needs CAP_NET_ADMIN in the user namespace that owns it: use sudo"
                .into(),
        )
        .into()),
        errno => Err(errno).context("nf_tables cannot be read here"),
    }
}

/// Type, sequence number, and the errno of an error message (0 is an acknowledgment).
fn verdict(message: &[u8]) -> Option<(u16, u32, i32)> {
    let errno = u32_at(message, HEADER).map_or(0, |errno| -errno.cast_signed());
    Some((u16_at(message, 4)?, u32_at(message, 8)?, errno))
}
