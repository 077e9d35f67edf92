//! The sound `chime`.

use dmtree_check::NodeFaultSet;
use dmtree_check::peer::prelude::*;
use dmtree_engine::Options;

pub fn peer() -> Peer {
    let setting = |grants| Setting { grants, ..Setting::default() };
    // A neighbourhood: eight slots and a replica.
    // [Lock, READ neighbourhood], [WRITE entry, unlock].
    let write = cost(2, [1, 1, 2, 360, 40]);
    let rows = vec![
        row("*", "get, get absent", cost(1, [1, 0, 0, 360, 0])),
        row("*", "update, compare-and-set", write),
        row("*", "insert", write).share(0.75),
        row("*", "delete", cost(2, [1, 1, 2, 360, 8])),
        // 100 pairs; the leaves of one bottom node are READ together.
        row("*", "scan of 100", cost(1, [6, 0, 0, 6 * 1840, 0])).share(0.5),
        // And [CAS tag, READ leaf], WRITE sibling, [WRITE commit word, image, entry], the record.
        row("*", "insert split", cost(6, [3, 3, 5, 3832, 3808]).detached(1)).share(0.9),
    ];
    let all = setting(NOTHING).faults(NodeFaultSet::All);
    // A repair left a staged slot of a merge that had not committed: its block had two owners, and
    // no writer could lock the leaf.
    let staged = setting(NOTHING).faults(NodeFaultSet::Crash);
    let staged = [84, 192].map(|seed| (staged.clone(), seed..seed + 1));
    let mut sound = vec![(setting(NOTHING), 0..8), (setting(EVERYTHING), 0..8), (all, 0..4)];
    sound.extend(staged);
    let peer = Peer::of(dmtree_chime::systems().into_iter().filter(|s| s.recovers));
    Peer {
        local: local(),
        sound: sound.into_iter().map(|(s, seeds)| ("chime", s, seeds)).collect(),
        interleaved: Some((Tearing::AnyOrder, Box::new(|_| true))),
        budgets: vec![Budget::new(peer.presets(), rows)],
        ..peer
    }
}

fn local() -> Vec<Row> {
    let mut rows = trees(&Geometries {
        small: |o| Options { fanout: 8, ..o },
        high: |o| Options { fanout: 8, leaf_capacity: 8, neighbourhood: 4, ..o },
        inline: |o, k, v| Options { key_inline_bytes: k, value_inline_bytes: v, ..o },
    });
    rows.extend(chips(1_000, 6_000));
    rows.extend([(4, 2), (16, 8), (32, 16), (84, 2), (106, 8)].map(|(leaf_capacity, h)| {
        let row = model("leaf capacities", Keys::Hashed24, 4_000, 15_000).seed(5);
        row.options(move |o| Options { leaf_capacity, neighbourhood: h, ..o })
    }));
    rows.extend(few_locks(|o: &mut Options, locks| o.techniques.locks = locks));
    rows
}
