//! ROLEX as published.

use dmtree_check::conformance;
use dmtree_check::peer::costs::Part;
use dmtree_check::peer::prelude::*;
use dmtree_parts::AnyOptions;
use dmtree_rolex::Options;
use serde_json::json;

/// Lines are whole, and a failing compare-and-swap writes nothing.
pub const NEEDED: Capabilities = Capabilities { line_atomic: true, ..READONLY };

pub fn peer() -> Peer {
    let mut peer = Peer::of(dmtree_rolex::systems().into_iter().filter(|s| s.published));
    let presets = peer.presets();
    let repaired = |(name, o): &(&'static str, AnyOptions)| {
        (*name, o.changed(|o: Options| Options { foretold: true, ..o.repaired() }))
    };
    peer.systems.extend(presets.iter().map(repaired));
    // With every repair and the grants that the design needs.
    let sound = Setting::new(&Options::published().repaired(), NEEDED);
    let overflows = Clients::crowd(9, 60, 80).with(json!({
        "neighbours": 1, "scan_one_in": 3, "options": {"span": 8, "error": 2},
    }));
    let unforetold = Setting::new(&Options::unforetold().repaired(), NEEDED).clients(overflows);
    let mut sound =
        vec![("rolex-published", sound, 0..24), ("rolex-unforetold", unforetold, 0..24)];
    // The vacancy word and the lock are one WRITE, which must land in order.
    let step = |o: Options| Setting::new(&o.repaired(), KIND);
    sound.extend([
        ("rolex-hopscotch", step(Options::hopscotch()), 0..12),
        ("rolex-vacancy", step(Options::vacancy()), 0..12),
        ("rolex-replicas", step(Options::replicas()), 0..12),
    ]);
    Peer { local: local(), sound, budgets: vec![budget(presets)], ..peer }
}

fn local() -> Vec<Row> {
    let lengths = |key_bytes, value_bytes| {
        let name = format!("keys of {key_bytes} bytes, values of {value_bytes}");
        Row::of(&name, move |site| {
            conformance::one_length(&site.cluster(), key_bytes as usize, value_bytes as usize);
        })
        .options(move |o| Options { key_bytes, value_bytes, ..o })
    };
    vec![
        Row::of("basics", |site| conformance::basics(&site.cluster())),
        model("hashed keys", Keys::Hashed24, 3_000, 20_000),
        model("few slots of a neighbourhood", Keys::Hashed24, 2_000, 8_000)
            .on("rolex-hopscotch, rolex-vacancy, rolex-replicas")
            .options(|o| Options { span: 16, neighbourhood: 4, error: 8, ..o }),
        model("suspended", Keys::Hashed24, 2_000, 10_000).seed(60).suspended(3),
        load(Keys::Hashed24, 20_000),
        load(Keys::Hashed24, 20),
        model("ascending keys", Keys::Ascending, 2_000, 8_000)
            .seed(10)
            .options(|o| Options { key_bytes: 8, ..o }),
        model("the original layout", Keys::Ascending, 3_000, 15_000)
            .seed(20)
            .options(|o: Options| o.original()),
        three_memory_nodes(2_000, 8_000),
        model("small leaves, a wide window", Keys::Hashed24, 2_000, 8_000)
            .on("rolex-published, rolex-unforetold")
            .seed(40)
            .options(|o| Options { span: 4, error: 64, ..o }),
        model("large leaves, a narrow window", Keys::Hashed24, 2_000, 8_000)
            .seed(50)
            .options(|o| Options { span: 128, error: 1, ..o }),
        lengths(4, 8),
        lengths(5, 0),
        lengths(16, 1024),
    ]
}

/// The figures of DESIGN.md section 4.
fn budget(systems: Vec<(&'static str, AnyOptions)>) -> Budget {
    let [reads, writes, atomics] = KINDS;
    let [bytes_read, bytes_written] = BYTES;
    let mut all = Vec::new();
    let mut of = |operations: &[&'static str], parts: &[(Part, f64)]| {
        for operation in operations {
            all.extend(means("rolex-published", operation, parts));
        }
    };
    of(&["get", "get absent"], &[(TRIPS, 1.0), (reads, 3.25), (bytes_read, 3.25 * 277.0)]);
    of(&["insert", "update"], &[(TRIPS, 4.0), (reads, 4.25), (writes, 2.0), (atomics, 1.0)]);
    of(&["insert", "update"], &[(bytes_written, 285.0)]);
    // A segment of 209 keys has 26.1 leaves full of them, and 1.5 more: 6 %.
    of(&["scan of 100"], &[(TRIPS, 1.0), (reads, 1.06 * 100.0 / 8.0 + 3.25)]);
    // Of 64 slots, window and bound 16: 2.6 leaves and synonyms. A leaf with as many keys as slots
    // has a synonym.
    let steps = [("rolex-hopscotch", 1.97), ("rolex-vacancy", 1.97), ("rolex-replicas", 1.109)];
    for (system, read) in steps {
        all.extend(means(system, "get", &[(TRIPS, 1.0), (reads, 2.6 * read)]));
        all.extend(means(system, "update", &[(TRIPS, 4.0), (reads, 3.6 * read)]));
    }
    Budget { means: all, ..Budget::new(systems, Vec::new()) }
}
