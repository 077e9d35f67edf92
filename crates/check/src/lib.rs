//! One conformance suite for all indexes ([`conformance`]), runs that are a function of a seed ([`case`], [`mod@run`]), histories
//! with a linearizability check per key ([`log`], [`history`]), and the test bed all of it runs on ([`bed`]).
#![forbid(unsafe_code)]

mod availability;
pub mod away;
pub mod bed;
pub mod brute;
pub mod case;
mod cast;
pub mod concurrent;
pub mod conformance;
mod drive;
pub mod exhaustive;
pub mod fault;
pub mod file;
pub mod history;
mod lives;
pub mod log;
pub mod network;
pub mod plan;
pub mod rng;
pub mod run;
pub mod scene;
mod server;
mod settle;
pub mod shrink;
mod stage;
pub mod trace;
pub mod verdict;

pub use case::Case;
pub use fault::{Fault, FaultSet};
pub use run::run;
pub use verdict::{Finding, Verdict};
