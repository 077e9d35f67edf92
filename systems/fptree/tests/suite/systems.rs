//! FPTree, DMTree as published, and the steps between them.

use dmtree_check::peer::prelude::*;
use dmtree_check::test_cluster::TestCluster;
use dmtree_fabric::NodeId;
use dmtree_fptree::{Locks, Options, Tables};
use dmtree_parts::{Fill, Write};

const ENDS: &str = "fptree, dmtree-published";

pub fn peer() -> Peer {
    let peer = Peer::of(dmtree_fptree::systems());
    Peer {
        // Scans are exact where tables show which pairs count.
        interleaved: Some((Tearing::Never, which(|o: &Options| o.tables == Tables::Compute))),
        local: local(),
        budgets: vec![budget(&peer), published_means(&peer)],
        ..peer
    }
}

/// All of three memory nodes have a part of the index.
fn on_all_memory_nodes(test_cluster: &TestCluster, _: &Options) {
    let mut c = test_cluster.client(0).expect("attach");
    c.walk().expect("walk");
    let counts = c.take_counts();
    for node in (0..3).map(NodeId::memory) {
        assert!(counts.nodes.iter().any(|(at, c)| *at == node && c.read > 10), "{node}");
    }
}

fn local() -> Vec<Row> {
    let mut rows =
        of_one_length(20_000, |o, key_bytes, value_bytes| Options { key_bytes, value_bytes, ..o });
    rows.extend([
        model("ascending keys in high trees", Keys::Ascending, 4_000, 14_000)
            .seed(10)
            .options(|o| Options { key_bytes: 8, fanout: 8, ..o }),
        three_memory_nodes(3_000, 15_000).then(on_all_memory_nodes),
        load(Keys::Hashed24, 5_000).options(|o| Options { fanout: 8, ..o }),
        random_fill(400_000).on(ENDS),
        full(10_000, |_: &Options| true),
        model("tables overflow to memory nodes", Keys::Hashed24, 8_000, 16_000)
            .then(overflow)
            .seed(130)
            .on("fptree-cache, fptree-locking, dmtree-published")
            .pool(|p| p.compute_bytes_per_node = 8 << 10),
    ]);
    rows.extend([64, 128].map(|leaf_capacity| {
        let row = model("capacities", Keys::Hashed24, 4_000, 15_000).seed(20).on(ENDS);
        row.options(move |o| Options { leaf_capacity, ..o })
    }));
    rows.extend([true, false].map(|adaptive_capacity| {
        model("a cache of three nodes", Keys::Hashed24, 2_000, 8_000)
            .then(larger_leaves)
            .seed(40)
            .options(move |o| Options { fanout: 8, adaptive_capacity, ..o })
            .cache(0, 3)
    }));
    rows.extend((0..64).map(|bits| {
        let row = model("every switch", Keys::Hashed24, 1_000, 3_000).seed(50 + u64::from(bits));
        row.on("fptree").options(move |o| switched(bits, o))
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

/// A cache without room: a sibling is larger and takes everything. The leaf stays behind empty,
/// with the range below its first key.
fn larger_leaves(test_cluster: &TestCluster, o: &Options) {
    let shape = test_cluster.client(0).expect("attach").walk().expect("walk");
    let adaptive = o.adaptive_capacity;
    assert_eq!(shape.leaves.iter().any(|(slots, _)| *slots == 128), adaptive, "{:?}", shape.leaves);
    assert!(!adaptive || shape.fill[0] > 0, "empty leaves stay on the chain: {:?}", shape.fill);
}

/// Compute nodes have no room for tables: further leaves have their tables on memory nodes.
fn overflow(test_cluster: &TestCluster, _: &Options) {
    let mut writer = test_cluster.client(0).expect("attach");
    for n in 0..20_000u64 {
        writer.write(&Keys::Hashed24.key(n), Write::Put(&n.to_le_bytes())).expect("put");
    }
    let shape = test_cluster.client(1).expect("attach").walk().expect("walk");
    assert!(shape.table_bytes > 3 * (8 << 10), "{} bytes of tables", shape.table_bytes);
}

/// One more entry with the key's fingerprint.
const AGAIN: Cost = cost(1, [1, 0, 0, 40, 0]);

/// The costs at the published geometry (24-byte keys, 8-byte values, 32 slots): an entry has 40
/// bytes, a leaf 1360, an inner node 1752, a table 56.
fn budget(peer: &Peer) -> Budget {
    const NONE: Side = [0; 5];
    const PUBLISHED: &str = "dmtree-published";
    const AT_CN: &str = "fptree-cache, fptree-locking, dmtree-published";
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
    let cell = |systems, operations, (trips, mn, cn)| {
        row(systems, operations, cost(trips, mn).cn(cn)).again(AGAIN, None)
    };
    let detached = |system, operation, (trips, mn, cn)| {
        row(system, operation, cost(trips, mn).cn(cn).detached(1)).again(AGAIN, None)
    };
    let rows = vec![
        cell("fptree, fptree-rtc", "get", (2, [2, 0, 0, 96, 0], NONE)),
        cell(AT_CN, "get", (1, [1, 0, 0, 40, 0], NONE)),
        cell("fptree, fptree-rtc", "get absent", (1, TABLE, NONE)),
        cell(AT_CN, "get absent", (1, NONE, TABLE)),
        cell("fptree", "insert", (4, insert_mn, NONE)),
        cell("fptree", "update", (5, update_mn, NONE)),
        cell("fptree-rtc", "insert", (2, insert_mn, NONE)),
        cell("fptree-rtc", "update", (3, update_mn, NONE)),
        detached("fptree-cache", "insert", (4, [0, 2, 1, 0, 48], [1, 1, 0, 56, 56])),
        cell("fptree-cache", "update", (4, [1, 2, 1, 40, 48], TABLE)),
        cell("fptree-locking", "insert", (3, insert_cn, inserting)),
        detached("fptree-locking", "update", (3, update_cn, updating)),
        cell(PUBLISHED, "insert", (4, insert_cn, inserting)),
        cell(PUBLISHED, "update", (5, update_cn, updating)),
        // The root pointer, every level, the table, the entry.
        cell("fptree", "get first", (6, [6, 0, 0, 8 + 3 * 1752 + 96, 0], NONE)),
        cell(PUBLISHED, "get first", (6, [5, 0, 0, 8 + 3 * 1752 + 40, 0], TABLE)),
        // No mirror is needed if this node is the table's owner; it makes later reads cheap.
        cell(PUBLISHED, "get cold, get newer", (1, [1, 0, 0, 40, 0], NONE)).share(0.1),
        cell(PUBLISHED, "get cold, get newer", (2, [1, 0, 0, 40, 0], TABLE)).share(0.03),
        // READ entry or table (of another version), bottom node, table, entry.
        cell(PUBLISHED, "get stale", (4, [3, 0, 0, 1752 + 80, 0], TABLE)).share(0.2),
        cell(PUBLISHED, "get stale", (4, [2, 0, 0, 1752 + 40, 0], [2, 0, 0, 112, 0])).share(0.05),
        // [lock, table, unlock] without effect, bottom node, then as usual.
        cell(PUBLISHED, "update stale", (9, [2, 1, 0, 1792, 40], [2, 2, 2, 112, 16])).share(0.2),
        cell("fptree", "insert split", (10, split_mn, NONE)).share(0.7),
        cell("fptree-rtc", "insert split", (7, split_mn, NONE)).share(0.7),
        cell("fptree-locking", "insert split", (7, split_cn, splitting)).share(0.7),
        cell(PUBLISHED, "insert split", (10, split_cn, splitting)).share(0.7),
        cell(PUBLISHED, "insert split", (20, inner, splitting)).share(0.01),
    ];
    Budget { fill: Fill::RandomInserts { seed: 5 }, ..Budget::new(peer.systems.clone(), rows) }
}

/// Means over random keys that the paper's design implies. A search READs a false positive for each
/// 254 other keys of the leaf that come before its own slot, half of them on average; an absent key
/// all of them, in the mirror and again in the table. Inserts read 324 and 257 bytes at 10^9 keys,
/// and inner nodes besides where caches are stale, which is more often in this small tree.
fn published_means(peer: &Peer) -> Budget {
    let ([reads, ..], [read, written]) = (KINDS, BYTES);
    let of = |system, [absent, leaves, tables, scanned, verbs, out, sent]: [f64; 7]| {
        let absent = means(system, "get absent", &[(reads, absent)]);
        let scans =
            means(system, "scan", &[(reads, leaves), (TRIPS, leaves + tables), (read, scanned)]);
        let parts = [(VERBS, verbs), (read, out), (written, sent)];
        [absent, scans, means(system, "insert by all", &parts)].concat()
    };
    let means = [
        of("fptree", [1.09, 3.26, 0.0, 4427.0, 4.59, 337.5, 311.0]),
        of("dmtree-published", [0.18, 3.26, 3.26, 3337.0, 1.38, 278.6, 244.0]),
    ];
    let rows = vec![
        row("fptree", "get", cost(2, [2, 0, 0, 96, 0])).again(AGAIN, Some(0.0446)),
        row("dmtree-published", "get", AGAIN).again(AGAIN, Some(0.0446)),
        row("fptree", "scan", Cost::default()).again(cost(1, [1, 0, 0, 1360, 0]), None),
    ];
    let mut systems = peer.systems.clone();
    systems.drain(1..4);
    let fill = Fill::RandomInserts { seed: 5 };
    Budget { keys: 100_000, fill, means: means.concat(), ..Budget::new(systems, rows) }
}
