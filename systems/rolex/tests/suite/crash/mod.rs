//! Crash points and delay injection for the sound ROLEX, in small trees with small pages: a crash
//! at every verb of every operation and of every step of a training, two crashes, and a delay of
//! every verb. Acknowledged writes are not lost; reads continue; survivors train.

mod late;
mod scripts;

use dmtree_check::scenario::Script;
use dmtree_check::scenario::sweeps::{at_least, double_crash, everywhere, find_mutants};
use dmtree_engine::{Mark, Mutant};
use scripts::{refreshing, training, training_anew, training_seldom, tree, with};

#[test]
fn a_training() {
    assert!(at_least(everywhere(&training(), 1).points, 200));
    everywhere(&training_anew(), 1);
    everywhere(&training_seldom(), 1);
}

/// A node fetches the directory of another node's training, and the pages that it names.
#[test]
fn a_refresh() {
    dmtree_fabric::mark::set_on(true);
    let fetched = || Mark::reached()[Mark::DirectoryFetched as usize].1;
    let before = fetched();
    assert!(at_least(everywhere(&refreshing(), 1).points, 40));
    assert!(fetched() > before, "a directory was fetched");
    double_crash(&refreshing(), (7, 13));
}

/// Without a sweep the next trainer finds the claim.
#[test]
fn trainers_take_claims_over() {
    everywhere(&Script { swept: false, unmet: Some("claim"), ..training() }, 1);
}

#[test]
fn writes() {
    tree().crash_in_writes();
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
    double_crash(&training(), (3, 7));
    double_crash(&training_anew(), (5, 11));
}

/// The crash points find these mutants.
#[test]
fn mutants_are_found() {
    let early = with(Mutant::LearnPublishEarly, training_seldom());
    find_mutants([early, with(Mutant::LearnClaimKept, training())], []);
}
