//! Delay injection (`dmtree_check::scenario::delay`): one verb is late while the other clients do
//! all of their operations.

use dmtree_check::scenario::delay::{DelayScenario, harmless};
use dmtree_check::scenario::{Op, deletes, inserts, updates};
use dmtree_engine::Mutant;

use super::scripts::{
    Script, changing, in_blocks, inner_splitting, loading, merging, moving, moving_a_block,
    splitting,
};

fn delayed(script: Script, others: Vec<Op>) -> DelayScenario {
    DelayScenario::new(script, others)
}

/// Other clients update and delete the entries that move, and fill the leaf.
fn moving_late(moves: u64) -> DelayScenario {
    let others = updates([0, 20, 40, 60]).chain(deletes([30, 50]));
    let others = others.chain(inserts([31, 51, 61, 71, 81, 1, 11])).chain(updates([20, 60]));
    delayed(moving(moves), others.chain([Op::Maintain]).collect())
}

/// Mutants, and the delay scenarios that show them.
pub fn mutants() -> Vec<(Mutant, DelayScenario)> {
    vec![(Mutant::HopStagedDetached, moving_late(1))]
}

#[test]
fn a_late_write() {
    let others = inserts([51, 52, 53, 54, 61, 71, 500]).chain(updates([0, 10]));
    let others = others.chain(deletes([20, 30])).chain([Op::Maintain]);
    harmless(&delayed(changing(), others.chain(inserts([21, 31])).collect()));
    let others = updates([0, 10]).chain(deletes([20])).chain([Op::Maintain]).chain(inserts([20]));
    harmless(&delayed(in_blocks(), others.collect()));
}

#[test]
fn a_late_move() {
    for moves in [1, 2, 3] {
        harmless(&moving_late(moves));
    }
    let others = updates([0, 20]).chain(deletes([30])).chain([Op::Maintain]).chain(inserts([31]));
    harmless(&delayed(moving_a_block(), others.collect()));
}

#[test]
fn a_late_split() {
    let others = inserts([1, 11, 21, 31, 41, 51, 61]).chain(updates([0, 150]));
    harmless(&delayed(splitting(5), others.chain([Op::Maintain]).collect()));
    let others = inserts((0..8).map(|n| n * 10 + 1)).chain(updates([80, 90]));
    harmless(&delayed(inner_splitting(), others.collect()));
}

#[test]
fn a_late_merge() {
    let others = inserts((0..6).map(|n| n * 10 + 1)).chain(updates([0, 80, 160]));
    let others = others.chain([Op::Maintain, Op::Reclaim]).chain(inserts([161, 171, 181]));
    harmless(&delayed(merging(), others.collect()));
}

#[test]
fn a_late_load() {
    harmless(&delayed(loading(12), inserts([1, 2, 101, 555]).collect()));
}

/// The route that a reader has is stale when its READ executes.
#[test]
fn a_late_reader() {
    let others = deletes((0..10).map(|n| n * 10)).chain([Op::Maintain, Op::Reclaim]);
    let others = others.chain(inserts((0..40).map(|n| n * 10 + 3))).chain([Op::Reclaim]);
    let script = Script { name: "reading", ops: Vec::new(), ..changing() };
    harmless(&DelayScenario { reads: true, step: 7, ..delayed(script, others.collect()) });
}

/// A compute node has crashed before. The client with the delayed verbs repairs what it has left.
#[test]
fn a_late_repair() {
    let repairs = |crashed: Script| {
        let ops: Vec<Op> = updates(crashed.load.0.iter().copied().take(3)).collect();
        let ops = ops.into_iter().chain([Op::Maintain]).collect();
        let script = Script { name: "repair", compute_nodes: 4, ops, ..crashed.clone() };
        let others = inserts([31, 32, 33]).collect();
        DelayScenario { dead: crashed.ops, step: 2, ..delayed(script, others) }
    };
    harmless(&repairs(moving(1)));
    harmless(&repairs(moving(2)));
    harmless(&repairs(splitting(5)));
}
