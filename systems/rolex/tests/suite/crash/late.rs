//! Delay injection (`dmtree_check::scenario::delay`): one verb is late while the other clients do
//! all of their operations.

use dmtree_check::scenario::delay::{DelayScenario, harmless};
use dmtree_check::scenario::small_tree::{late, tens};
use dmtree_check::scenario::{Op, Script, deletes, inserts, updates};

use super::scripts::{training, training_anew, tree};

/// A trainer is late, and other clients split, train and reuse what they can.
#[test]
fn a_late_trainer() {
    let others = inserts((0..6).map(|n| n * 10 + 1)).chain((0..6).map(|n| Op::Get(n * 10 + 1)));
    let others = others.chain([Op::Maintain, Op::Reclaim]).chain(inserts(201..208));
    late(training(), others.chain((201..208).map(Op::Get)).chain([Op::Maintain, Op::Reclaim]));
    let others = inserts([11, 12, 13, 14, 15]).chain((11..16).map(Op::Get));
    late(training_anew(), others.chain([Op::Maintain]));
}

#[test]
fn a_late_write() {
    tree().late_in_writes();
}

#[test]
fn a_late_change_of_structure() {
    tree().late_in_changes_of_structure();
    tree().late_in_loads();
}

/// The directory that a reader has is old when its READ executes.
#[test]
fn a_late_reader() {
    let others = deletes(tens(30)).chain([Op::Maintain, Op::Reclaim]);
    let others = others.chain(inserts((0..40).map(|n| n * 10 + 3))).chain([Op::Maintain]);
    let script = Script { name: "reading", ops: Vec::new(), ..training() };
    let scenario = DelayScenario::new(script, others.chain([Op::Reclaim]).collect());
    harmless(&DelayScenario { reads: true, step: 7, ..scenario });
}

/// A compute node has crashed before, in a training. The client with the delayed verbs trains.
#[test]
fn a_late_survivor() {
    let crashed = training();
    let ops = updates([0, 100, 200]).chain(inserts(151..158)).chain((151..158).map(Op::Get));
    let ops = ops.chain([Op::Maintain]).collect();
    let script = Script { name: "survivor", compute_nodes: 4, ops, ..crashed.clone() };
    let scenario = DelayScenario::new(script, inserts([71, 72, 73]).collect());
    harmless(&DelayScenario { dead: crashed.ops, step: 2, ..scenario });
}
