//! The verbs that make faults, change them and take them away.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use libtest_mimic::Trial;
use playdead::kernel::netns::NetNs;

use crate::places::{Listed, Places};
use crate::sweep::{Subject, trial};
use crate::tracer::Run;

const DEAD: &str = "dead-host 10.99.0.2 fd99::2 --name dead";
/// Of a process in the place itself: its open connections are ended.
const PROCESS: &str = "dead-process 10.99.0.1:80 [fd99::2]:80 --name dead";

/// A command that changes what is in force, for good.
struct Change {
    places: Places,
    /// What is in force before.
    before: Vec<&'static str>,
    line: String,
    /// What may be in force afterwards, each in any of the places: all of one, or all of the other.
    allowed: Vec<(&'static str, Listed)>,
    /// An open connection that the command ends.
    connection: Option<Connection>,
    ends_connection: bool,
}

/// A command that holds a fault as long as it lives.
struct Hold {
    places: Places,
    line: String,
    /// Of a command that waits.
    rest: Option<Duration>,
    /// How long after a kill anything was seen at most.
    seen: Duration,
}

struct Connection {
    _ends: [TcpStream; 2],
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("apply", || Change::new(1, &[], DEAD, &[])),
        trial("apply-dead-process", || Change::new(1, &[], PROCESS, &[]).with_connection()),
        trial("apply-for", || Change::new(1, &[], "hung-process 10.99.0.2:80 --for 1m --name dead", &[])),
        trial("apply-in-two-places", || Change::new(2, &[], DEAD, &[])),
        trial("replace", || {
            Change::new(1, &["unreachable 10.99.0.2 --name dead"], &format!("{PROCESS} --replace"), &[])
        }),
        trial("renew", || Change::new(1, &["dead-host 10.99.0.2 --name dead --for 1m"], "renew dead --for 2m", &[])),
        trial("heal", || {
            let before = ["hush 10.99.0.2:80 --name a", "dead-host 10.99.0.3 --name b"];
            let of_one = ["heal a", "heal b", "empty a", "empty b", "heal a; empty b", "heal b; empty a"];
            Change::new(1, &before, "heal", &of_one)
        }),
        trial("partition", || {
            let shut = "partition n0 n1,n2 --name split --nodes FILE; shut split";
            Change::new(3, &[], PARTITION, &[shut])
        }),
    ];
    let holds = [
        ("hold", format!("{DEAD} --hold"), Some(Duration::from_secs(4))),
        ("command", format!("{DEAD} -- true"), None),
        ("flap", "flap dead-host 10.99.0.2 --up 30ms --down 30ms --cycles 3".into(), None),
        ("partition-command", format!("{PARTITION} -- true"), None),
    ];
    trials.extend(holds.map(|(name, line, rest)| {
        let number = if name.starts_with("partition") { 3 } else { 1 };
        trial(name, move || Hold { places: Places::new(number), line, rest, seen: Duration::ZERO })
    }));
    trials
}

const SOME: &str = "in some of the places";
const PARTITION: &str = "partition n0 n1,n2 --name split --nodes FILE";

impl Change {
    /// `halfway`: commands whose end is a state between as well. `empty` takes only the rules, as `heal` does before the
    /// rest; `shut` shuts the gates, which a partition opens at its moment.
    fn new(number: usize, before: &[&'static str], line: &str, halfway: &[&'static str]) -> Self {
        let places = Places::new(number);
        let mut change = Self {
            places,
            before: before.to_vec(),
            line: line.to_owned(),
            allowed: Vec::new(),
            connection: None,
            ends_connection: false,
        };
        let ends = halfway.iter().map(|line| (*line, *line)).chain([("whole", line)]);
        for (what, line) in [("as before", None)].into_iter().chain(ends.map(|(what, line)| (what, Some(line)))) {
            change.begin();
            for step in line.into_iter().flat_map(|line| line.split("; ")) {
                match step.split_once(' ') {
                    Some(("empty", name)) => change.places.empty(name),
                    Some(("shut", name)) => change.places.shut(name),
                    _ => drop(change.places.done(step)),
                }
            }
            let listed = change.places.listed();
            // What is as before counts as that; a lease is looked at by itself.
            if change.allowed.iter().all(|(_, other)| *other != listed) {
                change.allowed.push((what, listed));
            }
            change.places.check_heal().unwrap();
        }
        change
    }

    fn with_connection(self) -> Self {
        Self { ends_connection: true, ..self }
    }

    fn begin(&self) {
        self.before.iter().for_each(|line| drop(self.places.done(line)));
    }

    /// All places alike, or, where a kill came between them, each as it may be.
    fn name(&self, listed: &Listed) -> Result<&'static str, String> {
        if let Some((what, _)) = self.allowed.iter().find(|(_, allowed)| allowed == listed) {
            return Ok(what);
        }
        for (index, listed) in listed.iter().enumerate() {
            if self.allowed.iter().all(|(_, allowed)| allowed[index] != *listed) {
                return Err(format!("half a fault in {}: {listed}", self.places.names[index]));
            }
        }
        Ok(SOME)
    }
}

impl Subject for Change {
    fn prepare(&mut self) -> Vec<OsString> {
        self.begin();
        self.connection = self.ends_connection.then(|| Connection::open(&self.places.names[0]));
        self.places.command(&self.line)
    }

    fn look(&mut self, _: &Run) -> Result<&'static str, String> {
        let listed = self.places.listed();
        let what = self.name(&listed)?;
        let allowed = match what {
            _ if what.contains("empty") => Some("its rules were taken away"),
            _ if what.contains("shut") || what == SOME => Some("it has not begun"),
            _ => None,
        };
        let status = self.places.check_status(&listed, allowed)?;
        let left = status["faults"][0]["left_ms"].as_u64();
        if left == Some(0) {
            return Err(format!("a lease that is over: {status}"));
        }
        self.places.check_heal()?;
        Ok(if self.line.starts_with("renew") && left > Some(60_000) { "renewed" } else { what })
    }
}

impl Subject for Hold {
    fn prepare(&mut self) -> Vec<OsString> {
        self.places.command(&self.line)
    }

    fn rest(&self) -> Option<Duration> {
        self.rest
    }

    fn look(&mut self, run: &Run) -> Result<&'static str, String> {
        self.seen = self.seen.max(self.places.check_gone(run)?);
        self.places.check_heal()?;
        Ok("none")
    }

    fn measured(&self) -> String {
        format!("; in force until {:.0} ms after it at most", self.seen.as_secs_f64() * 1e3)
    }
}

impl Connection {
    /// Within the place, to the process that seems to die.
    fn open(name: &str) -> Self {
        let open = || {
            let listener = TcpListener::bind("10.99.0.1:80").unwrap();
            let mut client = TcpStream::connect("10.99.0.1:80").unwrap();
            let mut server = listener.accept().unwrap().0;
            client.write_all(b"?").unwrap();
            server.read_exact(&mut [0]).unwrap();
            [client, server]
        };
        Self { _ends: NetNs::named(name).unwrap().run(open).unwrap() }
    }
}
