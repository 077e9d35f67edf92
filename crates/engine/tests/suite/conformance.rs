//! The conformance suite on DMTree, in many geometries and with every switch in every position.

use dmtree_check::NodeFaultSet;
use dmtree_check::peer::prelude::*;
use dmtree_check::peer::rows;
use dmtree_engine::{Options, Tables, Techniques};

dmtree_check::peer_tests! {
    engine: crate::conformance::peer(crate::conformance::local());
}

/// Apart from the others: a slow fabric leaves it out.
#[test]
fn loads_as_random_inserts_would() {
    passes(&rows::local(&peer(vec![random_fill(400_000).on("dmtree")])));
}

fn peer(local: Vec<Row>) -> Peer {
    let mut subjects = dmtree_engine::systems();
    subjects.truncate(3);
    let setting = |grants| Setting { grants, ..Setting::default() };
    let crashes = setting(NOTHING).faults(NodeFaultSet::Crash);
    Peer {
        systems: vec![
            ("dmtree", Options::default().into()),
            ("small nodes", small(Options::default()).into()),
            ("dmtree-images", images().into()),
            ("dmtree-log", logged().into()),
        ],
        // A split of small nodes leaves verbs that are not awaited. Cells with images are asked for
        // when none has come back, which the threads of a pool over TCP decide by their pace.
        repeats: which(|o: &Options| o.fanout > 8 && o.images == 0.0),
        local,
        sound: vec![
            ("dmtree", setting(NOTHING), 0..200),
            ("dmtree", setting(EVERYTHING), 0..8),
            ("dmtree", crashes.clone(), 1_000_060..1_000_108),
            ("dmtree-images", setting(NOTHING), 0..100),
            ("dmtree-images", crashes.clone(), 1_000_000..1_000_048),
            ("dmtree-log", setting(NOTHING), 0..100),
            ("dmtree-log", crashes, 1_000_000..1_000_048),
        ],
        interleaved: Some((Tearing::AnyOrder, Box::new(|_| true))),
        ..Peer::of(subjects)
    }
}

fn images() -> Options {
    Options { images: 0.5, ..Options::default() }
}

/// A log of a few records, which is always full, and a leaf in the way of each.
fn logged() -> Options {
    Options { log_kib: 8, log_groups: 1, ..images() }
}

fn small(o: Options) -> Options {
    Options { fanout: 8, ..o }
}

fn inline(o: Options, key_inline_bytes: u32, value_inline_bytes: u32) -> Options {
    Options { key_inline_bytes, value_inline_bytes, ..o }
}

fn local() -> Vec<Row> {
    let mut rows = trees(&Geometries { small, high: small, inline });
    rows.extend([
        model("two memory nodes", Keys::Hashed24, 3_000, 20_000)
            .seed(6)
            .pool(|p| p.memory_nodes = 2),
        model("a cache of three nodes, leaves of one size", Keys::LongPrefix, 2_000, 10_000)
            .seed(8)
            .options(|o| {
                let techniques = Techniques { adaptive_capacity: false, ..Techniques::default() };
                Options { fanout: 8, techniques, ..o }
            })
            .cache(0, 3),
        load(Keys::LongPrefix, 5_000).options(small),
    ]);
    rows.extend([64, 128].map(|leaf_capacity| {
        let row = model("capacities", Keys::Hashed24, 4_000, 15_000).seed(5);
        row.options(move |o| Options { leaf_capacity, ..o })
    }));
    // One switch off at a time, and then all.
    rows.extend([1, 2, 4, 8, 16, 32, 63].map(|off| {
        let row = model("switches", Keys::Hashed24, 1_500, 8_000).seed(20 + off);
        row.options(move |o| switched_off(off, o))
    }));
    let rows = rows.into_iter().map(|row| row.on("dmtree"));
    let rows = rows.chain(local_images().into_iter().map(|row| row.on("dmtree-images")));
    rows.chain(local_logs().into_iter().map(|row| row.on("dmtree-log"))).collect()
}

fn local_logs() -> Vec<Row> {
    vec![
        model("a log, always full", Keys::Hashed24, 3_000, 30_000)
            .seed(6)
            .options(|_| small(logged()))
            .pool(|p| p.memory_nodes = 2),
        model("a log, images of some leaves", Keys::Hashed24, 3_000, 20_000)
            .seed(7)
            .options(|o| Options { images: 0.1, ..small(o) })
            .cache(0, 20),
        model("a log, few generations", Keys::Hashed24, 2_000, 30_000)
            .seed(10)
            .pool(|p| p.generation_bits = 2)
            .options(|_| small(logged())),
        model("a log, inline sizes", Keys::AnyLength, 400, 5_000)
            .seed(8)
            .options(|o| inline(o, 8, 8)),
        load(Keys::LongPrefix, 5_000).options(small),
    ]
}

fn local_images() -> Vec<Row> {
    let mut rows = of_any_length();
    rows.extend([
        model("images, one of two leaves", Keys::Hashed24, 3_000, 20_000)
            .seed(6)
            .options(|o| Options { images: 0.9, ..small(o) })
            .pool(|p| p.memory_nodes = 2)
            .cache(0, 20),
        model("images, that follow use", Keys::Hashed24, 3_000, 30_000)
            .seed(11)
            .options(|o| Options { images: 0.1, ..small(o) })
            .pool(|p| p.memory_nodes = 2)
            .cache(0, 20),
        model("images, few generations", Keys::Hashed24, 2_000, 30_000)
            .seed(10)
            .pool(|p| p.generation_bits = 2)
            .options(small),
        model("images, high trees", Keys::Ascending, 10_000, 40_000).seed(9).options(small),
        load(Keys::LongPrefix, 5_000).options(small),
    ]);
    rows.extend([(8, 0), (8, 8), (64, 64)].map(|(k, v)| {
        let row = model("images, inline sizes", Keys::AnyLength, 400, 5_000).seed(u64::from(k + v));
        row.options(move |o| inline(o, k, v))
    }));
    rows
}

/// Options without the techniques with a set bit; the second bit puts tables on memory nodes.
pub(super) fn switched_off(bits: u64, o: Options) -> Options {
    let on = |n: u64| bits >> n & 1 == 0;
    let techniques = Techniques {
        mirrors: on(0),
        tables: if on(1) { Tables::Compute } else { Tables::Memory },
        delegation: on(2),
        combining: on(3),
        adaptive_capacity: on(4),
        round_trip_combining: on(5),
        ..Techniques::default()
    };
    Options { techniques, ..o }
}
