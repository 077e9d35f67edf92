//! The steps from ART to SMART on the adversarial fabric: the sound ones. `smart_defects` shows the
//! published defects one at a time.

use dmtree_bench::checked::{self, Setting, grants};
use dmtree_bench::registry::find;

use crate::smart_defects::defects::REPAIRED;

/// All grants of the adversarial fabric that matter here.
const KIND: [&str; 3] = ["cas_fail_is_readonly", "line_atomic", "write_ascending"];

/// The kind of the first finding below `seeds` in a system that has every repair.
fn first_wrong(system: &str, granted: &[&str], seeds: u64) -> Option<&'static str> {
    let setting = Setting { grants: grants(granted).expect("names"), ..Setting::default() };
    let system = checked::switched(find(system).expect("a system"), &REPAIRED);
    checked::first_wrong(&system, 0..seeds, setting).map(|(_, finding)| finding.kind())
}

/// Only words change, and by compare-and-swap only.
#[test]
fn art_is_sound_without_any_grant() {
    assert_eq!(first_wrong("art", &[], 12), None);
    assert_eq!(first_wrong("smart-lock-free", &[], 12), None);
}

/// Also with locks in tables, and with delegation in batches that are closed when the verb is
/// posted. A rear lock needs two grants: a leaf's last byte lands last, and a failing
/// compare-and-swap writes nothing.
#[test]
fn every_rung_is_sound_when_repaired_on_kind_hardware() {
    for rung in ["smart-in-place", "smart-rear-lock", "smart-delegation", "smart-published"] {
        assert_eq!(first_wrong(rung, &KIND, 12), None, "{rung}");
    }
}

/// Without these grants a leaf stays torn, or its lock is lost.
#[test]
fn a_rear_lock_needs_kind_hardware() {
    let kind = first_wrong("smart-rear-lock", &[], 12).expect("found");
    assert!(kind == "failed" || kind == "history" || kind == "structure", "{kind}");
}
