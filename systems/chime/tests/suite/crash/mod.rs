//! Crash points and delay injection for the sound CHIME, in small trees: a crash at every verb of
//! every operation, two crashes, and a delay of every verb. Acknowledged writes are not lost; reads
//! continue; survivors complete or undo the changes of a dead client.

#![expect(clippy::disallowed_macros, reason = "tests print their counts")]

mod late;
mod scripts;

use dmtree_check::scenario::delay::delay_every_verb;
use dmtree_check::scenario::sweeps::{self, Tally, at_least, some_of};
use dmtree_check::scenario::{Op, value};
use dmtree_engine::Mutant;
use scripts::{
    Script, changing, in_blocks, inner_splitting, loading, merging, moving, moving_a_block,
    moving_and_deleting, splitting, with_mutant,
};

fn crash_at_every_verb(script: &Script, step: u64) -> Tally {
    let tally = sweeps::everywhere(script, step);
    eprintln!("{}: {tally:?}", script.name);
    tally
}

fn two_crashes(script: &Script, steps: (u64, u64)) {
    eprintln!("{}, two crashes: {:?}", script.name, sweeps::double_crash(script, steps));
}

#[test]
fn insert_update_delete_set() {
    assert!(at_least(crash_at_every_verb(&changing(), 1).points, 200));
}

#[test]
fn values_in_blocks() {
    crash_at_every_verb(&in_blocks(), 1);
    crash_at_every_verb(&moving_a_block(), 1);
}

#[test]
fn one_move() {
    assert!(at_least(crash_at_every_verb(&moving(1), 1).points, 60));
}

#[test]
fn two_moves_and_three() {
    crash_at_every_verb(&moving(2), 1);
    crash_at_every_verb(&moving(3), 1);
    crash_at_every_verb(&moving_and_deleting(), 1);
}

/// The client that takes over a dead writer's lock leaves sweeps nothing to repair under that lock.
#[test]
fn takers_of_locks_repair_moves() {
    crash_at_every_verb(&Script { swept: false, ..moving(2) }, 1);
}

#[test]
fn split_and_new_root() {
    for new in [5, 75, 999] {
        crash_at_every_verb(&splitting(new), 1);
    }
    crash_at_every_verb(&inner_splitting(), 1);
}

#[test]
fn merge() {
    crash_at_every_verb(&merging(), 1);
}

#[test]
fn several_at_once() {
    let ops = vec![Op::Many((0..8).map(|n| (n * 17 + 1, value(n))).collect())];
    crash_at_every_verb(&Script { name: "several at once", ops, ..changing() }, 1);
}

#[test]
fn bulk_load() {
    crash_at_every_verb(&loading(10), 1);
    crash_at_every_verb(&loading(60), 7);
}

#[test]
fn two_crashes_around_a_write() {
    let ops = vec![Op::Update(10, value(9)), Op::Insert(11, value(8)), Op::Delete(20)];
    two_crashes(&Script { name: "update", ops, ..changing() }, (2, 4));
}

#[test]
fn two_crashes_around_moves() {
    two_crashes(&moving(1), (1, 2));
    two_crashes(&moving(3), (1, 3));
}

#[test]
fn two_crashes_around_changes_of_structure() {
    two_crashes(&splitting(5), (2, 9));
    two_crashes(&merging(), (3, 7));
    two_crashes(&inner_splitting(), (5, 97));
    two_crashes(&loading(40), (5, 11));
}

/// The crash points and the delays find the mutants.
#[test]
fn mutants_are_found() {
    let by_crash: Vec<(Mutant, Script)> = vec![
        (Mutant::HopNotStaged, moving(1)),
        (Mutant::HopStagedDetached, moving(1)),
        (Mutant::HopUnannounced, moving_and_deleting()),
        (Mutant::HopRepairDrops, moving(1)),
        (Mutant::HopRepairDoubles, moving(1)),
        (Mutant::HopShadowUnread, changing()),
        (Mutant::HopLoadOpen, loading(10)),
    ];
    let asked = std::env::var("DMTREE_MUTANTS").ok();
    let named = |d: Mutant| asked.as_ref().is_none_or(|a| a.split(',').any(|n| n == d.name()));
    let mut missed = Vec::new();
    for (d, script) in some_of(by_crash).filter(|(d, _)| named(*d)) {
        match sweeps::caught(&with_mutant(script, d)) {
            Some((points, what)) => eprintln!("{d:?}: {points} crash points: {what}"),
            None => missed.push(d.name()),
        }
    }
    for (d, mut scenario) in late::mutants().into_iter().filter(|(d, _)| named(*d)) {
        scenario.script = with_mutant(scenario.script, d);
        match delay_every_verb(&scenario, 2) {
            (runs, Some(what)) => eprintln!("{d:?}: {runs} late verbs: {what}"),
            (_, None) => missed.push(d.name()),
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
