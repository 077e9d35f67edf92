//! Compute nodes that want one lock get it about as often as each other, whichever node owns its
//! table. Of processes: `processes fairness` of `dmtree-cli`.

use std::sync::atomic::{AtomicU64, Ordering};

use dmtree_check::test_cluster::TestCluster;
use dmtree_engine::Options;
use dmtree_parts::{Outcome, Write};
use dmtree_pool::{Cluster, PoolOptions};

/// Counters, all of one leaf.
const COUNTERS: u64 = 16;
fn key(n: u64) -> Vec<u8> {
    format!("counter {n:02}").into_bytes()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("a counter"))
}

/// Adds to counters by compare-and-set from threads of all local nodes until the end; returns how
/// often each succeeded.
fn additions(
    test_cluster: &TestCluster,
    threads: u64,
    is_over: impl Fn(u64) -> bool + Sync,
) -> Vec<u64> {
    let nodes = test_cluster.nodes.len();
    let done: Vec<_> = (0..nodes).map(|_| AtomicU64::new(0)).collect();
    let sum = || done.iter().map(|d| d.load(Ordering::Relaxed)).sum::<u64>();
    std::thread::scope(|s| {
        for t in 0..threads * nodes as u64 {
            let (test_cluster, done, sum, is_over) = (test_cluster.clone(), &done, &sum, &is_over);
            s.spawn(move || {
                let cn = t as usize % nodes;
                let mut c = test_cluster.client(cn).expect("attach");
                for i in t.. {
                    let k = key(i * 7 % COUNTERS);
                    let was = c.get(&k).expect("get").expect("there");
                    let new = (number(&was) + 1).to_le_bytes();
                    let w = Write::CompareAndSet { expected: &was, new: Some(&new) };
                    if c.write(&k, w).expect("works") == Outcome::Done {
                        done[cn].fetch_add(1, Ordering::Relaxed);
                    }
                    if is_over(sum()) {
                        return;
                    }
                }
            });
        }
    });
    done.into_iter().map(AtomicU64::into_inner).collect()
}

fn make_counters(test_cluster: &TestCluster) {
    let mut c = test_cluster.client(0).expect("attach");
    for n in 0..COUNTERS {
        c.write(&key(n), Write::Insert(&0u64.to_le_bytes())).expect("room");
    }
}

/// The sum of all counters.
fn total(test_cluster: &TestCluster) -> u64 {
    let mut c = test_cluster.client(0).expect("attach");
    (0..COUNTERS).map(|n| number(&c.get(&key(n)).expect("get").expect("there"))).sum()
}

/// No node has less than a quarter of its share.
#[expect(clippy::disallowed_macros, reason = "what was measured")]
fn judge(done: &[u64]) {
    println!("additions by node: {done:?}");
    let all: u64 = done.iter().sum();
    let least = done.iter().min().expect("nodes");
    assert!(least * 4 * done.len() as u64 >= all, "{done:?}: less than a quarter of a share");
}

fn options() -> Options {
    Options { timeout_ms: 60_000, ..Options::default() }
}

#[test]
fn two_nodes_add_to_counters_about_as_often() {
    let pool =
        PoolOptions { compute_nodes: 2, memory_bytes_per_node: 16 << 20, ..PoolOptions::default() };
    let cluster = Cluster::over_tcp(&pool).expect("nodes");
    let test_cluster: TestCluster = TestCluster::on(cluster, 8 << 20, options()).expect("an index");
    make_counters(&test_cluster);
    let done = additions(&test_cluster, 16, |sum| sum >= 3_000);
    assert_eq!(total(&test_cluster), done.iter().sum::<u64>(), "every success has added one");
    judge(&done);
}
