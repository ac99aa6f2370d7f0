//! Connects, and open connections with small requests: what each came to, and in which time.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use playdead::kernel::netns::NetNs;
use socket2::{Domain, SockRef, Socket, Type};

use crate::timeline::State;

/// Shorter than the first retransmit of a SYN, which would hide that one was lost, and far longer than an answer takes.
pub(crate) const SILENCE: Duration = Duration::from_millis(900);
/// Whoever is not meant is answered, but a busy machine may let its process wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
const BETWEEN_CONNECTS: Duration = Duration::from_millis(20);
const BETWEEN_REQUESTS: Duration = Duration::from_millis(4);
/// The process behind an end whose client has gone unseen gives it up.
const FORGOTTEN: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered,
    /// A connect was refused, or an open connection was closed or reset.
    Ended,
    Silence,
    /// An errno that neither health nor any of the faults has.
    Other(ErrorKind),
}

impl Outcome {
    /// Whether it may come when this state is in force.
    pub(crate) fn may_be(self, state: State) -> bool {
        match self {
            Self::Answered => state == State::Healthy,
            Self::Ended => state == State::DeadProcess,
            Self::Silence => state == State::DeadHost,
            Self::Other(_) => false,
        }
    }
}

/// A connect, or a request on an open connection.
#[derive(Clone)]
pub(crate) struct Event {
    pub(crate) what: &'static str,
    pub(crate) from: Instant,
    pub(crate) to: Instant,
    pub(crate) outcome: Outcome,
}

/// Listens with room for all that connect while nobody accepts.
pub(crate) fn listen(ns: &NetNs, port: u16) -> TcpListener {
    let listen = || {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from(([0; 8], port)).into())?;
        socket.listen(4096)?;
        Ok::<_, std::io::Error>(socket.into())
    };
    let listener: TcpListener = ns.run(listen).unwrap().unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

/// Sends back what comes on every connection, until `done`.
pub(crate) fn serve(listener: &TcpListener, done: &AtomicBool) {
    thread::scope(|scope| {
        while !done.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => drop(scope.spawn(move || answer(stream))),
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
    });
}

fn answer(mut stream: TcpStream) {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(FORGOTTEN)).unwrap();
    let mut byte = [0];
    while matches!(stream.read(&mut byte), Ok(1)) && stream.write_all(&byte).is_ok() {}
}

/// Connects, sends this many requests if it succeeds, one after the other, and begins again, until `done`.
pub(crate) fn look(
    ns: &NetNs,
    target: SocketAddr,
    requests: usize,
    patience: Duration,
    done: &AtomicBool,
) -> Vec<Event> {
    ns.run(|| {
        let mut events = Vec::new();
        while !done.load(Ordering::Relaxed) {
            connect(target, requests, patience, &mut events);
            thread::sleep(BETWEEN_CONNECTS);
        }
        events
    })
    .unwrap()
}

fn connect(target: SocketAddr, requests: usize, patience: Duration, events: &mut Vec<Event>) {
    let from = Instant::now();
    let connected = TcpStream::connect_timeout(&target, SILENCE);
    let to = Instant::now();
    let outcome = connected.as_ref().map_or_else(|error| outcome_of(error.kind()), |_| Outcome::Answered);
    events.push(Event { what: "connect", from, to, outcome });
    let Ok(mut stream) = connected else { return };
    // What is given up leaves nothing to be sent again.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut last = to;
    for _ in 0..requests {
        thread::sleep(BETWEEN_REQUESTS);
        let asked = Instant::now();
        let answered = stream.write_all(&[0]).and_then(|()| stream.read_exact(&mut [0]));
        let to = Instant::now();
        let outcome = answered.map_or_else(|error| outcome_of(error.kind()), |()| Outcome::Answered);
        // The end may have come at any moment since the last answer.
        let from = if outcome == Outcome::Ended { last } else { asked };
        events.push(Event { what: "request", from, to, outcome });
        if outcome != Outcome::Answered {
            return;
        }
        last = to;
    }
}

fn outcome_of(kind: ErrorKind) -> Outcome {
    match kind {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Outcome::Silence,
        ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof => Outcome::Ended,
        other => Outcome::Other(other),
    }
}
