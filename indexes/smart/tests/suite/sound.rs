//! The conformance suite on the sound `smart`, in many geometries.

use dmtree_check::conformance::{self, Keys};
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::local::Knobs;
use dmtree_pool::PoolOptions;
use dmtree_smart::sound::{Options, Smart};

fn pool() -> PoolOptions {
    PoolOptions {
        memory_nodes: 1,
        compute_nodes: 3,
        memory_bytes_per_node: 128 << 20,
        ..PoolOptions::default()
    }
}

fn test_cluster_with(pool: PoolOptions, o: &Options, cache_bytes: u64) -> TestCluster<Smart> {
    TestCluster::new(&pool, cache_bytes, o).expect("a pool and an index")
}

fn test_cluster(o: &Options) -> TestCluster<Smart> {
    test_cluster_with(pool(), o, 8 << 20)
}

fn usual() -> Options {
    Options::default()
}

#[test]
fn basics() {
    conformance::basics(&test_cluster(&usual()));
}

#[test]
fn model_of_every_kind_of_keys() {
    conformance::model(&test_cluster(&usual()), 1, Keys::Short, 2_000, 30_000);
    conformance::model(&test_cluster(&usual()), 2, Keys::Hashed24, 3_000, 30_000);
    conformance::model(&test_cluster(&usual()), 3, Keys::LongPrefix, 2_000, 20_000);
    conformance::model(&test_cluster(&usual()), 4, Keys::AnyLength, 1_000, 15_000);
    conformance::model(&test_cluster(&usual()), 5, Keys::Ascending, 4_000, 20_000);
}

#[test]
fn model_inline_sizes_and_techniques() {
    for (value_inline_bytes, on) in [(8, false), (16, true), (256, false), (1024, true)] {
        let o = Options { value_inline_bytes, delegation: on, combining: on, ..usual() };
        conformance::model(
            &test_cluster(&o),
            u64::from(value_inline_bytes),
            Keys::AnyLength,
            400,
            5_000,
        );
    }
}

#[test]
fn model_caches_of_any_size() {
    for (seed, cache_bytes) in [(8, 0), (9, 300), (10, 10_000)] {
        let test_cluster = test_cluster_with(pool(), &usual(), cache_bytes);
        conformance::model(&test_cluster, seed, Keys::Hashed24, 2_000, 8_000);
        conformance::model(
            &test_cluster_with(pool(), &usual(), cache_bytes),
            9,
            Keys::LongPrefix,
            1_000,
            5_000,
        );
    }
}

#[test]
fn model_few_generations_and_several_memory_nodes() {
    let pool = PoolOptions { generation_bits: 2, memory_nodes: 3, ..pool() };
    conformance::model(
        &test_cluster_with(pool, &usual(), 8 << 20),
        11,
        Keys::Hashed24,
        1_000,
        20_000,
    );
}

#[test]
fn model_suspended_at_random_verbs() {
    let pool = PoolOptions { knobs: Knobs { suspend_one_in: 3, seed: 11 }, ..pool() };
    conformance::model(&test_cluster_with(pool, &usual(), 8 << 20), 12, Keys::Short, 2_000, 15_000);
}

#[test]
fn lengths_fills_and_loads() {
    conformance::lengths(&test_cluster(&usual()));
    conformance::fill_and_empty(&test_cluster(&usual()), Keys::Ascending, 6_000, false);
    conformance::fill_and_empty(&test_cluster(&usual()), Keys::Ascending, 6_000, true);
    conformance::fill_and_empty(&test_cluster(&usual()), Keys::LongPrefix, 3_000, false);
    conformance::load(&test_cluster(&usual()), Keys::Hashed24, 20_000);
    conformance::load(&test_cluster(&usual()), Keys::AnyLength, 500);
    conformance::load(&test_cluster(&usual()), Keys::Hashed24, 20);
}
