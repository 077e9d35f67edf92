//! The conformance suite on DMTree, in many geometries and with every switch in every position.

use dmtree_check::conformance::{self, Keys};
use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::{DmNode, DmTree, Options, Tables};
use dmtree_fabric::local::Knobs;
use dmtree_pool::PoolOptions;

fn pool() -> PoolOptions {
    PoolOptions {
        memory_nodes: 1,
        compute_nodes: 3,
        memory_bytes_per_node: 64 << 20,
        ..PoolOptions::default()
    }
}

fn test_cluster_with(pool: PoolOptions, o: &Options, cache_bytes: u64) -> TestCluster<DmTree> {
    TestCluster::new(&pool, cache_bytes, o).expect("a pool and an index")
}

fn test_cluster(o: &Options) -> TestCluster<DmTree> {
    test_cluster_with(pool(), o, 8 << 20)
}

/// A cache of three nodes.
fn tiny_cache(o: &Options) -> u64 {
    3 * DmNode::least_cache_bytes(&o.geometry())
}

#[test]
fn basics() {
    conformance::basics(&test_cluster(&Options::default()));
}

#[test]
fn model_short_keys() {
    conformance::model(&test_cluster(&Options::default()), 1, Keys::Short, 2_000, 30_000);
}

#[test]
fn model_hashed_keys() {
    conformance::model(&test_cluster(&Options::default()), 2, Keys::Hashed24, 3_000, 30_000);
}

#[test]
fn model_long_prefixes() {
    conformance::model(&test_cluster(&Options::default()), 3, Keys::LongPrefix, 2_000, 20_000);
}

#[test]
fn model_any_length() {
    conformance::model(&test_cluster(&Options::default()), 4, Keys::AnyLength, 1_000, 15_000);
}

#[test]
fn model_capacities() {
    for leaf_capacity in [64, 128] {
        let o = Options { leaf_capacity, ..Options::default() };
        conformance::model(&test_cluster(&o), 5, Keys::Hashed24, 4_000, 15_000);
    }
}

#[test]
fn model_inline_sizes() {
    for (k, v) in [(8, 0), (8, 8), (16, 16), (64, 256), (24, 0)] {
        let o = Options { key_inline_bytes: k, value_inline_bytes: v, ..Options::default() };
        conformance::model(&test_cluster(&o), u64::from(k + v), Keys::AnyLength, 400, 5_000);
    }
}

#[test]
fn model_two_memory_nodes() {
    let pool = PoolOptions { memory_nodes: 2, ..pool() };
    conformance::model(
        &test_cluster_with(pool, &Options::default(), 8 << 20),
        6,
        Keys::Hashed24,
        3_000,
        20_000,
    );
}

#[test]
fn model_cache_of_three_nodes() {
    let o = Options { fanout: 8, ..Options::default() };
    let test_cluster = test_cluster_with(pool(), &o, tiny_cache(&o));
    conformance::model(&test_cluster, 7, Keys::Hashed24, 3_000, 15_000);
    let o = Options { fanout: 8, adaptive_capacity: false, ..Options::default() };
    let test_cluster = test_cluster_with(pool(), &o, tiny_cache(&o));
    conformance::model(&test_cluster, 8, Keys::LongPrefix, 2_000, 10_000);
}

#[test]
fn model_small_fanout_makes_high_trees() {
    let o = Options { fanout: 8, ..Options::default() };
    conformance::model(&test_cluster(&o), 9, Keys::Ascending, 10_000, 40_000);
}

#[test]
fn model_lives_of_two_bits() {
    let pool = PoolOptions { generation_bits: 2, ..pool() };
    let o = Options { fanout: 8, ..Options::default() };
    conformance::model(&test_cluster_with(pool, &o, 8 << 20), 10, Keys::Hashed24, 2_000, 30_000);
}

#[test]
fn model_every_switch() {
    let d = Options::default;
    let positions = [
        Options { mirrors: false, ..d() },
        Options { tables: Tables::Memory, ..d() },
        Options { delegation: false, ..d() },
        Options { combining: false, ..d() },
        Options { adaptive_capacity: false, ..d() },
        Options { round_trip_combining: false, ..d() },
        Options {
            mirrors: false,
            tables: Tables::Memory,
            delegation: false,
            combining: false,
            adaptive_capacity: false,
            round_trip_combining: false,
            ..d()
        },
    ];
    for (i, o) in positions.iter().enumerate() {
        conformance::model(&test_cluster(o), 20 + i as u64, Keys::Hashed24, 1_500, 8_000);
    }
}

#[test]
fn model_suspended_at_random_verbs() {
    let pool = PoolOptions { knobs: Knobs { suspend_one_in: 3, seed: 11 }, ..pool() };
    conformance::model(
        &test_cluster_with(pool, &Options::default(), 8 << 20),
        11,
        Keys::Short,
        2_000,
        15_000,
    );
}

#[test]
fn lengths() {
    conformance::lengths(&test_cluster(&Options::default()));
}

#[test]
fn fill_and_empty() {
    let o = Options { fanout: 8, ..Options::default() };
    conformance::fill_and_empty(&test_cluster(&o), Keys::Ascending, 6_000, false);
    conformance::fill_and_empty(&test_cluster(&o), Keys::Ascending, 6_000, true);
    conformance::fill_and_empty(&test_cluster(&o), Keys::LongPrefix, 3_000, false);
}

#[test]
fn load() {
    conformance::load(&test_cluster(&Options::default()), Keys::Hashed24, 20_000);
    conformance::load(&test_cluster(&Options::default()), Keys::AnyLength, 500);
    conformance::load(
        &test_cluster(&Options { fanout: 8, ..Options::default() }),
        Keys::LongPrefix,
        5_000,
    );
}

#[test]
fn loads_as_random_inserts_would() {
    let pool = PoolOptions { memory_bytes_per_node: 128 << 20, ..pool() };
    let test_cluster = || test_cluster_with(pool.clone(), &Options::default(), 64 << 20);
    conformance::random_fill(&test_cluster(), &test_cluster(), 400_000);
}
