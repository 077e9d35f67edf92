//! Delay injection (`dmtree_check::scenario::delay`): one verb is late while the other clients do
//! all of their operations.

use dmtree_check::scenario::delay::{DelayScenario, harmless};
use dmtree_check::scenario::small_tree::{late, tens};
use dmtree_check::scenario::{Op, Script, deletes, inserts, updates};

use super::scripts::{moving, moving_a_block, tree};

/// Other clients update and delete the entries that move, and fill the leaf.
pub fn moving_late(moves: u64) -> DelayScenario {
    let others = updates([0, 20, 40, 60]).chain(deletes([30, 50]));
    let others = others.chain(inserts([31, 51, 61, 71, 81, 1, 11])).chain(updates([20, 60]));
    DelayScenario::new(moving(moves), others.chain([Op::Maintain]).collect())
}

#[test]
fn a_late_write() {
    tree().late_in_writes();
}

#[test]
fn a_late_move() {
    for moves in [1, 2, 3] {
        harmless(&moving_late(moves));
    }
    let others = updates([0, 20]).chain(deletes([30])).chain([Op::Maintain]).chain(inserts([31]));
    late(moving_a_block(), others);
}

#[test]
fn a_late_change_of_structure() {
    tree().late_in_changes_of_structure();
}

#[test]
fn a_late_load() {
    tree().late_in_loads();
}

/// The route that a reader has is stale when its READ executes.
#[test]
fn a_late_reader() {
    let others = deletes(tens(10)).chain([Op::Maintain, Op::Reclaim]);
    let others = others.chain(inserts((0..40).map(|n| n * 10 + 3))).chain([Op::Reclaim]);
    let script = tree().script("reading", tens(10), []);
    let scenario = DelayScenario::new(script, others.collect());
    harmless(&DelayScenario { reads: true, step: 7, ..scenario });
}

/// A compute node has crashed before. The client with the delayed verbs repairs what it has left.
#[test]
fn a_late_repair() {
    for crashed in [moving(1), moving(2), tree().splitting(5)] {
        let ops = updates(crashed.load.0.iter().copied().take(3)).chain([Op::Maintain]).collect();
        let script = Script { name: "repair", compute_nodes: 4, ops, ..crashed.clone() };
        let scenario = DelayScenario::new(script, inserts([31, 32, 33]).collect());
        harmless(&DelayScenario { dead: crashed.ops, step: 2, ..scenario });
    }
}
