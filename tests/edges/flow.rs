//! Numbered datagrams to echoes, paced by the clock, and what became of each.

use std::io::{ErrorKind, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use playdead::kernel::netns::NetNs;

/// Room for all that comes while nobody reads, whatever else the processors do.
const ROOM: usize = 64 << 20;
/// How often somebody who waits for datagrams looks whether there is something else.
const LOOK: Duration = Duration::from_millis(20);
/// So many datagrams at most are sent without a pause; the kernel's queue has room for a thousand.
const BURST: u32 = 128;
const PAUSE: Duration = Duration::from_micros(100);
/// A receiver goes on for so long after the last datagram was sent.
const LATE: Duration = Duration::from_millis(500);

/// The time just before and just after a datagram was given to the kernel.
pub(crate) type Sent = (Instant, Instant);

/// What is known of the datagrams of one socket, by their numbers.
#[derive(Default)]
pub(crate) struct Flow {
    pub(crate) sent: Vec<Sent>,
    pub(crate) answered: Numbers<()>,
    /// About these an ICMP error came that quoted them.
    pub(crate) refused: Numbers<()>,
    /// These came to the peer's process, and then it answered.
    pub(crate) heard: Numbers<Sent>,
    /// What `send` said besides ECONNREFUSED, which is about an earlier datagram.
    pub(crate) errors: Vec<std::io::Error>,
}

/// Numbers of datagrams, and what is known of each.
pub(crate) struct Numbers<T>(Vec<Option<T>>);

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Numbers<T> {
    fn insert(&mut self, number: u32, known: T) {
        let index = number as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index] = Some(known);
    }

    pub(crate) fn of(&self, index: usize) -> Option<&T> {
        self.0.get(index)?.as_ref()
    }
}

fn roomy(socket: &UdpSocket) {
    setsockopt(socket, sockopt::RcvBufForce, &ROOM).unwrap();
    socket.set_read_timeout(Some(LOOK)).unwrap();
}

/// A socket that tells of ICMP errors by what they quote.
pub(crate) fn prober(ns: &NetNs, target: SocketAddr) -> UdpSocket {
    let any: SocketAddr = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
    let socket = ns.run(|| UdpSocket::bind(any)).unwrap().unwrap();
    socket.connect(target).unwrap();
    roomy(&socket);
    match target {
        SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4RecvErr, &true),
        SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvErr, &true),
    }
    .unwrap();
    socket
}

/// A socket for [`echo`].
pub(crate) fn server(ns: &NetNs, port: u16) -> UdpSocket {
    let socket = ns.run(|| UdpSocket::bind(("::", port))).unwrap().unwrap();
    roomy(&socket);
    socket
}

/// Sends datagrams through the sockets in turn, as many in all as are due at this rate (a second), until `done`.
pub(crate) fn send(sockets: &[UdpSocket], rate: u32, done: &AtomicBool) -> Vec<Flow> {
    let mut flows: Vec<_> = sockets.iter().map(|_| Flow::default()).collect();
    let (start, mut count) = (Instant::now(), 0_u32);
    let apart = Duration::from_secs(1) / rate;
    while !done.load(Ordering::Relaxed) {
        // Who is late catches up, but not by a burst that fills the kernel's queue of received packets.
        let early = (start + apart * count).saturating_duration_since(Instant::now());
        if !early.is_zero() || count % BURST == 0 {
            thread::sleep(early.max(PAUSE));
        }
        let turn = count as usize % sockets.len();
        let flow = &mut flows[turn];
        let number = u32::try_from(flow.sent.len()).unwrap();
        match send_one(&sockets[turn], number) {
            Ok(sent) => flow.sent.push(sent),
            Err(error) => flow.errors.push(error),
        }
        count += 1;
    }
    flows
}

/// An error that an earlier datagram drew is reported instead of sending this one.
fn send_one(socket: &UdpSocket, number: u32) -> std::io::Result<Sent> {
    loop {
        let before = Instant::now();
        match socket.send(&number.to_be_bytes()) {
            Ok(_) => return Ok((before, Instant::now())),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads what comes back, answers and errors, until nothing came for a while after `done`.
pub(crate) fn receive(socket: &UdpSocket, done: &AtomicBool) -> (Numbers<()>, Numbers<()>) {
    let (mut answered, mut refused) = (Numbers::default(), Numbers::default());
    let (mut last, mut count) = (Instant::now(), 0_u32);
    while !done.load(Ordering::Relaxed) || last.elapsed() < LATE {
        let mut bytes = [0; 4];
        let got = socket.recv(&mut bytes);
        count += 1;
        if got.is_ok() {
            answered.insert(u32::from_be_bytes(bytes), ());
            last = Instant::now();
        }
        if got.is_err() || count.is_multiple_of(64) {
            drain_errors(socket, &mut refused);
        }
    }
    (answered, refused)
}

/// The queue gives of each refused datagram what the error quotes of it behind the UDP header.
fn drain_errors(socket: &UdpSocket, refused: &mut Numbers<()>) {
    loop {
        let mut bytes = [0; 4];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        match recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, None, flags) {
            Ok(message) => {
                assert_eq!(message.bytes, 4, "an error that quotes too little");
                refused.insert(u32::from_be_bytes(bytes), ());
            }
            Err(_) => return,
        }
    }
}

/// Sends every datagram back, until nothing came for a while after `done`. Gives the numbers that came by IPv4 and by
/// IPv6, and what `send` said.
pub(crate) fn echo(socket: &UdpSocket, done: &AtomicBool) -> ([Numbers<Sent>; 2], Vec<std::io::Error>) {
    let (mut heard, mut errors) = (<[Numbers<Sent>; 2]>::default(), Vec::new());
    let mut last = Instant::now();
    while !done.load(Ordering::Relaxed) || last.elapsed() < LATE {
        let mut bytes = [0; 4];
        let Ok((_, from)) = socket.recv_from(&mut bytes) else { continue };
        last = Instant::now();
        let before = Instant::now();
        errors.extend(socket.send_to(&bytes, from).err());
        heard[usize::from(!is_ipv4(from))].insert(u32::from_be_bytes(bytes), (before, Instant::now()));
    }
    (heard, errors)
}

fn is_ipv4(from: SocketAddr) -> bool {
    from.ip().to_canonical().is_ipv4()
}
