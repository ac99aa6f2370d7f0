//! The cells of the matrix: their names, and what became of each.

use serde::{Deserialize, Serialize};

use crate::compare::Difference;
use crate::failures::{self, Failure};
use crate::places::{Family, Location, Vantage};
use crate::probes::Probe;

/// Which comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) failure: &'static str,
    pub(crate) location: Location,
    pub(crate) vantage: Vantage,
    pub(crate) family: Family,
    pub(crate) probe: Probe,
}

impl Cell {
    pub(crate) fn name(&self) -> String {
        let Self { failure, location, vantage, family, probe } = self;
        [failure, location.name(), vantage.name(), family.name(), probe.name()].join("/")
    }

    /// Every cell that there is.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        failures::ALL
            .iter()
            .flat_map(|failure| failure.locations.iter().flat_map(move |location| Self::of(failure, *location)))
    }

    /// Those of one row.
    pub(crate) fn of(failure: &'static Failure, location: Location) -> impl Iterator<Item = Self> {
        let cells = move |vantage: Vantage| {
            Family::ALL.into_iter().flat_map(move |family| {
                let probes = failure.probes.iter();
                probes.map(move |probe| Self { failure: failure.name, location, vantage, family, probe: *probe })
            })
        };
        location.vantages().iter().flat_map(move |vantage| cells(*vantage))
    }
}

/// A line of the results.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Result {
    /// The name of the cell.
    pub(crate) cell: String,
    /// The name under which `docs/fidelity.md` lists its difference.
    pub(crate) named: Option<String>,
    /// How often it was measured again because only what is perhaps chance differed.
    pub(crate) repeats: u32,
    #[serde(flatten)]
    pub(crate) difference: Difference,
}

impl Result {
    /// Nothing differs.
    pub(crate) fn is_equal(&self) -> bool {
        self.difference.is_none()
    }

    /// What is wrong with it, if anything is.
    pub(crate) fn wrong(&self) -> Option<String> {
        match &self.named {
            None if !self.is_equal() => {
                Some(format!("{} differs:\n    {}", self.cell, self.difference.told.join("\n    ")))
            }
            Some(name) if self.is_equal() => {
                Some(format!("{} no longer differs: take it out of {name:?} in docs/fidelity.md", self.cell))
            }
            _ => None,
        }
    }
}
