//! What is broken, where and for how long. Pure: no I/O, no clock.

pub mod expect;
pub mod observation;
pub mod signature;
