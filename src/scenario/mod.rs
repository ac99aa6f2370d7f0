//! What is to happen to a distributed system, in which order, and what must then be seen. Pure.
//!
//! [`file`] is what an author wrote, checked as far as words alone can be. [`plan`] takes the dice out of it: the same
//! file and the same seed are the same list of steps.

pub mod file;
pub mod plan;
mod texts;

pub use file::{Action, Condition, Scenario, Step, Test, parse};
pub use plan::{Plan, Planned, line, plan};
