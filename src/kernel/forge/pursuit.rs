//! One connection on its way to its end: what to send next, and what an answer means. Pure.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Result;
use etherparse::TcpHeader;

use super::segment::{self, Heard, Labels, Stamps};
use super::{Ending, How, Outcome};

/// The first wait for an answer. It doubles with each question, up to 16 times this.
const WAIT: Duration = Duration::from_millis(20);
/// So often the peer is asked before the client is.
const QUESTIONS: u32 = 2;
/// A client that cannot take the end says so at once, after a round trip; acknowledging it may be delayed (40 ms).
const OBJECTION: Duration = Duration::from_millis(10);
/// So many FINs that were not taken mean that the client has had one before: it ignores all that follow.
const FORGERIES: u32 = 3;
/// The window field of a Linux peer with nothing unread, with the usual scale of 7.
const WINDOW: u16 = 502;

/// One connection and how far its ending is.
pub(super) struct Pursuit {
    ending: Ending,
    /// Both ends in their own family, and with a scope where they need one.
    peer: SocketAddr,
    client: SocketAddr,
    window: u16,
    random: [u16; 4],
    due: Instant,
    /// When the peer was asked last.
    questioned: Instant,
    /// Who is asked for the numbers.
    asked: End,
    /// Questions to it since the last forgery.
    questions: u32,
    /// What the FIN or RST that was sent last was made of.
    forged: Option<Numbers>,
    forgeries: u32,
    /// How far the client had come when it was last heard, if that is not as far as the peer said.
    behind: Option<u32>,
    outcome: Option<Outcome>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It tells what its next segment is like, and the client hears nothing of that.
    Peer,
    /// It tells what it expects, once it has heard a segment that is not that.
    Client,
}

/// What makes the peer's last segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Numbers {
    seq: u32,
    ack: u32,
    window: u16,
    stamps: Option<Stamps>,
    labels: Labels,
}

/// Bytes, and to which end.
pub(super) type Packet = (Vec<u8>, SocketAddr);

impl Pursuit {
    /// `window` is the window field to give the segments, if it is known.
    pub(super) fn new(ending: Ending, window: Option<u16>, now: Instant) -> Self {
        let random = RandomState::new().hash_one(ending).to_ne_bytes();
        let word = |at: usize| u16::from_ne_bytes([random[at], random[at + 1]]);
        let (peer, client) = (own_family(ending.peer), own_family(ending.client));
        Self {
            ending,
            peer: scoped(peer, ending.client),
            client: scoped(client, ending.peer),
            window: window.unwrap_or(WINDOW),
            random: [word(0), word(2), word(4), word(6)],
            due: now,
            questioned: now,
            asked: End::Peer,
            questions: 0,
            forged: None,
            forgeries: 0,
            behind: None,
            outcome: None,
        }
    }

    /// When something is to be done next; `None` once the outcome is known.
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
        let outcome = if reset { self.ended() } else { Outcome::NoAnswer };
        self.outcome.get_or_insert(outcome);
    }

    fn ended(&self) -> Outcome {
        if self.asked == End::Peer { Outcome::Ended } else { Outcome::EndedByChallenge }
    }

    /// What to send, now that it is [due](Self::due).
    pub(super) fn act(&mut self, now: Instant) -> Result<Vec<Packet>> {
        if self.asked == End::Client {
            return self.challenge(now);
        }
        match (self.forged, self.behind.take()) {
            (None, _) if self.questions < QUESTIONS => self.question(now),
            // Something of what the peer had sent was lost; only what the client waits for ends the connection.
            (Some(numbers), Some(seq)) => Ok(vec![self.forge(Numbers { seq, ..numbers }, now)?]),
            (Some(_), None) => {
                // A segment out of order is answered at once, and so is a reset that does not fit (RFC 5961, 3.2).
                self.outcome = Some(Outcome::Ended);
                Ok(Vec::new())
            }
            (None, _) => self.challenge_instead(now),
        }
    }

    /// Asks the peer in the client's name.
    fn question(&mut self, now: Instant) -> Result<Vec<Packet>> {
        self.questioned = now;
        self.wait(now);
        let (seq, ack) = self.random_numbers();
        let tcp = segment::header(self.client, self.peer, seq, ack, self.window);
        let bytes = segment::packet(self.client.ip(), self.peer.ip(), self.labels(), tcp, &[0])?;
        Ok(vec![(bytes, self.peer)])
    }

    fn challenge_instead(&mut self, now: Instant) -> Result<Vec<Packet>> {
        self.asked = End::Client;
        self.questions = 0;
        self.challenge(now)
    }

    /// Segments that a client with this connection answers with its numbers, and one without it with RST.
    ///
    /// A byte of data far outside the window is answered every time, a bare ACK only once in 500 ms
    /// (`tcp_oow_rate_limited`). But connection tracking calls most of such segments invalid, and some firewalls drop
    /// that. So the next ones differ: tracking passes what looks old in both numbers as overly delayed, and a SYN+ACK
    /// from a server as a late copy (answered once in 500 ms).
    fn challenge(&mut self, now: Instant) -> Result<Vec<Packet>> {
        let first = self.questions == 0;
        self.wait(now);
        if first {
            return Ok(vec![self.data(false, false)?]);
        }
        let quarters = [(false, false), (false, true), (true, false), (true, true)];
        let data = quarters.into_iter().map(|(seq, ack)| self.data(seq, ack));
        data.chain([self.late_copy()]).collect()
    }

    fn wait(&mut self, now: Instant) {
        self.due = now + WAIT * (1 << self.questions.min(4));
        self.questions += 1;
    }

    /// A byte of data with random numbers, each moved by half the number space or not.
    fn data(&self, seq: bool, ack: bool) -> Result<Packet> {
        let (random_seq, random_ack) = self.random_numbers();
        self.packet(self.header((u32::from(seq) << 31) ^ random_seq, (u32::from(ack) << 31) ^ random_ack), &[0])
    }

    fn late_copy(&self) -> Result<Packet> {
        let (seq, ack) = self.random_numbers();
        let mut tcp = self.header(seq, ack);
        tcp.syn = true;
        self.packet(tcp, &[])
    }

    /// Takes up a segment of either end. Gives what is to be sent for it at once.
    pub(super) fn hear(&mut self, heard: &Heard, now: Instant) -> Result<Vec<Packet>> {
        if self.outcome.is_some() {
            return Ok(Vec::new());
        }
        if heard.from == segment::bare(self.peer) { self.hear_peer(heard, now) } else { self.hear_client(heard, now) }
    }

    fn hear_peer(&mut self, heard: &Heard, now: Instant) -> Result<Vec<Packet>> {
        let answers = self.asked == End::Peer && self.forged.is_none() && self.questions > 0;
        if answers && heard.reset {
            // It knows no such connection, or somebody speaks in its name.
            return self.challenge_instead(now);
        }
        // Data may have been sent before.
        if answers && heard.plain && heard.bare {
            let numbers = Numbers {
                seq: heard.seq,
                ack: heard.ack,
                window: heard.window,
                stamps: heard.stamps,
                // The next of this connection: the kernel counts for each.
                labels: Labels { id: heard.labels.id.wrapping_add(1).max(1), ..heard.labels },
            };
            return Ok(vec![self.forge(numbers, now)?]);
        }
        Ok(Vec::new())
    }

    fn hear_client(&mut self, heard: &Heard, now: Instant) -> Result<Vec<Packet>> {
        match self.forged.map(|numbers| numbers.seq) {
            None if heard.reset => self.outcome = Some(Outcome::AlreadyGone),
            Some(_) if heard.reset => self.outcome = Some(self.ended()),
            _ if !heard.plain || self.is_question(heard) => {}
            Some(seq) if self.ending.how == How::Fin && heard.ack == seq.wrapping_add(1) => {
                self.outcome = Some(self.ended());
            }
            None if self.asked == End::Peer => {}
            // On its way when the end was forged, or all that the client has got of what the peer had sent.
            Some(seq) if self.asked == End::Peer => {
                if heard.ack != seq {
                    self.behind = Some(heard.ack);
                    self.due = self.due.min(now + WAIT);
                }
            }
            Some(seq) if heard.ack == seq => return self.again(heard, now),
            _ => return self.end_from(heard, now),
        }
        Ok(Vec::new())
    }

    /// One's own words, captured on their way out.
    fn is_question(&self, heard: &Heard) -> bool {
        (heard.seq, heard.ack) == self.random_numbers()
    }

    /// The numbers stand where they stood when the end was forged.
    fn again(&mut self, heard: &Heard, now: Instant) -> Result<Vec<Packet>> {
        if self.questions < 2 {
            // Seen before: one packet is captured on every interface that it crosses.
            return Ok(Vec::new());
        }
        if self.forgeries >= FORGERIES && self.ending.how == How::Fin {
            self.outcome = Some(Outcome::AlreadyGone);
            return Ok(Vec::new());
        }
        self.end_from(heard, now)
    }

    /// The end as the client expects it, and a challenge that shows whether it was taken.
    fn end_from(&mut self, heard: &Heard, now: Instant) -> Result<Vec<Packet>> {
        // The client drops what is older than the last value it had of the peer (PAWS), which it echoes here.
        let stamps = heard.stamps.map(|Stamps { value, echo }| Stamps { value: echo, echo: value });
        let numbers = Numbers { seq: heard.ack, ack: heard.seq, window: self.window, stamps, labels: self.labels() };
        let end = self.forge(numbers, now)?;
        Ok([vec![end], self.challenge(now)?].concat())
    }

    /// What the peer's kernel sends at the end: the next number, and everything up to the client's acknowledged.
    fn forge(&mut self, numbers: Numbers, now: Instant) -> Result<Packet> {
        self.questions = 0;
        self.forgeries += 1;
        self.forged = Some(numbers);
        self.due = now + OBJECTION.max(3 * now.saturating_duration_since(self.questioned));
        let mut tcp = segment::header(self.peer, self.client, numbers.seq, numbers.ack, numbers.window);
        tcp.fin = self.ending.how == How::Fin;
        tcp.rst = self.ending.how == How::Reset;
        if let Some(stamps) = numbers.stamps {
            segment::stamp(&mut tcp, stamps);
        }
        let bytes = segment::packet(self.peer.ip(), self.client.ip(), numbers.labels, tcp, &[])?;
        Ok((bytes, self.client))
    }

    fn header(&self, seq: u32, ack: u32) -> TcpHeader {
        segment::header(self.peer, self.client, seq, ack, self.window)
    }

    fn packet(&self, tcp: TcpHeader, data: &[u8]) -> Result<Packet> {
        let bytes = segment::packet(self.peer.ip(), self.client.ip(), self.labels(), tcp, data)?;
        Ok((bytes, self.client))
    }

    fn random_numbers(&self) -> (u32, u32) {
        let [first, second, third, ..] = self.random.map(u32::from);
        (first << 16 | second, second << 16 | third)
    }

    fn labels(&self) -> Labels {
        Labels { id: self.random[2].max(1), flow: 0 }
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
fn scoped(mut end: SocketAddr, other: SocketAddr) -> SocketAddr {
    if let (SocketAddr::V6(end), SocketAddr::V6(other)) = (&mut end, other)
        && end.scope_id() == 0
    {
        end.set_scope_id(other.scope_id());
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pursuit(how: How) -> Pursuit {
        let (peer, client) = ("10.0.0.1:2379".parse().unwrap(), "10.0.0.2:40000".parse().unwrap());
        Pursuit::new(Ending { peer, client, how }, Some(63), Instant::now())
    }

    /// One whose peer tells nothing.
    fn with_silent_peer(how: How) -> Pursuit {
        let mut pursuit = pursuit(how);
        for _ in 0..QUESTIONS {
            act(&mut pursuit);
        }
        pursuit
    }

    fn from_client(pursuit: &Pursuit, seq: u32, ack: u32) -> Heard {
        let Ending { peer, client, .. } = pursuit.ending;
        let stamps = Some(Stamps { value: 5, echo: 6 });
        let labels = Labels { id: 1, flow: 0 };
        Heard { from: client, to: peer, seq, ack, reset: false, plain: true, bare: true, window: 9, labels, stamps }
    }

    fn from_peer(pursuit: &Pursuit, seq: u32, ack: u32) -> Heard {
        let Ending { peer, client, .. } = pursuit.ending;
        Heard { from: peer, to: client, ..from_client(pursuit, seq, ack) }
    }

    fn read(packets: &[Packet]) -> Vec<Heard> {
        packets.iter().map(|(packet, _)| segment::parse(packet).unwrap()).collect()
    }

    fn act(pursuit: &mut Pursuit) -> Vec<Heard> {
        read(&pursuit.act(Instant::now()).unwrap())
    }

    fn hear(pursuit: &mut Pursuit, heard: &Heard) -> Vec<Heard> {
        read(&pursuit.hear(heard, Instant::now()).unwrap())
    }

    #[test]
    fn the_peer_gives_the_numbers_and_the_client_hears_nothing_but_the_end() {
        let mut pursuit = pursuit(How::Fin);
        let question = act(&mut pursuit);
        assert_eq!((question.len(), question[0].to), (1, pursuit.peer));
        assert!(hear(&mut pursuit, &question[0]).is_empty(), "captured on its way out");
        let data = Heard { bare: false, ..from_peer(&pursuit, 190, 100) };
        assert!(hear(&mut pursuit, &data).is_empty(), "data may have been sent before");
        let answer = from_peer(&pursuit, 200, 100);
        let [fin] = hear(&mut pursuit, &answer)[..] else { panic!() };
        assert_eq!((fin.to, fin.seq, fin.ack, fin.window), (pursuit.client, 200, 100, 9));
        assert_eq!((fin.stamps, fin.labels.id, fin.bare), (answer.stamps, 2, false));
        let acknowledgment = from_client(&pursuit, 100, 201);
        assert!(hear(&mut pursuit, &acknowledgment).is_empty());
        assert_eq!(pursuit.result().1, Outcome::Ended);
    }

    #[test]
    fn a_client_that_has_not_got_all_is_ended_where_it_stands() {
        let mut pursuit = pursuit(How::Fin);
        act(&mut pursuit);
        let answer = from_peer(&pursuit, 200, 100);
        hear(&mut pursuit, &answer);
        let behind = from_client(&pursuit, 100, 150);
        assert!(hear(&mut pursuit, &behind).is_empty(), "it may have been on its way");
        let [fin] = act(&mut pursuit)[..] else { panic!() };
        assert_eq!((fin.seq, fin.ack, fin.window, fin.stamps), (150, 100, 9, answer.stamps));
    }

    #[test]
    fn an_end_that_nobody_objects_to_was_taken() {
        for how in [How::Fin, How::Reset] {
            let mut pursuit = pursuit(how);
            act(&mut pursuit);
            let answer = from_peer(&pursuit, 200, 100);
            assert_eq!(hear(&mut pursuit, &answer)[0].reset, how == How::Reset);
            assert!(act(&mut pursuit).is_empty());
            assert_eq!(pursuit.result().1, Outcome::Ended);
        }
    }

    #[test]
    fn a_peer_without_the_connection_leads_to_the_client() {
        let mut refused = pursuit(How::Fin);
        act(&mut refused);
        let reset = Heard { reset: true, plain: false, ..from_peer(&refused, 0, 0) };
        assert_eq!(hear(&mut refused, &reset)[0].to, refused.client);
    }

    #[test]
    fn a_challenge_gives_the_numbers_and_the_next_one_shows_that_the_fin_was_taken() {
        let mut pursuit = with_silent_peer(How::Fin);
        assert_eq!(act(&mut pursuit)[0].to, pursuit.client);
        let heard = from_client(&pursuit, 100, 200);
        let [fin, challenge] = hear(&mut pursuit, &heard)[..] else { panic!() };
        assert_eq!((fin.seq, fin.ack, fin.stamps), (200, 100, Some(Stamps { value: 6, echo: 5 })));
        assert!(!challenge.bare);
        assert!(hear(&mut pursuit, &heard).is_empty(), "a second copy of the same answer");
        let heard = from_client(&pursuit, 100, 201);
        assert!(hear(&mut pursuit, &heard).is_empty());
        assert_eq!(pursuit.result().1, Outcome::EndedByChallenge);
    }

    #[test]
    fn numbers_that_moved_on_are_followed() {
        let mut pursuit = with_silent_peer(How::Reset);
        act(&mut pursuit);
        let heard = from_client(&pursuit, 100, 200);
        assert!(!hear(&mut pursuit, &heard).is_empty());
        let heard = from_client(&pursuit, 100, 300);
        assert_eq!(hear(&mut pursuit, &heard)[0].seq, 300);
    }

    #[test]
    fn a_reset_tells_whether_there_was_something_to_end() {
        for (forge, outcome) in [(false, Outcome::AlreadyGone), (true, Outcome::EndedByChallenge)] {
            let mut pursuit = with_silent_peer(How::Reset);
            act(&mut pursuit);
            let heard = from_client(&pursuit, 100, 200);
            assert_eq!(forge, forge && !hear(&mut pursuit, &heard).is_empty());
            hear(&mut pursuit, &Heard { reset: true, plain: false, ..heard });
            assert_eq!(pursuit.result().1, outcome);
        }
    }

    #[test]
    fn a_fin_that_is_lost_is_sent_again_and_one_that_is_ignored_was_not_the_first() {
        let mut pursuit = with_silent_peer(How::Fin);
        act(&mut pursuit);
        let heard = from_client(&pursuit, 100, 200);
        for _ in 0..FORGERIES {
            assert_eq!(hear(&mut pursuit, &heard).len(), 2);
            assert!(hear(&mut pursuit, &heard).is_empty());
            act(&mut pursuit);
        }
        assert!(hear(&mut pursuit, &heard).is_empty());
        assert_eq!(pursuit.result().1, Outcome::AlreadyGone);
    }

    #[test]
    fn whatever_the_real_numbers_are_one_challenge_looks_old_in_both() {
        let mut pursuit = with_silent_peer(How::Fin);
        assert_eq!(act(&mut pursuit).len(), 1);
        let all = act(&mut pursuit);
        for (seq, ack) in [(0, 0), (1 << 31, 5), (7, 3 << 30), (u32::MAX, 1 << 31)] {
            let old = |heard: &&Heard| {
                heard.plain && heard.seq.wrapping_sub(seq) >> 31 == 1 && heard.ack.wrapping_sub(ack) >> 31 == 1
            };
            assert_eq!(all.iter().filter(old).count(), 1);
        }
    }
}
