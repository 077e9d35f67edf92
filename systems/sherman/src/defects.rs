//! The published defects of FG and Sherman, each by itself, with the others repaired; DESIGN.md
//! section 7 has the seeds.

use dmtree_fabric::Capabilities;
use dmtree_parts::peer::{
    ANY, Clients, Defect, KIND, NOTHING, NodeFaultSet, READONLY, Repair, Setting,
};
use serde_json::json;

use crate::options::Options;

pub(crate) fn defects(system: &str) -> Vec<Defect> {
    match system {
        "sherman-published" => of_sherman(),
        "fg" => {
            let crashes = Setting::new(&Options::fg(), NOTHING).faults(NodeFaultSet::Crash);
            let repair = Repair::System("sherman");
            vec![Defect::new("an abandoned lock", crashes, 20, repair).found(ANY)]
        }
        "fg-combine" => vec![written_release(&Options::combine())],
        "fg-on-chip" => vec![written_release(&Options::on_chip())],
        "fg-hierarchical" => {
            let hierarchical = Options::hierarchical();
            let lazy = Options { lazy_splits: true, ..hierarchical.clone() };
            let both = (&lazy, &hierarchical);
            let early = Defect::between("splits reported early", KIND, both, 269);
            vec![early.found(ANY), written_release(&hierarchical)]
        }
        _ => Vec::new(),
    }
}

/// A failing compare-and-swap that writes back undoes a release that is a WRITE.
fn written_release(o: &Options) -> Defect {
    let on_chip = Capabilities { on_chip_bytes: 1024, ..READONLY };
    let setting = Setting::new(o, NOTHING);
    let defect = Defect::new("a release is a WRITE", setting, 0, Repair::Grants(on_chip));
    defect.found(&["failed"]).seeds(0..12, 0..8)
}

fn of_sherman() -> Vec<Defect> {
    let published = Options::published();
    let eager = Options { lazy_splits: false, ..published.clone() };
    let retry = Options { retry_torn: true, ..eager.clone() };
    let around = Options { versions_around: true, ..retry.clone() };
    let locked = Options { locked_reads: true, ..eager.clone() };
    let bits = |version_bits| Options { version_bits, ..around.clone() };
    // Nine clients on one key with a value that spans lines.
    let one_key = Clients::crowd(9, 1, 150).with(json!({
        "value_bytes": [64], "options": {"value_bytes": 64}, "pool": {"memory_nodes": 1},
    }));
    let of = |name, grants, both, seed| Defect::between(name, grants, both, seed).found(ANY);
    let wraps = |broken: &Options, seeds: std::ops::Range<u64>| {
        let defect = Defect::between("versions wrap", KIND, (broken, &bits(7)), 0);
        let defect = defect.clients(one_key.clone());
        defect.found(&["torn"]).seeds(seeds.clone(), seeds)
    };
    vec![
        of("two-level versions", READONLY, (&published, &locked), 0).seeds(0..40, 0..20),
        of("an entry between two versions", KIND, (&eager, &retry), 11),
        of("equal versions at both ends", KIND, (&retry, &around), 96),
        wraps(&bits(1), 0..50),
        wraps(&bits(4), 20..30),
    ]
}
