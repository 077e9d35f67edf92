//! The cost of operations, exactly: verbs, bytes and round trips do not depend on the machine. The
//! figures are those of DESIGN.md section 7, at the published geometry (24-byte keys, 8-byte
//! values, 32 slots), warm and uncontended.

use dmtree_check::conformance::Keys;
use dmtree_check::rng::Rng;
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_engine::{DmTree, Options, Tables};
use dmtree_fabric::{OpKind, OpOutcome, Totals};
use dmtree_parts::{Outcome, Write};
use dmtree_pool::PoolOptions;

const N: u64 = 40_000;

fn key(n: u64) -> Vec<u8> {
    Keys::Hashed24.key(n)
}

fn test_cluster(o: &Options) -> TestCluster<DmTree> {
    let pool = PoolOptions {
        compute_nodes: 6,
        memory_bytes_per_node: 128 << 20,
        ..PoolOptions::default()
    };
    TestCluster::new(&pool, 64 << 20, o).expect("a pool and an index")
}

/// Loaded as random inserts would leave it, and every mirror warm on one node.
fn warm(o: &Options) -> (TestCluster<DmTree>, Client<DmTree>) {
    let test_cluster = test_cluster(o);
    let mut c = test_cluster.client(0).expect("attach");
    c.load((0..N).map(|n| (key(n), n.to_le_bytes().to_vec())).collect(), false, 0.7).expect("load");
    // A key's own bucket of the mirror is filled by a first read of an absent neighbour or by a
    // confirmation.
    for n in 0..N {
        assert!(c.get(&key(n)).expect("get").is_some());
    }
    c.take_counts();
    (test_cluster, c)
}

/// Means per operation: round trips, MN verbs, CN verbs, MN bytes, detached lists.
#[derive(Debug)]
struct Mean {
    rtt: f64,
    mn: f64,
    cn: f64,
    mn_bytes: f64,
    detached: f64,
}

fn mean(t: &Totals) -> Mean {
    let per = |n: u64| n as f64 / t.ops as f64;
    let c = &t.counts;
    assert!(t.ops > 0);
    Mean {
        rtt: per(c.round_trips),
        mn: per(c.mn.verbs()),
        cn: per(c.cn.verbs()),
        mn_bytes: per(c.mn.bytes_read + c.mn.bytes_written),
        detached: per(c.detached),
    }
}

#[test]
fn get_of_a_present_key() {
    let (_test_cluster, mut c) = warm(&Options::default());
    (0..N).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
    let m = mean(&c.take_counts().total(&[OpKind::Get]));
    assert!(m.rtt <= 1.05 && m.mn <= 1.05 && m.cn == 0.0 && m.mn_bytes <= 42.0, "{m:?}");
}

#[test]
fn get_of_an_absent_key() {
    let (_test_cluster, mut c) = warm(&Options::default());
    (N..2 * N).for_each(|n| assert!(c.get(&key(n)).expect("get").is_none()));
    let m = mean(&c.take_counts().total(&[OpKind::Get]));
    assert!(m.mn <= 0.2 && m.rtt <= 1.2 && m.cn == 2.0, "{m:?}");
}

#[test]
fn insert_without_split() {
    let (_test_cluster, mut c) = warm(&Options::default());
    for n in N..N + 20_000 {
        let outcome = c.write(&key(n), Write::Insert(&n.to_le_bytes())).expect("insert");
        assert_eq!(outcome, Outcome::Done);
    }
    let counts = c.take_counts();
    let m = mean(&counts.cell(OpKind::Insert, OpOutcome::InsertPlain));
    assert!(m.rtt <= 3.0 && m.mn <= 1.1 && m.cn == 4.0, "{m:?}");
    assert!(m.rtt + m.detached <= 4.0, "with everything detached: {m:?}");
    let split = mean(&counts.cell(OpKind::Insert, OpOutcome::InsertSplit));
    assert!(split.rtt <= 7.0 && split.mn <= 9.0, "{split:?}");
}

#[test]
fn update_and_delete() {
    let (_test_cluster, mut c) = warm(&Options::default());
    for n in 0..4_000 {
        assert_eq!(c.write(&key(n), Write::Update(b"12345678")).expect("update"), Outcome::Done);
    }
    let m = mean(&c.take_counts().total(&[OpKind::Update]));
    assert!(m.rtt <= 4.0 && m.mn <= 2.05 && m.cn == 3.0, "{m:?}");
    for n in 0..4_000 {
        assert_eq!(c.write(&key(n), Write::Delete).expect("delete"), Outcome::Done);
    }
    let m = mean(&c.take_counts().total(&[OpKind::Delete]));
    assert!(m.rtt <= 4.0 && m.mn <= 2.05 && m.cn == 4.0, "{m:?}");
}

#[test]
fn get_out_of_line() {
    let test_cluster = test_cluster(&Options::default());
    let mut c = test_cluster.client(0).expect("attach");
    let long = |n: u64| [key(n), vec![b'x'; 40]].concat();
    for n in 0..500 {
        c.write(&key(n), Write::Put(&[7; 300])).expect("put");
        c.write(&long(n), Write::Put(&[8; 5])).expect("put");
    }
    for n in 0..500 {
        c.get(&key(n)).expect("get");
        c.get(&long(n)).expect("get");
    }
    c.take_counts();
    (0..500).for_each(|n| assert_eq!(c.get(&key(n)).expect("get"), Some(vec![7; 300])));
    let m = mean(&c.take_counts().total(&[OpKind::Get]));
    assert!((2.0..2.1).contains(&m.rtt) && m.cn == 0.0, "long value: {m:?}");
    (0..500).for_each(|n| assert_eq!(c.get(&long(n)).expect("get"), Some(vec![8; 5])));
    let m = mean(&c.take_counts().total(&[OpKind::Get]));
    assert!((2.0..2.1).contains(&m.rtt) && m.cn == 0.0, "long key: {m:?}");
}

#[test]
fn scan_bytes() {
    let (_test_cluster, mut c) = warm(&Options::default());
    let mut rng = Rng::new(1);
    let mut page = dmtree_parts::Page::new();
    let mut pairs = 0;
    for _ in 0..500 {
        let low = key(rng.below(N));
        let limit = 1 + rng.below(100) as usize;
        let r = dmtree_parts::ScanRequest {
            low: std::ops::Bound::Included(&low),
            high: std::ops::Bound::Unbounded,
            reverse: false,
            limit,
        };
        c.scan(&r, &mut page).expect("scan");
        pairs += page.len();
    }
    let t = c.take_counts().total(&[OpKind::Scan]);
    let m = mean(&t);
    // Two round trips for all leaves of one bottom node; at most a leaf more than the pairs need.
    assert!(m.rtt <= 2.8 && m.mn <= 4.2, "{m:?} for {pairs} pairs");
}

#[test]
fn several_reads_and_writes_together() {
    let (_test_cluster, mut c) = warm(&Options::default());
    let keys: Vec<_> = (0..64).map(key).collect();
    let refs: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    c.get_many(&refs).expect("get_many");
    let t = c.take_counts().total(&[OpKind::GetMany]);
    assert!(t.counts.round_trips <= 12, "64 gets: {} round trips", t.counts.round_trips);
    let writes: Vec<_> = refs.iter().map(|k| (*k, Write::Put(&b"87654321"[..]))).collect();
    c.write_many(&writes).expect("write_many");
    let t = c.take_counts().total(&[OpKind::WriteMany]);
    assert!(t.counts.round_trips <= 40, "64 puts: {} round trips", t.counts.round_trips);
}

/// Digest 8.5 #22: a stale mirror costs a probe of the table's owner, never a READ of an inner
/// node.
#[test]
fn an_old_mirror_costs_no_inner_read() {
    let (test_cluster, mut reader) = warm(&Options::default());
    let mut writer = test_cluster.client(3).expect("attach");
    let (mut plain, mut n) = (Vec::new(), N);
    while plain.len() < 500 {
        writer.take_counts();
        writer.write(&key(n), Write::Insert(b"12345678")).expect("insert");
        if writer.take_counts().cell(OpKind::Insert, OpOutcome::InsertSplit).ops == 0 {
            plain.push(n);
        }
        n += 1;
    }
    reader.take_counts();
    let mut inner = 0;
    for n in plain {
        assert!(reader.get(&key(n)).expect("get").is_some());
        let c = reader.take_counts().total(&[OpKind::Get]).counts;
        // A split of the same leaf by a later insert does need a fresh inner node; few leaves are
        // hit twice.
        inner += u64::from(c.mn.bytes_read > 200);
    }
    assert!(inner <= 40, "{inner} of 500 reads fetched an inner node");
}

#[test]
fn tables_on_memory_nodes_and_no_mirrors_cost_what_they_say() {
    let o = Options { tables: Tables::Memory, mirrors: false, ..Options::default() };
    let (_test_cluster, mut c) = warm(&o);
    (0..2_000).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
    let m = mean(&c.take_counts().total(&[OpKind::Get]));
    assert!((2.0..2.1).contains(&m.rtt) && m.cn == 0.0 && m.mn >= 3.0, "{m:?}");
    let o = Options { round_trip_combining: false, ..Options::default() };
    let (_test_cluster, mut c) = warm(&o);
    for n in 0..2_000 {
        c.write(&key(n), Write::Update(b"12345678")).expect("update");
    }
    let m = mean(&c.take_counts().total(&[OpKind::Update]));
    assert!((5.0..5.1).contains(&m.rtt) && m.detached == 0.0, "{m:?}");
}

/// Leases, epochs and everything that a death needs cost the common path no verb.
#[test]
fn membership_costs_nothing_on_the_way() {
    let costs = |joined: bool| {
        let (test_cluster, mut c) = warm(&Options::default());
        if joined {
            let lease_parameters =
                dmtree_fabric::LeaseParameters { lease_ns: 1 << 50, ..Default::default() };
            test_cluster
                .cluster
                .in_process_membership()
                .expect("in this process")
                .set_lease_parameters(lease_parameters);
            let node = test_cluster.cluster.compute_node(0).expect("exists");
            let ep = node.endpoint(0).expect("a member");
            ep.core().block_on(ep.slot(), node.membership_step(&ep)).expect("joined");
            assert!(node.phase(node.cn(), 1).is_some());
        }
        for n in 0..1_000 {
            c.get(&key(n)).expect("get");
            c.get(&key(N + n)).expect("get");
            c.write(&key(n), Write::Update(b"12345678")).expect("update");
            c.write(&key(2 * N + n), Write::Insert(b"12345678")).expect("insert");
            c.write(&key(n + 5_000), Write::Delete).expect("delete");
        }
        let counts = c.take_counts();
        let kinds = [OpKind::Get, OpKind::Update, OpKind::Insert, OpKind::Delete];
        kinds.map(|k| counts.total(&[k]).counts)
    };
    assert_eq!(costs(false), costs(true));
}
