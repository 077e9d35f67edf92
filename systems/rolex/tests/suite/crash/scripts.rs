//! What the crash suite runs: leaves of four slots, and pages of four leaves.

use dmtree_check::scenario::small_tree::{SmallTree, tens};
use dmtree_check::scenario::{Op, Script, deletes, inserts, value};
use dmtree_engine::{DmNode, Mutant, Options, Techniques};

fn options(retrain_after: u32) -> Options {
    let sound = dmtree_rolex::sound::options();
    // A table of lock words fits a chunk of these pools.
    let techniques =
        Techniques { locks: 64, page_leaves: 4, retrain_after, error_bound: 4, ..sound.techniques };
    Options { techniques, fanout: 8, key_inline_bytes: 8, leaf_capacity: 4, ..sound }
}

pub fn tree() -> SmallTree {
    let base = Script { unmet: Some("inner lock"), ..Script::new("rolex", options(1)) };
    SmallTree { base, full: 16, full_node: 32, apart: 1 }
}

/// A script with a mutant enabled, and its name.
pub fn with(mutant: Mutant, script: Script) -> (&'static str, Script) {
    (mutant.name(), script.enabling(move |node: &DmNode| node.set_mutants(&[mutant])))
}

/// Leaves have split since models were trained, and searches have noticed.
pub fn training() -> Script {
    let before = inserts(101..108).chain((101..108).map(Op::Get));
    let before = before.chain(inserts([31, 32, 33, 34, 35])).chain((31..36).map(Op::Get));
    let ops = [Op::Maintain, Op::Get(104), Op::Update(33, value(7))];
    Script { before: before.collect(), ..tree().script("training", tens(40), ops) }
}

/// Another node has trained; the victim's node learns of it by a longer way, fetches the directory,
/// and READs the new pages.
pub fn refreshing() -> Script {
    let trained = training();
    let elsewhere = trained.before.into_iter().chain([Op::Maintain]).collect();
    let ops = [Op::Get(105), Op::Get(33), Op::Maintain, Op::Get(104), Op::Update(34, value(7))];
    let (name, before, ops) = ("refreshing", Vec::new(), ops.into());
    Script { name, before, elsewhere, ops, ..training() }
}

/// Survivors do not train what they find torn.
pub fn training_seldom() -> Script {
    let before = inserts(101..108).chain((0..200).map(|_| Op::Get(107)));
    let options = options(200).into();
    Script { options, before: before.collect(), name: "training seldom", ..training() }
}

/// The same of leaves that have been merged.
pub fn training_anew() -> Script {
    let gone = deletes((0..40).filter(|n| n % 8 != 0).map(|n| n * 10));
    let before = gone.chain([Op::Maintain]).chain(tens(40).map(Op::Get)).collect();
    let ops = [Op::Maintain, Op::Insert(15, value(1))];
    Script { before, ..tree().script("training anew", tens(40), ops) }
}
