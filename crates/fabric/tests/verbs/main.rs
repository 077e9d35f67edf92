//! The contract on a real RDMA device, as far as it can be tested there.
#![cfg(feature = "verbs")]

mod contract;
mod failure;
mod order;
mod test_cluster;
