//! The ladder from FG to Sherman on the adversarial fabric: what is sound there, and what is found where.

use dmtree_bench::checked::{Setting, case, grants};
use dmtree_bench::registry::find;

/// The first seed below `seeds` that shows something wrong with a system, and what.
fn first_wrong(system: &str, granted: &[&str], seeds: u64) -> Option<(u64, String)> {
    let names: Vec<String> = granted.iter().map(|n| (*n).to_owned()).collect();
    let grants = grants(&names).expect("names of capabilities");
    let system = find(system).expect("a system");
    (0..seeds).find_map(|seed| {
        let case = case(&system, seed, Setting { grants, ..Setting::default() });
        let finding = system.check(&case).expect("a case").finding?;
        Some((seed, finding.kind().to_owned()))
    })
}

/// Checksums tell every torn page, and every verb is awaited.
#[test]
fn fg_is_sound_without_any_grant() {
    assert_eq!(first_wrong("fg", &[], 12), None);
}

/// A release is a WRITE of zero. A compare-and-swap that fails and writes back what it read undoes one that falls between its halves:
/// nobody gets that lock any more.
#[test]
fn a_release_by_write_needs_atomics_that_do_not_write_back() {
    for rung in ["fg-combine", "fg-on-chip", "fg-hierarchical"] {
        let (_, kind) = first_wrong(rung, &[], 12).expect("found");
        assert_eq!(kind, "failed", "{rung}");
        assert_eq!(first_wrong(rung, &["cas_fail_is_readonly", "on_chip"], 8), None, "{rung}");
    }
}

/// Two-level versions: an entry between two versions is taken for absent, and equal versions do not make a page whole; not even where lines
/// are not torn and bytes land in order.
#[test]
fn two_level_versions_are_found_wrong_even_on_kind_hardware() {
    let kind_hardware = ["cas_fail_is_readonly", "line_atomic", "write_ascending"];
    for granted in [&kind_hardware[..1], &kind_hardware[..]] {
        let (seed, kind) = first_wrong("sherman-published", granted, 40).expect("found");
        assert!(kind == "history" || kind == "structure" || kind == "failed", "{seed}: {kind}");
    }
}
