//! The tests of dLSM and its relatives in one program.

mod budget;
mod costs;
mod deletions;
mod handover;
mod levels;
mod owners;
mod plays;
mod seeds;
mod sound;
mod threads;

use dmtree_check::peer::prelude::*;
use dmtree_dlsm::Options;
use dmtree_parts::AnyOptions;

dmtree_check::peer_tests! {
    dlsm: crate::peer();
}

/// Tables and levels so small that a few hundred keys reach every level.
pub fn small(o: Options) -> Options {
    Options {
        memtable_entries: 40,
        table_bytes: 2048,
        piece_bytes: 4096,
        level1_bytes: 4096,
        read_ahead: 4096,
        log_bytes: 16384,
        manifest_bytes: 4096,
        subcompactions: 4,
        ..o
    }
}

fn peer() -> Peer {
    let peer = Peer::of(dmtree_dlsm::systems());
    let rows = vec![
        row("dlsm-published", "get", cost(1, [1, 0, 0, 48, 0])).share(0.999),
        row("dlsm-published", "get absent, update, insert, delete", cost(0, [0; 5])),
        row("dlsm-published", "scan of 100", cost(1, [1, 0, 0, 4800, 0])),
        row("dlsm", "get", cost(1, [1, 0, 0, 48, 0])).share(0.999),
        row("dlsm", "get absent", cost(0, [0; 5])),
        row("dlsm", "scan of 100", cost(1, [1, 0, 0, 4800, 0])),
        // A group of one: frame 8, record 25, pair 36 without a value 27, in whole words.
        row("dlsm", "insert, update", cost(1, [0, 1, 0, 0, 72])).share(0.99),
        row("dlsm", "delete", cost(1, [0, 1, 0, 0, 64])).share(0.99),
    ];
    let budget = Budget { keys: 5_000, ..Budget::new(peer.presets(), rows) };
    // Filters have room, and indexes have none. A page has 97 records of 42 bytes.
    let by_page = Options { index_bytes: 16 << 10, ..Options::sound() };
    let rows = vec![
        row("dlsm", "get", cost(2, [2, 0, 0, 97 * 42 + 48, 0])).share(0.98),
        // The filter is wrong for one in a hundred.
        row("dlsm", "get absent", cost(0, [0; 5])).share(0.98),
        row("dlsm", "insert", cost(1, [0, 1, 0, 0, 72])).share(0.98),
        row("dlsm", "update", cost(2, [1, 1, 0, 97 * 42, 72])).share(0.98),
    ];
    let systems = vec![("dlsm", AnyOptions::from(by_page))];
    let by_page = Budget { keys: 5_000, ..Budget::new(systems, rows) };
    let presets: Vec<_> = peer.subjects.iter().map(|s| (s.name, s.options.clone())).collect();
    let repaired = |(name, o): &(&'static str, AnyOptions)| {
        let options = o.typed::<Options>().repaired();
        (*name, Setting::new(&options, NOTHING), 0..if *name == "dlsm-published" { 40 } else { 8 })
    };
    let sound = presets.iter().map(repaired).collect();
    Peer {
        repeats: which::<Options>(|_| true),
        interleaved: Some((Tearing::AnyOrder, Box::new(|_| true))),
        local: local(),
        sound,
        budgets: vec![budget, by_page],
        ..peer
    }
}

fn local() -> Vec<Row> {
    let mut rows = of_any_length();
    rows.extend(fills(EmptyLeaves::GoBack));
    rows.push(three_memory_nodes(2_000, 10_000));
    rows.push(
        full::<Options>(3_000, |_| false)
            // What waits for its flush counts: as many MemTables of each system.
            .options(|o| Options { immutables: 15, ..small(o) })
            .pool(|p| p.memory_bytes_per_node = 1 << 20),
    );
    rows.push(model("small tables", Keys::Short, 600, 10_000).options(small));
    rows.push(
        model("small tables, long keys", Keys::AnyLength, 600, 6_000).seed(20).options(small),
    );
    let by_page = |o| Options { index_bytes: 0, ..small(o) };
    rows.push(model("indexes by the page", Keys::Short, 600, 6_000).seed(40).options(by_page));
    rows
}
