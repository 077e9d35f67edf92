//! The published defects of FG and Sherman, each by itself, with the others repaired; DESIGN.md
//! section 7 has the seeds.

use dmtree_fabric::Capabilities;
use dmtree_parts::peer::{
    Clients, Defect, KIND, NOTHING, NodeFaultSet, READONLY, Repair, Setting, value,
};
use serde_json::json;

use crate::options::Options;

const ANY: &[&str] = &["history", "failed", "structure", "torn", "hung"];

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
            let early = of("splits reported early", KIND, (&lazy, 269), &hierarchical);
            vec![early, written_release(&hierarchical)]
        }
        _ => Vec::new(),
    }
}

fn of(
    name: &'static str,
    grants: Capabilities,
    (broken, seed): (&Options, u64),
    repaired: &Options,
) -> Defect {
    let repair = Repair::Options(value(repaired));
    Defect::new(name, Setting::new(broken, grants), seed, repair).found(ANY)
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
    let wraps = |broken, seeds: std::ops::Range<u64>| {
        let defect = of("versions wrap", KIND, (broken, 0), &bits(7)).clients(one_key.clone());
        defect.found(&["torn"]).seeds(seeds.clone(), seeds)
    };
    vec![
        of("two-level versions", READONLY, (&published, 0), &locked).seeds(0..40, 0..20),
        of("an entry between two versions", KIND, (&eager, 11), &retry),
        of("equal versions at both ends", KIND, (&retry, 96), &around),
        wraps(&bits(1), 0..50),
        wraps(&bits(4), 20..30),
    ]
}
