//! The conformance suite on the sound `sherman`, in many geometries, with locks in main memory and
//! in on-chip memory.

use std::sync::Arc;

use dmtree_check::conformance::{self, Keys};
use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::Options;
use dmtree_fabric::NodeId;
use dmtree_fabric::local::{Knobs, LocalFabric, Tearing};
use dmtree_pool::{Cluster, PoolOptions};
use dmtree_sherman::sound::{self, Node, Sherman};

fn pool() -> PoolOptions {
    PoolOptions {
        memory_nodes: 1,
        compute_nodes: 3,
        memory_bytes_per_node: 64 << 20,
        ..PoolOptions::default()
    }
}

fn test_cluster_with(pool: PoolOptions, o: &Options, cache_bytes: u64) -> TestCluster<Sherman> {
    TestCluster::new(&pool, cache_bytes, o).expect("a pool and an index")
}

fn test_cluster(o: &Options) -> TestCluster<Sherman> {
    test_cluster_with(pool(), o, 8 << 20)
}

/// A pool with on-chip memory in its memory nodes.
fn with_chips(chip_bytes: u32) -> Cluster {
    let fabric = LocalFabric::with_chips(Knobs::default(), Tearing::AnyOrder, chip_bytes);
    let pool = PoolOptions { memory_nodes: 2, ..pool() };
    for m in 0..2 {
        fabric.add_node(NodeId::memory(m), pool.memory_bytes_per_node).expect("new");
    }
    for c in 0..3 {
        fabric.add_node(NodeId::compute(c), pool.chosen_compute_bytes()).expect("new");
    }
    Cluster::format(Arc::new(fabric), &pool).expect("a pool")
}

#[test]
fn basics() {
    conformance::basics(&test_cluster(&sound::options()));
}

#[test]
fn model_of_every_kind_of_keys() {
    conformance::model(&test_cluster(&sound::options()), 1, Keys::Short, 2_000, 30_000);
    conformance::model(&test_cluster(&sound::options()), 2, Keys::Hashed24, 3_000, 30_000);
    conformance::model(&test_cluster(&sound::options()), 3, Keys::LongPrefix, 2_000, 20_000);
    conformance::model(&test_cluster(&sound::options()), 4, Keys::AnyLength, 1_000, 15_000);
}

#[test]
fn model_capacities() {
    for leaf_capacity in [4, 7, 64, 128] {
        let o = Options { leaf_capacity, ..sound::options() };
        conformance::model(&test_cluster(&o), 5, Keys::Hashed24, 4_000, 15_000);
    }
}

#[test]
fn model_inline_sizes() {
    for (k, v) in [(8, 0), (8, 8), (16, 16), (64, 256), (24, 0)] {
        let o = Options { key_inline_bytes: k, value_inline_bytes: v, ..sound::options() };
        conformance::model(&test_cluster(&o), u64::from(k + v), Keys::AnyLength, 400, 5_000);
    }
}

#[test]
fn model_locks_on_chip_or_not() {
    for chip_bytes in [0, 64, 128 << 10] {
        let test_cluster: TestCluster<Sherman> =
            TestCluster::on(with_chips(chip_bytes), 8 << 20, &sound::options()).expect("an index");
        conformance::model(&test_cluster, 6, Keys::Hashed24, 1_000, 6_000);
    }
}

#[test]
fn model_few_locks() {
    for (locks, memory_nodes) in [(1, 1), (1, 3), (7, 2)] {
        let pool = PoolOptions { memory_nodes, ..pool() };
        let o = Options { locks, ..sound::options() };
        conformance::model(&test_cluster_with(pool, &o, 8 << 20), 7, Keys::Hashed24, 2_000, 10_000);
    }
}

#[test]
fn model_cache_of_three_nodes() {
    let o = Options { fanout: 8, ..sound::options() };
    let tiny = 3 * Node::least_cache_bytes(&o.geometry());
    conformance::model(&test_cluster_with(pool(), &o, tiny), 8, Keys::Hashed24, 3_000, 15_000);
    conformance::model(&test_cluster_with(pool(), &o, tiny), 9, Keys::LongPrefix, 2_000, 10_000);
}

#[test]
fn model_high_trees_and_few_generations() {
    let o = Options { fanout: 8, leaf_capacity: 6, ..sound::options() };
    conformance::model(&test_cluster(&o), 10, Keys::Ascending, 10_000, 40_000);
    let pool = PoolOptions { generation_bits: 2, ..pool() };
    conformance::model(&test_cluster_with(pool, &o, 8 << 20), 11, Keys::Hashed24, 2_000, 30_000);
}

#[test]
fn model_suspended_at_random_verbs() {
    let pool = PoolOptions { knobs: Knobs { suspend_one_in: 3, seed: 11 }, ..pool() };
    conformance::model(
        &test_cluster_with(pool, &sound::options(), 8 << 20),
        12,
        Keys::Short,
        2_000,
        15_000,
    );
}

#[test]
fn lengths_fills_and_loads() {
    conformance::lengths(&test_cluster(&sound::options()));
    let o = Options { fanout: 8, ..sound::options() };
    conformance::fill_and_empty(&test_cluster(&o), Keys::Ascending, 6_000, false);
    conformance::fill_and_empty(&test_cluster(&o), Keys::Ascending, 6_000, true);
    conformance::fill_and_empty(&test_cluster(&o), Keys::LongPrefix, 3_000, false);
    conformance::load(&test_cluster(&sound::options()), Keys::Hashed24, 20_000);
    conformance::load(&test_cluster(&o), Keys::AnyLength, 500);
    conformance::load(&test_cluster(&sound::options()), Keys::Hashed24, 20);
}
