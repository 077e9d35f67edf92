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
    let mut rows = trees(&Geometries {
        small: |o| Options { fanout: 8, ..o },
        high: |o| Options { fanout: 8, leaf_capacity: 6, ..o },
        inline: |o, k, v| Options { key_inline_bytes: k, value_inline_bytes: v, ..o },
    });
    rows.extend(chips(1_000, 6_000));
    rows.extend([4, 7, 64, 128].map(|leaf_capacity| {
        let row = model("leaf capacities", Keys::Hashed24, 4_000, 15_000).seed(5);
        row.options(move |o| Options { leaf_capacity, ..o })
    }));
    rows.extend(few_locks(|o: &mut Options, locks| o.techniques.locks = locks));
    rows
}
