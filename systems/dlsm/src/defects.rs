//! The published defects, each by itself: the part that is left as published, with everything else
//! repaired, and the clients that show it. DESIGN.md section 6 has the seeds.

use dmtree_parts::peer::{Clients, Defect, NOTHING};
use serde_json::json;

use crate::options::{Defects, Merging, Options};

const KINDS: &[&str] = &["history", "answer", "torn", "failed", "structure"];

pub(crate) fn defects(system: &str) -> Vec<Defect> {
    match system {
        "dlsm-published" => all().into_iter().map(defect).collect(),
        _ => Vec::new(),
    }
}

/// A defect: its name, what is left as published, where tables are merged, a seed that shows it.
type Left = (&'static str, Defects, Merging, u64);

fn all() -> [Left; 8] {
    let none = Defects::default;
    let near = Merging::Near;
    [
        ("a snapshot is the next number", Defects { next_number: true, ..none() }, near, 0),
        ("a snapshot is not complete", Defects { incomplete: true, ..none() }, near, 1),
        ("writers switch before readers", Defects { early_switch: true, ..none() }, near, 13),
        ("flushes are ordered by their ends", Defects { unordered: true, ..none() }, near, 10),
        ("jobs know no snapshot", Defects { forgets_snapshots: true, ..none() }, near, 0),
        ("a part skips a key", Defects { skips_keys: true, ..none() }, near, 0),
        ("parts share a key", Defects { splits_keys: true, ..none() }, Merging::Owner, 0),
        ("a buffer for all tables", Defects { shared_buffer: true, ..none() }, near, 0),
    ]
}

fn defect((name, defects, merging, seed): Left) -> Defect {
    let repaired = Options { merging, ..Options::default() };
    let broken = Options { defects, ..repaired.clone() };
    let clients = Clients::crowd(9, 64, 120).with(json!({"scan_one_in": 4}));
    Defect::between(name, NOTHING, (&broken, &repaired), seed).clients(clients).found(KINDS)
}
