//! The steps from ART to SMART on the adversarial fabric: the sound ones. `smart_defects` shows the
//! published defects one at a time.

use dmtree_bench::checked::{Setting, case, grants};
use dmtree_bench::registry::find;

use crate::smart_defects::defects::REPAIRED;

/// All grants of the adversarial fabric that matter here.
const KIND: [&str; 3] = ["cas_fail_is_readonly", "line_atomic", "write_ascending"];

/// The first seed below `seeds` with a finding in a system that has every repair.
fn first_wrong(system: &str, granted: &[&str], seeds: u64) -> Option<(u64, String)> {
    let names: Vec<String> = granted.iter().map(|n| (*n).to_owned()).collect();
    let grants = grants(&names).expect("names of capabilities");
    let mut system = find(system).expect("a system");
    for (name, on) in REPAIRED {
        system.options[name] = on.into();
    }
    (0..seeds).find_map(|seed| {
        let case = case(&system, seed, Setting { grants, ..Setting::default() });
        let finding = system.check(&case).expect("a case").finding?;
        Some((seed, finding.kind().to_owned()))
    })
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
    let (_, kind) = first_wrong("smart-rear-lock", &[], 12).expect("found");
    assert!(kind == "failed" || kind == "history" || kind == "structure", "{kind}");
}
