//! One verb is delayed, and the other clients do all their work meanwhile.

use dmtree_check::scenario::delay::{delay_every_verb, delay_every_verb_after, harmless};
use dmtree_check::scenario::sweeps::some_of;
use dmtree_engine::Mutant;
use dmtree_fabric::sim::{CrashPoint, Place};

use super::late_scripts::{
    closing, counted, counting, growing, growing_and_merged, handing_over, handing_over_twice,
    loading, merging, merging_again, merging_inner, moving, moving_again, reading, reading_moved,
    reading_uncached, repairing_a_merge, repairing_a_split, repairing_an_update, split_and_merged,
    splitting, writing,
};
use super::scenario::{DelayScenario, with_mutant};

#[test]
fn late_while_tables_move() {
    harmless(&handing_over());
    harmless(&handing_over_twice());
}

#[test]
fn a_late_repair() {
    harmless(&repairing_an_update());
    harmless(&repairing_a_split());
    harmless(&repairing_a_merge());
}

#[test]
fn a_late_gc() {
    harmless(&counted());
    harmless(&counting());
}

#[test]
fn late_before_memory_is_used_again() {
    harmless(&merging_again());
    harmless(&moving_again());
    harmless(&closing());
}

#[test]
fn a_late_write() {
    harmless(&writing());
}

#[test]
fn a_late_split() {
    harmless(&splitting());
    harmless(&split_and_merged());
    harmless(&growing());
    harmless(&growing_and_merged());
}

#[test]
fn a_late_merge() {
    harmless(&merging());
    harmless(&merging_inner());
}

#[test]
fn a_late_move() {
    harmless(&moving());
    harmless(&loading());
}

#[test]
fn a_late_reader() {
    harmless(&reading());
    harmless(&reading_moved());
    harmless(&reading_uncached());
}

/// A mutant, a script that shows it, and the point where a client dies first if not everywhere.
type Wanted = (Mutant, fn() -> DelayScenario, Option<CrashPoint>);

/// The mutants that delayed verbs find. `DMTREE_MUTANTS=NAME,...` tries the named ones in every
/// script, or in that of the name `DMTREE_SCRIPT`.
#[test]
fn late_verbs_find_mutants() {
    let scripts: [fn() -> DelayScenario; 22] = [
        handing_over,
        writing,
        splitting,
        split_and_merged,
        growing,
        merging,
        moving,
        loading,
        counted,
        counting,
        merging_again,
        moving_again,
        repairing_an_update,
        repairing_a_split,
        repairing_a_merge,
        merging_inner,
        reading,
        reading_moved,
        closing,
        handing_over_twice,
        reading_uncached,
        growing_and_merged,
    ];
    // The split has committed, and its image is torn; an entry is torn.
    let half_split = CrashPoint { verb: 11, place: Place::Inside };
    let half_update = CrashPoint { verb: 8, place: Place::Inside };
    let known: [Wanted; 9] = [
        (Mutant::UnlockBeforePublish, split_and_merged, None),
        (Mutant::RootOverwritten, growing, None),
        (Mutant::MergeNextDetached, merging_again, None),
        (Mutant::RetireRelocatedEarly, moving_again, None),
        (Mutant::GcNoBarrier, counted, None),
        (Mutant::GcNoLog, counting, None),
        (Mutant::RecoverNoRestamp, repairing_a_split, Some(half_split)),
        (Mutant::RecoverDetached, repairing_an_update, Some(half_update)),
        (Mutant::MoveWhileLocked, handing_over_twice, None),
    ];
    let asked = std::env::var("DMTREE_MUTANTS").ok();
    let mut wanted: Vec<Wanted> = Vec::new();
    match &asked {
        None => wanted.extend(some_of(known)),
        Some(asked) => {
            let named = |d: &&Mutant| asked.split(',').any(|n| n == d.name());
            let all = Mutant::ALL.iter().filter(named);
            let of = std::env::var("DMTREE_SCRIPT").ok();
            let scripts =
                scripts.iter().filter(|p| of.as_ref().is_none_or(|of| p().script.name == of));
            let scripts: Vec<_> = scripts.copied().collect();
            wanted.extend(all.flat_map(|d| scripts.iter().map(|script| (*d, *script, None))));
        }
    }
    let mut missed = Vec::new();
    for (mutant, script, death) in wanted {
        let mut beside = script();
        beside.script = with_mutant(beside.script, mutant);
        let (runs, wrong) = match death {
            None => delay_every_verb(&beside, 2),
            death => {
                beside.step = 1;
                delay_every_verb_after(&beside, death, 2).0
            }
        };
        let name = beside.script.name;
        match wrong {
            Some(what) => eprintln!("{mutant:?} in {name}: {runs} runs: {what}"),
            None => missed.push((mutant, name)),
        }
    }
    assert!(asked.is_some() || missed.is_empty(), "{missed:?}");
}
