//! The conformance suite on every preset, in many geometries.

use std::sync::Arc;

use dmtree_check::conformance::{self, Keys};
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::local::{Knobs, LocalFabric, Tearing};
use dmtree_fabric::{ErrorKind, NodeId};
use dmtree_parts::Write;
use dmtree_pool::{Cluster, PoolOptions};
use dmtree_sherman::format::Geometry;
use dmtree_sherman::{Options, Sherman, ShermanNode};

fn pool() -> PoolOptions {
    PoolOptions {
        memory_nodes: 1,
        compute_nodes: 3,
        memory_bytes_per_node: 64 << 20,
        ..PoolOptions::default()
    }
}

fn presets() -> [Options; 5] {
    [
        Options::fg(),
        Options::combine(),
        Options::on_chip(),
        Options::hierarchical(),
        Options::published(),
    ]
}

fn test_cluster_with(pool: PoolOptions, o: &Options, cache_bytes: u64) -> TestCluster<Sherman> {
    TestCluster::new(&pool, cache_bytes, o).expect("a pool and an index")
}

fn test_cluster(o: &Options) -> TestCluster<Sherman> {
    test_cluster_with(pool(), o, 8 << 20)
}

/// A pool with on-chip memory in its memory nodes.
fn with_chips(o: &Options, chip_bytes: u32) -> TestCluster<Sherman> {
    let fabric = LocalFabric::with_chips(Knobs::default(), Tearing::AnyOrder, chip_bytes);
    let pool = PoolOptions { memory_nodes: 2, ..pool() };
    for m in 0..2 {
        fabric.add_node(NodeId::memory(m), pool.memory_bytes_per_node).expect("new");
    }
    for c in 0..3 {
        fabric.add_node(NodeId::compute(c), pool.chosen_compute_bytes()).expect("new");
    }
    let cluster = Cluster::format(Arc::new(fabric), &pool).expect("a pool");
    TestCluster::on(cluster, 8 << 20, o).expect("an index")
}

#[test]
fn basics() {
    presets().iter().for_each(|o| conformance::basics_of_fixed_lengths(&test_cluster(o)));
}

#[test]
fn model_hashed_keys() {
    for (seed, o) in (0..).zip(presets()) {
        conformance::model(&test_cluster(&o), seed, Keys::Hashed24, 3_000, 20_000);
    }
}

#[test]
fn model_ascending_keys_in_high_trees() {
    for (seed, o) in (10..).zip(presets()) {
        let o = Options { key_bytes: 8, inner_slots: 4, leaf_slots: 4, ..o };
        conformance::model(&test_cluster(&o), seed, Keys::Ascending, 2_000, 8_000);
    }
}

#[test]
fn model_pages_of_1k() {
    for (seed, o) in (20..).zip(presets()) {
        let o = Options { key_bytes: 24, ..o.in_pages_of_1k() };
        conformance::model(&test_cluster(&o), seed, Keys::Hashed24, 3_000, 15_000);
    }
}

#[test]
fn model_locks_on_chip_or_not() {
    for (seed, o) in (30..).zip(presets()) {
        for chip_bytes in [0, 64, 128 << 10] {
            conformance::model(&with_chips(&o, chip_bytes), seed, Keys::Hashed24, 1_000, 4_000);
        }
    }
}

#[test]
fn model_three_memory_nodes_and_one_lock_each() {
    let pool = PoolOptions { memory_nodes: 3, chunk_bytes: Some(64 << 10), ..pool() };
    for (seed, o) in (40..).zip(presets()) {
        let o = Options { locks: 1, ..o };
        conformance::model(
            &test_cluster_with(pool.clone(), &o, 8 << 20),
            seed,
            Keys::Hashed24,
            2_000,
            8_000,
        );
    }
}

#[test]
fn model_cache_of_three_pages() {
    for (seed, o) in (50..).zip(presets()) {
        let o = Options { inner_slots: 8, leaf_slots: 8, ..o.clone() };
        let tiny = 3 * ShermanNode::least_cache_bytes(&Geometry::new(&o));
        conformance::model(
            &test_cluster_with(pool(), &o, tiny),
            seed,
            Keys::Hashed24,
            2_000,
            8_000,
        );
    }
}

#[test]
fn model_suspended_at_random_verbs() {
    for (seed, o) in (60..).zip(presets()) {
        let pool = PoolOptions { knobs: Knobs { suspend_one_in: 3, seed }, ..pool() };
        conformance::model(
            &test_cluster_with(pool, &o, 8 << 20),
            seed,
            Keys::Hashed24,
            2_000,
            10_000,
        );
    }
}

#[test]
fn load() {
    for o in presets() {
        conformance::load(&test_cluster(&o), Keys::Hashed24, 20_000);
        conformance::load(
            &test_cluster(&Options { inner_slots: 8, ..o.clone() }),
            Keys::Hashed24,
            5_000,
        );
        conformance::load(&test_cluster(&o), Keys::Hashed24, 20);
    }
}

#[test]
fn loads_as_random_inserts_would() {
    let pool = PoolOptions { memory_bytes_per_node: 128 << 20, ..pool() };
    for o in [Options::fg(), Options::published()] {
        let test_cluster = || test_cluster_with(pool.clone(), &o, 64 << 20);
        conformance::random_fill(&test_cluster(), &test_cluster(), 300_000);
    }
}

/// Keys and values with lengths that are no whole words.
#[test]
fn odd_lengths() {
    for o in presets() {
        for (key_bytes, value_bytes) in [(1, 0), (3, 1), (13, 7), (16, 100), (200, 1000)] {
            let o = Options { key_bytes, value_bytes, ..o.clone() };
            let c = &mut test_cluster(&o).client(0).expect("attach");
            let key = |n: u32| {
                let mut key = n.wrapping_mul(0x9e37_79b9).to_be_bytes().to_vec();
                key.resize(key_bytes as usize, n as u8);
                key
            };
            let mut model = std::collections::BTreeMap::new();
            for n in 0..1_000 {
                let value = vec![n as u8; value_bytes as usize];
                c.write(&key(n), Write::Put(&value)).expect("put");
                model.insert(key(n), value);
            }
            for (k, v) in &model {
                assert_eq!(c.get(k).expect("get").as_ref(), Some(v));
            }
            assert_eq!(c.walk().expect("walk").keys, model.len() as u64);
        }
    }
}

/// A pool that fills up: stored pairs stay, and no operation stays incomplete.
#[test]
fn full_memory_nodes() {
    let pool = PoolOptions { memory_bytes_per_node: 2 << 20, ..pool() };
    for o in presets() {
        let test_cluster = test_cluster_with(pool.clone(), &Options { locks: 1024, ..o }, 8 << 20);
        let mut c = test_cluster.client(0).expect("attach");
        let (mut stored, mut failures) = (0, 0);
        for n in 0..60_000 {
            match c.write(&Keys::Hashed24.key(n), Write::Insert(&n.to_le_bytes())) {
                Ok(_) => stored += 1,
                Err(e) => {
                    assert!(e.kind() == ErrorKind::Full, "{e}");
                    failures += 1;
                }
            }
        }
        assert!(failures > 0 && stored > 10_000, "{stored} stored, {failures} refused");
        assert_eq!(c.walk().expect("walk").keys, stored);
        assert_eq!(
            c.write(&Keys::Hashed24.key(0), Write::Update(&[1; 8])).expect("update"),
            dmtree_parts::Outcome::Done
        );
    }
}
