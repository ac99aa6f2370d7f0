//! What the stack of a namespace is given, behind every rule of playdead, by the kernel's own log (`nflog`).

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pcap_file::pcap::PcapReader;

use crate::net::{At, Segment};

/// playdead judges at -300. Without the threshold the kernel collects for a second.
const RULES: &str = "table inet witness { chain heard { type filter hook prerouting priority -299; \
                     log group 7 snaplen 512 queue-threshold 1; }; }";
/// `NFULA_PAYLOAD`: the attribute of a log message that has the packet.
const PAYLOAD: u16 = 9;
/// Until tcpdump has written the last packets.
const FLUSH: Duration = Duration::from_millis(50);

/// A running log.
pub(crate) struct Log {
    tcpdump: Child,
    file: PathBuf,
}

impl Log {
    pub(crate) fn start(segment: &Segment) -> Self {
        segment.nft(At::Client, RULES);
        let ns = segment.name(At::Client);
        let file = std::env::temp_dir().join(format!("{ns}.pcap"));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &ns, "tcpdump", "-i", "nflog:7", "--immediate-mode", "-U", "-w", "-"]);
        command.stdout(File::create(&file).unwrap()).stderr(Stdio::piped());
        let mut tcpdump = command.spawn().unwrap();
        let mut lines = BufReader::new(tcpdump.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("listening on")), "tcpdump did not start");
        Self { tcpdump, file }
    }

    /// Ends the log; gives the packets from their IP header on, and when they came, since 1970.
    pub(crate) fn read(mut self) -> Vec<(Duration, Vec<u8>)> {
        thread::sleep(FLUSH);
        kill(Pid::from_raw(self.tcpdump.id().cast_signed()), Signal::SIGINT).unwrap();
        self.tcpdump.wait().unwrap();
        let mut reader = PcapReader::new(File::open(&self.file).unwrap()).unwrap();
        let mut packets = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            packets.extend(payload(&packet.data).map(|payload| (packet.timestamp, payload)));
        }
        packets
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = self.tcpdump.kill();
        let _ = self.tcpdump.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Of a log message: four bytes, then attributes with their length and type in front, each padded to four bytes.
fn payload(message: &[u8]) -> Option<Vec<u8>> {
    let mut rest = message.get(4..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        if kind == PAYLOAD {
            return rest.get(4..length).map(<[u8]>::to_vec);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}
