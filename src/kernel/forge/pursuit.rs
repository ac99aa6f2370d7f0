//! One connection on its way to its end: what to send next, and what an answer means. Pure.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Result;
use etherparse::TcpHeader;

use super::segment::{self, Heard, Stamps};
use super::{Ending, How, Outcome};

/// The first wait for an answer. It doubles with each challenge, up to 16 times this.
const WAIT: Duration = Duration::from_millis(20);
/// So many FINs that were not taken mean that the client has had one before: it ignores all that follow.
const FORGERIES: u32 = 3;
/// The window field of a Linux peer with nothing unread, with the usual scale of 7.
const WINDOW: u16 = 502;

/// One connection and how far its ending is.
pub(super) struct Pursuit {
    ending: Ending,
    /// Both ends in their own family, the client with a scope where it needs one.
    peer: SocketAddr,
    client: SocketAddr,
    window: u16,
    random: [u16; 4],
    due: Instant,
    /// Challenges since the last forgery.
    challenges: u32,
    /// The sequence number of the FIN or RST that was sent last.
    forged: Option<u32>,
    forgeries: u32,
    outcome: Option<Outcome>,
}

impl Pursuit {
    /// `window` is the window field to give the segments, if it is known.
    pub(super) fn new(ending: Ending, window: Option<u16>, now: Instant) -> Self {
        let random = RandomState::new().hash_one(ending).to_ne_bytes();
        let word = |at: usize| u16::from_ne_bytes([random[at], random[at + 1]]);
        Self {
            ending,
            peer: own_family(ending.peer),
            client: scoped(own_family(ending.client), ending.peer),
            window: window.unwrap_or(WINDOW),
            random: [word(0), word(2), word(4), word(6)],
            due: now,
            challenges: 0,
            forged: None,
            forgeries: 0,
            outcome: None,
        }
    }

    /// Where the packets go.
    pub(super) fn client(&self) -> SocketAddr {
        self.client
    }

    /// When the next challenge is to go out; `None` once the outcome is known.
    pub(super) fn due(&self) -> Option<Instant> {
        self.outcome.is_none().then_some(self.due)
    }

    /// The ending and its outcome.
    pub(super) fn result(&self) -> (Ending, Outcome) {
        (self.ending, self.outcome.unwrap_or(Outcome::NoAnswer))
    }

    /// There is no more time. Silence after a reset is an answer too: a firewall there may drop what belongs to no
    /// connection any more.
    pub(super) fn give_up(&mut self) {
        let reset = self.forged.is_some() && self.ending.how == How::Reset;
        self.outcome.get_or_insert(if reset { Outcome::Ended } else { Outcome::NoAnswer });
    }

    /// Segments that a client with this connection answers with its numbers, and one without it with RST.
    ///
    /// A byte of data far outside the window is answered every time, a bare ACK only once in 500 ms
    /// (`tcp_oow_rate_limited`). But connection tracking calls most of such segments invalid, and some firewalls drop
    /// that. So the next ones differ: tracking passes what looks old in both numbers as overly delayed, and a SYN+ACK
    /// from a server as a late copy (answered once in 500 ms).
    pub(super) fn challenge(&mut self, now: Instant) -> Result<Vec<Vec<u8>>> {
        let round = self.challenges;
        self.challenges += 1;
        self.due = now + WAIT * (1 << round.min(4));
        if round == 0 {
            return Ok(vec![self.data(false, false)?]);
        }
        let quarters = [(false, false), (false, true), (true, false), (true, true)];
        let data = quarters.into_iter().map(|(seq, ack)| self.data(seq, ack));
        data.chain([self.late_copy()]).collect()
    }

    /// A byte of data with random numbers, each moved by half the number space or not.
    fn data(&self, seq: bool, ack: bool) -> Result<Vec<u8>> {
        let [first, second, third, ..] = self.random.map(u32::from);
        let (seq, ack) =
            ((u32::from(seq) << 31) ^ (first << 16 | second), (u32::from(ack) << 31) ^ (second << 16 | third));
        self.packet(self.header(seq, ack), &[0])
    }

    fn late_copy(&self) -> Result<Vec<u8>> {
        let [first, second, third, ..] = self.random.map(u32::from);
        let mut tcp = self.header(first << 16 | second, second << 16 | third);
        tcp.syn = true;
        self.packet(tcp, &[])
    }

    /// Takes up a segment of the client. Gives the one that ends the connection, if it is time for it.
    pub(super) fn hear(&mut self, heard: &Heard) -> Result<Option<Vec<u8>>> {
        if self.outcome.is_some() {
            return Ok(None);
        }
        match self.forged {
            None if heard.reset => self.outcome = Some(Outcome::AlreadyGone),
            Some(_) if heard.reset => self.outcome = Some(Outcome::Ended),
            _ if !heard.plain => {}
            Some(seq) if self.ending.how == How::Fin && heard.ack == seq.wrapping_add(1) => {
                self.outcome = Some(Outcome::Ended);
            }
            Some(seq) if heard.ack == seq => return self.again(heard),
            _ => return self.forge(heard).map(Some),
        }
        Ok(None)
    }

    /// The numbers stand where they stood when the end was forged.
    fn again(&mut self, heard: &Heard) -> Result<Option<Vec<u8>>> {
        if self.challenges < 2 {
            // Seen before: one packet is captured on every interface that it crosses.
            return Ok(None);
        }
        if self.forgeries >= FORGERIES && self.ending.how == How::Fin {
            self.outcome = Some(Outcome::AlreadyGone);
            return Ok(None);
        }
        self.forge(heard).map(Some)
    }

    /// What the peer's kernel sends at the end: the next number, and everything up to the client's acknowledged.
    fn forge(&mut self, heard: &Heard) -> Result<Vec<u8>> {
        self.challenges = 0;
        self.forgeries += 1;
        self.forged = Some(heard.ack);
        let mut tcp = self.header(heard.ack, heard.seq);
        tcp.fin = self.ending.how == How::Fin;
        tcp.rst = self.ending.how == How::Reset;
        if let Some(Stamps { value, echo }) = heard.stamps {
            // The client drops what is older than the last value it had of the peer (PAWS), which it echoes here.
            segment::stamp(&mut tcp, Stamps { value: echo, echo: value });
        }
        self.packet(tcp, &[])
    }

    fn header(&self, seq: u32, ack: u32) -> TcpHeader {
        segment::header(self.peer, self.client, seq, ack, self.window)
    }

    fn packet(&self, tcp: TcpHeader, data: &[u8]) -> Result<Vec<u8>> {
        segment::packet(self.peer.ip(), self.client.ip(), self.random[2].max(1), tcp, data)
    }
}

/// IPv4 mapped into IPv6 travels as IPv4.
fn own_family(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Both ends of a link-local connection are on one link, so either one's scope will do.
fn scoped(mut client: SocketAddr, peer: SocketAddr) -> SocketAddr {
    if let (SocketAddr::V6(client), SocketAddr::V6(peer)) = (&mut client, peer)
        && client.scope_id() == 0
    {
        client.set_scope_id(peer.scope_id());
    }
    client
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pursuit(how: How) -> Pursuit {
        let (peer, client) = ("10.0.0.1:2379".parse().unwrap(), "10.0.0.2:40000".parse().unwrap());
        Pursuit::new(Ending { peer, client, how }, Some(63), Instant::now())
    }

    fn answer(pursuit: &Pursuit, seq: u32, ack: u32) -> Heard {
        let Ending { peer, client, .. } = pursuit.ending;
        let stamps = Some(Stamps { value: 5, echo: 6 });
        Heard { from: client, to: peer, seq, ack, reset: false, plain: true, stamps }
    }

    fn challenge(pursuit: &mut Pursuit) -> Vec<Heard> {
        let packets = pursuit.challenge(Instant::now()).unwrap();
        packets.iter().map(|packet| segment::parse(packet).unwrap()).collect()
    }

    #[test]
    fn an_answer_gives_the_numbers_and_the_next_one_shows_that_the_fin_was_taken() {
        let mut pursuit = pursuit(How::Fin);
        challenge(&mut pursuit);
        let heard = answer(&pursuit, 100, 200);
        let fin = segment::parse(&pursuit.hear(&heard).unwrap().unwrap()).unwrap();
        assert_eq!((fin.seq, fin.ack, fin.stamps), (200, 100, Some(Stamps { value: 6, echo: 5 })));
        challenge(&mut pursuit);
        assert_eq!(pursuit.hear(&heard).unwrap(), None, "a second copy of the same answer");
        let heard = answer(&pursuit, 100, 201);
        assert_eq!(pursuit.hear(&heard).unwrap(), None);
        assert_eq!(pursuit.result().1, Outcome::Ended);
    }

    #[test]
    fn numbers_that_moved_on_are_followed() {
        let mut pursuit = pursuit(How::Reset);
        let heard = answer(&pursuit, 100, 200);
        assert!(pursuit.hear(&heard).unwrap().is_some());
        let heard = answer(&pursuit, 100, 300);
        assert_eq!(segment::parse(&pursuit.hear(&heard).unwrap().unwrap()).unwrap().seq, 300);
    }

    #[test]
    fn a_reset_tells_whether_there_was_something_to_end() {
        for (forge, outcome) in [(false, Outcome::AlreadyGone), (true, Outcome::Ended)] {
            let mut pursuit = pursuit(How::Reset);
            let heard = answer(&pursuit, 100, 200);
            assert_eq!(forge, forge && pursuit.hear(&heard).unwrap().is_some());
            pursuit.hear(&Heard { reset: true, plain: false, ..heard }).unwrap();
            assert_eq!(pursuit.result().1, outcome);
        }
    }

    #[test]
    fn a_fin_that_is_lost_is_sent_again_and_one_that_is_ignored_was_not_the_first() {
        let mut pursuit = pursuit(How::Fin);
        let heard = answer(&pursuit, 100, 200);
        for _ in 0..FORGERIES {
            assert!(pursuit.hear(&heard).unwrap().is_some());
            challenge(&mut pursuit);
            assert_eq!(pursuit.hear(&heard).unwrap(), None);
            challenge(&mut pursuit);
        }
        assert_eq!(pursuit.hear(&heard).unwrap(), None);
        assert_eq!(pursuit.result().1, Outcome::AlreadyGone);
    }

    #[test]
    fn whatever_the_real_numbers_are_one_challenge_looks_old_in_both() {
        let mut pursuit = pursuit(How::Fin);
        assert_eq!(challenge(&mut pursuit).len(), 1);
        let all = challenge(&mut pursuit);
        for (seq, ack) in [(0, 0), (1 << 31, 5), (7, 3 << 30), (u32::MAX, 1 << 31)] {
            let old = |heard: &&Heard| {
                heard.plain && heard.seq.wrapping_sub(seq) >> 31 == 1 && heard.ack.wrapping_sub(ack) >> 31 == 1
            };
            assert_eq!(all.iter().filter(old).count(), 1);
        }
    }
}
