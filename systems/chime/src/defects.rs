//! The published defects of CHIME, each by itself: the part that is left as published, with
//! everything else repaired, and the clients that show it. DESIGN.md section 7 has the seeds.

use dmtree_fabric::Capabilities;
use dmtree_parts::peer::{
    ANY, Clients, Defect, EVERYTHING, KIND, NodeFaultSet, Repair, Setting, value,
};
use serde_json::json;

use crate::options::Options;

pub(crate) fn defects(system: &str) -> Vec<Defect> {
    match system {
        "chime-published" => [of_protocol(), of_grants(), of_deletes()].concat(),
        _ => Vec::new(),
    }
}

/// The repairs of the protocol.
fn of_protocol() -> Vec<Defect> {
    let sound = || Options::published().repaired();
    let upsert = Options { whole_neighbourhood: false, ..sound() };
    let loose = || Options { loose_fences: true, ..sound() };
    let ends = Options { keep_terminator: false, ..loose() };
    let windows = Options { closed_batches: false, ..sound() };
    let words = Options { known_words: false, ..sound() };
    let one_key = Clients::crowd(9, 1, 120);
    let many_keys = Clients::crowd(9, 400, 100).with(json!({"pool": {"cache_bytes": 4 << 20}}));
    let all = [
        ("an upsert that looks to the first hole", (upsert, sound()), Clients::default(), 0),
        ("an insert without its terminator", (ends, loose()), between_loaded_keys(), 2),
        ("batches closed too late", (windows, sound()), one_key, 0),
        ("a vacancy word that was not READ", (words, sound()), many_keys, 6),
    ];
    let twice = |(name, (broken, repaired), clients, seed): (_, (Options, Options), Clients, _)| {
        Defect::twice(name, (&broken, &repaired), &clients, (seed, seed))
    };
    all.into_iter().flat_map(twice).collect()
}

/// Inserts beside loaded keys: with `loose_fences` a loaded leaf ends before the next one begins.
/// (Otherwise leaves leave no gap, and a wrong step to the right is none.)
fn between_loaded_keys() -> Clients {
    let fields = json!({
        "neighbours": 1, "fill_percent": 90,
        "options": {"span": 16, "neighbourhood": 2, "inner_span": 16},
    });
    let clients = Clients::crowd(12, 150, 80).with(fields);
    Clients { only_gets_and_inserts: true, ..clients }
}

/// What the locks and the versions need of the fabric.
fn of_grants() -> Vec<Defect> {
    let sound = Options::published().repaired();
    let apart = Options { carried_unlock: false, ..sound.clone() };
    let missing = [
        (
            "a release is a WRITE",
            Capabilities { cas_fail_is_readonly: false, ..EVERYTHING },
            Repair::Grants(KIND),
        ),
        (
            "a release at the end of a WRITE",
            Capabilities { write_ascending: false, ..EVERYTHING },
            Repair::Options(value(&apart)),
        ),
        (
            "a slot in a line has no check",
            Capabilities { line_atomic: false, ..EVERYTHING },
            Repair::Grants(KIND),
        ),
    ];
    let of = |(name, grants, repair)| {
        let setting = Setting::new(&sound, grants).clients(Clients::crowd(9, 40, 120));
        Defect::new(name, setting, 0, repair).found(ANY).seeds(0..30, 0..8)
    };
    let crashes = Setting::new(&sound, EVERYTHING).faults(NodeFaultSet::Crash);
    let abandoned = Defect::new("an abandoned lock", crashes, 0, Repair::System("dmtree"));
    missing.map(of).into_iter().chain([abandoned.found(ANY)]).collect()
}

/// What deletes break, which the paper has and the public code has not. (A key that moves is missed
/// too rarely for seeds: `late.rs` shows it.)
fn of_deletes() -> Vec<Defect> {
    let with = |o: Options| Options { deletes: true, whole_moves: true, ..o.repaired() };
    let clients = Clients::crowd(9, 24, 150);
    let clients = clients.with(json!({"options": {"span": 8, "neighbourhood": 2}}));
    let setting = Setting::new(&with(Options::published()), EVERYTHING).clients(clients);
    // Leaves with fence keys do not ask for the largest key.
    let repair = Repair::Options(value(&with(Options::replicas())));
    let defect = Defect::new("the largest key after deletes", setting, 24, repair);
    vec![defect.found(ANY).seeds(10..31, 14..22)]
}
