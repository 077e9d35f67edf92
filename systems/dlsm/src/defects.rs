//! The published defects, each by itself: the part that is left as published, with everything else
//! repaired, and the clients that show it. DESIGN.md section 6 has the seeds.

use dmtree_parts::peer::{Clients, Defect, NOTHING, Repair, Setting, value};
use serde_json::json;

use crate::options::{Hazards, Merging, Options};

const ANY: &[&str] = &["history", "answer", "torn", "failed", "structure"];

pub(crate) fn defects(system: &str) -> Vec<Defect> {
    match system {
        "dlsm-published" => all().into_iter().map(defect).collect(),
        _ => Vec::new(),
    }
}

/// A defect: its name, what is left as published, where tables are merged, and a seed that shows it.
type Left = (&'static str, Hazards, Merging, u64);

fn all() -> [Left; 8] {
    let none = Hazards::default;
    let near = Merging::Near;
    [
        ("a snapshot is the next number", Hazards { next_number: true, ..none() }, near, 0),
        ("a snapshot is not complete", Hazards { incomplete: true, ..none() }, near, 1),
        ("writers switch before readers", Hazards { early_switch: true, ..none() }, near, 13),
        ("flushes are ordered by their ends", Hazards { unordered: true, ..none() }, near, 10),
        ("jobs know no snapshot", Hazards { forgets_snapshots: true, ..none() }, near, 0),
        ("a part skips a key", Hazards { skips_keys: true, ..none() }, near, 0),
        ("parts share a key", Hazards { splits_keys: true, ..none() }, Merging::Owner, 0),
        ("a buffer for all tables", Hazards { shared_buffer: true, ..none() }, near, 0),
    ]
}

fn defect((name, hazards, merging, seed): Left) -> Defect {
    let repaired = Options { merging, ..Options::default() };
    let broken = Options { hazards, ..repaired.clone() };
    let clients = Clients::crowd(9, 64, 120).with(json!({"scan_one_in": 4}));
    let setting = Setting::new(&broken, NOTHING).clients(clients);
    Defect::new(name, setting, seed, Repair::Options(value(&repaired))).found(ANY)
}
