//! The exact costs of operations: the figures of DESIGN.md section 4, warm and uncontended, with
//! 24-byte decimal keys and 8-byte values as in the DMTree artifact. Also the cost of an average
//! insert, and the memory it leaves in use.

use std::sync::Arc;

use dmtree_check::conformance::Keys;
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_fabric::local::{Knobs, LocalFabric, Tearing};
use dmtree_fabric::{NodeId, OpKind, Totals};
use dmtree_parts::{Fill, Outcome, Page, ScanRequest, Write};
use dmtree_pool::{Cluster, PoolOptions};
use dmtree_smart::{Options, Smart};

const N: u64 = 20_000;

fn key(n: u64) -> Vec<u8> {
    Keys::Hashed24.key(n)
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

fn test_cluster(o: &Options, compute_nodes: u16) -> TestCluster<Smart> {
    let fabric = LocalFabric::with_chips(Knobs::default(), Tearing::AnyOrder, 128 << 10);
    let pool =
        PoolOptions { memory_bytes_per_node: 512 << 20, compute_nodes, ..PoolOptions::default() };
    fabric.add_node(NodeId::memory(0), pool.memory_bytes_per_node).expect("new");
    for c in 0..compute_nodes {
        fabric.add_node(NodeId::compute(c), pool.chosen_compute_bytes()).expect("new");
    }
    let cluster = Cluster::format(Arc::new(fabric), &pool).expect("a pool");
    TestCluster::on(cluster, 1 << 30, o).expect("an index")
}

fn warm(o: &Options) -> (TestCluster<Smart>, Client<Smart>) {
    let test_cluster = test_cluster(o, 1);
    let mut c = test_cluster.client(0).expect("attach");
    let pairs = (0..N).map(|n| (key(n), n.to_le_bytes().to_vec())).collect();
    c.load(pairs, false, Fill::Even(0.7)).expect("load");
    (0..N).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
    if !o.lock_free {
        // The addresses of the locks are READ once.
        c.write(&key(0), Write::Put(&[0; 8])).expect("put");
        c.get(&key(0)).expect("get");
    }
    c.take_counts();
    (test_cluster, c)
}

/// Per operation: round trips, verbs, bytes read, bytes written, atomics.
fn per(t: &Totals) -> [f64; 5] {
    let per = |n: u64| n as f64 / t.ops as f64;
    let (c, m) = (&t.counts, &t.counts.mn);
    assert!(t.ops > 0);
    [
        per(c.round_trips),
        per(m.verbs()),
        per(m.bytes_read),
        per(m.bytes_written),
        per(m.verbs() - m.read - m.write),
    ]
}

#[test]
fn searches_read_one_leaf() {
    for o in presets() {
        let (_test_cluster, mut c) = warm(&o);
        (0..N).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
        let gets = per(&c.take_counts().total(&[OpKind::Get]));
        assert_eq!(gets, [1.0, 1.0, 57.0, 0.0, 0.0], "{o:?}");
    }
    let (_test_cluster, mut c) =
        warm(&Options { key_bytes: 24, ..Options::published().original() });
    assert!(c.get(&key(1)).expect("get").is_some());
    assert_eq!(per(&c.take_counts().total(&[OpKind::Get]))[2], 50.0);
}

/// Round trips, verbs, bytes and atomics of an update, per preset.
#[test]
fn updates_by_preset() {
    // READ; [WRITE leaf, WRITE valid], CAS. As published: READ, WRITE, CAS, and a WRITE that is not
    // awaited.
    let replaced = [3.0, 4.0, 57.0, 58.0, 1.0];
    // READ, CAS, [WRITE, CAS]; READ, CAS, WRITE.
    let table = [3.0, 4.0, 57.0, 57.0, 2.0];
    let rear = [3.0, 3.0, 57.0, 57.0, 1.0];
    let wanted = [replaced, replaced, table, rear, rear, rear];
    for (o, wanted) in presets().into_iter().zip(wanted) {
        let (_test_cluster, mut c) = warm(&o);
        // The addresses of the leaves' locks, too, are READ once.
        c.write(&key(N - 1), Write::Update(&[9; 8])).expect("update");
        c.get(&key(N - 1)).expect("get");
        c.take_counts();
        for n in 0..1_000 {
            assert_eq!(c.write(&key(n), Write::Update(&[9; 8])).expect("update"), Outcome::Done);
            if !o.in_place {
                // The update has dropped the copy of the node above.
                c.get(&key(n)).expect("get");
            }
        }
        assert_eq!(per(&c.take_counts().total(&[OpKind::Update])), wanted, "{o:?}");
    }
}

/// A tree in which the next insert is of a certain kind. All keys have 24 digits.
fn prepared(o: &Options, keys: &[&str]) -> (TestCluster<Smart>, Client<Smart>) {
    let test_cluster = test_cluster(o, 1);
    let mut c = test_cluster.client(0).expect("attach");
    for k in keys {
        c.write(&text(k), Write::Insert(&[1; 8])).expect("insert");
    }
    for k in keys {
        c.get(&text(k)).expect("get");
    }
    c.take_counts();
    (test_cluster, c)
}

/// Digits, filled with zeros to the length of a key.
fn text(digits: &str) -> Vec<u8> {
    format!("{digits:0<24}").into_bytes()
}

fn insert(o: &Options, keys: &[&str], new: &str) -> [f64; 5] {
    let (_test_cluster, mut c) = prepared(o, keys);
    assert_eq!(c.write(&text(new), Write::Insert(&[1; 8])).expect("insert"), Outcome::Done);
    let counts = per(&c.take_counts().total(&[OpKind::Insert]));
    c.walk().expect("walk");
    counts
}

#[test]
fn inserts_by_case() {
    // The root node, which tells 0 from 1, is never cached; the node of 0x is.
    let two = ["011", "012", "021", "022", "1"];
    let four = ["011", "012", "013", "014", "021", "1"];
    let deep = ["01123", "01124", "021", "022", "1"];
    let published = Options::published();
    let waiting = Options { lazy_repairs: false, ..published.clone() };
    // READ node, WRITE leaf, CAS slot.
    assert_eq!(insert(&published, &two, "013"), [3.0, 3.0, 48.0, 57.0, 1.0]);
    // Also both CAS of the type, together.
    assert_eq!(insert(&published, &four, "015"), [4.0, 5.0, 48.0, 57.0, 3.0]);
    // READ leaf, {WRITE node, WRITE leaf}, CAS slot, and the old leaf's pointer.
    assert_eq!(insert(&published, &two, "01105"), [3.0, 5.0, 57.0, 105.0, 2.0]);
    assert_eq!(insert(&waiting, &two, "01105"), [4.0, 5.0, 57.0, 105.0, 2.0]);
    // READ node, {WRITE node, WRITE leaf}, CAS slot, and the old node's pointer and header.
    assert_eq!(insert(&published, &deep, "0115"), [3.0, 6.0, 48.0, 105.0, 3.0]);
    assert_eq!(insert(&waiting, &deep, "0115"), [5.0, 6.0, 48.0, 105.0, 3.0]);
}

#[test]
fn inserts_of_art() {
    let two = ["011", "012", "021", "022", "1"];
    let art = Options::art();
    // lock, READ node, unlock, lock, WRITE leaf, CAS slot, unlock.
    assert_eq!(insert(&art, &two, "013"), [7.0, 7.0, 48.0, 57.0, 5.0]);
    // lock, READ leaf, {WRITE node, WRITE leaf}, CAS slot, the old leaf's pointer, unlock.
    assert_eq!(insert(&art, &two, "01105"), [6.0, 7.0, 57.0, 105.0, 4.0]);
    let lazy = Options { lazy_repairs: true, ..art };
    assert_eq!(insert(&lazy, &two, "01105"), [5.0, 7.0, 57.0, 105.0, 4.0]);
}

#[test]
fn a_scan_reads_its_leaves_at_once() {
    let (_test_cluster, mut c) = warm(&Options::published());
    let mut page = Page::new();
    let mut keys: Vec<_> = (0..N).map(key).collect();
    keys.sort();
    for from in [0, 777, 19_000] {
        let r = ScanRequest {
            low: std::ops::Bound::Included(&keys[from]),
            high: std::ops::Bound::Unbounded,
            reverse: false,
            limit: 100,
        };
        c.scan(&r, &mut page).expect("scan");
        let found: Vec<_> = page.iter().map(|(k, _)| k.to_vec()).collect();
        assert_eq!(found, keys[from..from + 100]);
        let counts = per(&c.take_counts().total(&[OpKind::Scan]));
        assert_eq!(counts, [1.0, 100.0, 5_700.0, 0.0, 0.0]);
    }
}

/// The figures of the published artifact: 6 compute nodes insert a tenth of a million decimal keys
/// into a loaded tree, with warm caches; 4.17 verbs each (READ 1.10, WRITE 1.38, CAS 1.70), 0.40
/// nodes per key.
#[test]
fn an_average_insert() {
    let o = Options { largest_node: 16, ..Options::published() };
    let keys = 100_000;
    let test_cluster = test_cluster(&o, 6);
    let mut clients: Vec<_> = (0..6).map(|cn| test_cluster.client(cn).expect("attach")).collect();
    let pairs = (0..keys).map(|n| (key(n), vec![1; 8])).collect();
    clients[0].load(pairs, false, Fill::Even(0.7)).expect("load");
    let nodes = clients[0].walk().expect("walk").inner_nodes as f64 / keys as f64;
    assert!((0.388..=0.412).contains(&nodes), "{nodes} nodes per key");
    for c in &mut clients {
        (0..keys).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
        c.take_counts();
    }
    for n in keys..keys * 11 / 10 {
        let c = &mut clients[n as usize % 6];
        c.write(&key(n), Write::Insert(&[1; 8])).expect("insert");
    }
    let mut sums = [0.0f64; 4];
    for c in &mut clients {
        let t = c.take_counts().total(&[OpKind::Insert]);
        let m = &t.counts.mn;
        let atomics = m.verbs() - m.read - m.write;
        for (sum, n) in sums.iter_mut().zip([m.verbs(), m.read, m.write, atomics]) {
            *sum += n as f64 / (keys / 10) as f64;
        }
    }
    for (found, wanted) in sums.iter().zip([4.17, 1.10, 1.38, 1.70]) {
        assert!((found / wanted - 1.0).abs() < 0.03, "{sums:?}");
    }
}
