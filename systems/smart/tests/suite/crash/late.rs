//! Delay injection (`dmtree_check::scenario::delay`): delays one verb while the other clients do
//! all of their operations.

use dmtree_check::scenario::delay::{DelayScenario, harmless};
use dmtree_check::scenario::small_tree::{late, tens};
use dmtree_check::scenario::{Op, Script, deletes, inserts, updates, value};

use super::{emptying, growing, script, splitting_leaves, splitting_prefixes, tree};

/// Other clients insert again into the node that is being removed.
pub fn filled_again() -> DelayScenario {
    DelayScenario::new(emptying(), inserts([503, 504, 900_001]).collect())
}

/// Keys that share one node, and one below it.
fn few(name: &'static str, ops: Vec<Op>) -> Script {
    script(name, tens(20), ops)
}

#[test]
fn a_late_write() {
    tree().late_in_writes();
}

#[test]
fn a_late_larger_type() {
    let others = inserts([51, 61, 71, 81, 91, 510, 520]).chain(deletes([1, 11]));
    late(growing(), others.chain([Op::Maintain]));
}

/// Other clients split at the same places.
#[test]
fn a_late_split() {
    let others =
        inserts([5_002, 5_010, 7_001, 7_778]).chain(deletes([7_000])).chain([Op::Maintain]);
    late(splitting_leaves(), others);
    let others =
        inserts([123_998, 123_459, 129_998, 130_000]).chain(deletes([1])).chain([Op::Maintain]);
    late(splitting_prefixes(), others);
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
    late(few("deleting", ops), others);
    let others = inserts([503]).chain(deletes([503])).chain([Op::Maintain, Op::Reclaim]);
    let others = others.chain(inserts([600, 601, 700, 701])).chain([Op::Maintain, Op::Reclaim]);
    late(emptying(), others);
}

#[test]
fn a_late_load() {
    tree().late_in_loads();
}

/// The pointers that a reader has READ are stale when the reader uses them.
#[test]
fn a_late_reader() {
    let others = deletes((0..20).map(|n| n * 10)).chain([Op::Maintain, Op::Reclaim]);
    let others = others.chain(inserts((0..20).map(|n| n * 10 + 3))).chain([Op::Reclaim]);
    let scenario = DelayScenario::new(few("reading", Vec::new()), others.collect());
    harmless(&DelayScenario { reads: true, step: 7, ..scenario });
}

/// One client collects garbage; the others allocate and free memory.
#[test]
fn a_late_gc() {
    let others = inserts([51, 52, 53]).chain(deletes([10, 20, 30]));
    let others = others.chain([Op::Maintain, Op::Reclaim]).chain(inserts([10, 20, 31, 777]));
    late(few("collecting", vec![Op::Gc]), others);
}

/// A compute node has crashed before. The client with the delayed verbs completes its unfinished
/// changes.
#[test]
fn a_late_repair() {
    let ops = vec![Op::Update(0, value(1)), Op::Insert(5, value(2)), Op::Delete(40)];
    for crashed in [splitting_leaves(), script("writes", tens(5), ops)] {
        let load = crashed.load.0.clone();
        let ops = updates(load.iter().copied().take(3)).chain([Op::Maintain]).collect();
        let script = Script { compute_nodes: 4, ..script(crashed.name, load, ops) };
        let scenario = DelayScenario::new(script, inserts([31, 32, 33]).collect());
        harmless(&DelayScenario { dead: crashed.ops, step: 2, ..scenario });
    }
}
