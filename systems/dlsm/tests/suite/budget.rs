//! What a node has in its memory, within its budget.

use std::sync::Arc;

use dmtree_check::conformance::{Keys, everything, scan_all};
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_dlsm::{DlsmNode, Options};
use dmtree_fabric::LeaseParameters;
use dmtree_parts::Write;
use dmtree_pool::PoolOptions;

fn pool(compute_nodes: u16) -> PoolOptions {
    let memory_bytes_per_node = 64 << 20;
    PoolOptions { memory_nodes: 2, compute_nodes, memory_bytes_per_node, ..PoolOptions::default() }
}

/// MemTables have half of a node's budget, whatever the options say; indexes, filters and buffers
/// count, too.
#[test]
fn memtables_are_within_half_of_the_budget() {
    const BUDGET: u64 = 1 << 20;
    let (key, value) = (|n: u64| Keys::Hashed24.key(n % 4_000), [7; 400]);
    let cluster = TestCluster::new(&pool(1), BUDGET, Options::sound()).expect("an index");
    let node: Arc<DlsmNode> = cluster.nodes[0].typed();
    let mut c = cluster.client(0).expect("attach");
    let mut most = 0;
    for n in 0..8_000 {
        c.write(&key(n), Write::Put(&value)).expect("put");
        most = most.max(node.memory().memtable_bytes);
    }
    // A table of 128 KiB ends with the pair that is over them.
    assert!((BUDGET / 4..=BUDGET / 2 + 4 * 2_000).contains(&most), "{most}");
    c.maintain().expect("maintain");
    let memory = node.memory();
    // An index record has 42 bytes, a filter 10 bits a key.
    assert!((42 * 3_500..42 * 8_000).contains(&memory.index_bytes), "{memory:?}");
    assert!((4_400..20_000).contains(&memory.filter_bytes), "{memory:?}");
    assert_eq!(cluster.nodes[0].cache_stats().used_bytes, memory.all());
}

/// A node with the ranges of another one has no more room for MemTables than before: its writes
/// wait until some are flushed.
#[test]
fn a_node_with_all_ranges_has_one_budget() {
    const BUDGET: u64 = 1 << 20;
    let o = Options { owners: 2, shards: 4, immutables: 1, level0_stop: 4, ..Options::sound() };
    let cluster = TestCluster::new(&pool(2), BUDGET, &o).expect("an index");
    let lease_ns = 3_600_000_000_000;
    let parameters = LeaseParameters { lease_ns, ..LeaseParameters::default() };
    cluster.membership().set_lease_parameters(parameters);
    for cn in [0, 1, 0] {
        let node = cluster.cluster.compute_node(cn).expect("it");
        let ep = node.endpoint(0).expect("it");
        ep.core().block_on(ep.slot(), node.membership().membership_step(&ep)).expect("joined");
    }
    let [mut first, mut second] = [0, 1].map(|cn| cluster.client(cn).expect("attach"));
    let pair = |n: u64| (Keys::Ascending.key(n), vec![7; 400]);
    first.load((0..4_000).map(pair).collect(), true, 0.7).expect("load");
    // Each node has half of its part in MemTables.
    for n in 0..4_000 {
        let c = if n < 2_000 { &mut first } else { &mut second };
        c.write(&pair(n).0, Write::Put(&n.to_be_bytes())).expect("put");
    }
    let leaving = cluster.cluster.compute_node(0).expect("it");
    let ep = leaving.endpoint(8 << 20).expect("it");
    assert!(ep.core().block_on(ep.slot(), leaving.partitions().hand_over(&ep)).expect("given"));
    let node: Arc<DlsmNode> = cluster.nodes[1].typed();
    let (mut most, value) = (0, [9; 400]);
    for n in 0..16_000u64 {
        // All ranges in turn: each has a little.
        let key = pair(n * 1_237 % 4_000).0;
        second.write(&key, Write::Put(&value)).expect("put");
        most = most.max(node.memory().memtable_bytes);
    }
    assert!((BUDGET / 4..=BUDGET / 2 + 500).contains(&most), "{most}");
    let all = scan_all(&mut second, &everything(500));
    assert!(all.len() == 4_000 && all.iter().all(|(_, its)| its[..] == value));
}

/// An index of 20 tables and more on one node.
fn filled(index_bytes: u64) -> (TestCluster, Arc<DlsmNode>, Client) {
    let o =
        Options { table_bytes: 16 << 10, level1_bytes: 1 << 20, index_bytes, ..Options::sound() };
    let cluster = TestCluster::new(&pool(1), 4 << 20, &o).expect("an index");
    let mut c = cluster.client(0).expect("attach");
    let pair = |n: u64| (Keys::Ascending.key(n), n.to_be_bytes().to_vec());
    c.load((0..10_000).map(pair).collect(), true, 0.7).expect("load");
    let node = cluster.nodes[0].typed();
    (cluster, node, c)
}

/// Indexes and filters have so many bytes as there is room for, at any part of what all want, and
/// nothing else changes.
#[test]
fn indexes_are_within_their_part_and_reads_see_the_same() {
    let (_cluster, node, mut c) = filled(1 << 50);
    assert!(c.get(&Keys::Ascending.key(0)).expect("get").is_some());
    let whole = node.memory();
    let wanted = whole.index_bytes + whole.filter_bytes;
    let all = scan_all(&mut c, &everything(500));
    assert!(whole.tables >= 20 && all.len() == 10_000, "{whole:?}");
    let mut missed = Vec::new();
    for percent in [100, 75, 50, 25, 10] {
        let (cluster, node, mut c) = filled(wanted * percent / 100);
        for round in 0..2 {
            for n in (0..10_000).map(|n| n * 7 % 10_000) {
                let value = c.get(&Keys::Ascending.key(n)).expect("get");
                assert_eq!(value, Some(n.to_be_bytes().to_vec()));
            }
            let memory = node.memory();
            let held = memory.index_bytes + memory.filter_bytes;
            assert!(
                held <= wanted * percent / 100,
                "{percent} %: {held} of {wanted}, round {round}"
            );
            assert_eq!(memory.filter_bytes, whole.filter_bytes);
        }
        for reverse in [false, true] {
            let request = dmtree_parts::ScanRequest { reverse, ..everything(70) };
            let mut found = scan_all(&mut c, &request);
            if reverse {
                found.reverse();
            }
            assert!(found == all, "{percent} %, reverse {reverse}");
        }
        let stats = cluster.nodes[0].cache_stats();
        missed.push(stats.misses * 100 / (stats.hits + stats.misses));
    }
    assert!(missed[0] == 0 && missed.is_sorted() && missed[4] > 80, "{missed:?}");
}

/// Tables that are read come back, in the place of those that are not.
#[test]
fn a_table_that_is_used_has_its_index_again() {
    let (cluster, _node, mut c) = filled(100 << 10);
    let mut missed = |from: u64| {
        let before = cluster.nodes[0].cache_stats().misses;
        for n in from..from + 300 {
            assert!(c.get(&Keys::Ascending.key(n)).expect("get").is_some());
        }
        c.maintain().expect("work");
        cluster.nodes[0].cache_stats().misses - before
    };
    for from in [0, 3_000, 6_000, 9_000] {
        let misses: Vec<_> = (0..20).map(|_| missed(from)).collect();
        assert_eq!(misses[19], 0, "keys from {from}: {misses:?}");
    }
}
