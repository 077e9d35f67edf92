//! The exact costs of operations: the figures of DESIGN.md section 4, at the geometry of the DMTree
//! artifact (24-byte keys, 8-byte values, 32 slots), warm and uncontended.

use std::sync::Arc;

use dmtree_check::conformance::Keys;
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_fabric::local::{Knobs, LocalFabric, Tearing};
use dmtree_fabric::{NodeId, OpKind, OpOutcome, Totals};
use dmtree_parts::{Fill, Outcome, Page, ScanRequest, Write};
use dmtree_pool::{Cluster, PoolOptions};
use dmtree_sherman::{Options, Sherman};

const N: u64 = 20_000;

fn key(n: u64) -> Vec<u8> {
    Keys::Hashed24.key(n)
}

fn warm(o: &Options) -> (TestCluster<Sherman>, Client<Sherman>) {
    let fabric = LocalFabric::with_chips(Knobs::default(), Tearing::AnyOrder, 128 << 10);
    let pool = PoolOptions { memory_bytes_per_node: 64 << 20, ..PoolOptions::default() };
    fabric.add_node(NodeId::memory(0), pool.memory_bytes_per_node).expect("new");
    fabric.add_node(NodeId::compute(0), pool.chosen_compute_bytes()).expect("new");
    let cluster = Cluster::format(Arc::new(fabric), &pool).expect("a pool");
    let test_cluster: TestCluster<Sherman> =
        TestCluster::on(cluster, 8 << 20, o).expect("an index");
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

/// Round trips, verbs, bytes read and bytes written of a write that splits nothing, per preset.
/// (Atomics have no payload here.)
#[test]
fn updates_and_inserts_by_preset() {
    let rungs = [
        (Options::fg(), [4.0, 4.0, 1166.0, 1166.0]),
        (Options::combine(), [3.0, 4.0, 1166.0, 1174.0]),
        (Options::on_chip(), [3.0, 4.0, 1166.0, 1174.0]),
        (Options::hierarchical(), [3.0, 4.0, 1166.0, 1174.0]),
        (Options::published(), [3.0, 4.0, 1166.0, 42.0]),
    ];
    for (o, wanted) in rungs {
        let (_test_cluster, mut c) = warm(&o);
        for n in 0..1_000 {
            assert_eq!(c.write(&key(n), Write::Update(&[9; 8])).expect("update"), Outcome::Done);
        }
        assert_eq!(per(&c.take_counts().total(&[OpKind::Update])), wanted, "update of {o:?}");
        for n in N..N + 1_000 {
            assert_eq!(c.write(&key(n), Write::Insert(&[9; 8])).expect("insert"), Outcome::Done);
        }
        let plain = c.take_counts().cell(OpKind::Insert, OpOutcome::InsertPlain);
        assert_eq!(per(&plain), wanted, "insert of {o:?}");
        for n in 0..1_000 {
            assert_eq!(c.write(&key(n), Write::Delete).expect("delete"), Outcome::Done);
        }
        let deletes = per(&c.take_counts().total(&[OpKind::Delete]));
        // (Inserts have split leaves meanwhile, so some of these need a new route.)
        assert!(deletes[0] < wanted[0] + 1.0 && deletes[1] < wanted[1] + 1.0, "{deletes:?}");
    }
}

#[test]
fn searches_read_a_leaf_and_nothing_else() {
    for o in [Options::fg(), Options::published()] {
        let (_test_cluster, mut c) = warm(&o);
        (0..N).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
        (N..2 * N).for_each(|n| assert!(c.get(&key(n)).expect("get").is_none()));
        assert_eq!(per(&c.take_counts().total(&[OpKind::Get])), [1.0, 1.0, 1166.0, 0.0]);
    }
}

#[test]
fn a_scan_reads_the_leaves_of_its_range() {
    let (_test_cluster, mut c) = warm(&Options::published());
    let mut page = Page::new();
    let low = key(7);
    let r = ScanRequest {
        low: std::ops::Bound::Included(&low),
        high: std::ops::Bound::Unbounded,
        reverse: false,
        limit: 100,
    };
    c.scan(&r, &mut page).expect("scan");
    let [trips, verbs, bytes, _] = per(&c.take_counts().total(&[OpKind::Scan]));
    // 100 pairs, in leaves of 22.
    assert!(trips == verbs && (5.0..=6.0).contains(&verbs) && bytes == verbs * 1166.0, "{verbs}");
}

/// With a cached route and inner levels above the bottom: lock, READ, WRITE sibling, WRITE left
/// (and unlock), the descent to the page above, lock, READ, WRITE.
#[test]
fn a_split_finds_its_parent_from_the_root() {
    let (_test_cluster, mut c) = warm(&Options { lazy_splits: false, ..Options::published() });
    for n in N..2 * N {
        c.write(&key(n), Write::Insert(&[9; 8])).expect("insert");
    }
    let splits = c.take_counts().cell(OpKind::Insert, OpOutcome::InsertSplit);
    let levels = c.walk().expect("walk").levels;
    let [trips, verbs, ..] = per(&splits);
    // 4 for the leaf, 1 for the root word, one for each level of the descent, 3 for the page above;
    // more where that page splits, too, or the cache was stale.
    let least = f64::from(4 + 1 + levels - 1 + 3);
    assert!(
        splits.ops > 300 && (least..least + 1.5).contains(&trips),
        "{trips} of {levels} levels"
    );
    assert!(verbs >= trips + 2.0, "{verbs}");
}
