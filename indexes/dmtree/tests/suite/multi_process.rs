//! DMTree on nodes that are apart and share nothing but TCP connections: the conformance suite, and
//! the same verbs as in one process.

use dmtree_check::conformance::{self, Keys};
use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::{DmTree, Options};
use dmtree_fabric::Snapshot;
use dmtree_parts::Write;
use dmtree_pool::{Cluster, PoolOptions};

fn pool(memory_nodes: u16, compute_nodes: u16) -> PoolOptions {
    let memory_bytes_per_node = 64 << 20;
    PoolOptions { memory_nodes, compute_nodes, memory_bytes_per_node, ..PoolOptions::default() }
}

fn test_cluster(pool: &PoolOptions, o: &Options) -> TestCluster<DmTree> {
    TestCluster::on(Cluster::over_tcp(pool).expect("nodes"), 8 << 20, o).expect("an index")
}

#[test]
fn basics() {
    conformance::basics(&test_cluster(&pool(1, 2), &Options::default()));
}

#[test]
fn model_any_length() {
    conformance::model(
        &test_cluster(&pool(2, 2), &Options::default()),
        4,
        Keys::AnyLength,
        500,
        4_000,
    );
}

#[test]
fn fill_and_empty_a_small_tree() {
    let o = Options { fanout: 8, ..Options::default() };
    conformance::fill_and_empty(&test_cluster(&pool(1, 2), &o), Keys::Hashed24, 2_000, false);
}

/// One client's counts for the same operations.
fn counts(test_cluster: &TestCluster<DmTree>) -> Vec<Snapshot> {
    let mut c = test_cluster.client(0).expect("a member");
    let keys: Vec<Vec<u8>> = (0..3_000u64).map(|i| Keys::Hashed24.key(i)).collect();
    let mut rounds = Vec::new();
    keys[..2_000].iter().for_each(|k| _ = c.write(k, Write::Put(b"12345678")).expect("room"));
    rounds.push(c.take_counts());
    keys.iter().for_each(|k| _ = c.get(k).expect("works"));
    rounds.push(c.take_counts());
    keys[..1_000].iter().for_each(|k| _ = c.write(k, Write::Update(b"87654321")).expect("works"));
    rounds.push(c.take_counts());
    keys[2_000..].iter().for_each(|k| _ = c.write(k, Write::Insert(&[7; 300])).expect("works"));
    rounds.push(c.take_counts());
    keys[..500].iter().for_each(|k| _ = c.write(k, Write::Delete).expect("works"));
    rounds.push(c.take_counts());
    rounds
}

#[test]
fn one_client_posts_the_same_verbs_as_in_one_process() {
    let (pool, o) = (pool(1, 2), Options::default());
    let here = TestCluster::new(&pool, 8 << 20, &o).expect("a pool and an index");
    for (i, (apart, here)) in counts(&test_cluster(&pool, &o)).iter().zip(counts(&here)).enumerate()
    {
        assert_eq!(*apart, here, "round {i}");
    }
}
