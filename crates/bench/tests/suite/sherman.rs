//! The steps from FG to Sherman on the adversarial fabric: sound systems, and the findings in the
//! others.

use dmtree_bench::checked::{Setting, case, first_wrong, grants, switched};
use dmtree_bench::registry::find;
use dmtree_bench::system::System;
use dmtree_check::NodeFaultSet;
use dmtree_check::case::Case;

/// The grants that matter here.
const KIND_HARDWARE: [&str; 3] = ["cas_fail_is_readonly", "line_atomic", "write_ascending"];

/// The first seed below `seeds` with a finding in a system with other values for some options, and
/// the kind of the finding.
fn wrong(
    system: &str,
    options: &[(&str, bool)],
    granted: &[&str],
    seeds: u64,
) -> Option<(u64, &'static str)> {
    let setting = Setting { grants: grants(granted).expect("names"), ..Setting::default() };
    let system = switched(find(system).expect("a system"), options);
    first_wrong(&system, 0..seeds, setting).map(|(seed, finding)| (seed, finding.kind()))
}

/// Checksums show every torn page, and every verb is awaited.
#[test]
fn fg_is_sound_without_any_grant() {
    assert_eq!(wrong("fg", &[], &[], 12), None);
}

/// A release is a WRITE of zero. A failing compare-and-swap that writes back the value it has read
/// undoes a release between its two halves; no client gets that lock any more.
#[test]
fn a_release_by_write_needs_atomics_that_do_not_write_back() {
    for rung in ["fg-combine", "fg-on-chip", "fg-hierarchical"] {
        let (_, kind) = wrong(rung, &[], &[], 12).expect("found");
        assert_eq!(kind, "failed", "{rung}");
        let granted = ["cas_fail_is_readonly", "on_chip"];
        assert_eq!(wrong(rung, &[], &granted, 8), None, "{rung}");
    }
}

/// Two-level versions: an entry between two versions is taken for absent, and equal versions do not
/// prove a whole page. Both show even where lines are not torn and bytes land in order.
#[test]
fn two_level_versions_are_found_wrong_even_on_kind_hardware() {
    for granted in [&KIND_HARDWARE[..1], &KIND_HARDWARE[..]] {
        let (seed, kind) = wrong("sherman-published", &[], granted, 40).expect("found");
        assert!(kind == "history" || kind == "structure" || kind == "failed", "{seed}: {kind}");
    }
}

/// Each published defect by itself, with the others repaired: the seed that shows it, even on
/// hardware that tears no line and lets bytes land in order. DESIGN.md has the seeds.
#[test]
fn each_published_defect_is_found_by_itself() {
    let (eager, retry) = (("lazy_splits", false), ("retry_torn", true));
    let wrong = |system, options: &[_], seeds| wrong(system, options, &KIND_HARDWARE, seeds);
    assert!(wrong("sherman-published", &[eager], 200).is_some(), "an entry between two versions");
    assert!(
        wrong("sherman-published", &[eager, retry], 200).is_some(),
        "equal versions at both ends"
    );
    assert!(
        wrong("fg-hierarchical", &[("lazy_splits", true)], 1_000).is_some(),
        "splits reported early"
    );
}

/// Versions that wrap: a value between two READs with equal versions is torn after as many WRITEs
/// as there are versions. The other defects are repaired. Nine clients work on one key, and its
/// value spans lines. Four bits are the published width.
#[test]
fn versions_that_wrap_are_found_by_themselves() {
    let repaired = [("lazy_splits", false), ("retry_torn", true), ("versions_around", true)];
    let mut system = switched(find("sherman-published").expect("a system"), &repaired);
    let setting = Setting { grants: grants(&KIND_HARDWARE).expect("names"), ..Setting::default() };
    let mut wrong = |bits: u32, seeds: std::ops::Range<u64>| {
        system.options["version_bits"] = bits.into();
        seeds.into_iter().find_map(|seed| {
            let finding = system.check(&crowd(&system, seed, setting)).expect("a case").finding?;
            Some((seed, finding.kind().to_owned()))
        })
    };
    assert_eq!(wrong(1, 0..50).expect("found").1, "torn", "two versions");
    assert_eq!(wrong(4, 20..30).expect("found").1, "torn", "as published");
    assert_eq!(wrong(7, 0..30), None, "as many as fit");
}

/// The case of a seed, changed to nine clients on one key.
fn crowd(system: &System, seed: u64, setting: Setting) -> Case {
    let mut case = case(system, seed, setting);
    case.options["value_bytes"] = 64.into();
    case.pool.memory_nodes = 1;
    Case {
        clients: 9,
        churn_clients: 0,
        neighbours: 0,
        keys: 1,
        ops: 150,
        scan_one_in: 0,
        wave_ops: 0,
        liveness: false,
        value_bytes: vec![64],
        ..case
    }
}

/// Readers that lock the pages they READ meet none of the defects.
#[test]
fn locked_reads_are_sound() {
    let repaired = [("lazy_splits", false), ("locked_reads", true)];
    let grant = ["cas_fail_is_readonly"];
    assert_eq!(wrong("sherman-published", &repaired, &grant, 20), None);
}

/// Garbage collection read the chunks of the index before it opened the GC logs of the nodes. A
/// chunk that was given back in between was in no log: it was taken for lost, and had two owners
/// after its memory node granted it again.
#[test]
fn a_chunk_given_back_before_a_gc_began_has_no_owner() {
    let system = find("sherman").expect("a system");
    let setting = Setting { node_faults: NodeFaultSet::All, ..Setting::default() };
    assert_eq!(first_wrong(&system, [102_330, 102_875], setting), None);
}

/// As published no client recovers an abandoned lock. After a crash of the holder other clients
/// wait for ever.
#[test]
fn a_crashed_holder_keeps_the_published_lock() {
    // `fg` is not marked as recovering, and would not get crashes.
    let mut system = find("fg").expect("a system");
    system.recovers = true;
    let setting = Setting { node_faults: NodeFaultSet::Crash, ..Setting::default() };
    assert!(first_wrong(&system, 0..40, setting).is_some(), "it waits no longer");
}
