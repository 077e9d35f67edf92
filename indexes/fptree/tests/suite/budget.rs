//! The exact costs of operations: verbs, bytes and round trips of every preset, at the published
//! geometry (24-byte keys, 8-byte values, 32 slots). First fixed situations, verb by verb; then
//! means over random keys, compared with the costs that the paper's design implies.

use dmtree_check::conformance::Keys;
use dmtree_check::rng::Rng;
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_fabric::{OpCounts, OpKind, OpOutcome, SideCounts, Snapshot};
use dmtree_fptree::{FpTree, Options};
use dmtree_parts::{Fill, Outcome, Page, RangeIndex, ScanRequest, Write};
use dmtree_pool::PoolOptions;

const CNS: usize = 6;

fn key(n: u64) -> Vec<u8> {
    Keys::Hashed24.key(n)
}

/// An index in the state after random inserts, with tables over six compute nodes in stretches that
/// are scaled down with the keys.
fn loaded(o: &Options, n: u64) -> TestCluster<FpTree> {
    let pool = PoolOptions {
        compute_nodes: CNS as u16,
        memory_bytes_per_node: 192 << 20,
        ..PoolOptions::default()
    };
    let o = Options { table_chunk_bytes: 4 << 10, ..o.clone() };
    let test_cluster = TestCluster::new(&pool, 64 << 20, &o).expect("a pool and an index");
    let mut c = test_cluster.client(0).expect("attach");
    let pairs = (0..n).map(|n| (key(n), n.to_le_bytes().to_vec())).collect();
    c.load(pairs, false, Fill::RandomInserts { seed: 5 }).expect("load");
    test_cluster
}

/// A client of a compute node that has read every key, so that its cache has all bottom nodes and
/// all tables.
fn warm(test_cluster: &TestCluster<FpTree>, cn: usize, n: u64) -> Client<FpTree> {
    let mut c = test_cluster.client(cn).expect("attach");
    for n in 0..n {
        assert!(c.get(&key(n)).expect("get").is_some());
    }
    c.take_counts();
    c
}

const KINDS: [OpKind; 5] = [OpKind::Get, OpKind::Put, OpKind::Insert, OpKind::Update, OpKind::Scan];

/// The cost of one operation.
fn cost<T>(c: &mut Client<FpTree>, op: impl FnOnce(&mut Client<FpTree>) -> T) -> (T, OpCounts) {
    c.take_counts();
    let out = op(c);
    let t = c.take_counts().total(&KINDS);
    assert_eq!(t.ops, 1);
    (out, t.counts)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    trips: u64,
    detached: u64,
    mn: SideCounts,
    cn: SideCounts,
}

/// Verbs of one side: READs, WRITEs, atomics; bytes of READs and WRITEs.
fn side(read: u64, write: u64, atomic: u64, bytes_read: u64, bytes_written: u64) -> SideCounts {
    SideCounts { read, write, atomic, bytes_read, bytes_written, rpc: 0 }
}

const NONE: SideCounts =
    SideCounts { read: 0, write: 0, atomic: 0, bytes_read: 0, bytes_written: 0, rpc: 0 };

/// A cost without the READs of other entries with the key's fingerprint; also the number of those
/// READs.
fn plain(c: &OpCounts, base: &Cost) -> (Cost, u64) {
    let false_reads = c.mn.read.saturating_sub(base.mn.read);
    let mut mn = c.mn;
    mn.read -= false_reads;
    mn.bytes_read = mn.bytes_read.wrapping_sub(40 * false_reads);
    let trips = c.round_trips.wrapping_sub(false_reads);
    (Cost { trips, detached: c.detached, mn, cn: c.cn }, false_reads)
}

/// Asserts that an operation costs `base`, plus one round trip to a memory node per false positive.
#[track_caller]
fn costs(c: &OpCounts, base: Cost) -> u64 {
    let (found, false_reads) = plain(c, &base);
    assert_eq!(found, base, "{c:?}");
    false_reads
}

fn search(o: &Options) -> Cost {
    match o.mirrors {
        true => Cost { trips: 1, mn: side(1, 0, 0, 40, 0), ..Cost::default() },
        false => Cost { trips: 2, mn: side(2, 0, 0, 96, 0), ..Cost::default() },
    }
}

/// The five presets with the cost of an insert and of an update.
fn presets() -> [(Options, Cost, Cost); 5] {
    let at_mn = |trips, mn| Cost { trips, detached: 0, mn, cn: NONE };
    let insert_mn = side(1, 2, 1, 56, 96);
    let update_mn = side(2, 2, 1, 96, 48);
    let insert_cn =
        |trips| Cost { trips, detached: 0, mn: side(0, 1, 0, 0, 40), cn: side(1, 1, 1, 56, 56) };
    let update_cn = |trips, detached| Cost {
        trips,
        detached,
        mn: side(1, 1, 0, 40, 40),
        cn: side(1, 1, 1, 56, 8),
    };
    let cache_insert =
        Cost { trips: 4, detached: 1, mn: side(0, 2, 1, 0, 48), cn: side(1, 1, 0, 56, 56) };
    let cache_update =
        Cost { trips: 4, detached: 0, mn: side(1, 2, 1, 40, 48), cn: side(1, 0, 0, 56, 0) };
    [
        (Options::fptree(), at_mn(4, insert_mn), at_mn(5, update_mn)),
        (Options::fptree_rtc(), at_mn(2, insert_mn), at_mn(3, update_mn)),
        (Options::fptree_cache(), cache_insert, cache_update),
        (Options::fptree_locking(), insert_cn(3), update_cn(3, 1)),
        (Options::dmtree_published(), insert_cn(4), update_cn(5, 0)),
    ]
}

const N: u64 = 20_000;

#[test]
fn reads_inserts_and_updates_of_every_preset() {
    for (o, insert, update) in presets() {
        let test_cluster = loaded(&o, N);
        let mut c = warm(&test_cluster, 0, N);
        for n in 0..2_000 {
            let (value, counts) = cost(&mut c, |c| c.get(&key(n)).expect("get"));
            assert_eq!(value, Some(n.to_le_bytes().to_vec()));
            costs(&counts, search(&o));
            let write = Write::Update(&[7; 8]);
            let (done, counts) = cost(&mut c, |c| c.write(&key(n), write).expect("update"));
            assert_eq!(done, Outcome::Done);
            costs(&counts, update);
        }
        let mut inserts = 0;
        for n in N..N + 1_000 {
            c.take_counts();
            c.write(&key(n), Write::Insert(&[8; 8])).expect("insert");
            let cell = c.take_counts().cell(OpKind::Insert, OpOutcome::InsertPlain);
            // A bottom node that an earlier insert made is not cached yet.
            if cell.ops == 1 && cell.counts.mn.bytes_read < 1752 {
                costs(&cell.counts, insert);
                inserts += 1;
            }
        }
        assert!(inserts > 800, "{inserts}");
    }
}

/// Keys that are in a table but not in its mirror, keys that are in neither, and tables without a
/// mirror.
#[test]
fn reads_at_the_owner() {
    let o = Options::dmtree_published();
    let test_cluster = loaded(&o, N);
    // No mirror yet; none is needed if this node is the table's owner.
    let mut cold = test_cluster.client(1).expect("attach");
    let found = Cost { trips: 2, mn: side(1, 0, 0, 40, 0), cn: side(1, 0, 0, 56, 0), detached: 0 };
    let (mut at_owner, mut elsewhere) = (0, 0);
    for n in 0..N {
        let (_, counts) = cost(&mut cold, |c| c.get(&key(n)).expect("get"));
        // Some also READ inner nodes (below). A mirror makes later reads of the leaf cheap.
        if counts.mn.bytes_read < 1752 {
            if counts.cn == NONE {
                costs(&counts, search(&o));
                at_owner += 1;
            } else {
                costs(&counts, found);
                elsewhere += 1;
            }
        }
    }
    assert!(at_owner > elsewhere && elsewhere > 500, "{at_owner} {elsewhere}");
    let mut reader = warm(&test_cluster, 2, N);
    let absent = Cost { trips: 1, mn: NONE, cn: side(1, 0, 0, 56, 0), detached: 0 };
    for n in N..N + 2_000 {
        let (value, counts) = cost(&mut reader, |c| c.get(&key(n)).expect("get"));
        assert_eq!(value, None);
        costs(&counts, absent);
    }
    // A key that is newer than the mirror.
    let mut writer = test_cluster.client(3).expect("attach");
    let mut newer = 0;
    for n in N..N + 300 {
        writer.take_counts();
        writer.write(&key(n), Write::Insert(&[8; 8])).expect("insert");
        let split = writer.take_counts().cell(OpKind::Insert, OpOutcome::InsertSplit).ops == 1;
        let (value, counts) = cost(&mut reader, |c| c.get(&key(n)).expect("get"));
        assert_eq!(value, Some(vec![8; 8]));
        if !split && counts.mn.bytes_read < 1752 {
            let own = counts.cn == NONE;
            costs(&counts, if own { search(&o) } else { found });
            newer += u64::from(!own);
        }
    }
    assert!(newer > 100, "{newer}");
}

/// A leaf that another node has split: the record and the mirror are equally old.
#[test]
fn stale_records() {
    let o = Options::dmtree_published();
    let test_cluster = loaded(&o, N);
    let mut reader = warm(&test_cluster, 0, N);
    let mut updater = warm(&test_cluster, 1, N);
    let mut writer = test_cluster.client(2).expect("attach");
    let (mut equally, mut reads, mut updates) = (0, 0, 0);
    for n in N..N + 4_000 {
        writer.take_counts();
        writer.write(&key(n), Write::Insert(&[8; 8])).expect("insert");
        let split = writer.take_counts().cell(OpKind::Insert, OpOutcome::InsertSplit);
        if split.ops == 0 || split.counts.mn.write != 3 {
            continue;
        }
        // A key of the leaf that was there before the split.
        let mut page = Page::new();
        let k = key(n);
        let r = ScanRequest {
            low: std::ops::Bound::Excluded(&k),
            high: std::ops::Bound::Unbounded,
            reverse: false,
            limit: 1,
        };
        writer.scan(&r, &mut page).expect("scan");
        let old = page.get(0).expect("a pair").0.to_vec();
        let (_, counts) = cost(&mut reader, |c| c.get(&old).expect("get"));
        let one_inner = (1752..2 * 1752).contains(&counts.mn.bytes_read);
        if one_inner && counts.cn.read == 1 {
            // READ entry (of another version), bottom node, table, entry.
            let stale = Cost {
                trips: 4,
                mn: side(3, 0, 0, 40 + 1752 + 40, 0),
                cn: side(1, 0, 0, 56, 0),
                detached: 0,
            };
            costs(&counts, stale);
            equally += 1;
        } else if one_inner {
            // READ table (of another version), bottom node, table, entry.
            let stale = Cost {
                trips: 4,
                mn: side(2, 0, 0, 1752 + 40, 0),
                cn: side(2, 0, 0, 112, 0),
                detached: 0,
            };
            costs(&counts, stale);
            reads += 1;
        }
        // [lock, table, unlock] without effect, bottom node, then as usual.
        let (_, counts) =
            cost(&mut updater, |c| c.write(&old, Write::Update(&[9; 8])).expect("update"));
        if counts.cn.atomic == 2 && counts.mn.bytes_read < 2 * 1752 {
            updates += 1;
            let stale = Cost {
                trips: 4 + 5,
                mn: side(2, 1, 0, 1752 + 40, 40),
                cn: side(2, 2, 2, 112, 16),
                detached: 0,
            };
            costs(&counts, stale);
        }
    }
    assert!(equally > 30 && reads > 10 && updates > 50, "{equally} {reads} {updates}");
}

/// An empty cache: the root pointer, every level, the table, the entry.
#[test]
fn descents() {
    for o in [Options::fptree(), Options::dmtree_published()] {
        let test_cluster = loaded(&o, N);
        let mut c = test_cluster.client(4).expect("attach");
        let levels = u64::from(c.walk().expect("walk").levels);
        assert_eq!(levels, 3);
        let mut c = test_cluster.client(5).expect("attach");
        let (_, counts) = cost(&mut c, |c| c.get(&key(0)).expect("get"));
        let tables = |bytes| if o.mirrors { 0 } else { bytes };
        let first = Cost {
            trips: 1 + levels + 2,
            mn: side(1 + levels + 1 + tables(1), 0, 0, 8 + levels * 1752 + 40 + tables(56), 0),
            cn: if o.mirrors { side(1, 0, 0, 56, 0) } else { NONE },
            detached: 0,
        };
        costs(&counts, first);
    }
}

/// Splits: ten round trips where the bottom node has room.
#[test]
fn splits() {
    for (o, tables_at_mn, trips) in [
        (Options::fptree(), true, 10),
        (Options::dmtree_published(), false, 10),
        // [CAS, READ], READ, [WRITE | WRITE], WRITE, WRITE, [CAS, READ], WRITE.
        (Options::fptree_rtc(), true, 7),
        (Options::fptree_locking(), false, 7),
    ] {
        let test_cluster = loaded(&o, N);
        let mut c = test_cluster.client(0).expect("attach");
        let mut splits = 0;
        for n in N..N + 6_000 {
            // With fresh records the lock is taken once.
            c.get(&key(n)).expect("get");
            c.take_counts();
            c.write(&key(n), Write::Insert(&[8; 8])).expect("insert");
            let cell = c.take_counts().cell(OpKind::Insert, OpOutcome::InsertSplit);
            if cell.ops == 0 || cell.counts.mn.rpc + cell.counts.cn.rpc > 0 {
                continue;
            }
            let (leaf, inner) = (1360, 1752);
            let mut base = Cost {
                trips,
                mn: side(2, 3, 1, leaf + inner, 2 * leaf + inner),
                cn: side(1, 2, 1, 56, 112),
                detached: 0,
            };
            if tables_at_mn {
                base.mn = side(3, 5, 2, leaf + inner + 56, 2 * leaf + inner + 112);
                base.cn = NONE;
            }
            if cell.counts.mn.write == base.mn.write {
                costs(&cell.counts, base);
                splits += 1;
            }
        }
        assert!(splits > 200, "{splits}");
    }
}

/// A full bottom node from the cache: lock without effect, unlock, descent; two WRITEs; lock, READ
/// and WRITE of the node above.
#[test]
fn inner_splits() {
    let o = Options::dmtree_published();
    let test_cluster = loaded(&o, N);
    let mut c = test_cluster.client(0).expect("attach");
    c.get(&key(0)).expect("get");
    let mut splits = 0;
    for n in N..N + 12_000 {
        c.get(&key(n)).expect("get");
        c.take_counts();
        c.write(&key(n), Write::Insert(&[8; 8])).expect("insert");
        let cell = c.take_counts().cell(OpKind::Insert, OpOutcome::InsertSplit);
        if cell.ops == 0 || cell.counts.mn.rpc + cell.counts.cn.rpc > 0 {
            continue;
        }
        // Leaf 2, table 2 (compute node), unlock, bottom 2, above 1: six WRITEs at the memory node.
        let levels = 3;
        let base = Cost {
            trips: 7 + 3 + levels + 4 + 3,
            mn: side(
                1 + 1 + levels + 1 + 1,
                2 + 1 + 2 + 1,
                3,
                1360 + (3 + levels) * 1752,
                2 * 1360 + 8 + 3 * 1752,
            ),
            cn: side(1, 2, 1, 56, 112),
            detached: 0,
        };
        if cell.counts.mn.write == base.mn.write {
            costs(&cell.counts, base);
            splits += 1;
        }
    }
    assert!(splits > 5, "{splits}");
}

#[track_caller]
fn near(what: &str, found: f64, wanted: f64) {
    let off = found / wanted - 1.0;
    assert!(off.abs() < 0.03, "{what}: {found:.4}, wanted {wanted:.4}: {:+.1} %", off * 100.0);
}

const MANY: u64 = 400_000;

/// For each key the number of keys in its leaf, itself included; the mean over all keys.
fn mean_keys_in_leaf(test_cluster: &TestCluster<FpTree>) -> f64 {
    let shape = test_cluster.client(0).expect("attach").walk().expect("walk");
    let leaves = shape.fill.iter().map(|n| *n as f64);
    leaves.enumerate().map(|(n, leaves)| leaves * (n * n) as f64).sum::<f64>() / shape.keys as f64
}

#[test]
fn means_of_searches() {
    for (o, mn, bytes) in
        [(Options::fptree(), 2.042, 97.7), (Options::dmtree_published(), 1.042, 41.7)]
    {
        let test_cluster = loaded(&o, MANY);
        let mut c = warm(&test_cluster, 0, MANY);
        (0..MANY).for_each(|n| assert!(c.get(&key(n)).expect("get").is_some()));
        let t = c.take_counts().total(&[OpKind::Get]);
        let per = |n: u64| n as f64 / t.ops as f64;
        near("READs", per(t.counts.mn.read), mn);
        near("bytes", per(t.counts.mn.bytes_read), bytes);
        // On average half of the other keys come before the key's own slot; one in 254 of them has
        // its fingerprint.
        let base = search(&o).mn.read;
        near(
            "false",
            per(t.counts.mn.read) - base as f64,
            (mean_keys_in_leaf(&test_cluster) - 1.0) / 2.0 / 254.0,
        );
        (MANY..MANY + MANY / 4).for_each(|n| assert!(c.get(&key(n)).expect("get").is_none()));
        let t = c.take_counts().total(&[OpKind::Get]);
        let per = |n: u64| n as f64 / t.ops as f64;
        // Absent keys: all keys of the leaf, in the mirror and again in the table.
        let looks = if o.mirrors { 2.0 } else { 1.0 };
        let tables = if o.mirrors { 0.0 } else { 1.0 };
        near(
            "absent",
            per(t.counts.mn.read),
            tables + looks * mean_keys_in_leaf(&test_cluster) / 254.0,
        );
        assert_eq!(t.counts.cn.read, if o.mirrors { t.ops } else { 0 });
    }
}

/// Inserts of a tenth of the keys by six warm nodes alternately, with splits and stale records.
#[test]
fn means_of_inserts() {
    for o in [Options::fptree(), Options::dmtree_published()] {
        let test_cluster = loaded(&o, MANY);
        let mut clients: Vec<_> = (0..CNS).map(|cn| warm(&test_cluster, cn, MANY)).collect();
        let levels = f64::from(clients[0].walk().expect("walk").levels);
        let misses =
            || test_cluster.nodes.iter().map(|n| FpTree::cache_stats(n).misses).sum::<u64>();
        let before = misses();
        for n in MANY..MANY + MANY / 10 {
            let c = &mut clients[n as usize % CNS];
            assert_eq!(c.write(&key(n), Write::Put(&[1; 8])).expect("put"), Outcome::Done);
        }
        let misses = misses() - before;
        let mut sum = Snapshot::default();
        clients.iter_mut().for_each(|c| sum.add(&c.take_counts()));
        let t = sum.total(&[OpKind::Put]);
        let per = |n: u64| n as f64 / t.ops as f64;
        let splits = sum.cell(OpKind::Put, OpOutcome::InsertSplit).ops;
        near("splits", per(splits), 1.0 / 22.37);
        // Derived for 6 levels, as at 10^9 keys; a descent through fewer levels saves some. Counted
        // here in addition: after a bottom node is split, each compute node finds its copy stale,
        // half of them in the right half (one right link); others descend.
        let node = 1752.0;
        let bottom_splits = 1.0 / 22.37 / 29.4;
        let more = per(misses) * levels - (6.0 - levels) * bottom_splits
            + CNS as f64 / 2.0 * bottom_splits;
        let (verbs, bytes_in, bytes_out) =
            if o.mirrors { (1.38, 244.0, 257.0) } else { (4.59, 311.0, 324.0) };
        let (mn, atomics) = (&t.counts.mn, 8.0 * per(t.counts.mn.atomic));
        near("MN verbs", per(mn.verbs()), verbs + more);
        near("MN in", per(mn.bytes_written) + atomics, bytes_in);
        near("MN out", per(mn.bytes_read) + atomics, bytes_out + more * node);
    }
}
#[test]
fn means_of_scans() {
    for (o, bytes) in [(Options::fptree(), 4427.0), (Options::dmtree_published(), 3337.0)] {
        let test_cluster = loaded(&o, MANY);
        let mut c = warm(&test_cluster, 0, MANY / 8);
        let mut rng = Rng::new(1);
        let mut page = Page::new();
        for i in 0..20_000 {
            let low = key(rng.below(MANY));
            let r = ScanRequest {
                low: std::ops::Bound::Included(&low),
                high: std::ops::Bound::Unbounded,
                reverse: false,
                limit: 1 + i % 100,
            };
            c.scan(&r, &mut page).expect("scan");
        }
        let t = c.take_counts().total(&[OpKind::Scan]);
        let per = |n: u64| n as f64 / t.ops as f64;
        near("leaves", per(t.counts.mn.read), 3.26);
        near("bytes", per(t.counts.mn.bytes_read), bytes);
        let tables = if o.mirrors { t.counts.mn.read } else { 0 };
        assert_eq!(t.counts.cn, side(tables, 0, 0, 56 * tables, 0));
        assert_eq!(t.counts.round_trips, t.counts.mn.read + tables);
    }
}
