//! SMART on compute nodes that are connected by TCP only (multi-process): the conformance suite,
//! and the same verbs as in one process.

use dmtree_check::conformance::{self, Keys};
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::Snapshot;
use dmtree_parts::Write;
use dmtree_pool::{Cluster, PoolOptions};
use dmtree_smart::{Options, Smart};

fn pool(memory_nodes: u16, compute_nodes: u16) -> PoolOptions {
    let memory_bytes_per_node = 64 << 20;
    PoolOptions { memory_nodes, compute_nodes, memory_bytes_per_node, ..PoolOptions::default() }
}

fn test_cluster(pool: &PoolOptions, o: &Options) -> TestCluster<Smart> {
    TestCluster::on(Cluster::over_tcp(pool).expect("nodes"), 8 << 20, o).expect("an index")
}

#[test]
fn every_step() {
    let steps = [
        Options::art(),
        Options::lock_free(),
        Options::in_place(),
        Options::rear_lock(),
        Options::delegation(),
        Options::published(),
    ];
    for o in steps {
        let o = Options { cached_scans: false, recheck_absent: true, ..o };
        conformance::basics_of_fixed_lengths(&test_cluster(&pool(1, 2), &o));
        conformance::model(&test_cluster(&pool(2, 2), &o), 5, Keys::Hashed24, 300, 800);
    }
}

/// The verb counts of one client for the same operations.
fn counts(test_cluster: &TestCluster<Smart>) -> Vec<Snapshot> {
    let mut c = test_cluster.client(0).expect("a member");
    let keys: Vec<Vec<u8>> = (0..3_000u64).map(|i| Keys::Hashed24.key(i)).collect();
    let mut rounds = Vec::new();
    keys[..2_000].iter().for_each(|k| _ = c.write(k, Write::Put(b"12345678")).expect("room"));
    rounds.push(c.take_counts());
    keys.iter().for_each(|k| _ = c.get(k).expect("works"));
    rounds.push(c.take_counts());
    keys[..1_000].iter().for_each(|k| _ = c.write(k, Write::Update(b"87654321")).expect("works"));
    rounds.push(c.take_counts());
    rounds
}

#[test]
fn one_client_posts_the_same_verbs_as_in_one_process() {
    let pool = pool(1, 2);
    for o in [Options::art(), Options::published()] {
        // A verb that is not awaited may execute late; another client then has to do it.
        let o = Options { lazy_repairs: false, ..o };
        let here: TestCluster<Smart> = TestCluster::new(&pool, 8 << 20, &o).expect("an index");
        assert_eq!(counts(&test_cluster(&pool, &o)), counts(&here));
    }
}
