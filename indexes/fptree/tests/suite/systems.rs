//! FPTree, DMTree as published, and the steps between them.

use dmtree_check::conformance::{self, Keys};
use dmtree_check::peer::costs::{Cost, Side, cost, means, row};
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
const PUBLISHED: &[&str] = &["dmtree-published"];
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
        of_one_length(|o, key_bytes, value_bytes| Options { key_bytes, value_bytes, ..o });
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

fn larger_leaves(site: &Site<'_, FpTree>) {
    let test_cluster = site.cluster();
    conformance::model(&test_cluster, site.seed, Keys::Hashed24, 2_000, 8_000);
    let shape = test_cluster.client(0).expect("attach").walk().expect("walk");
    let larger = shape.leaves.iter().any(|(slots, _)| *slots > 32);
    assert_eq!(larger, site.options.adaptive_capacity, "{:?}", shape.leaves);
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

/// Of one more entry with the key's fingerprint.
const AGAIN: Cost = cost(1, [1, 0, 0, 40, 0]);
const NONE: Side = [0; 5];

/// The costs at the published geometry (24-byte keys, 8-byte values, 32 slots): a leaf has 1360
/// bytes, an inner node 1752, a table 56.
fn budget() -> Budget<FpTree> {
    let at_mn = &ALL[..2];
    let at_cn = &ALL[2..];
    let again = |systems, operations, cost| row(systems, operations, cost).again(AGAIN, None);
    let [cn_insert, cn_update] = [[0, 1, 0, 0, 40], [1, 1, 0, 40, 40]];
    let locked = [1, 1, 1, 56, 56];
    let (search, table) =
        (cost(1, [1, 0, 0, 40, 0]), cost(2, [1, 0, 0, 40, 0]).cn([1, 0, 0, 56, 0]));
    let some = |operation: &'static [&'static str], cost, share| {
        again(PUBLISHED, operation, cost).share(share)
    };
    let rows = vec![
        again(at_mn, &["get"], cost(2, [2, 0, 0, 96, 0])),
        again(at_cn, &["get"], search),
        again(at_mn, &["get absent"], cost(1, [1, 0, 0, 56, 0])),
        again(at_cn, &["get absent"], cost(1, NONE).cn([1, 0, 0, 56, 0])),
        again(&ALL[..1], &["insert"], cost(4, [1, 2, 1, 56, 96])),
        again(&ALL[..1], &["update"], cost(5, [2, 2, 1, 96, 48])),
        again(&ALL[1..2], &["insert"], cost(2, [1, 2, 1, 56, 96])),
        again(&ALL[1..2], &["update"], cost(3, [2, 2, 1, 96, 48])),
        again(&ALL[2..3], &["insert"], cost(4, [0, 2, 1, 0, 48]).cn([1, 1, 0, 56, 56]).detached(1)),
        again(&ALL[2..3], &["update"], cost(4, [1, 2, 1, 40, 48]).cn([1, 0, 0, 56, 0])),
        again(&ALL[3..4], &["insert"], cost(3, cn_insert).cn(locked)),
        again(&ALL[3..4], &["update"], cost(3, cn_update).cn([1, 1, 1, 56, 8]).detached(1)),
        again(PUBLISHED, &["insert"], cost(4, cn_insert).cn(locked)),
        again(PUBLISHED, &["update"], cost(5, cn_update).cn([1, 1, 1, 56, 8])),
        // The root pointer, every level, the table, the entry.
        again(FPTREE, &["get first"], cost(6, [6, 0, 0, 8 + 3 * 1752 + 96, 0])),
        again(
            PUBLISHED,
            &["get first"],
            cost(6, [5, 0, 0, 8 + 3 * 1752 + 40, 0]).cn([1, 0, 0, 56, 0]),
        ),
        // No mirror is needed if this node is the table's owner; it makes later reads cheap.
        some(&["get cold", "get newer"], search, 0.1),
        some(&["get cold", "get newer"], table, 0.03),
        // A leaf that another node has split. READ entry or table (of another version), bottom
        // node, table, entry.
        some(&["get stale"], cost(4, [3, 0, 0, 40 + 1752 + 40, 0]).cn([1, 0, 0, 56, 0]), 0.2),
        some(&["get stale"], cost(4, [2, 0, 0, 1752 + 40, 0]).cn([2, 0, 0, 112, 0]), 0.05),
        // [lock, table, unlock] without effect, bottom node, then as usual.
        some(&["update stale"], cost(9, [2, 1, 0, 1752 + 40, 40]).cn([2, 2, 2, 112, 16]), 0.2),
        // Splits where the bottom node has room.
        again(FPTREE, &["insert split"], split_at_mn(10)).share(0.7),
        again(&ALL[1..2], &["insert split"], split_at_mn(7)).share(0.7),
        again(&ALL[3..4], &["insert split"], split_at_cn(7)).share(0.7),
        some(&["insert split"], split_at_cn(10), 0.7),
        // A full bottom node from the cache: lock without effect, unlock, descent; two WRITEs;
        // lock, READ and WRITE of the node above.
        some(&["insert split"], inner_split(), 0.01),
    ];
    let fill = Fill::RandomInserts { seed: 5 };
    Budget { fill, ..Budget::new(systems(), rows) }
}

fn split_at_mn(trips: u64) -> Cost {
    cost(trips, [3, 5, 2, 1360 + 1752 + 56, 2 * 1360 + 1752 + 112])
}

/// [CAS, READ], READ, [WRITE | WRITE], WRITE, WRITE, [CAS, READ], WRITE in 7 round trips.
fn split_at_cn(trips: u64) -> Cost {
    cost(trips, [2, 3, 1, 1360 + 1752, 2 * 1360 + 1752]).cn([1, 2, 1, 56, 112])
}

fn inner_split() -> Cost {
    cost(20, [7, 6, 3, 1360 + 6 * 1752, 2 * 1360 + 8 + 3 * 1752]).cn([1, 2, 1, 56, 112])
}

/// Means over random keys that the paper's design implies. A search READs a false positive for each
/// 254 other keys of the leaf that come before its own slot, half of them on average; an absent key
/// all of them, in the mirror and again in the table.
fn published_means() -> Budget<FpTree> {
    let reads = |c: &Cost| c.mn[0];
    let bytes = |c: &Cost| c.mn[3];
    let mut all = vec![];
    for (system, [search, searched, absent, leaves, scanned]) in [
        ("fptree", [2.042, 97.7, 1.09, 3.26, 4427.0]),
        ("dmtree-published", [1.042, 41.7, 0.18, 3.26, 3337.0]),
    ] {
        all.extend(means(system, "get", &[(reads, search), (bytes, searched)]));
        all.extend(means(system, "get absent", &[(reads, absent)]));
        all.extend(means(system, "scan", &[(reads, leaves), (bytes, scanned)]));
    }
    let systems = systems().into_iter().filter(|(name, _)| ENDS.contains(name)).collect();
    let rows = vec![
        row(FPTREE, &["get"], cost(2, [2, 0, 0, 96, 0])).again(AGAIN, Some(0.042)),
        row(PUBLISHED, &["get"], AGAIN).again(AGAIN, Some(0.042)),
        row(FPTREE, &["scan"], cost(0, NONE)).again(cost(1, [1, 0, 0, 1360, 0]), None),
        row(PUBLISHED, &["scan"], cost(0, NONE))
            .again(cost(2, [1, 0, 0, 1032, 0]).cn([1, 0, 0, 56, 0]), None),
    ];
    let fill = Fill::RandomInserts { seed: 5 };
    Budget { keys: 400_000, fill, means: all, ..Budget::new(systems, rows) }
}
