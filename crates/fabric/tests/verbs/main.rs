//! The contract on a real RDMA device, as far as it can be tested there.
#![cfg(feature = "verbs")]

#[path = "../common/mod.rs"]
mod common;
mod contract;
mod failure;
mod order;
mod test_cluster;
