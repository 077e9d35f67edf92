//! FG, Sherman as published, and the steps between them.

use dmtree_check::peer::prelude::*;
use dmtree_parts::AnyOptions;
use dmtree_sherman::Options;

pub fn peer() -> Peer {
    let peer = Peer::of(dmtree_sherman::systems().into_iter().filter(|s| !s.recovers));
    Peer {
        local: local(),
        // Checksums show every torn page, and every verb is awaited.
        sound: vec![("fg", Setting::default(), 0..12)],
        budgets: vec![budget(peer.presets())],
        ..peer
    }
}

fn local() -> Vec<Row> {
    let mut rows =
        of_one_length(20_000, |o, key_bytes, value_bytes| Options { key_bytes, value_bytes, ..o });
    rows.extend([
        model("ascending keys in high trees", Keys::Ascending, 2_000, 8_000)
            .seed(10)
            .options(|o| Options { key_bytes: 8, inner_slots: 4, leaf_slots: 4, ..o }),
        model("pages of 1 KiB", Keys::Hashed24, 3_000, 15_000)
            .seed(20)
            .options(|o: Options| Options { key_bytes: 24, ..o.in_pages_of_1k() }),
        three_memory_nodes(2_000, 8_000).options(|o| Options { locks: 1, ..o }),
        model("a cache of three pages", Keys::Hashed24, 2_000, 8_000)
            .seed(50)
            .options(|o| Options { inner_slots: 8, leaf_slots: 8, ..o })
            .cache(0, 3),
        load(Keys::Hashed24, 5_000).options(|o| Options { inner_slots: 8, ..o }),
        random_fill(300_000).on("fg, sherman-published"),
        full(10_000, |_: &Options| true).options(|o| Options { locks: 1024, ..o }),
    ]);
    rows.extend(chips(1_000, 4_000));
    rows
}

/// The figures of DESIGN.md section 4, at the geometry of the DMTree artifact.
fn budget(mut systems: Vec<(&'static str, AnyOptions)>) -> Budget {
    const WRITES: &str = "update, insert, compare-and-set, delete";
    systems.push(("eager", Options { lazy_splits: false, ..Options::published() }.into()));
    let leaf = cost(1, [1, 0, 0, 1166, 0]);
    let rows = vec![
        row("*", "get, get absent", leaf),
        row("fg", WRITES, cost(4, [1, 1, 2, 1166, 1166])),
        row("fg-combine, fg-on-chip, fg-hierarchical", WRITES, cost(3, [1, 2, 1, 1166, 1166 + 8])),
        row("sherman-published", WRITES, cost(3, [1, 2, 1, 1166, 34 + 8])),
        // 100 pairs, in leaves of 22.
        row("*", "scan of 100", cost(5, [5, 0, 0, 5 * 1166, 0])).again(leaf, Some(0.4)),
        // Lock, READ, WRITE sibling, [WRITE left, unlock], root word, three levels, lock, READ,
        // [WRITE, unlock].
        row("eager", "insert split", cost(11, [6, 5, 2, 5792, 3468])).share(0.9),
    ];
    Budget::new(systems, rows)
}
