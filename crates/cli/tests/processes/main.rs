//! Real processes: memory nodes, and compute processes that share an index on them, while some of
//! them start, stop, hang or are killed.
#![cfg(feature = "lab")]
#![expect(clippy::disallowed_methods, reason = "real processes in real time")]

#[path = "../common/mod.rs"]
mod common;
mod costs;
mod fairness;
mod harness;
mod hostile;
mod keys;
mod memory_nodes;
mod operations;
mod restarts;
mod space;
mod starts;
mod unauthenticated;
