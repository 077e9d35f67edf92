//! The presets on compute nodes that are connected by TCP only (multi-process).

use dmtree_check::conformance::{self, Keys};
use dmtree_check::test_cluster::TestCluster;
use dmtree_fptree::{FpTree, Options};
use dmtree_pool::{Cluster, PoolOptions};

fn test_cluster(o: &Options) -> TestCluster<FpTree> {
    let pool =
        PoolOptions { compute_nodes: 2, memory_bytes_per_node: 64 << 20, ..PoolOptions::default() };
    TestCluster::on(Cluster::over_tcp(&pool).expect("nodes"), 8 << 20, o).expect("an index")
}

#[test]
fn fptree() {
    conformance::model(&test_cluster(&Options::fptree()), 3, Keys::Hashed24, 500, 3_000);
}

#[test]
fn dmtree_as_published() {
    conformance::basics_of_fixed_lengths(&test_cluster(&Options::dmtree_published()));
    conformance::model(&test_cluster(&Options::dmtree_published()), 4, Keys::Hashed24, 500, 3_000);
}
