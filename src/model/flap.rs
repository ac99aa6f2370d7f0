//! A fault that comes and goes: when it does.

use std::time::Duration;

/// How it comes and goes. It begins with the fault, and ends with health.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rhythm {
    /// How long it is healthy each time.
    pub up: Duration,
    /// How long the fault is in force each time.
    pub down: Duration,
    /// By how much each of these times varies, in percent of it, at most 90.
    pub jitter: u8,
    /// The same seed varies them in the same way.
    pub seed: u64,
    /// How many times the fault comes; `None`: without an end.
    pub cycles: Option<u64>,
    /// When it is over; `None`: without an end.
    pub total: Option<Duration>,
}

/// The moment at which the fault comes or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// Since the start.
    pub at: Duration,
    /// Whether it comes.
    pub down: bool,
}

impl Rhythm {
    /// Every edge, in order. Each is counted from the start, so that no lateness adds up.
    pub fn edges(&self) -> impl Iterator<Item = Edge> {
        let rhythm = *self;
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let mut vary = move |time: Duration| {
            let share = f64::from(rhythm.jitter) / 100.0;
            time.mul_f64(1.0 + share * (2.0 * rng.f64() - 1.0))
        };
        let mut at = Duration::ZERO;
        let mut cycle = 0;
        let end = self.total.unwrap_or(Duration::MAX);
        std::iter::from_fn(move || {
            if at >= end || rhythm.cycles.is_some_and(|cycles| cycle >= cycles) {
                return None;
            }
            let down = Edge { at, down: true };
            let up = Edge { at: at.saturating_add(vary(rhythm.down)).min(end), down: false };
            at = up.at.saturating_add(vary(rhythm.up));
            cycle += 1;
            Some([down, up])
        })
        .flatten()
    }

    /// The longest that the fault can be in force at once.
    pub fn longest_down(&self) -> Duration {
        self.down.mul_f64(1.0 + f64::from(self.jitter) / 100.0)
    }
}

/// How late something was, of many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lateness {
    /// Half of the times it was later.
    pub median: Duration,
    /// It was never later.
    pub max: Duration,
}

impl Lateness {
    /// Of none it is zero.
    pub fn of(times: impl Iterator<Item = Duration>) -> Self {
        let mut times: Vec<_> = times.collect();
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        Self { median, max: times.last().copied().unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rhythm(up: u64, down: u64) -> Rhythm {
        let ms = Duration::from_millis;
        Rhythm { up: ms(up), down: ms(down), jitter: 0, seed: 1, cycles: None, total: None }
    }

    #[test]
    fn it_comes_first_and_goes_last() {
        let at = |rhythm: Rhythm| rhythm.edges().map(|edge| (edge.at.as_millis(), edge.down)).collect::<Vec<_>>();
        let three = [(0, true), (30, false), (100, true), (130, false)];
        assert_eq!(at(Rhythm { cycles: Some(2), ..rhythm(70, 30) }), three);
        let total = Some(Duration::from_millis(110));
        assert_eq!(at(Rhythm { total, ..rhythm(70, 30) }), [(0, true), (30, false), (100, true), (110, false)]);
        assert_eq!(at(Rhythm { total: Some(Duration::from_millis(100)), ..rhythm(70, 30) }), three[..2]);
        assert_eq!(rhythm(50, 50).edges().nth(599).unwrap().at, Duration::from_millis(29_950));
    }

    #[test]
    fn of_many_times_the_middle_and_the_last_count() {
        let of = |ms: &[u64]| Lateness::of(ms.iter().map(|ms| Duration::from_millis(*ms)));
        assert_eq!(of(&[9, 1, 5]), Lateness { median: Duration::from_millis(5), max: Duration::from_millis(9) });
        assert_eq!(of(&[]), Lateness::default());
    }

    proptest! {
        #[test]
        fn each_time_stays_within_the_jitter_and_the_seed_repeats_it(seed: u64, jitter in 0u8..=90) {
            let rhythm = Rhythm { jitter, seed, cycles: Some(50), ..rhythm(70, 30) };
            let edges: Vec<_> = rhythm.edges().collect();
            prop_assert_eq!(&rhythm.edges().collect::<Vec<_>>(), &edges);
            for pair in edges.windows(2) {
                let planned = if pair[0].down { rhythm.down } else { rhythm.up };
                let lasted = pair[1].at.saturating_sub(pair[0].at);
                let share = lasted.as_secs_f64() / planned.as_secs_f64();
                prop_assert!((share - 1.0).abs() <= f64::from(jitter) / 100.0 + 1e-6, "{}", share);
                prop_assert!(!pair[0].down || lasted <= rhythm.longest_down());
            }
        }
    }
}
