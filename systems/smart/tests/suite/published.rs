//! ART, SMART as published, and the steps between them.

use dmtree_check::peer::prelude::*;
use dmtree_fabric::ErrorKind;
use dmtree_parts::{AnyOptions, Outcome, Write};
use dmtree_smart::Options;

pub const PUBLISHED: &str = "smart-published";

pub fn peer() -> Peer {
    let mut peer = Peer::of(dmtree_smart::systems().into_iter().filter(|s| !s.recovers));
    let presets = peer.presets();
    // Each preset is also checked with every repair.
    peer.systems
        .extend(presets.iter().map(|(name, o)| (*name, o.changed(|o: Options| o.repaired()))));
    Peer {
        // A verb that is not awaited may execute late; another client then has to do it.
        repeats: which(|o: &Options| !o.lazy_repairs),
        local: local(),
        sound: sound(&peer),
        budgets: vec![budget(presets), inserts(), average_insert()],
        ..peer
    }
}

/// What a rear lock needs: a leaf's last byte lands last, and a failing compare-and-swap writes
/// nothing.
const NEEDED: Capabilities =
    Capabilities { cas_fail_is_readonly: true, write_ascending: true, ..NOTHING };

/// Settings that find nothing, with every repair.
fn sound(peer: &Peer) -> Vec<(&'static str, Setting, std::ops::Range<u64>)> {
    // Of ART only words change, and by compare-and-swap only.
    let grants = |name| if ["art", "smart-lock-free"].contains(&name) { NOTHING } else { KIND };
    let of = |(name, o): (&'static str, AnyOptions)| {
        (name, Setting::new(&o.typed::<Options>().repaired(), grants(name)), 0..12)
    };
    let mut sound: Vec<_> = peer.presets().into_iter().map(of).collect();
    let rear_lock = Setting::new(&Options::rear_lock().repaired(), NEEDED);
    sound.push(("smart-rear-lock", rear_lock.clients(Clients::crowd(9, 1, 120)), 0..8));
    // An absence that is older than a member of the batch (DESIGN.md, section 7).
    let batch = Options { in_place: false, rear_lock: false, ..Options::published().repaired() };
    let mut digits = Clients::crowd(9, 10, 10);
    digits.fields["pool"]["cache_bytes"] = (4 << 20).into();
    sound.push((PUBLISHED, Setting::new(&batch, NOTHING).clients(digits), 970..971));
    sound
}

fn local() -> Vec<Row> {
    let mut rows = of_one_length(4_000, |o, key_bytes, value_bytes| {
        let lock_bytes = if [3, 16, 250].contains(&key_bytes) { 8 } else { 1 };
        Options { key_bytes, value_bytes, lock_bytes, ..o }
    });
    let decimal = |o: Options| Options { largest_node: 16, ..o };
    rows.extend([
        model("ascending keys", Keys::Ascending, 1_000, 3_000)
            .seed(20)
            .options(|o| Options { key_bytes: 8, ..o }),
        // Leaves of 34 bytes; the lock shares a word with the value.
        model("the original layout", Keys::Ascending, 500, 2_000)
            .seed(40)
            .options(|o: Options| o.original()),
        model("the artifact's layout of decimal keys", Keys::Hashed24, 1_000, 3_000)
            .seed(60)
            .options(decimal),
        three_memory_nodes(1_000, 2_000).options(|o| Options { locks: 1, ..o }),
        Row::of("the largest node is full", largest_node)
            .on(PUBLISHED)
            .options(move |o| Options { key_bytes: 2, ..decimal(o) }),
        full(5_000, |o: &Options| o.in_place)
            .options(move |o| Options { locks: 1024, ..decimal(o) }),
    ]);
    rows.extend(chips(300, 800));
    rows.extend([true, false].map(|indexed_cache| {
        model("a cache of three nodes", Keys::Hashed24, 1_000, 2_000)
            .options(move |o| Options { indexed_cache, ..o })
            .cache(0, 1)
    }));
    rows
}

/// An insert into a node without a slot for one more byte returns an error, and the node stays
/// unchanged.
fn largest_node(site: &Site<'_>) {
    let c = &mut site.cluster().client(0).expect("attach");
    for n in 0..16u8 {
        c.write(&[1, n], Write::Insert(&[n; 8])).expect("room");
    }
    let e = c.write(&[1, 77], Write::Insert(&[0; 8])).expect_err("full");
    let named = e.to_string().contains("largest_node");
    assert!(e.kind() == ErrorKind::InvalidArgument && named, "{e}");
    assert_eq!(c.walk().expect("walk").keys, 16);
}

/// The figures of DESIGN.md section 4: warm and uncontended, with 24-byte decimal keys and 8-byte
/// values as in the DMTree artifact.
fn budget(mut systems: Vec<(&'static str, AnyOptions)>) -> Budget {
    systems.push(("original", Options { key_bytes: 24, ..Options::published().original() }.into()));
    const REAR: &str = "smart-rear-lock, smart-delegation, smart-published";
    let search = |bytes| cost(1, [1, 0, 0, bytes, 0]);
    // READ; [WRITE leaf, WRITE valid], CAS. As published: READ, WRITE, CAS, and a WRITE that is not
    // awaited.
    let replaced = cost(3, [1, 2, 1, 57, 58]);
    let rows = vec![
        row("art, smart-lock-free, smart-in-place", "get", search(57)),
        row(REAR, "get", search(57)),
        row("original", "get", search(50)),
        row("art", "update", replaced),
        row("smart-lock-free", "update", replaced.detached(1)),
        // READ, CAS, [WRITE, CAS]; READ, CAS, WRITE.
        row("smart-in-place", "update", cost(3, [1, 1, 2, 57, 57])),
        row(REAR, "update", cost(3, [1, 1, 1, 57, 57])),
        row(PUBLISHED, "scan of 100", cost(1, [100, 0, 0, 5_700, 0])),
    ];
    Budget::new(systems, rows)
}

/// The keys of a tree (digits, filled with zeros), and the key that is inserted next. The root
/// node, which tells 0 from 1, is never cached; the node of 0x is.
const CASES: [(&str, &[&str], &str); 4] = [
    ("free slot", &["011", "012", "021", "022", "1"], "013"),
    ("type switch", &["011", "012", "013", "014", "021", "1"], "015"),
    ("leaf split", &["011", "012", "021", "022", "1"], "01105"),
    ("header split", &["01123", "01124", "021", "022", "1"], "0115"),
];

fn inserts() -> Budget {
    let lazy = |lazy_repairs, o| Options { lazy_repairs, ..o };
    let systems = vec![
        (PUBLISHED, Options::published()),
        ("waiting", lazy(false, Options::published())),
        ("art", Options::art()),
        ("lazy art", lazy(true, Options::art())),
    ];
    let rows = vec![
        // READ node, WRITE leaf, CAS slot.
        row(PUBLISHED, "free slot", cost(3, [1, 1, 1, 48, 57])),
        // Also both CAS of the type, together.
        row(PUBLISHED, "type switch", cost(4, [1, 1, 3, 48, 57])),
        // READ leaf, {WRITE node, WRITE leaf}, CAS slot, and the old leaf's pointer.
        row(PUBLISHED, "leaf split", cost(3, [1, 2, 2, 57, 105]).detached(1)),
        row("waiting", "leaf split", cost(4, [1, 2, 2, 57, 105])),
        // READ node, {WRITE node, WRITE leaf}, CAS slot, and the old node's pointer and header.
        row(PUBLISHED, "header split", cost(3, [1, 2, 3, 48, 105]).detached(2)),
        row("waiting", "header split", cost(5, [1, 2, 3, 48, 105])),
        // Lock, READ node, unlock, lock, WRITE leaf, CAS slot, unlock.
        row("art", "free slot", cost(7, [1, 1, 5, 48, 57])),
        // Lock, READ leaf, {WRITE node, WRITE leaf}, CAS slot, the old leaf's pointer, unlock.
        row("art", "leaf split", cost(6, [1, 2, 4, 57, 105])),
        row("lazy art", "leaf split", cost(5, [1, 2, 4, 57, 105]).detached(1)),
    ];
    Budget { more: insert_cases, ..Budget::new(systems, rows) }
}

fn insert_cases(sheet: &mut Sheet<'_>) {
    let text = |digits: &&str| format!("{digits:0<24}").into_bytes();
    for (case, keys, new) in CASES {
        let mut c = sheet.empty().client(0).expect("attach");
        let mut insert = |k: &&str| c.write(&text(k), Write::Insert(&[1; 8])).expect("insert");
        keys.iter().for_each(|k| _ = insert(k));
        keys.iter().for_each(|k| assert!(c.get(&text(k)).expect("get").is_some()));
        c.take_counts();
        assert_eq!(c.write(&text(&new), Write::Insert(&[1; 8])).expect("insert"), Outcome::Done);
        sheet.note(case, &mut c);
        c.walk().expect("walk");
    }
}

/// The figures of the published artifact: 6 compute nodes insert a tenth of a million decimal keys
/// into a loaded tree, with warm caches; 0.40 nodes per key.
fn average_insert() -> Budget {
    let o = Options { largest_node: 16, ..Options::published() };
    let [reads, writes, atomics] = KINDS;
    let parts = [(VERBS, 4.17), (reads, 1.10), (writes, 1.38), (atomics, 1.70)];
    let more = |sheet: &mut Sheet<'_>| {
        let shape = sheet.loaded().client(0).expect("attach").walk().expect("walk");
        let nodes = shape.inner_nodes as f64 / shape.keys as f64;
        assert!((0.388..=0.412).contains(&nodes), "{nodes} nodes per key");
    };
    let budget = Budget::new(vec![(PUBLISHED, o)], Vec::new());
    Budget { keys: 100_000, means: means(PUBLISHED, "insert by all", &parts), more, ..budget }
}
