//! The sound `smart`.

use dmtree_check::peer::prelude::*;
use dmtree_smart::sound::Options;

pub fn peer() -> Peer {
    let setting = |grants| ("smart", Setting { grants, ..Setting::default() }, 0..8);
    let rows = vec![
        row("*", "get", cost(1, [1, 0, 0, 72, 0])),
        // READ, lock, [WRITE area, release]; READs again if versions could have wrapped.
        row("*", "update", cost(3, [1, 1, 2, 72, 16])).share(0.99),
        // The READ behind the lock returns the old value.
        row("*", "compare-and-set", cost(3, [2, 1, 2, 72 + 128, 16])),
        // READ, CAS; then READ node (of some size), READ leaf, CAS slot: no tombstone stays.
        row("*", "delete", cost(5, [3, 0, 2, 248, 0])).share(0.80),
        row("*", "delete", cost(5, [3, 0, 2, 280, 0])).share(0.13),
        row("*", "delete", cost(5, [3, 0, 2, 344, 0])).share(0.06),
    ];
    let means = [
        // READ node, [WRITE leaf, CAS slot]. If the type has to be raised: also CAS head and CAS
        // hint. If the cached slot names a leaf of another key: first a READ of that leaf.
        means("smart", "insert", &[(TRIPS, 3.26), (VERBS, 4.26)]),
        // READ leaf, READ node, READ leaf, {WRITE node, WRITE leaf}, CAS slot.
        means("smart", "insert split", &[(TRIPS, 5.08), (VERBS, 6.07)]),
        // A hundred leaves, and the nodes above them.
        means("smart", "scan of 100", &[(TRIPS, 97.6), (VERBS, 149.8)]),
    ]
    .concat();
    let peer = Peer::of(dmtree_smart::systems().into_iter().filter(|s| s.recovers));
    Peer {
        repeats: Box::new(|_| false),
        interleaved: Some((Tearing::AnyOrder, Box::new(|_| true))),
        local: local(),
        sound: vec![setting(NOTHING), setting(EVERYTHING)],
        budgets: vec![Budget { keys: 5_000, means, ..Budget::new(peer.presets(), rows) }],
        ..peer
    }
}

fn local() -> Vec<Row> {
    let mut rows = of_any_length();
    rows.extend(fills(EmptyLeaves::GoBack));
    rows.extend([
        model("ascending keys", Keys::Ascending, 4_000, 20_000).seed(5),
        model("few generations, several memory nodes", Keys::Hashed24, 1_000, 20_000)
            .seed(11)
            .pool(|p| (p.generation_bits, p.memory_nodes) = (2, 3)),
    ]);
    rows.extend([(8, false), (16, true), (256, false), (1024, true)].map(|(bytes, on)| {
        model("inline sizes and techniques", Keys::AnyLength, 400, 5_000)
            .seed(u64::from(bytes))
            .options(move |o| Options {
                value_inline_bytes: bytes,
                delegation: on,
                combining: on,
                ..o
            })
    }));
    for (seed, bytes) in [(8, 0), (9, 300), (10, 10_000)] {
        let cached =
            |keys, space, steps| model("caches of any size", keys, space, steps).cache(bytes, 0);
        rows.push(cached(Keys::Hashed24, 2_000, 8_000).seed(seed));
        rows.push(cached(Keys::LongPrefix, 1_000, 5_000).seed(9));
    }
    let roomy = |row: Row| row.pool(|p| p.memory_bytes_per_node = 128 << 20);
    rows.into_iter().map(roomy).collect()
}
