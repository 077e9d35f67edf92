//! The sound `sherman`.

use dmtree_check::NodeFaultSet;
use dmtree_check::peer::prelude::*;
use dmtree_engine::Options;

pub fn peer() -> Peer {
    let setting = |grants| Setting { grants, ..Setting::default() };
    // Lock, READ, [WRITE entry, unlock]: the published verbs, and the published bytes (1166 and 34)
    // within 3 %.
    let write = cost(3, [1, 1, 2, 1160, 40]);
    let rows = vec![
        row("*", "get, get absent", cost(1, [1, 0, 0, 1160, 0])),
        row("*", "update, compare-and-set, insert", write),
        row("*", "delete", cost(3, [1, 1, 2, 1160, 8])),
        // 100 pairs, in leaves of 19; those of one bottom node are READ together.
        row("*", "scan of 100", cost(1, [7, 0, 0, 7 * 1160, 0])).share(0.7),
        // Lock, READ, {WRITE sibling, CAS tag}, [WRITE commit word, image, entry], and the record.
        row("*", "insert split", cost(6, [2, 3, 5, 2792, 2424]).detached(1)).share(0.9),
    ];
    // A garbage collection read the chunks of the index before it opened the GC logs of the nodes.
    // A chunk that was given back in between was in no log: it was taken for lost, and had two
    // owners after its memory node granted it again.
    let given_back = setting(NOTHING).faults(NodeFaultSet::All);
    let given_back = [102_330, 102_875].map(|seed| (given_back.clone(), seed..seed + 1));
    let mut sound = vec![(setting(NOTHING), 0..8), (setting(EVERYTHING), 0..8)];
    sound.extend(given_back);
    let peer = Peer::of(dmtree_sherman::systems().into_iter().filter(|s| s.recovers));
    Peer {
        local: local(),
        sound: sound.into_iter().map(|(s, seeds)| ("sherman", s, seeds)).collect(),
        interleaved: Some((Tearing::AnyOrder, Box::new(|_| true))),
        budgets: vec![Budget::new(peer.presets(), rows)],
        ..peer
    }
}

fn local() -> Vec<Row> {
    let small = |o: Options| Options { fanout: 8, ..o };
    let high = |o: Options| Options { fanout: 8, leaf_capacity: 6, ..o };
    let tiny = |keys, space, steps| {
        model("a cache of three nodes", keys, space, steps).options(small).cache(0, 3)
    };
    let mut rows = of_any_length();
    rows.extend(fills(EmptyLeaves::GoBack).map(|row| row.options(small)));
    rows.extend(chips(1_000, 6_000));
    rows.extend([
        tiny(Keys::Hashed24, 3_000, 15_000).seed(8),
        tiny(Keys::LongPrefix, 2_000, 10_000).seed(9),
        model("high trees", Keys::Ascending, 10_000, 40_000).seed(10).options(high),
        model("few generations", Keys::Hashed24, 2_000, 30_000)
            .pool(|p| p.generation_bits = 2)
            .options(high),
    ]);
    rows.extend([4, 7, 64, 128].map(|leaf_capacity| {
        let row = model("leaf capacities", Keys::Hashed24, 4_000, 15_000).seed(5);
        row.options(move |o| Options { leaf_capacity, ..o })
    }));
    rows.extend([(8, 0), (8, 8), (16, 16), (64, 256), (24, 0)].map(|(k, v)| {
        let row = model("inline sizes", Keys::AnyLength, 400, 5_000).seed(u64::from(k + v));
        row.options(move |o| Options { key_inline_bytes: k, value_inline_bytes: v, ..o })
    }));
    rows.extend([(1, 1), (1, 3), (7, 2)].map(|(locks, memory_nodes)| {
        let row = model("few locks", Keys::Hashed24, 2_000, 10_000).seed(7);
        row.pool(|p| p.memory_nodes = memory_nodes).options(move |mut o: Options| {
            o.techniques.locks = locks;
            o
        })
    }));
    rows
}
