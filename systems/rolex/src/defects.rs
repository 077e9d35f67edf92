//! The published defects of ROLEX, each by itself: the part that is left as published, with
//! everything else repaired, and the clients that show it. DESIGN.md section 7 has the seeds.
//!
//! Two defects are not here. A READ that takes as long as sixteen WRITEs is in `late.rs`. A key
//! behind the last trained one, which no window reaches, needs no second client: a test of the
//! suite has it.

use dmtree_fabric::Capabilities;
use dmtree_parts::peer::{
    ANY, Clients, Defect, EVERYTHING, NOTHING, NodeFaultSet, READONLY, Repair, Setting,
};
use serde_json::json;

use crate::options::Options;

/// Lines are whole, and a failing compare-and-swap writes nothing.
const NEEDED: Capabilities =
    Capabilities { line_atomic: true, cas_fail_is_readonly: true, ..NOTHING };

pub(crate) fn defects(system: &str) -> Vec<Defect> {
    match system {
        "rolex-published" => [of_protocol(), of_grants()].concat(),
        "rolex-unforetold" => of_synonyms(),
        _ => Vec::new(),
    }
}

/// The repairs of the protocol.
fn of_protocol() -> Vec<Defect> {
    let sound = Options::published().repaired();
    let put = Options { upsert: false, ..sound.clone() };
    let windows = Options { closed_batches: false, ..sound.clone() };
    let places = Options { scoped_release: false, ..windows.clone() };
    let one_key = Clients::crowd(9, 1, 120);
    let twice = |name, broken| Defect::twice(name, (broken, &sound), &one_key, (0, 0));
    let close = Options { aligned: false, ..sound.clone() };
    let name = "leaves that begin within a line";
    let close = Defect::between(name, EVERYTHING, (&close, &sound), 18).found(ANY);
    let close = close.clients(Clients::crowd(9, 40, 120));
    let put = twice("a put that keeps the old value", &put);
    let windows = twice("batches closed too late", &windows);
    // With closed batches nothing is left behind.
    let name = "an update of an absent key keeps its place";
    let place = Defect::between(name, EVERYTHING, (&places, &sound), 0);
    let place = place.clients(Clients::crowd(9, 6, 60)).found(&["failed", "hung"]);
    put.into_iter().chain(windows).chain([place, close]).collect()
}

/// What the locks and the versions need of the fabric.
fn of_grants() -> Vec<Defect> {
    let sound = Options::published().repaired();
    let missing = [
        ("a release is a WRITE", 1, Capabilities { cas_fail_is_readonly: false, ..EVERYTHING }),
        ("an entry in a line has no check", 34, READONLY),
    ];
    let of = |(name, seed, grants)| {
        let setting = Setting::new(&sound, grants).clients(Clients::crowd(9, 6, 150));
        Defect::new(name, setting, seed, Repair::Grants(NEEDED)).found(ANY)
    };
    let crashes = Setting::new(&sound, EVERYTHING).faults(NodeFaultSet::Crash);
    let abandoned = Defect::new("an abandoned lock", crashes, 0, Repair::System("dmtree"));
    missing.map(of).into_iter().chain([abandoned.found(ANY)]).collect()
}

/// What needs that keys go to synonyms: keys that were not foretold, beside loaded ones.
fn of_synonyms() -> Vec<Defect> {
    let sound = Options::unforetold().repaired();
    let fields = json!({"neighbours": 1, "scan_one_in": 3, "options": {"span": 8, "error": 2}});
    let clients = Clients::crowd(9, 60, 80).with(fields);
    let both = Options { ordered_scans: false, ..sound.clone() };
    let source = Options { destination_first: false, ..both.clone() };
    let name = "a leaf is written before its synonym";
    let source = Defect::twice(name, (&source, &sound), &clients, (0, 2));
    let name = "a scan READs a synonym beside its leaf";
    let scanned = Defect::between(name, EVERYTHING, (&both, &sound), 25).clients(clients);
    let scanned = scanned.found(ANY);
    let told = Options { foretold: true, ..sound.clone() };
    let full = Defect::between("a synonym that is full", EVERYTHING, (&sound, &told), 0);
    let full = full.clients(Clients::crowd(9, 100, 100)).found(&["failed"]);
    let full = Defect { says: "its synonym are full", ..full };
    source.into_iter().chain([scanned, full]).collect()
}
