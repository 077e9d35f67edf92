//! Crash points and delay injection for the sound ROLEX, in small trees with small pages: a crash
//! at every verb of every operation and of every step of a training, two crashes, and a delay of
//! every verb. Acknowledged writes are not lost; reads continue; survivors train.

#![expect(clippy::disallowed_macros, reason = "tests print their counts")]

mod late;
mod scripts;

use dmtree_check::scenario::sweeps::{self, Tally, at_least, some_of};
use dmtree_check::scenario::{Op, value};
use dmtree_engine::{Mark, Mutant};
use scripts::{
    Script, changing, in_blocks, inner_splitting, loading, merging, refreshing, splitting,
    training, training_anew, training_seldom, with_mutant,
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
fn a_training() {
    assert!(at_least(crash_at_every_verb(&training(), 1).points, 200));
    crash_at_every_verb(&training_anew(), 1);
    crash_at_every_verb(&training_seldom(), 1);
}

/// A node fetches the directory of another node's training, and the pages that it names.
#[test]
fn a_refresh() {
    dmtree_fabric::mark::set_on(true);
    let fetched = || Mark::reached()[Mark::DirectoryFetched as usize].1;
    let before = fetched();
    assert!(at_least(crash_at_every_verb(&refreshing(), 1).points, 40));
    assert!(fetched() > before, "a directory was fetched");
    two_crashes(&refreshing(), (7, 13));
}

/// Without a sweep the next trainer finds the claim.
#[test]
fn trainers_take_claims_over() {
    crash_at_every_verb(&Script { swept: false, unmet: Some("claim"), ..training() }, 1);
}

#[test]
fn insert_update_delete_set() {
    assert!(at_least(crash_at_every_verb(&changing(), 1).points, 200));
    crash_at_every_verb(&in_blocks(), 1);
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
fn two_crashes_around_trainings() {
    two_crashes(&training(), (3, 7));
    two_crashes(&training_anew(), (5, 11));
}

#[test]
fn two_crashes_around_changes_of_structure() {
    let ops = vec![Op::Update(10, value(9)), Op::Insert(11, value(8)), Op::Delete(20)];
    two_crashes(&Script { name: "update", ops, ..changing() }, (2, 4));
    two_crashes(&splitting(5), (2, 9));
    two_crashes(&merging(), (3, 7));
    two_crashes(&loading(40), (5, 11));
}

/// The crash points find these mutants.
#[test]
fn mutants_are_found() {
    let by_crash: Vec<(Mutant, Script)> =
        vec![(Mutant::LearnPublishEarly, training_seldom()), (Mutant::LearnClaimKept, training())];
    let asked = std::env::var("DMTREE_MUTANTS").ok();
    let named = |d: Mutant| asked.as_ref().is_none_or(|a| a.split(',').any(|n| n == d.name()));
    let mut missed = Vec::new();
    for (d, script) in some_of(by_crash).filter(|(d, _)| named(*d)) {
        match sweeps::caught(&with_mutant(script, d)) {
            Some((points, what)) => eprintln!("{d:?}: {points} crash points: {what}"),
            None => missed.push(d.name()),
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
