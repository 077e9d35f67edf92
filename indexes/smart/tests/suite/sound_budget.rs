//! The exact costs of operations of the sound `smart`.

use dmtree_check::conformance::Keys;
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_fabric::{OpKind, OpOutcome, Totals};
use dmtree_parts::{Fill, Outcome, Page, ScanRequest, Write};
use dmtree_pool::PoolOptions;
use dmtree_smart::sound::{Options, Smart};

const N: u64 = 5_000;

fn key(n: u64) -> Vec<u8> {
    Keys::Hashed24.key(n)
}

fn warm() -> (TestCluster<Smart>, Client<Smart>) {
    let pool = PoolOptions { memory_bytes_per_node: 128 << 20, ..PoolOptions::default() };
    let test_cluster: TestCluster<Smart> =
        TestCluster::new(&pool, 8 << 20, &Options::default()).expect("an index");
    let mut c = test_cluster.client(0).expect("attach");
    let pairs = (0..N).map(|n| (key(n), n.to_le_bytes().to_vec())).collect();
    c.load(pairs, false, Fill::Even(0.7)).expect("load");
    (0..N).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
    c.take_counts();
    (test_cluster, c)
}

/// Per operation: round trips, verbs, bytes read, bytes written.
fn per(t: &Totals) -> [f64; 4] {
    let per = |n: u64| n as f64 / t.ops as f64;
    let c = &t.counts;
    assert!(t.ops > 0);
    [per(c.round_trips), per(c.mn.verbs()), per(c.mn.bytes_read), per(c.mn.bytes_written)]
}

#[test]
fn present_keys_cost_one_read_and_changes_three_round_trips() {
    let (_test_cluster, mut c) = warm();
    (0..N).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
    let search = per(&c.take_counts().total(&[OpKind::Get]));
    assert_eq!(search, [1.0, 1.0, 72.0, 0.0]);
    for n in 0..1_000 {
        assert_eq!(c.write(&key(n), Write::Update(&[9; 8])).expect("update"), Outcome::Done);
    }
    // READ, lock, [WRITE area, release].
    let update = per(&c.take_counts().total(&[OpKind::Update]));
    assert_eq!(update, [3.0, 4.0, 72.0, 16.0]);
    for n in 0..1_000 {
        let w = Write::CompareAndSet { expected: &[9; 8], new: Some(&[8; 8]) };
        assert_eq!(c.write(&key(n), w).expect("compare-and-set"), Outcome::Done);
    }
    // The READ behind the lock returns the old value.
    let set = per(&c.take_counts().total(&[OpKind::CompareAndSet]));
    assert_eq!(set, [3.0, 5.0, 72.0 + 128.0, 16.0]);
    for n in 0..1_000 {
        assert_eq!(c.write(&key(n), Write::Delete).expect("delete"), Outcome::Done);
    }
    // READ, CAS; then READ node, READ leaf, CAS slot, which unlink the tombstone.
    let [trips, verbs, ..] = per(&c.take_counts().total(&[OpKind::Delete]));
    assert_eq!([trips, verbs], [5.0, 5.0]);
}

#[test]
fn a_new_key_costs_a_node_a_leaf_and_a_slot() {
    let (_test_cluster, mut c) = warm();
    for n in N..2 * N {
        assert_eq!(c.write(&key(n), Write::Insert(&[9; 8])).expect("insert"), Outcome::Done);
    }
    let counts = c.take_counts();
    let [trips, verbs, ..] = per(&counts.cell(OpKind::Insert, OpOutcome::InsertPlain));
    // READ node, [WRITE leaf, CAS slot]. If the type has to be raised: also CAS head and CAS hint.
    // If the cached slot names a leaf of another key: first a READ of that leaf.
    assert!((2.0..4.5).contains(&trips) && (3.0..5.0).contains(&verbs), "{trips} {verbs}");
    let [trips, verbs, ..] = per(&counts.cell(OpKind::Insert, OpOutcome::InsertSplit));
    // READ leaf, READ node, READ leaf, {WRITE node, WRITE leaf}, CAS slot.
    assert!((4.0..6.0).contains(&trips) && (5.0..7.0).contains(&verbs), "{trips} {verbs}");
}

#[test]
fn a_scan_reads_leaves_together() {
    let (_test_cluster, mut c) = warm();
    let mut page = Page::new();
    let low = key(7);
    let r = ScanRequest {
        low: std::ops::Bound::Included(&low),
        high: std::ops::Bound::Unbounded,
        reverse: false,
        limit: 100,
    };
    c.scan(&r, &mut page).expect("scan");
    assert_eq!(page.len(), 100);
    let [trips, verbs, ..] = per(&c.take_counts().total(&[OpKind::Scan]));
    // A hundred leaves, and the nodes above them.
    assert!(verbs < 180.0 && trips < 100.0, "{trips} {verbs}");
}
