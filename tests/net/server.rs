//! The peer's process: this very program again, in the peer's namespace.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::{At, OTHER_PORT, PORT, Segment};

impl Segment {
    /// Starts the peer's process.
    pub(crate) fn serve(&self) -> Server {
        self.serve_at(At::Peer)
    }

    /// Starts it elsewhere.
    pub(crate) fn serve_at(&self, at: At) -> Server {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.name(at)])
            .arg(program)
            .args(["--exact", "net::server::process", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("listening")), "the peer's process did not start");
        Server { child }
    }
}

/// The peer's process. Killed with SIGKILL when dropped.
pub(crate) struct Server {
    child: Child,
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops it for real. `kill` returns before the threads on other processors have stopped.
    pub(crate) fn stop(&self) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, Signal::SIGSTOP).unwrap();
        waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test: the peer of the tests.
#[test]
#[ignore = "a server that the tests start and kill"]
fn process() {
    run();
}

fn run() -> ! {
    for port in [OTHER_PORT, PORT] {
        let listener = TcpListener::bind(("::", port)).unwrap();
        thread::spawn(move || accept(&listener));
    }
    let echo = UdpSocket::bind(("::", OTHER_PORT)).unwrap();
    roomy(&echo);
    thread::spawn(move || count_datagrams(&echo));
    println!("listening");
    loop {
        thread::park();
    }
}

fn accept(listener: &TcpListener) {
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        thread::spawn(move || answer(stream));
    }
}

/// Serves `GET` over HTTP/1.1 on both families, closes on `BYE`, and on `STREAM` sends a byte every millisecond.
fn answer(mut stream: TcpStream) {
    let mut buffer = [0; 1024];
    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
        if buffer[..bytes].starts_with(b"STREAM") {
            while stream.write_all(b".").is_ok() {
                thread::sleep(Duration::from_millis(1));
            }
        }
        if buffer[..bytes].starts_with(b"BYE")
            || stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err()
        {
            return;
        }
    }
}

/// Gives a socket room for all that a test sends: what overflows would look like a loss on the way.
pub(crate) fn roomy(socket: &UdpSocket) {
    setsockopt(socket, sockopt::RcvBufForce, &(8 << 20)).unwrap();
}

/// Sends every datagram back, with how many there have been in front.
fn count_datagrams(socket: &UdpSocket) {
    let (mut buffer, mut count) = ([0; 64], 0_u32);
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        count += 1;
        let _ = socket.send_to(&[&count.to_be_bytes(), &buffer[..length]].concat(), from);
    }
}
