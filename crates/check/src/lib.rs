//! One conformance suite for all indexes ([`conformance`]), runs that are a function of a seed ([`case`], [`mod@run`]), histories
//! with a linearizability check per key ([`log`], [`history`]), and the test bed all of it runs on ([`test_cluster`]).
#![forbid(unsafe_code)]

mod actors;
mod availability;
pub mod brute;
pub mod case;
pub mod concurrent;
pub mod conformance;
mod drive;
pub mod exhaustive;
pub mod fault;
pub mod file;
pub mod history;
pub mod log;
pub mod network;
pub mod plan;
pub mod remote_client;
mod restarts;
pub mod rng;
pub mod run;
pub mod scenario;
mod server;
mod settle;
pub mod shrink;
mod stage;
pub mod test_cluster;
pub mod trace;
pub mod verdict;

pub use case::Case;
pub use fault::{NodeFault, NodeFaultSet};
pub use run::run;
pub use verdict::{Finding, Verdict};
