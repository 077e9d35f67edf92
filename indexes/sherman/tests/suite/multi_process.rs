//! Sherman on compute nodes that are connected by TCP only (multi-process): the conformance suite,
//! and the same verbs as in one process.

use dmtree_check::conformance::{self, Keys};
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::Snapshot;
use dmtree_parts::{RangeIndex, Write};
use dmtree_pool::{Cluster, PoolOptions};
use dmtree_sherman::{Options, Sherman, sound};

fn pool(memory_nodes: u16, compute_nodes: u16) -> PoolOptions {
    let memory_bytes_per_node = 64 << 20;
    PoolOptions { memory_nodes, compute_nodes, memory_bytes_per_node, ..PoolOptions::default() }
}

fn test_cluster<I: RangeIndex>(pool: &PoolOptions, o: &I::Options) -> TestCluster<I> {
    TestCluster::on(Cluster::over_tcp(pool).expect("nodes"), 8 << 20, o).expect("an index")
}

#[test]
fn the_sound_variant() {
    conformance::basics(&test_cluster::<sound::Sherman>(&pool(1, 2), &sound::options()));
    let test_cluster = test_cluster::<sound::Sherman>(&pool(2, 2), &sound::options());
    conformance::model(&test_cluster, 4, Keys::AnyLength, 500, 4_000);
}

#[test]
fn every_published_step() {
    let steps = [
        Options::fg(),
        Options::combine(),
        Options::on_chip(),
        Options::hierarchical(),
        Options::published(),
    ];
    for o in steps {
        conformance::basics_of_fixed_lengths(&test_cluster::<Sherman>(&pool(1, 2), &o));
        let test_cluster = test_cluster::<Sherman>(&pool(2, 2), &o);
        conformance::model(&test_cluster, 5, Keys::Hashed24, 500, 2_000);
    }
}

/// The verb counts of one client for the same operations.
fn counts<I: RangeIndex>(test_cluster: &TestCluster<I>) -> Vec<Snapshot> {
    let mut c = test_cluster.client(0).expect("a member");
    let keys: Vec<Vec<u8>> = (0..3_000u64).map(|i| Keys::Hashed24.key(i)).collect();
    let mut rounds = Vec::new();
    keys[..2_000].iter().for_each(|k| _ = c.write(k, Write::Put(b"12345678")).expect("room"));
    rounds.push(c.take_counts());
    keys.iter().for_each(|k| _ = c.get(k).expect("works"));
    rounds.push(c.take_counts());
    keys[..1_000].iter().for_each(|k| _ = c.write(k, Write::Update(b"87654321")).expect("works"));
    keys[..500].iter().for_each(|k| _ = c.write(k, Write::Delete).expect("works"));
    rounds.push(c.take_counts());
    rounds
}

#[test]
fn one_client_posts_the_same_verbs_as_in_one_process() {
    let pool = pool(1, 2);
    let here: TestCluster<sound::Sherman> =
        TestCluster::new(&pool, 8 << 20, &sound::options()).expect("an index");
    let apart = test_cluster::<sound::Sherman>(&pool, &sound::options());
    assert_eq!(counts(&apart), counts(&here));
    let here: TestCluster<Sherman> =
        TestCluster::new(&pool, 8 << 20, &Options::published()).expect("an index");
    assert_eq!(counts(&test_cluster::<Sherman>(&pool, &Options::published())), counts(&here));
}
