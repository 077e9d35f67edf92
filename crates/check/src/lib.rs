//! One conformance suite for all indexes ([`conformance`]), histories with a linearizability check per key ([`history`]), and
//! the test bed both run on ([`bed`]).
#![forbid(unsafe_code)]

pub mod bed;
pub mod concurrent;
pub mod conformance;
pub mod history;
pub mod rng;
