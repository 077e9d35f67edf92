//! The conformance suite on every preset, in many geometries. Scans begin at the root, and absences
//! are checked twice: other tests cover the published effects of stale copies.

use std::sync::Arc;

use dmtree_check::conformance::{self, Keys};
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::local::{Knobs, LocalFabric, Tearing};
use dmtree_fabric::{ErrorKind, NodeId};
use dmtree_parts::{Outcome, Write};
use dmtree_pool::{Cluster, PoolOptions};
use dmtree_smart::format::Geometry;
use dmtree_smart::{Options, Smart, SmartNode};

fn pool() -> PoolOptions {
    PoolOptions {
        memory_nodes: 1,
        compute_nodes: 3,
        memory_bytes_per_node: 64 << 20,
        ..PoolOptions::default()
    }
}

fn presets() -> [Options; 6] {
    [
        Options::art(),
        Options::lock_free(),
        Options::in_place(),
        Options::rear_lock(),
        Options::delegation(),
        Options::published(),
    ]
}

/// Each preset as published but for the effects of stale copies, and each with every repair.
fn all() -> impl Iterator<Item = (u64, Options)> {
    let reading = |o: Options| Options { cached_scans: false, recheck_absent: true, ..o };
    let both = presets().into_iter().flat_map(move |o| [o.repaired(), reading(o)]);
    (0..).zip(both)
}

fn test_cluster_with(pool: PoolOptions, o: &Options, cache_bytes: u64) -> TestCluster<Smart> {
    TestCluster::new(&pool, cache_bytes, o).expect("a pool and an index")
}

fn test_cluster(o: &Options) -> TestCluster<Smart> {
    test_cluster_with(pool(), o, 8 << 20)
}

/// A pool with on-chip memory in its memory nodes.
fn with_chips(o: &Options, chip_bytes: u32) -> TestCluster<Smart> {
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
    all().for_each(|(_, o)| conformance::basics_of_fixed_lengths(&test_cluster(&o)));
}

#[test]
fn model_hashed_keys() {
    for (seed, o) in all() {
        conformance::model(&test_cluster(&o), seed, Keys::Hashed24, 2_000, 4_000);
    }
}

#[test]
fn model_ascending_keys() {
    for (seed, o) in all() {
        let o = Options { key_bytes: 8, ..o };
        conformance::model(&test_cluster(&o), 20 + seed, Keys::Ascending, 1_000, 3_000);
    }
}

/// Leaves of 34 bytes; the lock shares a word with the value.
#[test]
fn model_original_layout() {
    for (seed, o) in all() {
        conformance::model(&test_cluster(&o.original()), 40 + seed, Keys::Ascending, 500, 2_000);
    }
}

#[test]
fn model_artifact_layout_of_decimal_keys() {
    for (seed, o) in all() {
        let o = Options { largest_node: 16, ..o };
        conformance::model(&test_cluster(&o), 60 + seed, Keys::Hashed24, 1_000, 3_000);
    }
}

#[test]
fn model_locks_on_chip_or_not() {
    for (seed, o) in all() {
        for chip_bytes in [0, 64, 128 << 10] {
            conformance::model(&with_chips(&o, chip_bytes), seed, Keys::Hashed24, 300, 800);
        }
    }
}

#[test]
fn model_three_memory_nodes_and_one_lock_each() {
    let pool = PoolOptions { memory_nodes: 3, chunk_bytes: Some(64 << 10), ..pool() };
    for (seed, o) in all() {
        let test_cluster = test_cluster_with(pool.clone(), &Options { locks: 1, ..o }, 8 << 20);
        conformance::model(&test_cluster, seed, Keys::Hashed24, 1_000, 2_000);
    }
}

#[test]
fn model_cache_of_three_nodes() {
    for (seed, o) in all() {
        for indexed_cache in [true, false] {
            let o = Options { indexed_cache, ..o.clone() };
            let tiny = SmartNode::least_cache_bytes(&Geometry::new(&o));
            conformance::model(
                &test_cluster_with(pool(), &o, tiny),
                seed,
                Keys::Hashed24,
                1_000,
                2_000,
            );
        }
    }
}

#[test]
fn model_suspended_at_random_verbs() {
    for (seed, o) in all() {
        let pool = PoolOptions { knobs: Knobs { suspend_one_in: 3, seed }, ..pool() };
        conformance::model(
            &test_cluster_with(pool, &o, 8 << 20),
            seed,
            Keys::Hashed24,
            1_000,
            2_000,
        );
    }
}

#[test]
fn load() {
    for (_, o) in all() {
        conformance::load(&test_cluster(&o), Keys::Hashed24, 10_000);
        conformance::load(&test_cluster(&o), Keys::Hashed24, 20);
    }
}

/// Keys and values with lengths that are no whole words, and with long shared bytes.
#[test]
fn odd_lengths() {
    for (_, o) in all() {
        for (key_bytes, value_bytes, lock_bytes) in
            [(1, 0, 1), (3, 1, 8), (13, 7, 1), (16, 100, 8), (200, 1000, 1), (250, 9, 8)]
        {
            let o = Options { key_bytes, value_bytes, lock_bytes, ..o.clone() };
            let c = &mut test_cluster(&o).client(0).expect("attach");
            let key = |n: u32| {
                let mut key = vec![7; key_bytes.saturating_sub(4) as usize];
                key.extend_from_slice(&n.wrapping_mul(0x9e37_79b9).to_be_bytes());
                key.truncate(key_bytes as usize);
                if key_bytes > 100 {
                    // A fork in the middle of the shared bytes.
                    key[50 + n as usize % 3] = 9;
                }
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

/// An insert into a node without a slot for one more byte returns an error, and the node stays
/// unchanged.
#[test]
fn the_largest_node_is_full() {
    let o = Options { key_bytes: 2, largest_node: 16, ..Options::published() };
    let c = &mut test_cluster(&o).client(0).expect("attach");
    for n in 0..16u8 {
        c.write(&[1, n], Write::Insert(&[n; 8])).expect("room");
    }
    let e = c.write(&[1, 77], Write::Insert(&[0; 8])).expect_err("full");
    assert!(
        e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("largest_node"),
        "{e}"
    );
    assert_eq!(c.walk().expect("walk").keys, 16);
}

/// A pool that fills up: stored pairs stay, and no operation stays incomplete.
#[test]
fn full_memory_nodes() {
    let pool = PoolOptions { memory_bytes_per_node: 2 << 20, ..pool() };
    for (_, o) in all() {
        let o = Options { locks: 1024, largest_node: 16, ..o };
        let test_cluster = test_cluster_with(pool.clone(), &o, 8 << 20);
        let mut c = test_cluster.client(0).expect("attach");
        let (mut stored, mut failures) = (0, 0);
        for n in 0..40_000 {
            match c.write(&Keys::Hashed24.key(n), Write::Insert(&n.to_le_bytes())) {
                Ok(_) => stored += 1,
                Err(e) => {
                    assert!(e.kind() == ErrorKind::Full, "{e}");
                    failures += 1;
                }
            }
        }
        assert!(failures > 0 && stored > 5_000, "{stored} stored, {failures} refused");
        assert_eq!(c.walk().expect("walk").keys, stored);
        if o.in_place {
            let w = Write::Update(&[1; 8]);
            assert_eq!(c.write(&Keys::Hashed24.key(0), w).expect("update"), Outcome::Done);
        }
    }
}
