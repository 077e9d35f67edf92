//! The exact costs of operations of the sound `sherman`: the published round trips and verbs, and
//! the published bytes within 3 %.

use dmtree_check::conformance::Keys;
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_fabric::{OpKind, OpOutcome, Totals};
use dmtree_parts::{Fill, Outcome, Page, ScanRequest, Write};
use dmtree_pool::PoolOptions;
use dmtree_sherman::sound::{self, Sherman};

const N: u64 = 20_000;
/// Bytes of the published leaf and its entry.
const PUBLISHED: [f64; 2] = [1166.0, 34.0];

fn key(n: u64) -> Vec<u8> {
    Keys::Hashed24.key(n)
}

fn warm() -> (TestCluster<Sherman>, Client<Sherman>) {
    let pool = PoolOptions { memory_bytes_per_node: 64 << 20, ..PoolOptions::default() };
    let test_cluster: TestCluster<Sherman> =
        TestCluster::new(&pool, 8 << 20, &sound::options()).expect("an index");
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
fn searches_and_writes_cost_what_was_published() {
    let (_test_cluster, mut c) = warm();
    (0..N).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
    (N..2 * N).for_each(|n| assert!(c.get(&key(n)).expect("get").is_none()));
    let search = per(&c.take_counts().total(&[OpKind::Get]));
    assert_eq!(search, [1.0, 1.0, 1160.0, 0.0]);
    for n in 0..1_000 {
        assert_eq!(c.write(&key(n), Write::Update(&[9; 8])).expect("update"), Outcome::Done);
    }
    let update = per(&c.take_counts().total(&[OpKind::Update]));
    // Lock, READ, [WRITE entry, unlock].
    assert_eq!(update, [3.0, 4.0, 1160.0, 40.0]);
    for n in N..N + 1_000 {
        assert_eq!(c.write(&key(n), Write::Insert(&[9; 8])).expect("insert"), Outcome::Done);
    }
    let plain = per(&c.take_counts().cell(OpKind::Insert, OpOutcome::InsertPlain));
    assert_eq!(plain, [3.0, 4.0, 1160.0, 40.0]);
    for ours in [search, update, plain] {
        let (bytes, published) = (ours[2] + ours[3], PUBLISHED[0] + PUBLISHED[1]);
        let published = if ours[3] == 0.0 { PUBLISHED[0] } else { published };
        assert!((bytes / published - 1.0).abs() < 0.03, "{bytes} of {published}");
    }
    for n in 0..1_000 {
        assert_eq!(c.write(&key(n), Write::Delete).expect("delete"), Outcome::Done);
    }
    let deletes = per(&c.take_counts().cell(OpKind::Delete, OpOutcome::Hit));
    assert_eq!(deletes, [3.0, 4.0, 1160.0, 8.0]);
}

#[test]
fn a_scan_reads_its_leaves_together() {
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
    let [trips, verbs, bytes, _] = per(&c.take_counts().total(&[OpKind::Scan]));
    // 100 pairs, in leaves of 19.
    assert!(
        trips <= 3.0 && (5.0..=8.0).contains(&verbs) && bytes == verbs * 1160.0,
        "{trips} {verbs} {bytes}"
    );
}

/// Lock, READ, {WRITE sibling, CAS tag}, [WRITE commit word, image, entry], and the record above.
#[test]
fn a_split_takes_six_round_trips() {
    let (_test_cluster, mut c) = warm();
    for n in N..2 * N {
        c.write(&key(n), Write::Insert(&[9; 8])).expect("insert");
    }
    let splits = c.take_counts().cell(OpKind::Insert, OpOutcome::InsertSplit);
    let [trips, ..] = per(&splits);
    assert!(splits.ops > 300 && (6.0..7.0).contains(&trips), "{trips}");
}
