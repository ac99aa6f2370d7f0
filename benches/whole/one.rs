//! One dead host, and its end: whole processes in a namespace of their own.

use anyhow::{Result, ensure};
use playdead::kernel::netns::NetNs;

use crate::Extent;
use crate::contest::{Contest, Turn};
use crate::places::{Places, prefix};
use crate::process::{self, PLAYDEAD};
use crate::report::Row;

/// What a user would type for the same: silence in both directions.
pub(crate) const BY_NFT: &str = "table inet cut {
  set dead { type ipv4_addr; elements = { 10.99.0.2 } }
  chain in { type filter hook input priority -300; ip saddr @dead drop; }
  chain out { type filter hook output priority -300; ip daddr @dead drop; }
}
";

const CONTESTANTS: usize = 6;

/// The words that make it and those that end it, one after the other.
struct Contestant {
    name: &'static str,
    apply: Vec<(&'static str, String)>,
    heal: Vec<(&'static str, String)>,
}

fn by_iptables(name: &'static str, program: &'static str) -> Contestant {
    let both = |what: &str| {
        let chains = [("INPUT", "-s"), ("OUTPUT", "-d")];
        chains.map(|(chain, end)| (program, format!("{what} {chain} {end} 10.99.0.2 -j DROP"))).to_vec()
    };
    Contestant { name, apply: both("-I"), heal: both("-D") }
}

fn contestants(file: &str, same: &Same) -> [Contestant; CONTESTANTS] {
    let one = |program, line: &str| vec![(program, line.to_owned())];
    let playdead = Contestant {
        name: "playdead",
        apply: one(PLAYDEAD, "dead-host 10.99.0.2"),
        heal: one(PLAYDEAD, "--netns /proc/self/ns/net heal"),
    };
    let nft = Contestant {
        name: "nft -f, nft delete table",
        apply: one("nft", &format!("-f {file}")),
        heal: one("nft", "delete table inet cut"),
    };
    let same = Contestant {
        name: "nft -f, twice, the same rules",
        apply: one("nft", &format!("-f {}", same.apply)),
        heal: one("nft", &format!("-f {}", same.heal)),
    };
    let nothing = Contestant { name: "`true`, twice", apply: one("true", ""), heal: one("true", "") };
    let tables = by_iptables("iptables (nf_tables), four times", "iptables-nft");
    [playdead, nft, tables, by_iptables("iptables (legacy), four times", "iptables-legacy"), same, nothing]
}

pub(crate) fn rows(extent: Extent) -> Result<Vec<Row>> {
    let file = tempfile("one", BY_NFT)?;
    let places = (0..CONTESTANTS).map(|number| Places::pair(&format!("one{number}-"))).collect::<Result<Vec<_>>>()?;
    let namespaces = places.iter().map(|places| places.open(0)).collect::<Result<Vec<_>>>()?;
    let same = Same::as_by(&namespaces[0], "one", &process::words("dead-host 10.99.0.2"))?;
    let contestants = contestants(&file, &same);
    let turn = |(contestant, ns)| -> Turn {
        let (contestant, ns): (&Contestant, &NetNs) = (contestant, ns);
        Box::new(move || {
            let all = |lines: &[(&str, String)]| -> Result<f64> {
                lines.iter().map(|(program, line)| Ok(process::line(program, line)?.ms)).sum()
            };
            ns.run(|| {
                let (apply, heal) = (all(&contestant.apply)?, all(&contestant.heal)?);
                Ok(vec![apply, heal, apply + heal])
            })?
        })
    };
    let mut turns: Vec<_> = contestants.iter().zip(&namespaces).map(turn).collect();
    let contest = Contest::hold(extent.rounds(60), &mut turns)?;
    drop(turns);
    std::fs::remove_file(&file)?;
    let mut rows = Vec::new();
    for (figure, what) in [(2, "one fault, applied and healed"), (0, "one fault, applied"), (1, "one fault, healed")] {
        for (number, contestant) in contestants.iter().enumerate().skip(1) {
            let row = Row::of(&contest, what, figure, 0, (contestant.name, number));
            rows.push(if figure == 2 && number < CONTESTANTS - 1 { row.goal(0.5) } else { row });
        }
    }
    Ok(rows)
}

/// Files with the very rules that playdead writes, and with what takes them away, for nft to do the same by.
pub(crate) struct Same {
    pub(crate) apply: String,
    pub(crate) heal: String,
}

impl Same {
    /// Those of a fault, made by these words in that namespace.
    pub(crate) fn as_by(ns: &NetNs, of: &str, apply: &[String]) -> Result<Self> {
        let words = [apply, &process::words("--dry-run")].concat();
        let (rules, _) = ns.run(|| process::output(PLAYDEAD, &words))??;
        let tables = rules.lines().filter_map(|line| Some(line.strip_prefix("table ")?.trim_end_matches(" {")));
        let deletions: Vec<_> = tables.map(|table| format!("delete table {table}\n")).collect();
        ensure!(!deletions.is_empty(), "no table in what it would write");
        Ok(Self {
            apply: tempfile(&format!("{of}-same"), &rules)?,
            heal: tempfile(&format!("{of}-end"), &deletions.concat())?,
        })
    }
}

impl Drop for Same {
    fn drop(&mut self) {
        for file in [&self.apply, &self.heal] {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// A file with this content, by its path.
pub(crate) fn tempfile(of: &str, content: &str) -> Result<String> {
    let file = std::env::temp_dir().join(format!("playdead-bench-{}{of}", prefix()));
    std::fs::write(&file, content)?;
    Ok(file.to_string_lossy().into_owned())
}
