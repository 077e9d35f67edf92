//! Operations cost on a real RDMA device what they cost in memory of this process: the same verbs,
//! bytes and round trips.
#![cfg(feature = "verbs")]

use dmtree_check::peer::rows::counts;
use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::{Options, Tables, Techniques};
use dmtree_pool::{Cluster, PoolOptions};

fn pool() -> PoolOptions {
    PoolOptions { compute_nodes: 3, memory_bytes_per_node: 64 << 20, ..PoolOptions::default() }
}

#[test]
fn one_clients_counts_equal_those_on_local() {
    if dmtree_fabric::verbs::Nic::open(&dmtree_fabric::verbs::Config::default()).is_err()
        && std::env::var_os("DMTREE_NEED_RDMA").is_none()
    {
        #[expect(clippy::disallowed_macros, reason = "a skip is loud")]
        {
            println!("SKIPPED: this machine has no RDMA device");
        }
        return;
    }
    for tables in [Tables::Compute, Tables::Memory] {
        let techniques = Techniques { tables, ..Techniques::default() };
        let o = Options { techniques, ..Options::default() };
        let local = Cluster::embedded(&pool()).expect("a pool");
        let local = TestCluster::on(local, 16 << 20, o.clone()).expect("an index");
        let verbs = TestCluster::on_verbs(&pool(), 16 << 20, o.clone()).expect("an index");
        assert_eq!(counts(&local), counts(&verbs), "{tables:?}");
    }
}
