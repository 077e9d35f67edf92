//! One conformance suite for all indexes ([`conformance`]), runs that are a function of a seed
//! ([`case`], [`mod@run`]), many of them in a [`campaign`], histories with a linearizability check
//! per key ([`log`], [`history`]), and what all of them run on: the [`harness`], and its
//! [`test_cluster`].
#![forbid(unsafe_code)]

mod actors;
mod availability;
pub mod brute;
pub mod campaign;
pub mod case;
pub mod checked;
pub mod client;
pub mod clock;
pub mod concurrent;
pub mod conformance;
mod drive;
pub mod exhaustive;
pub mod fault;
pub mod file;
pub mod harness;
pub mod history;
mod instants;
pub mod log;
pub mod network;
mod node_states;
pub mod peer;
pub mod plan;
mod quiesce;
pub mod remote_client;
pub mod rng;
pub mod run;
pub mod scenario;
mod server;
pub mod shrink;
pub mod test_cluster;
pub mod trace;
pub mod verdict;

pub use case::Case;
pub use fault::{NodeFault, NodeFaultSet};
pub use run::run;
pub use verdict::{Finding, Verdict};
