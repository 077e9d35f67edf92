//! The conformance suite on every preset, in many geometries and with every switch in every
//! position.

use dmtree_check::conformance::{self, Keys};
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::ErrorKind;
use dmtree_fabric::local::Knobs;
use dmtree_fptree::format::Geometry;
use dmtree_fptree::{FpNode, FpTree, Locks, Options, Tables};
use dmtree_parts::Write;
use dmtree_pool::PoolOptions;

fn pool() -> PoolOptions {
    PoolOptions {
        memory_nodes: 1,
        compute_nodes: 3,
        memory_bytes_per_node: 64 << 20,
        ..PoolOptions::default()
    }
}

/// Small stretches, so that tables are spread over all compute nodes.
fn spread(o: Options) -> Options {
    Options { table_chunk_bytes: 4 << 10, ..o }
}

fn presets() -> [Options; 5] {
    [
        Options::fptree(),
        Options::fptree_rtc(),
        Options::fptree_cache(),
        Options::fptree_locking(),
        Options::dmtree_published(),
    ]
    .map(spread)
}

fn test_cluster_with(pool: PoolOptions, o: &Options, cache_bytes: u64) -> TestCluster<FpTree> {
    TestCluster::new(&pool, cache_bytes, o).expect("a pool and an index")
}

fn test_cluster(o: &Options) -> TestCluster<FpTree> {
    test_cluster_with(pool(), o, 8 << 20)
}

/// A cache of three nodes.
fn tiny_cache(o: &Options) -> u64 {
    3 * FpNode::least_cache_bytes(&Geometry::new(o))
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
        let o = Options { key_bytes: 8, fanout: 8, ..o };
        conformance::model(&test_cluster(&o), seed, Keys::Ascending, 4_000, 14_000);
    }
}

#[test]
fn model_capacities() {
    for leaf_capacity in [64, 128] {
        let o = Options { leaf_capacity, ..spread(Options::dmtree_published()) };
        conformance::model(&test_cluster(&o), 20, Keys::Hashed24, 4_000, 15_000);
        let o = Options { leaf_capacity, ..Options::fptree() };
        conformance::model(&test_cluster(&o), 21, Keys::Hashed24, 4_000, 15_000);
    }
}

#[test]
fn model_three_memory_nodes() {
    // Small chunks, so that all memory nodes have leaves, inner nodes and tables.
    let pool = PoolOptions { memory_nodes: 3, chunk_bytes: Some(64 << 10), ..pool() };
    for (seed, o) in (30..).zip(presets()) {
        let test_cluster = test_cluster_with(pool.clone(), &o, 8 << 20);
        conformance::model(&test_cluster, seed, Keys::Hashed24, 3_000, 15_000);
        for n in 0..3 {
            let mut c = test_cluster.client(0).expect("attach");
            c.walk().expect("walk");
            let counts = c.take_counts();
            let node = dmtree_fabric::NodeId::memory(n);
            assert!(counts.nodes.iter().any(|(at, c)| *at == node && c.read > 10), "{node}");
        }
    }
}

#[test]
fn model_cache_of_three_nodes() {
    for (seed, o) in (40..).zip(presets()) {
        for adaptive_capacity in [true, false] {
            let o = Options { fanout: 8, adaptive_capacity, ..o.clone() };
            let test_cluster = test_cluster_with(pool(), &o, tiny_cache(&o));
            conformance::model(&test_cluster, seed, Keys::Hashed24, 2_000, 8_000);
            let shape = test_cluster.client(0).expect("attach").walk().expect("walk");
            let larger = shape.leaves.iter().any(|(slots, _)| *slots > 32);
            assert_eq!(larger, adaptive_capacity, "{:?}", shape.leaves);
        }
    }
}

#[test]
fn model_every_switch() {
    for bits in 0..64u32 {
        let on = |n: u32| bits >> n & 1 == 1;
        let o = Options {
            tables: if on(0) { Tables::Memory } else { Tables::Compute },
            locks: if on(1) { Locks::Leaf } else { Locks::Table },
            mirrors: on(2) && !on(0),
            round_trip_combining: on(3),
            delegation: on(4),
            combining: on(5),
            ..spread(Options::fptree())
        };
        conformance::model(&test_cluster(&o), 50 + u64::from(bits), Keys::Hashed24, 1_000, 3_000);
    }
}

#[test]
fn model_suspended_at_random_verbs() {
    for (seed, o) in (120..).zip(presets()) {
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
            &test_cluster(&Options { fanout: 8, ..o.clone() }),
            Keys::Hashed24,
            5_000,
        );
        conformance::load(&test_cluster(&o), Keys::Hashed24, 20);
    }
}

/// The highest key is alone in the position where the last leaf would begin.
#[test]
fn load_of_the_highest_key() {
    for (n, fill) in [(33u64, 1.0), (34, 1.0), (2, 0.01), (23, 0.7)] {
        let test_cluster = test_cluster(&Options::fptree());
        let mut c = test_cluster.client(0).expect("attach");
        let mut pairs: Vec<_> =
            (1..n).map(|n| (Keys::Hashed24.key(n), n.to_le_bytes().to_vec())).collect();
        pairs.push((vec![0xff; 24], vec![1; 8]));
        c.load(pairs, false, fill).expect("load");
        assert_eq!(c.walk().expect("walk").keys, n);
        assert_eq!(c.get(&[0xff; 24]).expect("get"), Some(vec![1; 8]));
        for n in n..n + 100 {
            c.write(&Keys::Hashed24.key(n), Write::Put(&[2; 8])).expect("put");
        }
        assert_eq!(c.get(&[0xff; 24]).expect("get"), Some(vec![1; 8]));
        assert_eq!(c.walk().expect("walk").keys, n + 100);
    }
}

#[test]
fn loads_as_random_inserts_would() {
    let pool = PoolOptions { memory_bytes_per_node: 128 << 20, ..pool() };
    for o in [Options::fptree(), spread(Options::dmtree_published())] {
        let test_cluster = || test_cluster_with(pool.clone(), &o, 64 << 20);
        conformance::random_fill(&test_cluster(), &test_cluster(), 400_000);
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

/// Compute nodes without room for tables: further leaves have their tables on memory nodes.
#[test]
fn tables_overflow_to_memory_nodes() {
    let pool = PoolOptions { compute_bytes_per_node: 8 << 10, ..pool() };
    for o in [Options::fptree_cache(), Options::fptree_locking(), Options::dmtree_published()] {
        let test_cluster = test_cluster_with(pool.clone(), &o, 8 << 20);
        conformance::model(&test_cluster, 130, Keys::Hashed24, 8_000, 16_000);
        let mut writer = test_cluster.client(0).expect("attach");
        for n in 0..20_000u64 {
            writer.write(&Keys::Hashed24.key(n), Write::Put(&n.to_le_bytes())).expect("put");
        }
        let mut c = test_cluster.client(1).expect("attach");
        let shape = c.walk().expect("walk");
        assert!(shape.table_bytes > 3 * (8 << 10), "{} bytes of tables", shape.table_bytes);
    }
}

/// A pool that fills up: stored pairs stay, and no operation stays incomplete.
#[test]
fn full_memory_nodes() {
    let pool = PoolOptions { memory_bytes_per_node: 2 << 20, ..pool() };
    for o in presets() {
        let test_cluster = test_cluster_with(pool.clone(), &o, 8 << 20);
        let mut c = test_cluster.client(0).expect("attach");
        let mut stored = 0;
        let mut failures = 0;
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
