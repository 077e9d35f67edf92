//! The litmus suite: schemes of synchronization that are known to be unsound must fail on the
//! adversarial fabric within a bounded number of seeds, their sound counterparts must not. This is
//! the test of the simulator, not of any index.

mod contract;
mod lax;
mod locks;
mod lost;
mod order;
mod reads;
mod reuse;
mod test_cluster;
