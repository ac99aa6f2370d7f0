//! Whether two runs are the same to the client, and if not, in what.

use serde::{Deserialize, Serialize};

use crate::pace;
use crate::record::Seen;

/// What a client could tell the real failure and the simulated one apart by.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Difference {
    /// In words; nothing if the two are equal.
    pub(crate) told: Vec<String>,
    /// Outcome and error queue agree: only packets, times or the kernel's count of retransmissions do not, in which two
    /// real failures differ now and then, too.
    pub(crate) perhaps_chance: bool,
}

impl Difference {
    pub(crate) fn is_none(&self) -> bool {
        self.told.is_empty()
    }
}

/// Compares all that was seen.
pub(crate) fn compare(real: &Seen, simulated: &Seen) -> Difference {
    let kernel = |seen: &Seen| seen.kernel.clone().unwrap_or_default();
    let mut told: Vec<_> = [
        differ("outcome", &real.outcome, &simulated.outcome),
        differ("error queue", &real.errors.join(", "), &simulated.errors.join(", ")),
    ]
    .into_iter()
    .flatten()
    .collect();
    let perhaps_chance = told.is_empty();
    told.extend(differ("kernel", &kernel(real), &kernel(simulated)));
    told.extend(pairs(real, simulated).into_iter().filter_map(|(what, real, simulated)| {
        let (real, simulated) = first_difference(real, simulated);
        differ(what, &real, &simulated)
    }));
    if told.is_empty() {
        told = late(real, simulated);
    }
    Difference { perhaps_chance: perhaps_chance && !told.is_empty(), told }
}

fn differ(what: &str, real: &str, simulated: &str) -> Option<String> {
    let or_nothing = |text: &str| if text.is_empty() { "nothing".to_owned() } else { text.to_owned() };
    (real != simulated).then(|| format!("{what}: {} instead of {}", or_nothing(simulated), or_nothing(real)))
}

type Timed = [(f64, String)];

fn pairs<'a>(real: &'a Seen, simulated: &'a Seen) -> [(&'static str, &'a Timed, &'a Timed); 3] {
    [
        ("steps", &real.steps, &simulated.steps),
        ("sent", &real.sent, &simulated.sent),
        ("heard", &real.heard, &simulated.heard),
    ]
}

/// The first entries that differ; empty texts if none does.
fn first_difference(real: &Timed, simulated: &Timed) -> (String, String) {
    for number in 0..real.len().max(simulated.len()) {
        let text = |list: &Timed| list.get(number).map(|(_, text)| text.clone()).unwrap_or_default();
        let (real, simulated) = (text(real), text(simulated));
        if real != simulated {
            let prefix = |text: String| if text.is_empty() { text } else { format!("[{number}] {text}") };
            return (prefix(real), prefix(simulated));
        }
    }
    Default::default()
}

/// What came at another time: farther apart than the machine's bound and 5 %.
fn late(real: &Seen, simulated: &Seen) -> Vec<String> {
    let mut told = Vec::new();
    let bound = pace::bound_ms();
    let mut check = |what: &str, real: Option<f64>, simulated: Option<f64>| {
        if let (Some(real), Some(simulated)) = (real, simulated)
            && (real - simulated).abs() > f64::max(bound, real * 0.05)
        {
            told.push(format!("{what}: after {simulated:.0} ms instead of {real:.0} ms"));
        }
    };
    check("outcome", real.took_ms, simulated.took_ms);
    for (what, real, simulated) in pairs(real, simulated) {
        for ((real, text), (simulated, _)) in real.iter().zip(simulated) {
            check(&format!("{what} {text}"), Some(*real), Some(*simulated));
        }
    }
    told
}
