//! The cost of operations, exactly: verbs, bytes and round trips do not depend on the machine. The
//! figures are those of DESIGN.md section 7, at the published geometry (24-byte keys, 8-byte
//! values, 32 slots), warm and uncontended.

use std::ops::Range;

use dmtree_check::conformance::above;
use dmtree_check::peer::prelude::*;
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_engine::{Options, Tables, Techniques};
use dmtree_fabric::local::Knobs;
use dmtree_fabric::{OpKind, Totals};
use dmtree_parts::{Page, Write};
use dmtree_pool::PoolOptions;

const N: u64 = 40_000;

fn key(n: u64) -> Vec<u8> {
    Keys::Hashed24.key(n)
}

fn test_cluster(o: &Options) -> TestCluster {
    cluster_of(o, Knobs::default())
}

fn cluster_of(o: &Options, knobs: Knobs) -> TestCluster {
    let pool = PoolOptions {
        compute_nodes: 6,
        memory_bytes_per_node: 128 << 20,
        knobs,
        ..PoolOptions::default()
    };
    TestCluster::new(&pool, 64 << 20, o).expect("a pool and an index")
}

/// Loaded as random inserts would leave it, and every mirror warm on one node.
fn warm(o: &Options) -> (TestCluster, Client) {
    warm_of(test_cluster(o))
}

fn warm_of(test_cluster: TestCluster) -> (TestCluster, Client) {
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

const THIS: &str = "dmtree";
const AT_MN: &str = "tables on memory nodes";
const STEPS: &str = "no combined round trips";

fn budget() -> Budget {
    let of = |techniques| Options { techniques, ..Options::default() };
    let t = Techniques::default;
    let at_mn = of(Techniques { tables: Tables::Memory, mirrors: false, ..t() });
    let steps = of(Techniques { round_trip_combining: false, ..t() });
    let systems = vec![(THIS, Options::default()), (AT_MN, at_mn), (STEPS, steps)];
    // An entry with the key's fingerprint.
    let again = cost(1, [1, 0, 0, 40, 0]);
    let twice = cost(2, [2, 0, 0, 80, 0]);
    let (table, changed) = ([1, 0, 1, 56, 0], [1, 1, 2, 56, 56]);
    let of = |systems, operation, cost| row(systems, operation, cost).again(again, None);
    let (update, delete) = (cost(3, [1, 1, 0, 40, 40]), cost(3, [1, 1, 0, 40, 8]));
    let insert = cost(2, [0, 1, 0, 0, 40]).cn(changed).detached(1);
    let split = cost(6, [2, 3, 2, 2992, 2816]).cn([1, 2, 2, 56, 112]).detached(1);
    let updated = [1, 0, 2, 56, 0];
    let rows = vec![
        row(THIS, "get", again).again(again, Some(0.042)),
        // In the mirror and again in the table.
        row(THIS, "get absent", cost(1, [0; 5]).cn(table)).again(twice, Some(0.087)),
        // Digest 8.5 #22: a stale mirror costs a probe of the table's owner, and a READ of an inner
        // node only where the leaf was split again.
        of(THIS, "get newer", cost(2, [1, 0, 0, 40, 0]).cn(table)).share(0.92),
        of(THIS, "update", update.cn(updated).detached(1)),
        of(THIS, "delete", delete.cn(changed).detached(1)),
        of(THIS, "insert", insert),
        of(THIS, "insert split", split).share(0.85),
        row(AT_MN, "get", cost(2, [2, 0, 1, 96, 0])).again(again, Some(0.042)),
        of(STEPS, "update", cost(5, [1, 1, 0, 40, 40]).cn(updated)),
    ];
    // Two round trips for all leaves of one bottom node; at most a leaf more than the pairs need.
    let means = means(THIS, "scan", &[(TRIPS, 2.4), (VERBS, 3.396)]);
    Budget { means, ..Budget::new(systems, rows) }
}

#[test]
fn what_operations_cost() {
    passes(&broken(&budget()));
}

#[test]
fn get_out_of_line() {
    let test_cluster = test_cluster(&Options::default());
    let mut c = test_cluster.client(0).expect("attach");
    let long = |n: u64| [key(n), vec![b'x'; 40]].concat();
    let pairs = (0..500).flat_map(|n| [(key(n), vec![7; 300]), (long(n), vec![8; 5])]);
    let pairs: Vec<_> = pairs.collect();
    for (k, v) in &pairs {
        c.write(k, Write::Put(v)).expect("put");
    }
    pairs.iter().for_each(|(k, _)| _ = c.get(k).expect("get"));
    // Long values, and long keys.
    for first in [0, 1] {
        c.take_counts();
        for (k, v) in pairs.iter().skip(first).step_by(2) {
            assert_eq!(c.get(k).expect("get").as_ref(), Some(v));
        }
        let t = c.take_counts().total(&[OpKind::Get]);
        assert!((1_000..1_050).contains(&t.counts.round_trips), "{t:?}");
        assert_eq!((t.ops, t.counts.cn.verbs()), (500, 0));
    }
}

/// Of posted verbs: on memory of this process writes run one by one.
const POSTED: Knobs = Knobs { suspend_one_in: 1, seed: 3 };

#[test]
fn several_reads_and_writes_together() {
    let (_test_cluster, mut c) = warm_of(cluster_of(&Options::default(), POSTED));
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

/// Ascending keys fall into one leaf after the other: their writes share a lock. (Regression: each
/// round looked at all writes that were left and took one of them.)
#[test]
fn writes_together_cost_no_more_than_alone() {
    let ascending: Vec<u64> = (0..2_000).collect();
    let scattered: Vec<u64> = (0..2_000).map(|n| n * 7_919 % 2_003).collect();
    let repeated = vec![5; 300];
    // A round has one write of a key; the next round may find its lock not yet given back.
    for (order, most) in [(ascending, 0.3), (scattered, 0.3), (repeated, 1.1)] {
        let trips = |together: bool| {
            let test_cluster = cluster_of(&Options::default(), POSTED);
            let mut c = test_cluster.client(0).expect("attach");
            let keys: Vec<_> = order.iter().map(|n| format!("key {n:08}").into_bytes()).collect();
            for _ in 0..2 {
                match together {
                    true => {
                        let writes: Vec<_> =
                            keys.iter().map(|k| (&k[..], Write::Put(&k[4..12]))).collect();
                        let done = c.write_many(&writes).expect("write_many");
                        assert!(done.iter().all(Result::is_ok));
                    }
                    false => {
                        for k in &keys {
                            c.write(k, Write::Put(&k[4..12])).expect("put");
                        }
                    }
                }
            }
            for k in &keys {
                assert_eq!(c.get(k).expect("get").as_deref(), Some(&k[4..12]));
            }
            c.take_counts().total(&[OpKind::WriteMany, OpKind::Put]).counts.round_trips
        };
        let (together, alone) = (trips(true) as f64, trips(false) as f64);
        assert!(together <= alone * most, "{together} round trips against {alone}");
    }
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
            ep.core().block_on(ep.slot(), node.membership().membership_step(&ep)).expect("joined");
            assert!(node.membership().phase(node.cn(), 1).is_some());
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

/// Imaged leaves cost the memory node one WRITE for each write, and nothing else; what lies in this
/// node's own memory costs no verb at all.
#[test]
fn images_at_owners() {
    let o = Options { images: 0.5, ..Options::default() };
    let (_test_cluster, mut c) = warm(&o);
    let ops = 5_000;
    (0..ops).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
    let t = c.take_counts().total(&[OpKind::Get]);
    // Five of six leaves are another node's.
    let trips = t.counts.round_trips as f64 / ops as f64;
    assert_eq!((t.counts.mn.verbs(), t.ops), (0, ops), "{t:?}");
    assert!((0.8..=1.04).contains(&trips) && t.counts.cn.verbs() <= ops + ops / 20, "{t:?}");
    (0..ops).for_each(|n| _ = c.write(&key(n), Write::Update(b"12345678")).expect("update"));
    let t = c.take_counts().total(&[OpKind::Update]);
    let mn = t.counts.mn;
    assert_eq!((mn.verbs(), mn.write, mn.read, mn.atomic), (ops, ops, 0, 0), "{t:?}");
    assert!((3.0..=3.05).contains(&(t.counts.round_trips as f64 / ops as f64)), "{t:?}");
    // The slot of 40 bytes alone; the table, too, where a mirror names two slots: one in twelve.
    let (read, bytes) = (t.counts.cn.read, t.counts.cn.bytes_read);
    assert!(read <= ops + ops / 8 && bytes <= 56 * ops && bytes >= 40 * ops, "{t:?}");
    let mut page = Page::new();
    (0..200).for_each(|n| _ = c.scan(&above(&key(n), 50), &mut page).expect("scan"));
    let t = c.take_counts().total(&[OpKind::Scan]);
    // One READ for each leaf: a scan of 50 pairs meets three or four of them.
    assert_eq!((t.counts.mn.verbs(), t.counts.cn.atomic, t.ops), (0, 0, 200), "{t:?}");
    assert!(t.counts.round_trips <= 300 && t.counts.cn.read <= 800, "{t:?}");
    let new = |n: u64| key(2 * N + n);
    (0..1_000).for_each(|n| _ = c.write(&new(n), Write::Insert(b"12345678")).expect("insert"));
    let t = c.take_counts().total(&[OpKind::Insert]);
    let (mn, ops) = (t.counts.mn, t.ops);
    // Splits READ and WRITE inner nodes, and WRITE leaves.
    assert!(mn.write < ops + ops / 4 && mn.read < ops / 8, "{t:?}");
    assert!(t.counts.round_trips as f64 / (ops as f64) < 3.6, "{t:?}");
    (0..1_000).for_each(|n| _ = c.write(&key(n), Write::Delete).expect("delete"));
    let t = c.take_counts().total(&[OpKind::Delete]);
    assert_eq!((t.counts.mn.verbs(), t.counts.mn.write), (1_000, 1_000), "{t:?}");
}

/// A scan READs an image up to its bound. A node that does not know that another one has raised it
/// READs the whole image, once.
#[test]
fn scans_read_images_up_to_their_bounds() {
    let o = Options { images: 0.5, ..Options::default() };
    let (cluster, mut c) = warm(&o);
    let mut other = cluster.client(1).expect("attach");
    let scan = |c: &mut Client, n: u64| {
        let (mut page, mut pairs) = (Page::new(), Vec::new());
        let (mut from, end) = (key(n), [0xff; 24]);
        while pairs.len() < 2_000 && from[..] < end[..] {
            c.scan(&above(&from, 100), &mut page).expect("scan");
            pairs.extend(page.iter().map(|(k, _)| k.to_vec()));
            let Some(last) = pairs.last() else { break };
            from = [&last[..], &[0]].concat();
        }
        let t = c.take_counts().total(&[OpKind::Scan]);
        (pairs, t.counts.cn.read, t.counts.cn.bytes_read)
    };
    let (pairs, reads, bytes) = scan(&mut c, 0);
    // 32 slots take 1360 bytes; leaves are filled to 0.7.
    assert!(bytes < reads * 1_200, "{bytes} bytes in {reads} READs");
    scan(&mut other, 0);
    let (first, last) = (pairs.first().expect("pairs"), pairs.last().expect("pairs"));
    let new: Vec<_> =
        (N..4 * N).map(key).filter(|key| first < key && key < last).take(700).collect();
    new.iter().for_each(|key| _ = c.write(key, Write::Insert(b"12345678")).expect("insert"));
    let (now, more, _) = scan(&mut other, 0);
    let wanted = |pairs: &[Vec<u8>]| {
        let mut all = [pairs, &new[..]].concat();
        all.sort();
        all
    };
    let all = wanted(&pairs);
    let there = all.iter().filter(|key| *key <= now.last().expect("pairs"));
    assert!(now.iter().eq(there), "every pair, in order");
    let (again, once, _) = scan(&mut other, 0);
    assert!(again == now && once < more, "{once} READs behind {more}");
}

fn update(c: &mut Client, n: u64) {
    c.write(&key(n), Write::Update(b"12345678")).expect("update");
}

/// What updates of these keys cost.
fn updates(c: &mut Client, keys: Range<u64>) -> Totals {
    c.take_counts();
    keys.for_each(|n| update(c, n));
    c.take_counts().total(&[OpKind::Update])
}

/// A write to an imaged leaf that a log takes costs the memory node one WRITE of its record, alone;
/// a write that finds the log full costs a READ at the owner and two WRITEs.
#[test]
fn writes_in_a_log() {
    let log = Options { images: 0.5, log_kib: 1 << 10, log_groups: 1, ..Options::default() };
    // Whatever the loads are.
    let (_test_cluster, mut c) = warm(&Options { log_past: Some(0.0), ..log });
    let ops = 5_000;
    update(&mut c, 0);
    let t = updates(&mut c, 0..ops);
    let mn = t.counts.mn;
    assert_eq!((mn.verbs(), mn.write, mn.bytes_written), (ops, ops, ops * 64), "{t:?}");
    assert!((3.0..=3.05).contains(&(t.counts.round_trips as f64 / ops as f64)), "{t:?}");
    let cn = t.counts.cn;
    assert_eq!((cn.write, cn.atomic), (2 * ops, 2 * ops), "slot and table; lock: {t:?}");
    let t = updates(&mut c, 0..ops);
    assert_eq!(t.counts.cn.bytes_written, ops * (40 + 8), "slot and count: {t:?}");
    (0..ops).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
    assert_eq!(c.take_counts().total(&[OpKind::Get]).counts.mn.verbs(), 0);
    // 16 384 records are its room, and nothing is written back.
    (0..7_000).for_each(|n| update(&mut c, n % N));
    let t = updates(&mut c, 0..100);
    let mn = t.counts.mn;
    assert_eq!((mn.write, mn.read), (300, 0), "leaf and count, then the entry: {t:?}");
    c.maintain().expect("maintain");
    let t = updates(&mut c, 0..100);
    assert_eq!(t.counts.mn.write, 100, "there is room again: {t:?}");
    assert_eq!(c.walk().expect("sound").keys, N);
}

/// An update past a log that has room knows by its slot that no record says anything of it: it
/// costs the owner no table. Where a record does, the table is READ, and the update is logged.
#[test]
fn updates_past_a_log() {
    let log = Options { images: 0.5, log_kib: 1 << 10, log_groups: 1, ..Options::default() };
    let (_test_cluster, mut c) = warm(&Options { log_past: Some(1.0), ..log });
    let ops = 5_000;
    update(&mut c, 0);
    let t = updates(&mut c, 0..ops);
    let mn = t.counts.mn;
    assert_eq!((mn.verbs(), mn.write, mn.bytes_written), (ops, ops, ops * 40), "{t:?}");
    assert!((3.0..=3.05).contains(&(t.counts.round_trips as f64 / ops as f64)), "{t:?}");
    let cn = t.counts.cn;
    assert_eq!((cn.write, cn.atomic), (ops, 2 * ops), "slot; lock: {t:?}");
    let reads = cn.read as f64 / ops as f64;
    assert!(
        (1.0..=1.3).contains(&reads),
        "the slot, and the table where a mirror is unsure: {t:?}"
    );
    // Inserted slots are logged.
    let new = |n: u64| key(N + n);
    (0..100).for_each(|n| _ = c.write(&new(n), Write::Put(b"12345678")).expect("insert"));
    c.take_counts();
    (0..100).for_each(|n| _ = c.write(&new(n), Write::Update(b"87654321")).expect("update"));
    let t = c.take_counts().total(&[OpKind::Update]);
    assert_eq!((t.counts.mn.write, t.counts.mn.bytes_written), (100, 6_400), "records: {t:?}");
    assert_eq!(t.counts.cn.write, 200, "slot and table: {t:?}");
}

/// An image moves from a leaf to another one by two relocations, each with its unlinking.
#[test]
fn admission_and_eviction() {
    let techniques = Techniques { adaptive_capacity: false, ..Techniques::default() };
    // Four images on each node, of 1472 bytes each.
    let images = f64::from(4 * 1472) / f64::from(64 << 20);
    let cluster = test_cluster(&Options { images, techniques, ..Options::default() });
    let mut c = cluster.client(0).expect("attach");
    let pairs = (0..2_000).map(|n| (key(n), n.to_le_bytes().to_vec()));
    c.load(pairs.collect(), false, 0.7).expect("load");
    (0..2_000).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
    let mn_verbs = |c: &mut Client, n: u64| {
        c.take_counts();
        assert!(c.get(&key(n)).expect("get").is_some());
        c.take_counts().total(&[OpKind::Get]).counts.mn.verbs()
    };
    let plain = (0..2_000).find(|n| mn_verbs(&mut c, *n) > 0).expect("few have images");
    let node = cluster.cluster.compute_node(0).expect("exists");
    let ep = node.endpoint(0).expect("a member");
    let piece = |c: &mut Client| loop {
        (0..8).for_each(|_| assert!(c.get(&key(plain)).expect("get").is_some()));
        c.take_counts();
        c.maintain().expect("maintain");
        let t = c.take_counts().total(&[OpKind::Maintain]);
        if t.counts.mn.write > 0 {
            return t;
        }
    };
    // READs, WRITEs and atomics at memory nodes and at owners; round trips.
    for (what, mn, cn, trips) in
        [("eviction", [5, 6, 2], [3, 4, 4], 15), ("admission", [6, 6, 2], [2, 3, 4], 14)]
    {
        let t = piece(&mut c);
        let of = |side: &dmtree_fabric::SideCounts| [side.read, side.write, side.atomic];
        let got = (t.ops, of(&t.counts.mn), of(&t.counts.cn), t.counts.round_trips);
        assert_eq!(got, (2, mn, cn, trips), "{what}: {t:?}");
        ep.core().block_on(ep.slot(), node.reclaimer().reclaim(&ep)).expect("reclaimed");
    }
    assert_eq!(mn_verbs(&mut c, plain), 0, "it has an image");
    assert_eq!(mn_verbs(&mut c, plain), 0, "in this node's memory");
}
