//! What the crash suite runs: leaves of four slots, and pages of four leaves.

use std::rc::Rc;

use dmtree_check::scenario::{Op, changes, inserts, value};
use dmtree_engine::{DmNode, Mutant, Options, Techniques};

pub type Script = dmtree_check::scenario::Script;

fn options(retrain_after: u32) -> Options {
    let sound = dmtree_rolex::sound::options();
    // A table of lock words fits a chunk of these pools.
    let techniques =
        Techniques { locks: 64, page_leaves: 4, retrain_after, error_bound: 4, ..sound.techniques };
    Options { techniques, fanout: 8, key_inline_bytes: 8, leaf_capacity: 4, ..sound }
}

fn script(name: &'static str, load: impl Iterator<Item = u64>) -> Script {
    let unmet = Some("inner lock");
    Script { load: (load.collect(), 1.0), unmet, ..Script::new(name, options(1)) }
}

/// The same with a mutant enabled.
pub fn with_mutant(script: Script, mutant: Mutant) -> Script {
    Script {
        enable: Some(Rc::new(move |node| node.typed::<DmNode>().set_mutants(&[mutant]))),
        ..script
    }
}

/// Inserts into free slots, updates in place, deletes.
pub fn changing() -> Script {
    Script { ops: changes(), ..script("changing", (0..10).map(|n| n * 10)) }
}

pub fn in_blocks() -> Script {
    let ops = vec![
        Op::Insert(55, vec![7; 300]),
        Op::Update(55, vec![8; 400]),
        Op::Update(50, vec![9; 60]),
        Op::Delete(55),
    ];
    Script { name: "blocks", ops, ..changing() }
}

/// Inserts until leaves are split.
pub fn splitting(new: u64) -> Script {
    let ops = (0..6).map(|n| Op::Insert(new + n, value(n))).collect();
    Script { name: "split", ops, ..script("split", (0..16).map(|n| n * 10)) }
}

pub fn inner_splitting() -> Script {
    let ops = (0..5).map(|n| Op::Insert(n * 10 + 5, value(n))).collect();
    Script { ops, ..script("inner split", (0..32).map(|n| n * 10)) }
}

pub fn merging() -> Script {
    let gone = (0..32).filter(|n| n % 8 != 0);
    let before = gone.map(|n| Op::Delete(n * 10)).collect();
    Script { before, ops: vec![Op::Maintain], ..script("merge", (0..32).map(|n| n * 10)) }
}

pub fn loading(n: u64) -> Script {
    let ops = vec![Op::Load((0..n).map(|n| n * 10).collect())];
    Script { ops, ..script("load", std::iter::empty()) }
}

/// Leaves have split since models were trained, and searches have noticed.
pub fn training() -> Script {
    let before = inserts(101..108).chain((101..108).map(Op::Get));
    let before = before.chain(inserts([31, 32, 33, 34, 35])).chain((31..36).map(Op::Get));
    let ops = vec![Op::Maintain, Op::Get(104), Op::Update(33, value(7))];
    Script { before: before.collect(), ops, ..script("training", (0..40).map(|n| n * 10)) }
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
    let gone = (0..40).filter(|n| n % 8 != 0).map(|n| Op::Delete(n * 10));
    let before = gone.chain([Op::Maintain]).chain((0..40).map(|n| Op::Get(n * 10)));
    let ops = vec![Op::Maintain, Op::Insert(15, value(1))];
    Script { before: before.collect(), ops, ..script("training anew", (0..40).map(|n| n * 10)) }
}
