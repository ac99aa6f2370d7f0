//! Contestants that take turns.

use anyhow::Result;

/// The quartiles of what was measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Spread {
    /// Of at least one value.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |quarter: usize| values[(values.len() - 1) * quarter / 4];
        Self { low: at(1), median: at(2), high: at(3) }
    }
}

/// One contestant: takes its turn and gives what it measured, always as many figures.
pub(crate) type Turn<'a> = Box<dyn FnMut() -> Result<Vec<f64>> + 'a>;

/// What every contestant measured in every round.
pub(crate) struct Contest(Vec<Vec<Vec<f64>>>);

impl Contest {
    /// All take a turn in every round, each time another one first. What they do for the first time (modules, caches) does
    /// not count.
    pub(crate) fn hold(rounds: usize, turns: &mut [Turn]) -> Result<Self> {
        for turn in turns.iter_mut() {
            turn()?;
        }
        let mut found = vec![Vec::new(); turns.len()];
        for round in 0..rounds {
            for place in 0..turns.len() {
                let who = (round + place) % turns.len();
                found[who].push(turns[who]()?);
            }
        }
        Ok(Self(found))
    }

    pub(crate) fn spread(&self, who: usize, figure: usize) -> Spread {
        Spread::of(self.0[who].iter().map(|figures| figures[figure]).collect())
    }

    /// Of the rounds' own ratios: one contestant's figure over another's.
    pub(crate) fn ratio(&self, who: usize, over: usize, figure: usize) -> Spread {
        let rounds = self.0[who].iter().zip(&self.0[over]);
        Spread::of(rounds.map(|(mine, theirs)| mine[figure] / theirs[figure]).collect())
    }
}
