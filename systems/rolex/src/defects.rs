//! The published defects of ROLEX, each by itself: the part that is left as published, with
//! everything else repaired, and the clients that show it. DESIGN.md section 7 has the seeds.
//!
//! Two defects are not here. A READ that takes as long as sixteen WRITEs is in `late.rs`. A key
//! behind the last trained one, which no window reaches, needs no second client: a test of the
//! suite has it.

use dmtree_fabric::Capabilities;
use dmtree_parts::peer::{
    Clients, Defect, EVERYTHING, NOTHING, NodeFaultSet, READONLY, Repair, Setting, value,
};
use serde_json::json;

use crate::options::Options;

const ANY: &[&str] = &["history", "failed", "structure", "torn", "hung"];
/// Lines are whole, and a failing compare-and-swap writes nothing.
pub(crate) const NEEDED: Capabilities =
    Capabilities { line_atomic: true, cas_fail_is_readonly: true, ..NOTHING };

pub(crate) fn defects(system: &str) -> Vec<Defect> {
    match system {
        "rolex-published" => [of_protocol(), of_grants()].concat(),
        "rolex-unforetold" => of_synonyms(),
        _ => Vec::new(),
    }
}

/// A defect with everything granted, and with nothing: without grants locks are lost, and leaves
/// are torn.
fn twice(
    name: &'static str,
    (broken, repaired): (&Options, &Options),
    clients: &Clients,
    seeds: (u64, u64),
) -> [Defect; 2] {
    [(EVERYTHING, seeds.0), (NOTHING, seeds.1)].map(|(grants, seed)| {
        let setting = Setting::new(broken, grants).clients(clients.clone());
        let defect = Defect::new(name, setting, seed, Repair::Options(value(repaired)));
        match grants == EVERYTHING {
            true => defect.found(ANY),
            false => Defect { beside: ANY, ..defect }.found(&["history"]),
        }
    })
}

/// The repairs of the protocol.
fn of_protocol() -> Vec<Defect> {
    let sound = Options::published().repaired();
    let put = Options { upsert: false, ..sound.clone() };
    let windows = Options { closed_batches: false, ..sound.clone() };
    let places = Options { scoped_release: false, ..windows.clone() };
    let one_key = Clients::crowd(9, 1, 120);
    let of = |name, broken, repaired, clients| twice(name, (broken, repaired), clients, (0, 0));
    let close = Options { aligned: false, ..sound.clone() };
    let close = Setting::new(&close, EVERYTHING).clients(Clients::crowd(9, 40, 120));
    let repair = Repair::Options(value(&sound));
    let close = Defect::new("leaves that begin within a line", close, 18, repair).found(ANY);
    let put = of("a put that keeps the old value", &put, &sound, &one_key);
    let windows = of("batches closed too late", &windows, &sound, &one_key);
    // With closed batches nothing is left behind.
    let setting = Setting::new(&places, EVERYTHING).clients(Clients::crowd(9, 6, 60));
    let repair = Repair::Options(value(&sound));
    let place = Defect::new("an update of an absent key keeps its place", setting, 0, repair);
    let place = place.found(&["failed", "hung"]);
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
    let source = twice(name, (&source, &sound), &clients, (0, 2));
    let (name, repair) = ("a scan READs a synonym beside its leaf", Repair::Options(value(&sound)));
    let scanned = Setting::new(&both, EVERYTHING).clients(clients);
    let scanned = Defect::new(name, scanned, 25, repair).found(ANY);
    let setting = Setting::new(&sound, EVERYTHING).clients(Clients::crowd(9, 100, 100));
    let told = Options { foretold: true, ..sound.clone() };
    let full = Defect::new("a synonym that is full", setting, 0, Repair::Options(value(&told)));
    let full = Defect { says: "its synonym are full", ..full.found(&["failed"]) };
    source.into_iter().chain([scanned, full]).collect()
}
