//! The matrix must be able to fail: a mechanism that is broken on purpose turns cells red.

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

use crate::compare::compare;
use crate::failures::{self, Failure};
use crate::net::cli::words;
use crate::places::{Family, Location, Rig, Vantage};
use crate::probes::Probe;
use crate::row::{run, run_with};

/// A way to break the mechanism, and what a client must then see.
pub(crate) struct Mutation {
    pub(crate) name: &'static str,
    /// The failure that is simulated, on one segment.
    failure: &'static str,
    vantage: Vantage,
    /// More arguments for playdead.
    arguments: &'static str,
    /// What becomes of the rules that it would write.
    change: fn(&str) -> String,
    /// Which cells turn red, and the beginning of what is said about them.
    red: &'static [(Family, Probe, &'static str)],
}

/// All of them.
pub(crate) const ALL: &[Mutation] = &[
    Mutation {
        name: "plain-drop-in-the-output-hook",
        failure: "unplugged",
        vantage: Vantage::Client,
        arguments: "",
        change: drop_in_output,
        red: &[
            (Family::V4, Probe::Udp, "outcome: EPERM"),
            (Family::V6, Probe::Udp, "outcome: EPERM"),
            (Family::V4, Probe::Ping, "outcome: EPERM"),
            (Family::V6, Probe::RawPing, "outcome: EPERM"),
        ],
    },
    Mutation {
        name: "drop-at-egress",
        failure: "unplugged",
        vantage: Vantage::Client,
        arguments: "",
        change: |rules| rules.replace("fwd to \"lo\"", "drop"),
        red: &[
            (Family::V4, Probe::UdpRecverr, "outcome: ENOBUFS"),
            (Family::V6, Probe::UdpRecverr, "outcome: ENOBUFS"),
            (Family::V4, Probe::Connect, ""),
            (Family::V6, Probe::PollConnect, ""),
        ],
    },
    Mutation {
        name: "icmp-instead-of-rst",
        failure: "killed",
        vantage: Vantage::Peer,
        arguments: "--proto tcp",
        change: |rules| rules.replace("reject with tcp reset", "reject with icmpx port-unreachable"),
        red: &[
            (Family::V4, Probe::Connect, "heard"),
            (Family::V6, Probe::Connect, "heard"),
            (Family::V6, Probe::PollConnect, "heard"),
        ],
    },
    Mutation {
        name: "fin-left-out",
        failure: "killed",
        vantage: Vantage::Client,
        arguments: "--open-connections keep",
        change: str::to_owned,
        red: &[
            (Family::V4, Probe::Idle, "outcome: silence instead of end of file"),
            (Family::V6, Probe::Idle, "outcome: silence instead of end of file"),
        ],
    },
    Mutation {
        name: "arp-left-alive",
        failure: "unplugged-cold",
        vantage: Vantage::Client,
        arguments: "",
        change: |rules| without_table(rules, "arp"),
        red: &[
            (Family::V4, Probe::Connect, "outcome: silence instead of EHOSTUNREACH"),
            (Family::V4, Probe::PollConnect, "outcome: silence instead of EHOSTUNREACH"),
        ],
    },
    Mutation {
        name: "errors-from-the-clients-own-address",
        failure: "killed",
        vantage: Vantage::Client,
        arguments: "",
        change: |rules| without_lines(rules, "saddr set"),
        red: &[(Family::V4, Probe::UdpRecverr, "error queue"), (Family::V6, Probe::UdpRecverr, "error queue")],
    },
];

/// What most people write first.
fn drop_in_output(rules: &str) -> String {
    let rules = without_lines(&without_table(rules, "netdev"), "@covered accept");
    let rules = rules.replace("meta mark set 0x64656164 ip daddr set 127.0.0.1 accept", "drop");
    rules.replace("meta mark set 0x64656164 ip6 daddr set ::1 accept", "drop")
}

fn without_table(rules: &str, family: &str) -> String {
    let begin = rules.find(&format!("table {family} ")).expect("the rules have such a table");
    let length = rules[begin..].find("\n}\n").expect("the table ends") + 3;
    [&rules[..begin], &rules[begin + length..]].concat()
}

fn without_lines(rules: &str, text: &str) -> String {
    assert!(rules.contains(text), "the rules have {text:?}");
    rules.lines().filter(|line| !line.contains(text)).flat_map(|line| [line, "\n"]).collect()
}

impl Mutation {
    /// Compares the real failure with the broken simulation; says which cells should be red and are not.
    pub(crate) fn check(&self) -> Result<(), String> {
        let failure = failures::ALL.iter().find(|failure| failure.name == self.failure).unwrap();
        let (real, broken) = thread::scope(|scope| {
            let real = scope.spawn(|| run(failure, Location::Segment, None));
            let broken = scope.spawn(|| run_with(failure, Location::Segment, |rig| self.simulate(failure, rig), None));
            (real.join().unwrap(), broken.join().unwrap())
        });
        let mut green = Vec::new();
        for (family, probe, said) in self.red {
            let told = compare(&real[&(*family, *probe)], &broken[&(*family, *probe)]).told;
            if !told.iter().any(|line| line.starts_with(said)) {
                green.push(format!("{} {}: expected {said:?}, found {told:?}", probe.name(), family.name()));
            }
        }
        if green.is_empty() { Ok(()) } else { Err(green.join("\n")) }
    }

    fn simulate(&self, failure: &Failure, rig: &mut Rig) {
        let line = format!("{} {}", failure.line(rig.location), self.arguments);
        let rules = rig.segment.playdead(self.vantage.at(), &format!("{line} --dry-run"));
        let broken = (self.change)(&rules);
        if broken == rules {
            rig.segment.playdead(self.vantage.at(), &line);
        } else {
            load(&rig.segment.name(self.vantage.at()), &broken);
        }
    }
}

fn load(ns: &str, rules: &str) {
    let mut command = Command::new("ip");
    command.args(words("netns exec")).arg(ns).args(words("nft -f -")).stdin(Stdio::piped());
    let mut nft = command.spawn().unwrap();
    nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success(), "nft refused:\n{rules}");
}
