//! The contract on a real RDMA device: what can be tested of it there.
#![cfg(feature = "verbs")]

#[path = "../common/mod.rs"]
mod common;
mod contract;
mod failure;
mod order;
mod test_cluster;
