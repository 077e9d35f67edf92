//! CHIME as published, and the steps to it.

use std::ops::Bound;

use dmtree_check::conformance::above;
use dmtree_check::peer::costs::Part;
use dmtree_check::peer::prelude::*;
use dmtree_chime::{Options, Scan, Vacancy};
use dmtree_fabric::OpOutcome;
use dmtree_parts::{AnyOptions, Outcome, Page, Resume, Write};

pub fn peer() -> Peer {
    let mut peer = Peer::of(dmtree_chime::systems().into_iter().filter(|s| !s.recovers));
    let presets = peer.presets();
    let repaired =
        |(name, o): &(&'static str, AnyOptions)| (*name, o.changed(|o: Options| o.repaired()));
    peer.systems.extend(presets.iter().map(repaired));
    // With every repair and the three grants that the design needs.
    let sound = |(name, o): (&'static str, AnyOptions)| {
        (name, Setting::new(&o.typed::<Options>().repaired(), KIND), 0..12)
    };
    let unsorted =
        Options { unsorted_inner: true, inner_span: 8, ..Options::published().repaired() };
    let unsorted = ("chime-published", Setting::new(&unsorted, KIND), 0..12);
    let deletes = Options { deletes: true, whole_moves: true, ..Options::replicas().repaired() };
    let deletes = ("chime-replicas", Setting::new(&deletes, KIND), 0..12);
    let sound = presets.clone().into_iter().map(sound).chain([unsorted, deletes]).collect();
    Peer { local: local(), sound, budgets: vec![budget(presets)], ..peer }
}

fn local() -> Vec<Row> {
    let mut rows =
        of_one_length(20_000, |o, key_bytes, value_bytes| Options { key_bytes, value_bytes, ..o });
    rows.extend([
        model("ascending keys in high trees", Keys::Ascending, 2_000, 8_000)
            .seed(10)
            .options(|o| Options { key_bytes: 8, inner_span: 4, span: 16, ..o }),
        model("the original layout", Keys::Ascending, 3_000, 15_000)
            .seed(20)
            .options(|o: Options| o.original()),
        three_memory_nodes(2_000, 8_000),
        model("a vacancy bit for several slots", Keys::Hashed24, 3_000, 10_000)
            .seed(40)
            .options(|o| Options { span: 100, inner_span: 16, neighbourhood: 16, ..o }),
        model("a cache of three nodes", Keys::Hashed24, 2_000, 8_000)
            .seed(50)
            .options(|o| Options { inner_span: 8, span: 16, ..o })
            .cache(0, 3),
        load(Keys::Hashed24, 5_000).options(|o| Options { inner_span: 8, ..o }),
        dense(Scan::Fine),
        dense(Scan::Greedy),
        Row::of("slots that inserts READ", steady_inserts)
            .on("chime-sibling")
            .options(|o| Options { whole_neighbourhood: false, version_bytes: 1, ..o })
            .cache(64 << 20, 0),
        model("unsorted inner nodes", Keys::Ascending, 2_000, 8_000).seed(60).options(|o| {
            Options { key_bytes: 8, inner_span: 8, span: 16, unsorted_inner: true, ..o }
        }),
        model("unsorted inner nodes, keys in any order", Keys::Hashed24, 2_000, 8_000)
            .seed(70)
            .options(|o| Options { inner_span: 16, span: 16, unsorted_inner: true, ..o }),
        Row::of("leaves are full when they are divided", full_leaves)
            .on("chime-vacancy, chime-sibling")
            .options(|o: Options| Options { key_bytes: 24, ..o.original() })
            .cache(64 << 20, 0),
        random_fill(300_000).on("chime-published"),
        random_fill(600_000).on("chime-base"),
        full(5_000, |_: &Options| true),
    ]);
    rows
}

/// The figures of DESIGN.md section 4, at the geometry of the DMTree artifact: 32 slots, keys of 24
/// bytes and values of 8. `original` has 64 slots.
fn budget(mut systems: Vec<(&'static str, AnyOptions)>) -> Budget {
    let key_bytes = 24;
    systems.push(("original", Options { key_bytes, ..Options::sibling().original() }.into()));
    systems.push(("chained", Options { vacancy: Vacancy::Chained, ..Options::sibling() }.into()));
    systems.push(("upper levels", Options { upper_levels: true, ..Options::sibling() }.into()));
    systems.push(("unsorted", Options { unsorted_inner: true, ..Options::sibling() }.into()));
    systems.push(("unlock apart", Options { carried_unlock: false, ..Options::sibling() }.into()));
    const HEADER: [&str; 2] = ["chime-hopscotch", "chime-vacancy"];
    // Only the bytes differ, by the slot.
    let [reads, writes, atomics] = KINDS;
    let [bytes_read, bytes_written] = BYTES;
    let mut all = Vec::new();
    let mut of = |systems: &[&'static str], operations: &[&'static str], parts: &[(Part, f64)]| {
        for (system, operation) in
            systems.iter().flat_map(|s| operations.iter().map(move |o| (s, o)))
        {
            all.extend(means(system, operation, parts));
        }
    };
    // A header and a neighbourhood, which meet where the neighbourhood begins at slot 0 or wraps.
    of(&HEADER, &["get", "get absent", "update"], &[(reads, 1.97)]);
    of(&HEADER, &["get"], &[(TRIPS, 1.0), (bytes_read, 343.5)]);
    let replicas = ["chime-replicas", "chime-sibling", "chained"];
    of(&replicas, &["get", "get absent", "update"], &[(reads, 1.219)]);
    of(&["chime-sibling", "chained"], &["get", "update"], &[(bytes_read, 294.5)]);
    of(&["chime-replicas"], &["get", "update"], &[(bytes_read, 343.5)]);
    of(&["original"], &["get", "get absent"], &[(TRIPS, 1.0), (reads, 1.109), (bytes_read, 294.5)]);
    // Every key is hot. Its last two digits are those of another key nearby in 6 % of the cases:
    // then the guess may be wrong.
    of(&["chime-published"], &["get"], &[(reads, 1.059)]);
    of(&["chime-published"], &["update"], &[(reads, 1.0)]);
    of(&["chime-published"], &["get"], &[(bytes_read, 51.0)]);
    of(&["chime-published"], &["get absent"], &[(reads, 1.268)]);
    let writers = ["chime-hopscotch", "chime-vacancy", "chime-replicas", "chime-sibling"];
    of(&writers, &["update", "insert"], &[(writes, 1.97), (atomics, 1.0)]);
    of(&["chime-published"], &["update"], &[(writes, 1.97), (bytes_written, 45.0)]);
    let leaf = |bytes| cost(1, [1, 0, 0, bytes, 0]);
    let rows = vec![
        row("chime-base", "get, get absent", leaf(1132)),
        row("chime-base", "insert", cost(3, [1, 1, 1, 1132, 1144])),
        row("chime-published", "scan of 100", cost(1, [5, 0, 0, 5 * 1178, 0]))
            .again(leaf(1178), Some(0.4)),
        // CAS, vacancy word, READ leaf, WRITE new leaf, WRITE leaf and release, root word, two
        // levels, CAS, READ, WRITE and release. A fifth READs the rest of the leaf later.
        row("chime-sibling", "insert split", cost(11, [6, 3, 2, 4650, 3560])).share(0.76),
        row("chained", "insert split", cost(10, [6, 3, 2, 4650, 3560])).share(0.76),
        row("upper levels", "insert split", cost(8, [3, 3, 2, 2346, 3560])).share(0.7),
        // Each release is a WRITE by itself: of the leaf, and of the node above.
        row("unlock apart", "insert split", cost(11, [6, 6, 2, 4638, 3550])).share(0.76),
        // The record by itself (most lie in one line), and the lock.
        row("unsorted", "insert split", cost(11, [6, 4, 2, 4650, 2441])).share(0.3),
    ];
    // A wasted READ, the root word, three levels, the neighbourhood; or the level above the leaves.
    of(&["chime-sibling"], &["get stale"], &[(TRIPS, 6.0)]);
    of(&["upper levels"], &["get stale"], &[(TRIPS, 3.0)]);
    Budget { means: all, ..Budget::new(systems, rows) }
}

fn dense(scan: Scan) -> Row {
    Row::of(&format!("{scan:?} scans of dense keys"), dense_scans)
        .on("chime-sibling, chime-published")
        .options(move |o| Options { key_bytes: 8, scan, ..o })
}

/// Nine of ten integers are keys; some were inserted after the cache was filled.
fn dense_scans(site: &Site<'_>) {
    let cluster = site.cluster();
    let (mut c, mut other) =
        (cluster.client(0).expect("attach"), cluster.client(1).expect("attach"));
    let there = |n: &u64| n % 10 != 3;
    let pair = |n: u64| (Keys::Ascending.key(n), vec![n as u8; 8]);
    c.load((0..3_000).filter(there).map(pair).collect(), true, 0.5).expect("load");
    let mut page = Page::new();
    for round in 0..200u64 {
        let n = 3_000 + round;
        let (key, value) = pair(n);
        if there(&n) {
            other.write(&key, Write::Put(&value)).expect("put");
        }
        let (from, limit) = (round * 16, 1 + round as usize % 100);
        let low = Keys::Ascending.key(from);
        let resume = c.scan(&above(&low, limit), &mut page).expect("scan");
        let wanted: Vec<_> =
            (from..from + limit as u64).filter(|m| there(m) && *m <= n).map(pair).collect();
        let found: Vec<_> = page.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert_eq!(found, wanted, "from {from}");
        assert!(resume.is_some() || page.is_empty(), "from {from}");
    }
    // A key far away: the integers between are none.
    let far = Keys::Ascending.key(1 << 40);
    c.write(&far, Write::Put(&[1; 8])).expect("put");
    let resume = c.scan(&above(&Keys::Ascending.key(9_000), 50), &mut page).expect("scan");
    assert_eq!((page.len(), resume), (0, Some(Resume(Bound::Included(far)))));
    (0..40).for_each(|n| _ = c.write(&Keys::Ascending.key(20_000 + 3 * n), Write::Put(&[1; 8])));
    let e = c.scan(&above(&Keys::Ascending.key(20_000), 50), &mut page).expect_err("refused");
    assert!(e.to_string().contains("dense integers, or coarse"), "{e}");
}

/// What inserts READ in leaves that inserts have filled: in the mean 4.6 slots from the home to the
/// first free one, 5.7 with those up to a replica: 219 bytes with the vacancy word. Descents after
/// divisions of inner nodes add 11. (In a loaded leaf keys stand closer together.)
fn steady_inserts(site: &Site<'_>) {
    let cluster = site.cluster();
    let c = &mut cluster.client(0).expect("attach");
    let mut insert = |n: u64| c.write(&Keys::Hashed24.key(n), Write::Insert(&[8; 8]));
    (0..40_000).for_each(|n| assert_eq!(insert(n).expect("insert"), Outcome::Done));
    c.take_counts();
    (40_000..80_000).for_each(|n| _ = c.write(&Keys::Hashed24.key(n), Write::Insert(&[8; 8])));
    let counts = c.take_counts();
    let (mut plain, mut splits) = (None, 0.0);
    for (_, outcome, totals) in &counts.ops {
        match outcome {
            OpOutcome::InsertPlain => plain = Some(totals),
            OpOutcome::InsertSplit => splits = totals.ops as f64,
            _ => {}
        }
    }
    let plain = plain.expect("most inserts find room");
    let mean = |n: u64| n as f64 / plain.ops as f64;
    let (reads, bytes) = (mean(plain.counts.mn.read), mean(plain.counts.mn.bytes_read));
    let share = splits / 40_000.0;
    assert!((2.08..2.14).contains(&reads), "{reads} READs");
    assert!((224.0..236.0).contains(&bytes), "{bytes} bytes");
    assert!((0.045..0.050).contains(&share), "{share} of the inserts divide a leaf");
}

/// An insert divides a leaf only if it finds no room in all of it, where a vacancy bit is for two
/// slots too.
fn full_leaves(site: &Site<'_>) {
    let cluster = site.cluster();
    let c = &mut cluster.client(0).expect("attach");
    let mut insert = |n: u64| c.write(&Keys::Hashed24.key(n), Write::Insert(&[8; 8]));
    (0..40_000).for_each(|n| assert_eq!(insert(n).expect("insert"), Outcome::Done));
    let divided = c.take_counts().divided;
    let share = divided.keys as f64 / divided.slots as f64;
    assert!((0.88..0.93).contains(&share), "{share} of the slots of divided leaves were full");
}
