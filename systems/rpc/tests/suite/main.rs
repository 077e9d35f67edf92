//! The tests of the index that the cores of memory nodes own, in one program.

mod cores;
mod cut;

use dmtree_check::peer::prelude::*;
use dmtree_rpc::Options;

dmtree_check::peer_tests! {
    rpc: crate::peer();
}

fn peer() -> Peer {
    // Bytes of a request and of its reply: service and head are 23, a key 25, a value 9. A call is
    // a round trip of its own.
    let call = |bytes| cost(1, [0; 5]).calls(1, bytes);
    let leaf = [1, 0, 0, 1360, 0];
    let rows = vec![
        row("rpc", "get", call([49, 11])),
        row("rpc", "get absent", call([49, 2])),
        row("rpc", "scan of 100", call([53, 3234])),
        row("rpc-hybrid", "get, get absent", cost(2, leaf).calls(1, [49, 9])),
        row("rpc-farm", "get, get absent", cost(1, leaf)),
        row("*", "insert, insert split, update", call([59, 3])),
        row("*", "delete", call([50, 3])),
        row("*", "compare-and-set", call([69, 3])),
    ];
    let peer = Peer::of(dmtree_rpc::systems());
    let sound = |name| (name, Setting::default(), 0..8);
    Peer {
        repeats: which::<Options>(|o| o.reads != dmtree_rpc::Reads::Cell),
        interleaved: Some((Tearing::AnyOrder, Box::new(|_| true))),
        local: local(),
        sound: ["rpc", "rpc-hybrid", "rpc-farm", "rpc-cell"].map(sound).to_vec(),
        budgets: vec![Budget { keys: 5_000, ..Budget::new(peer.presets(), rows) }],
        ..peer
    }
}

fn local() -> Vec<Row> {
    let mut rows = of_any_length();
    rows.extend(fills(EmptyLeaves::Stay));
    rows.push(three_memory_nodes(2_000, 10_000));
    rows.push(full::<Options>(1_000, |_| true).pool(|p| p.memory_bytes_per_node = 768 << 10));
    rows.extend([(8, 8, 4), (256, 1024, 7), (16, 64, 128)].map(|(key, value, slots)| {
        model("lengths and slots", Keys::AnyLength, 400, 5_000).seed(value.into()).options(
            move |o| Options {
                key_inline_bytes: key,
                value_inline_bytes: value,
                leaf_slots: slots,
                ..o
            },
        )
    }));
    rows.push(model("a small cache", Keys::Hashed24, 2_000, 8_000).cache(4096, 0));
    rows
}
