//! Delay injection (`dmtree_check::scenario::delay`): delays one verb while the other clients do
//! all of their operations.

use dmtree_check::scenario::delay::{DelayScenario, harmless};
use dmtree_check::scenario::{Op, deletes, inserts, updates, value};
use dmtree_smart::sound::Mutant;

use super::{
    Script, changing, emptying, few, growing, in_blocks, loading, script, splitting_leaves,
    splitting_prefixes,
};

fn delayed(script: Script, others: Vec<Op>) -> DelayScenario {
    DelayScenario::new(script, others)
}

/// Mutants, and the delay scenarios that show them.
pub fn mutants() -> [(Mutant, DelayScenario); 1] {
    [(Mutant::CloseUnfrozen, filled_again())]
}

/// Other clients insert again into the node that is being removed.
fn filled_again() -> DelayScenario {
    delayed(emptying(), inserts([503, 504, 900_001]).collect())
}

#[test]
fn a_late_write() {
    let others = inserts([51, 52, 53, 54, 61, 71, 500]).chain(updates([0, 10, 100]));
    let others = others.chain(deletes([110, 120])).chain([Op::Maintain]);
    harmless(&delayed(changing(), others.chain(inserts([111, 121])).collect()));
    let others = updates([0, 10]).chain(deletes([20])).chain([Op::Maintain]).chain(inserts([20]));
    harmless(&delayed(in_blocks(), others.collect()));
}

#[test]
fn a_late_larger_type() {
    let others = inserts([51, 61, 71, 81, 91, 510, 520]).chain(deletes([1, 11]));
    harmless(&delayed(growing(), others.chain([Op::Maintain]).collect()));
}

/// Other clients split at the same places.
#[test]
fn a_late_split() {
    let others =
        inserts([5_002, 5_010, 7_001, 7_778]).chain(deletes([7_000])).chain([Op::Maintain]);
    harmless(&delayed(splitting_leaves(), others.collect()));
    let others =
        inserts([123_998, 123_459, 129_998, 130_000]).chain(deletes([1])).chain([Op::Maintain]);
    harmless(&delayed(splitting_prefixes(), others.collect()));
}

/// Other clients insert again into the node that is being removed, or reuse its memory for
/// something else.
#[test]
fn a_late_removal_of_a_node() {
    harmless(&filled_again());
    // The memory of deleted keys is reused for other keys.
    let ops = deletes((0..4).map(|n| n * 10)).chain([Op::Maintain]).collect();
    let others = inserts((0..12).map(|n| n * 10 + 203)).chain([Op::Maintain, Op::Reclaim]);
    let others = others.chain(inserts((0..12).map(|n| n * 10 + 304))).chain([Op::Reclaim]);
    harmless(&delayed(Script { name: "deleting", ops, ..few() }, others.collect()));
    let others = inserts([503]).chain(deletes([503])).chain([Op::Maintain, Op::Reclaim]);
    let others = others.chain(inserts([600, 601, 700, 701])).chain([Op::Maintain, Op::Reclaim]);
    harmless(&delayed(emptying(), others.collect()));
}

#[test]
fn a_late_load() {
    harmless(&delayed(loading(12), inserts([1, 2, 101, 555]).collect()));
}

/// The pointers that a reader has READ are stale when the reader uses them.
#[test]
fn a_late_reader() {
    let others = deletes((0..20).map(|n| n * 10)).chain([Op::Maintain, Op::Reclaim]);
    let others = others.chain(inserts((0..20).map(|n| n * 10 + 3))).chain([Op::Reclaim]);
    let script = Script { name: "reading", ..few() };
    harmless(&DelayScenario { reads: true, step: 7, ..delayed(script, others.collect()) });
}

/// One client collects garbage; the others allocate and free memory.
#[test]
fn a_late_gc() {
    let script = Script { name: "collecting", ops: vec![Op::Gc], ..few() };
    let others = inserts([51, 52, 53]).chain(deletes([10, 20, 30]));
    let others = others.chain([Op::Maintain, Op::Reclaim]).chain(inserts([10, 20, 31, 777]));
    harmless(&delayed(script, others.collect()));
}

/// A compute node has crashed before. The client with the delayed verbs completes its unfinished
/// changes.
#[test]
fn a_late_repair() {
    let repairs = |crashed: Script| {
        let load = crashed.load.0.clone();
        let ops: Vec<Op> = updates(load.iter().copied().take(3)).chain([Op::Maintain]).collect();
        let others = inserts([31, 32, 33]).collect();
        let script = Script { compute_nodes: 4, ops, ..script(crashed.name, load.into_iter()) };
        DelayScenario { dead: crashed.ops, step: 2, ..delayed(script, others) }
    };
    harmless(&repairs(splitting_leaves()));
    let ops = vec![Op::Update(0, value(1)), Op::Insert(5, value(2)), Op::Delete(40)];
    harmless(&repairs(Script { ops, ..script("writes", (0..5).map(|n| n * 10)) }));
}
