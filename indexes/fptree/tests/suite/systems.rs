//! FPTree, DMTree as published, and the steps between them.

use dmtree_check::conformance::{self, Keys};
use dmtree_check::peer::costs::{BYTES, Cost, KINDS, Side, VERBS, cost, means, row};
use dmtree_check::peer::defects::{EVERYTHING, KIND, NOTHING, READONLY};
use dmtree_check::peer::rows::{Cache, Site, full, load, model, of_one_length, random_fill};
use dmtree_check::peer::{Budget, Defect, Peer, Repair, Row, Setting};
use dmtree_fabric::{Capabilities, NodeId};
use dmtree_fptree::format::Geometry;
use dmtree_fptree::{FpNode, FpTree, Locks, Options, Tables};
use dmtree_parts::{Fill, Write};

const ALL: [&str; 5] =
    ["fptree", "fptree-rtc", "fptree-cache", "fptree-locking", "dmtree-published"];
const FPTREE: &[&str] = &["fptree"];
/// The ends of the ladder.
const ENDS: &[&str] = &["fptree", "dmtree-published"];

/// Small stretches, so that tables are spread over all compute nodes.
pub fn spread(o: Options) -> Options {
    Options { table_chunk_bytes: 4 << 10, ..o }
}

pub fn systems() -> Vec<(&'static str, Options)> {
    let options = [
        Options::fptree(),
        Options::fptree_rtc(),
        Options::fptree_cache(),
        Options::fptree_locking(),
        Options::dmtree_published(),
    ];
    ALL.into_iter().zip(options.map(spread)).collect()
}

pub fn least_cache(o: &Options) -> u64 {
    FpNode::least_cache_bytes(&Geometry::new(o))
}

pub fn peer() -> Peer<FpTree> {
    Peer {
        value_bytes: Some(|o| o.value_bytes),
        local: local(),
        defects: defects(),
        budgets: vec![budget(), published_means()],
        ..Peer::new(systems(), least_cache, |o: &Options, below| o.drawn(below))
    }
}

fn local() -> Vec<Row<FpTree>> {
    let mut rows =
        of_one_length(20_000, |o, key_bytes, value_bytes| Options { key_bytes, value_bytes, ..o });
    rows.extend([
        model("ascending keys in high trees", Keys::Ascending, 4_000, 14_000)
            .seed(10)
            .options(|o| Options { key_bytes: 8, fanout: 8, ..o }),
        Row::of("three memory nodes", on_every_memory_node)
            .seed(30)
            .pool(|p| (p.memory_nodes, p.chunk_bytes) = (3, Some(64 << 10))),
        load(Keys::Hashed24, 5_000).options(|o| Options { fanout: 8, ..o }),
        random_fill(400_000).on(ENDS),
        full(10_000, |_| true),
        Row::of("a load of the highest key", highest_key).on(FPTREE),
        Row::of("tables overflow to memory nodes", overflow)
            .seed(130)
            .on(&["fptree-cache", "fptree-locking", "dmtree-published"])
            .pool(|p| p.compute_bytes_per_node = 8 << 10),
    ]);
    rows.extend([64, 128].map(|leaf_capacity| {
        let row = model("capacities", Keys::Hashed24, 4_000, 15_000).seed(20).on(ENDS);
        row.options(move |o| Options { leaf_capacity, ..o })
    }));
    rows.extend([true, false].map(|adaptive_capacity| {
        Row::of("a cache of three nodes", larger_leaves)
            .seed(40)
            .options(move |o| Options { fanout: 8, adaptive_capacity, ..o })
            .cache(Cache::Least(3))
    }));
    rows.extend((0..64).map(|bits| {
        let row = model("every switch", Keys::Hashed24, 1_000, 3_000).seed(50 + u64::from(bits));
        row.on(FPTREE).options(move |o| switched(bits, o))
    }));
    rows
}

/// The ablation switches in the position of their bits.
pub fn switched(bits: u32, o: Options) -> Options {
    let on = |n: u32| bits >> n & 1 == 1;
    Options {
        tables: if on(0) { Tables::Memory } else { Tables::Compute },
        locks: if on(1) { Locks::Leaf } else { Locks::Table },
        mirrors: on(2) && !on(0),
        round_trip_combining: on(3),
        delegation: on(4),
        combining: on(5),
        ..o
    }
}

/// Chunks are small, so that all memory nodes have leaves, inner nodes and tables.
fn on_every_memory_node(site: &Site<'_, FpTree>) {
    let test_cluster = site.cluster();
    conformance::model(&test_cluster, site.seed, Keys::Hashed24, 3_000, 15_000);
    let mut c = test_cluster.client(0).expect("attach");
    c.walk().expect("walk");
    let counts = c.take_counts();
    for node in (0..3).map(NodeId::memory) {
        assert!(counts.nodes.iter().any(|(at, c)| *at == node && c.read > 10), "{node}");
    }
}

/// A cache without room: a sibling is larger and takes everything. The leaf stays behind empty, with
/// the range below its first key.
fn larger_leaves(site: &Site<'_, FpTree>) {
    let test_cluster = site.cluster();
    conformance::model(&test_cluster, site.seed, Keys::Hashed24, 2_000, 8_000);
    let shape = test_cluster.client(0).expect("attach").walk().expect("walk");
    let adaptive = site.options.adaptive_capacity;
    assert_eq!(shape.leaves.iter().any(|(slots, _)| *slots == 128), adaptive, "{:?}", shape.leaves);
    assert!(!adaptive || shape.fill[0] > 0, "empty leaves stay on the chain: {:?}", shape.fill);
}

/// The highest key is alone in the position where the last leaf would begin.
fn highest_key(site: &Site<'_, FpTree>) {
    for (n, fill) in [(33u64, 1.0), (34, 1.0), (2, 0.01), (23, 0.7)] {
        let mut c = site.cluster().client(0).expect("attach");
        let mut pairs: Vec<_> =
            (1..n).map(|n| (Keys::Hashed24.key(n), n.to_le_bytes().to_vec())).collect();
        pairs.push((vec![0xff; 24], vec![1; 8]));
        c.load(pairs, false, fill).expect("load");
        for more in [0, 100] {
            for n in n..n + more {
                c.write(&Keys::Hashed24.key(n), Write::Put(&[2; 8])).expect("put");
            }
            assert_eq!(c.get(&[0xff; 24]).expect("get"), Some(vec![1; 8]));
            assert_eq!(c.walk().expect("walk").keys, n + more);
        }
    }
}

/// Compute nodes have no room for tables: further leaves have their tables on memory nodes.
fn overflow(site: &Site<'_, FpTree>) {
    let test_cluster = site.cluster();
    conformance::model(&test_cluster, site.seed, Keys::Hashed24, 8_000, 16_000);
    let mut writer = test_cluster.client(0).expect("attach");
    for n in 0..20_000u64 {
        writer.write(&Keys::Hashed24.key(n), Write::Put(&n.to_le_bytes())).expect("put");
    }
    let shape = test_cluster.client(1).expect("attach").walk().expect("walk");
    assert!(shape.table_bytes > 3 * (8 << 10), "{} bytes of tables", shape.table_bytes);
}

/// What `crates/check/README.md` lists of DMTree as published.
fn defects() -> Vec<Defect<Options>> {
    let of = |name, grants, seed, repair| {
        let setting = Setting::new("dmtree-published", Options::dmtree_published(), grants);
        Defect::new(name, setting, seed, repair)
    };
    let whole = Capabilities { whole_write_bytes: 4096, ..READONLY };
    vec![
        Defect {
            beside: &["torn", "history"],
            ..of("a lock is lost", NOTHING, 1, Repair::Grants(READONLY)).found(&["failed", "hung"])
        },
        of("a torn entry is read", EVERYTHING, 18, Repair::Nothing).found(&["torn"]),
        Defect {
            beside: &["torn"],
            ..of("a key is lost", whole, 28, Repair::Grants(KIND)).seeds(26..40, 26..32)
        },
    ]
}

/// One more entry with the key's fingerprint.
const AGAIN: Cost = cost(1, [1, 0, 0, 40, 0]);

/// The costs at the published geometry (24-byte keys, 8-byte values, 32 slots): an entry has 40
/// bytes, a leaf 1360, an inner node 1752, a table 56.
fn budget() -> Budget<FpTree> {
    const NONE: Side = [0; 5];
    const TABLE: Side = [1, 0, 0, 56, 0];
    let (insert_mn, update_mn) = ([1, 2, 1, 56, 96], [2, 2, 1, 96, 48]);
    let (insert_cn, update_cn) = ([0, 1, 0, 0, 40], [1, 1, 0, 40, 40]);
    let (inserting, updating) = ([1, 1, 1, 56, 56], [1, 1, 1, 56, 8]);
    // [CAS, READ], READ, [WRITE | WRITE], WRITE, WRITE, [CAS, READ], WRITE in 7 round trips; the
    // bottom node has room.
    let split_mn = [3, 5, 2, 1360 + 1752 + 56, 2 * 1360 + 1752 + 112];
    let (split_cn, splitting) = ([2, 3, 1, 1360 + 1752, 2 * 1360 + 1752], [1, 2, 1, 56, 112]);
    // A full bottom node from the cache: lock without effect, unlock, descent; two WRITEs; lock,
    // READ and WRITE of the node above.
    let inner = [7, 6, 3, 1360 + 6 * 1752, 2 * 1360 + 8 + 3 * 1752];
    type Names = &'static [&'static str];
    let at = |n: usize| -> Names { &ALL[n..=n] };
    let cell = |systems: Names, operations: Names, (trips, mn, cn): (u64, Side, Side)| {
        row(systems, operations, cost(trips, mn).cn(cn)).again(AGAIN, None)
    };
    let detached = |n, operations, (trips, mn, cn)| {
        row(at(n), operations, cost(trips, mn).cn(cn).detached(1)).again(AGAIN, None)
    };
    let rows = vec![
        cell(&ALL[..2], &["get"], (2, [2, 0, 0, 96, 0], NONE)),
        cell(&ALL[2..], &["get"], (1, [1, 0, 0, 40, 0], NONE)),
        cell(&ALL[..2], &["get absent"], (1, TABLE, NONE)),
        cell(&ALL[2..], &["get absent"], (1, NONE, TABLE)),
        cell(at(0), &["insert"], (4, insert_mn, NONE)),
        cell(at(0), &["update"], (5, update_mn, NONE)),
        cell(at(1), &["insert"], (2, insert_mn, NONE)),
        cell(at(1), &["update"], (3, update_mn, NONE)),
        detached(2, &["insert"], (4, [0, 2, 1, 0, 48], [1, 1, 0, 56, 56])),
        cell(at(2), &["update"], (4, [1, 2, 1, 40, 48], TABLE)),
        cell(at(3), &["insert"], (3, insert_cn, inserting)),
        detached(3, &["update"], (3, update_cn, updating)),
        cell(at(4), &["insert"], (4, insert_cn, inserting)),
        cell(at(4), &["update"], (5, update_cn, updating)),
        // The root pointer, every level, the table, the entry.
        cell(at(0), &["get first"], (6, [6, 0, 0, 8 + 3 * 1752 + 96, 0], NONE)),
        cell(at(4), &["get first"], (6, [5, 0, 0, 8 + 3 * 1752 + 40, 0], TABLE)),
        // No mirror is needed if this node is the table's owner; it makes later reads cheap.
        cell(at(4), &["get cold", "get newer"], (1, [1, 0, 0, 40, 0], NONE)).share(0.1),
        cell(at(4), &["get cold", "get newer"], (2, [1, 0, 0, 40, 0], TABLE)).share(0.03),
        // READ entry or table (of another version), bottom node, table, entry.
        cell(at(4), &["get stale"], (4, [3, 0, 0, 1752 + 80, 0], TABLE)).share(0.2),
        cell(at(4), &["get stale"], (4, [2, 0, 0, 1752 + 40, 0], [2, 0, 0, 112, 0])).share(0.05),
        // [lock, table, unlock] without effect, bottom node, then as usual.
        cell(at(4), &["update stale"], (9, [2, 1, 0, 1752 + 40, 40], [2, 2, 2, 112, 16]))
            .share(0.2),
        cell(at(0), &["insert split"], (10, split_mn, NONE)).share(0.7),
        cell(at(1), &["insert split"], (7, split_mn, NONE)).share(0.7),
        cell(at(3), &["insert split"], (7, split_cn, splitting)).share(0.7),
        cell(at(4), &["insert split"], (10, split_cn, splitting)).share(0.7),
        cell(at(4), &["insert split"], (20, inner, splitting)).share(0.01),
    ];
    Budget { fill: Fill::RandomInserts { seed: 5 }, ..Budget::new(systems(), rows) }
}

/// Means over random keys that the paper's design implies. A search READs a false positive for each
/// 254 other keys of the leaf that come before its own slot, half of them on average; an absent key
/// all of them, in the mirror and again in the table.
fn published_means() -> Budget<FpTree> {
    let ([reads, ..], [read, written]) = (KINDS, BYTES);
    let of = |system, [get, got, absent, leaves, scanned, verbs, out, sent]: [f64; 8]| {
        let gets = means(system, "get", &[(reads, get), (read, got)]);
        let absent = means(system, "get absent", &[(reads, absent)]);
        let scans = means(system, "scan", &[(reads, leaves), (read, scanned)]);
        let parts = [(VERBS, verbs), (read, out), (written, sent)];
        [gets, absent, scans, means(system, "insert by all", &parts)].concat()
    };
    let means = [
        of(ALL[0], [2.042, 97.7, 1.09, 3.26, 4427.0, 4.59, 324.0, 311.0]),
        of(ALL[4], [1.042, 41.7, 0.18, 3.26, 3337.0, 1.38, 257.0, 244.0]),
    ];
    let leaf = [cost(1, [1, 0, 0, 1360, 0]), cost(2, [1, 0, 0, 1024, 0]).cn([1, 0, 0, 56, 0])];
    let rows = vec![
        row(&ALL[..1], &["get"], cost(2, [2, 0, 0, 96, 0])).again(AGAIN, Some(0.042)),
        row(&ALL[4..], &["get"], AGAIN).again(AGAIN, Some(0.042)),
        row(&ALL[..1], &["scan"], Cost::default()).again(leaf[0], None),
        row(&ALL[4..], &["scan"], Cost::default()).again(leaf[1], None),
    ];
    let systems = systems().into_iter().filter(|(name, _)| ENDS.contains(name)).collect();
    let fill = Fill::RandomInserts { seed: 5 };
    Budget { keys: 400_000, fill, means: means.concat(), ..Budget::new(systems, rows) }
}
