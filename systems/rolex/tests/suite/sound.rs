//! The sound `rolex`.

use dmtree_check::NodeFaultSet;
use dmtree_check::peer::prelude::*;
use dmtree_engine::Options;
use dmtree_parts::{AnyOptions, Fill, Outcome, Write};

pub fn peer() -> Peer {
    let setting = |grants| Setting { grants, ..Setting::default() };
    let all = setting(NOTHING).faults(NodeFaultSet::All);
    // A node without room for the directory trained it anew again and again, and lost its pages.
    let no_room = (setting(NOTHING), 10..11);
    // A repair took the way of a model to a leaf for the leaf's record, and added none.
    let no_record = [158, 261].map(|seed| (all.clone(), seed..seed + 1));
    let mut sound =
        vec![(setting(NOTHING), 0..8), no_room, (setting(EVERYTHING), 0..8), (all, 0..8)];
    sound.extend(no_record);
    let peer = Peer::of(dmtree_rolex::systems().into_iter().filter(|s| s.recovers));
    let budgets = [full_leaves(peer.presets()), splits(peer.presets())];
    let budgets = budgets.into_iter().chain(small_caches(peer.presets())).collect();
    Peer {
        local: local(),
        sound: sound.into_iter().map(|(s, seeds)| ("rolex", s, seeds)).collect(),
        interleaved: Some((Tearing::AnyOrder, Box::new(|_| true))),
        budgets,
        ..peer
    }
}

type Presets = Vec<(&'static str, AnyOptions)>;

const WINDOWED: &str = "rolex, rolex-no-retraining";

/// Of leaves that are full, as those of the artifact.
fn full_leaves(presets: Presets) -> Budget {
    // A window of three leaves, or two; [lock, READ leaf], [WRITE entry, unlock].
    let window = cost(1, [3, 0, 0, 1200, 0]);
    let write = cost(3, [4, 1, 2, 1600, 40]);
    let coarse = cost(1, [1, 0, 0, 400, 0]);
    let rows = vec![
        row(WINDOWED, "get, get absent, get cold", window).share(0.85),
        // READ word, READ directory, READ page.
        row(WINDOWED, "get first", cost(4, [6, 0, 0, 8568, 0])),
        row(WINDOWED, "update, compare-and-set", write).share(0.85),
        row(WINDOWED, "delete", cost(3, [4, 1, 2, 1600, 8])).share(0.85),
        // 100 pairs in leaves of eight; how full leaves are is not known before.
        row(WINDOWED, "scan of 100", cost(1, [21, 0, 0, 8400, 0])).share(0.6),
        row("rolex-coarse", "get, get absent", coarse).share(0.55),
    ];
    // The published window is 3.25 leaves of 277 bytes.
    let reads = [(TRIPS, 1.0), (KINDS[0], 2.89), (BYTES[0], 1.28 * 3.25 * 277.0)];
    let mut wanted = means("rolex", "get", &reads);
    wanted.extend(means("rolex-no-retraining", "get", &reads));
    wanted.extend(means("rolex-coarse", "get", &[(TRIPS, 1.43), (KINDS[0], 1.43)]));
    Budget { fill: Fill::Even(1.0), means: wanted, ..Budget::new(presets, rows) }
}

/// Beside inserts and splits, before the models are trained anew.
fn splits(presets: Presets) -> Budget {
    let write = cost(3, [4, 1, 2, 1600, 40]);
    let rows = vec![
        row(WINDOWED, "get newer", cost(1, [3, 0, 0, 1200, 0])).share(0.85),
        row(WINDOWED, "get stale", cost(2, [4, 0, 0, 1600, 0])).share(0.5),
        row(WINDOWED, "update stale", cost(4, [5, 1, 2, 2000, 40])).share(0.5),
        row(WINDOWED, "insert", write).share(0.7),
        // And {WRITE sibling, CAS tag}, [WRITE commit word, image, entry], and the record.
        row(WINDOWED, "insert split", cost(6, [5, 3, 5, 3232, 896]).detached(1)).share(0.75),
    ];
    let ascending = row("*", "get ascending", cost(1, [1, 0, 0, 400, 0])).share(0.9);
    let rows = rows.into_iter().chain([ascending]).collect();
    Budget { more: ascending_keys, ..Budget::new(presets, rows) }
}

/// Keys that ascend at the right end, without a training: leaves that split off are known exactly.
fn ascending_keys(sheet: &mut Sheet<'_>) {
    let test_cluster = sheet.loaded();
    let mut c = test_cluster.client(0).expect("attach");
    let key = |n: u64| format!("~{n:023}").into_bytes();
    for n in 0..300 {
        assert_eq!(c.write(&key(n), Write::Insert(&[8; 8])).expect("room"), Outcome::Done);
    }
    c.take_counts();
    for n in 0..300 {
        assert!(c.get(&key(n)).expect("get").is_some());
        sheet.note("get ascending", &mut c);
    }
}

/// Pages of 64 leaves, and room for a share of them.
fn small_caches(presets: Presets) -> Vec<Budget> {
    let share = |(cache_bytes, trips)| {
        let systems = presets.iter().filter(|(name, _)| *name == "rolex");
        let systems = systems.map(|(name, o)| {
            let change = |mut o: Options| {
                o.techniques.page_leaves = 64;
                o
            };
            (*name, o.changed(change))
        });
        let means = means("rolex", "get", &[(TRIPS, trips)]);
        Budget { cache_bytes, means, ..Budget::new(systems.collect(), Vec::new()) }
    };
    [(1 << 20, 1.0), (52_500, 1.556), (26_300, 1.813), (10_500, 1.985)].map(share).into()
}

/// Every longer way trains a small page anew.
fn restless(mut o: Options) -> Options {
    if o.techniques.retrain_after > 0 {
        o.techniques.retrain_after = 1;
    }
    o.techniques.page_leaves = 4;
    o.fanout = 8;
    o
}

fn local() -> Vec<Row> {
    let restless = rows().into_iter().map(|row| row.and(restless));
    rows().into_iter().chain(restless).collect()
}

fn rows() -> Vec<Row> {
    let mut rows = trees(&Geometries {
        small: |o| Options { fanout: 8, ..o },
        high: |o| Options { fanout: 8, leaf_capacity: 4, ..o },
        inline: |o, k, v| Options { key_inline_bytes: k, value_inline_bytes: v, ..o },
    });
    rows.extend([
        model("ascending keys", Keys::Ascending, 3_000, 20_000).seed(20),
        model("keys of a thousandth", Keys::Clustered, 3_000, 20_000).seed(21),
        model("one key", Keys::Ascending, 1, 500).seed(22),
        model("three memory nodes", Keys::Hashed24, 2_000, 10_000)
            .seed(30)
            .pool(|p| p.memory_nodes = 3),
    ]);
    rows.extend([(4, 1), (7, 20), (64, 8), (128, 100)].map(|(leaf_capacity, bound)| {
        let row = model("leaf capacities", Keys::Hashed24, 4_000, 15_000).seed(5);
        row.options(move |mut o: Options| {
            o.techniques.error_bound = bound;
            Options { leaf_capacity, ..o }
        })
    }));
    rows
}
