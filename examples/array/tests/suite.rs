//! The tests of the array: the test kit for crates of indexes.

use dmtree_array::Options;
use dmtree_check::peer::prelude::*;
use dmtree_check::peer::rows::basics;

dmtree_check::peer_tests! {
    array: crate::peer();
}

fn peer() -> Peer {
    let peer = Peer::of(dmtree_array::systems());
    let whole = 8 + 8 + 300 * 32;
    let read = |locked| match locked {
        true => cost(5, [3, 0, 2, whole, 0]),
        false => cost(3, [3, 0, 0, whole, 0]),
    };
    let rows = vec![
        row("array", "get, get absent", read(true)),
        row("array-unlocked", "get, get absent", read(false)),
    ];
    Peer {
        local: vec![
            basics(),
            model("hashed keys", Keys::Hashed24, 200, 1_000),
            model("a small array", Keys::Ascending, 40, 500).options(|o| Options {
                key_bytes: 8,
                capacity: 40,
                ..o
            }),
        ],
        sound: vec![("array", Setting::default(), 0..8)],
        budgets: vec![Budget { keys: 300, ..Budget::new(peer.presets(), rows) }],
        ..peer
    }
}
