//! Real processes: memory nodes, and compute processes that share an index on them, while some of
//! them start, stop, hang or are killed.
#![cfg(feature = "lab")]
#![expect(clippy::disallowed_methods, reason = "real processes in real time")]

mod addresses;
mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
mod costs;
mod dlsm;
mod durable;
mod etcd;
mod fairness;
mod harness;
mod hostile;
mod journal_gaps;
mod journals;
mod keys;
mod linear;
mod log;
mod memory_nodes;
mod metrics;
mod operations;
mod restarts;
mod rpc;
mod space;
mod starts;
mod status;
mod transfer;
mod unauthenticated;
