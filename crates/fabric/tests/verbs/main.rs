//! The contract on a real RDMA device: what can be tested of it there.
#![cfg(feature = "verbs")]

mod bed;
#[path = "../common/mod.rs"]
mod common;
mod contract;
mod failure;
mod order;
