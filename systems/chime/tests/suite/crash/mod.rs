//! Crash points and delay injection for the sound CHIME, in small trees: a crash at every verb of
//! every operation, two crashes, and a delay of every verb. Acknowledged writes are not lost; reads
//! continue; survivors complete or undo the changes of a dead client.

mod late;
mod scripts;

use dmtree_check::scenario::Script;
use dmtree_check::scenario::delay::DelayScenario;
use dmtree_check::scenario::sweeps::{at_least, double_crash, everywhere, find_mutants};
use dmtree_engine::Mutant;
use scripts::{moving, moving_a_block, moving_and_deleting, tree, with};

#[test]
fn writes() {
    tree().crash_in_writes();
    everywhere(&moving_a_block(), 1);
}

#[test]
fn one_move() {
    assert!(at_least(everywhere(&moving(1), 1).points, 60));
}

#[test]
fn two_moves_and_three() {
    everywhere(&moving(2), 1);
    everywhere(&moving(3), 1);
    everywhere(&moving_and_deleting(), 1);
}

/// The client that takes over a dead writer's lock leaves sweeps nothing to repair under that lock.
#[test]
fn takers_of_locks_repair_moves() {
    everywhere(&Script { swept: false, ..moving(2) }, 1);
}

#[test]
fn changes_of_structure() {
    tree().crash_in_changes_of_structure();
}

#[test]
fn bulk_load() {
    tree().crash_in_loads();
}

#[test]
fn two_crashes() {
    tree().crash_twice();
}

#[test]
fn two_crashes_around_moves() {
    double_crash(&moving(1), (1, 2));
    double_crash(&moving(3), (1, 3));
}

/// The crash points and the delays find the mutants.
#[test]
fn mutants_are_found() {
    let by_crash = [
        (Mutant::HopNotStaged, moving(1)),
        (Mutant::HopStagedDetached, moving(1)),
        (Mutant::HopUnannounced, moving_and_deleting()),
        (Mutant::HopRepairDrops, moving(1)),
        (Mutant::HopRepairDoubles, moving(1)),
        (Mutant::HopShadowUnread, tree().changing()),
        (Mutant::HopLoadOpen, tree().loading(10)),
    ];
    let late = late::moving_late(1);
    let (name, script) = with(Mutant::HopStagedDetached, late.script.clone());
    let late = DelayScenario { script, ..late };
    find_mutants(by_crash.map(|(m, script)| with(m, script)), [(name, late)]);
}
