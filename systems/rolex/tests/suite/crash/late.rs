//! Delay injection (`dmtree_check::scenario::delay`): one verb is late while the other clients do
//! all of their operations.

use dmtree_check::scenario::delay::{DelayScenario, harmless};
use dmtree_check::scenario::{Op, deletes, inserts, updates};

use super::scripts::{Script, changing, loading, merging, splitting, training, training_anew};

fn delayed(script: Script, others: Vec<Op>) -> DelayScenario {
    DelayScenario::new(script, others)
}

/// A trainer is late, and other clients split, train and reuse what they can.
fn training_late() -> DelayScenario {
    let others = inserts((0..6).map(|n| n * 10 + 1)).chain((0..6).map(|n| Op::Get(n * 10 + 1)));
    let others = others.chain([Op::Maintain, Op::Reclaim]).chain(inserts(201..208));
    let others = others.chain((201..208).map(Op::Get)).chain([Op::Maintain, Op::Reclaim]);
    delayed(training(), others.collect())
}

#[test]
fn a_late_trainer() {
    harmless(&training_late());
    let others = inserts([11, 12, 13, 14, 15]).chain((11..16).map(Op::Get)).chain([Op::Maintain]);
    harmless(&delayed(training_anew(), others.collect()));
}

#[test]
fn a_late_write() {
    let others = inserts([51, 52, 53, 54, 61, 71, 500]).chain(updates([0, 10]));
    let others = others.chain(deletes([20, 30])).chain([Op::Maintain]);
    harmless(&delayed(changing(), others.chain(inserts([21, 31])).collect()));
}

#[test]
fn a_late_split_merge_and_load() {
    let others = inserts([21, 31, 41, 51, 61]).chain(updates([0, 150])).chain([Op::Maintain]);
    harmless(&delayed(splitting(5), others.collect()));
    let others = inserts((0..6).map(|n| n * 10 + 1)).chain(updates([0, 80, 160]));
    let others = others.chain([Op::Maintain, Op::Reclaim]).chain(inserts([161, 171, 181]));
    harmless(&delayed(merging(), others.collect()));
    harmless(&delayed(loading(12), inserts([1, 2, 101, 555]).collect()));
}

/// The directory that a reader has is old when its READ executes.
#[test]
fn a_late_reader() {
    let others = deletes((0..30).map(|n| n * 10)).chain([Op::Maintain, Op::Reclaim]);
    let others = others.chain(inserts((0..40).map(|n| n * 10 + 3))).chain([Op::Maintain]);
    let script = Script { name: "reading", ops: Vec::new(), ..training() };
    let others = others.chain([Op::Reclaim]).collect();
    harmless(&DelayScenario { reads: true, step: 7, ..delayed(script, others) });
}

/// A compute node has crashed before, in a training. The client with the delayed verbs trains.
#[test]
fn a_late_survivor() {
    let crashed = training();
    let ops = updates([0, 100, 200]).chain(inserts(151..158)).chain((151..158).map(Op::Get));
    let ops = ops.chain([Op::Maintain]).collect();
    let script = Script { name: "survivor", compute_nodes: 4, ops, ..crashed.clone() };
    let others = inserts([71, 72, 73]).collect();
    harmless(&DelayScenario { dead: crashed.ops, step: 2, ..delayed(script, others) });
}
