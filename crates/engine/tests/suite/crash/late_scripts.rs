//! Scripts that run while a verb is delayed.

use dmtree_engine::Options;

use super::scenario::{DelayScenario, Op, Script, value};
use super::{one_leaf, relocating};

pub fn load(n: u64, fill: f64) -> (Vec<u64>, f64) {
    ((0..n).map(|n| n * 10).collect(), fill)
}

/// Inserts of keys that end in `digit`, which no other client uses.
pub fn inserts(keys: impl IntoIterator<Item = u64>, digit: u64) -> Vec<Op> {
    keys.into_iter().map(|n| Op::Insert(n * 10 + digit, value(n + 1))).collect()
}

pub fn updates(keys: impl IntoIterator<Item = u64>) -> Vec<Op> {
    keys.into_iter().map(|n| Op::Update(n * 10, value(n + 5_000))).collect()
}

pub fn deletes(keys: impl IntoIterator<Item = u64>) -> Vec<Op> {
    keys.into_iter().map(|n| Op::Delete(n * 10)).collect()
}

pub fn concat(parts: &[Vec<Op>]) -> Vec<Op> {
    parts.concat()
}

pub fn writing() -> DelayScenario {
    let ops = vec![
        Op::Update(50, value(1)),
        Op::Insert(51, value(2)),
        Op::Delete(60),
        Op::Set(70, value(70), Some(value(3))),
    ];
    let others = concat(&[inserts(0..6, 3), updates(8..12), deletes(12..14), inserts(6..14, 4)]);
    DelayScenario::new(Script { name: "writing", ops, ..one_leaf() }, others)
}

pub fn splitting() -> DelayScenario {
    let script =
        Script { name: "splitting", load: load(64, 1.0), ops: inserts([5], 1), ..one_leaf() };
    let others = concat(&[updates(0..4), inserts([40], 3), vec![Op::Sweep], inserts(10..14, 3)]);
    DelayScenario::new(script, others)
}

/// The new leaf is merged away before the splitting client has added its record.
pub fn split_and_merged() -> DelayScenario {
    let script = Script {
        name: "split and merged",
        load: load(64, 1.0),
        ops: inserts([5], 1),
        ..one_leaf()
    };
    let gone = (0..32).filter(|n| *n != 5);
    let others = concat(&[
        vec![Op::Sweep],
        deletes(gone),
        vec![Op::Maintain],
        inserts([40], 3),
        inserts(41..50, 3),
        vec![Op::Maintain],
    ]);
    DelayScenario::new(script, others)
}

pub fn growing() -> DelayScenario {
    let script =
        Script { name: "growing", load: load(256, 1.0), ops: inserts([5], 1), ..one_leaf() };
    let more = concat(&[inserts(240..256, 3), inserts(240..256, 4)]);
    let others = concat(&[inserts((1..8).map(|leaf| leaf * 32 + 5), 3), more]);
    DelayScenario::new(script, others)
}

pub fn merging() -> DelayScenario {
    let before = deletes((0..64).filter(|n| n % 8 != 0));
    let ops = vec![Op::Maintain];
    let script = Script { name: "merging", load: load(64, 1.0), before, ops, ..one_leaf() };
    let others = concat(&[inserts(0..4, 3), updates([32, 40]), inserts(30..36, 3)]);
    DelayScenario::new(script, others)
}

pub fn merging_inner() -> DelayScenario {
    let before = deletes((0..400).filter(|n| n % 50 != 0));
    let ops = vec![Op::Maintain];
    let script =
        Script { name: "merging inner nodes", load: load(400, 0.5), before, ops, ..one_leaf() };
    let others = concat(&[inserts([0, 100, 200, 300], 3), vec![Op::Maintain]]);
    DelayScenario { step: 5, ..DelayScenario::new(script, others) }
}

pub fn moving() -> DelayScenario {
    let ops = vec![Op::Insert(5, value(1)), Op::Maintain];
    let script = Script { name: "moving", ops, ..relocating(64) };
    let others = concat(&[
        updates(2..6),
        inserts([40], 3),
        inserts(0..8, 4),
        vec![Op::Maintain],
        inserts(10..18, 4),
    ]);
    DelayScenario::new(script, others)
}

/// Regression: a sweep met the old root of a load that had committed, and swung the root word; the
/// load took that for an error.
pub fn loading() -> DelayScenario {
    let ops = vec![Op::Load((0..40).map(|n| n * 10).collect())];
    let script = Script { name: "loading", load: (Vec::new(), 1.0), ops, ..one_leaf() };
    DelayScenario::new(script, vec![Op::Sweep])
}

/// The delayed client reads while leaves split, merge, and reuse the addresses of other leaves.
pub fn reading() -> DelayScenario {
    let options = Options { value_inline_bytes: 64, ..one_leaf().options.typed() };
    let script =
        Script { name: "reading", options: options.into(), load: load(64, 1.0), ..one_leaf() };
    let blocks = (0..4).map(|n| Op::Update(n * 10, vec![7; 300])).collect();
    let shorter = (0..4).map(|n| Op::Update(n * 10, vec![8; 100])).collect();
    let others = concat(&[
        blocks,
        shorter,
        inserts([5, 40], 3),
        deletes(8..60),
        vec![Op::Maintain, Op::Maintain],
        inserts(8..60, 4),
        vec![Op::Maintain],
        updates(0..8),
    ]);
    DelayScenario { reads: true, step: 11, ..DelayScenario::new(script, others) }
}

/// Regression: space too short for a table cell at the end of a segment was on no list, and a
/// garbage collection took it for lost.
pub fn reading_moved() -> DelayScenario {
    let script = Script { name: "reading what moves", ..relocating(64) };
    let others = concat(&[
        inserts([5, 40], 3),
        vec![Op::Maintain],
        inserts(0..60, 4),
        vec![Op::Maintain],
        deletes(0..60),
        vec![Op::Maintain],
    ]);
    DelayScenario { reads: true, step: 11, ..DelayScenario::new(script, others) }
}

/// A merged leaf's address is reused before all WRITEs to it have landed.
pub fn merging_again() -> DelayScenario {
    let before = deletes((0..96).filter(|n| n % 8 != 0));
    let ops = concat(&[
        vec![Op::Maintain, Op::Reclaim, Op::Reclaim, Op::Reclaim],
        inserts(0..24, 1),
        inserts(0..24, 2),
    ]);
    let script = Script { name: "merging again", load: load(96, 1.0), before, ops, ..one_leaf() };
    DelayScenario { step: 3, ..DelayScenario::new(script, inserts(64..70, 3)) }
}

/// A relocated leaf's address is reused: the right leaf grows twice, the left one takes the right
/// one's former address.
pub fn moving_again() -> DelayScenario {
    let ops = concat(&[
        inserts(33..64, 1),
        inserts(33..64, 2),
        vec![Op::Maintain, Op::Reclaim, Op::Reclaim, Op::Reclaim],
        inserts(1..4, 1),
    ]);
    let script = Script { name: "moving again", ops, ..relocating(64) };
    DelayScenario { step: 17, ..DelayScenario::new(script, inserts(8..12, 3)) }
}

/// A garbage collection while another client's new nodes are unpublished, and a delayed garbage
/// collection.
pub fn counted() -> DelayScenario {
    let others = vec![Op::Gc, Op::Gc];
    DelayScenario::new(Script { name: "counted", ..growing().script }, others)
}

pub fn counting() -> DelayScenario {
    let script = Script { name: "counting", load: load(64, 1.0), ops: vec![Op::Gc], ..one_leaf() };
    let others = concat(&[
        inserts([5, 40], 3),
        deletes(8..60),
        vec![Op::Maintain, Op::Reclaim, Op::Reclaim],
        inserts(8..60, 4),
    ]);
    DelayScenario { step: 3, ..DelayScenario::new(script, others) }
}

/// A client that repairs a dead one's leaf is delayed; the others continue where it has unlocked.
pub fn repairing(
    name: &'static str,
    load: (Vec<u64>, f64),
    before: Vec<Op>,
    dead: Vec<Op>,
) -> DelayScenario {
    // An insert relies on the table that the repair has built.
    let ops = concat(&[inserts([3], 1), updates([4]), inserts([30, 33], 1)]);
    let others = concat(&[inserts([2, 3, 30, 33], 3), updates([2, 32]), inserts([1, 34], 3)]);
    let script = Script { name, load, before, ops, compute_nodes: 4, ..one_leaf() };
    DelayScenario { step: 5, dead, ..DelayScenario::new(script, others) }
}

pub fn repairing_a_split() -> DelayScenario {
    repairing("repairing a split", load(64, 1.0), Vec::new(), inserts([5], 4))
}

pub fn repairing_an_update() -> DelayScenario {
    let dead = vec![Op::Update(50, value(1)), Op::Update(50, value(2)), Op::Insert(54, value(3))];
    repairing("repairing an update", load(40, 0.6), Vec::new(), dead)
}

pub fn repairing_a_merge() -> DelayScenario {
    // The victim begins the merge.
    let dead = concat(&[deletes((0..64).filter(|n| n % 8 > 4)), vec![Op::Maintain]]);
    let before = deletes((0..64).filter(|n| n % 8 == 1 || n % 8 == 3));
    let mut b = repairing("repairing a merge", load(64, 0.6), before, dead);
    b.step = 13;
    b
}

/// Tables are reassigned to other owners while a client that writes under their locks is delayed.
pub fn handing_over() -> DelayScenario {
    let ops = concat(&[updates((0..12).map(|n| n * 16)), inserts([3, 60, 120], 1)]);
    let script = Script { name: "handing over", ops, load: load(200, 0.5), ..one_leaf() };
    let more = inserts((0..12).map(|n| n * 16 + 1), 3);
    DelayScenario { step: 2, ..DelayScenario::new(script, concat(&[vec![Op::HandOver], more])) }
}

/// A merged leaf's address is reused by another client of the same node, and their verbs are not
/// ordered.
pub fn closing() -> DelayScenario {
    let before = deletes((0..96).filter(|n| n % 8 != 0));
    let script =
        Script { name: "closing", before, ops: vec![Op::Maintain], ..merging_again().script };
    let more = (3..8).map(|digit| inserts(0..32, digit)).collect::<Vec<_>>().concat();
    let others = concat(&[vec![Op::Reclaim], more]);
    DelayScenario { twin: true, ..DelayScenario::new(script, others) }
}

/// A client learns late that it has a lock, tables are to move meanwhile, and its verbs under the
/// lock are delayed, too.
pub fn handing_over_twice() -> DelayScenario {
    let ops = inserts((0..12).map(|n| n * 16), 1);
    let script = Script { name: "handing over twice", ops, ..handing_over().script };
    DelayScenario { script, again: 1, step: 1, ..handing_over() }
}

/// The delayed client has no cache for inner nodes, and the first child of one moves.
pub fn reading_uncached() -> DelayScenario {
    let moved = reading_moved();
    let script = Script { name: "reading without a cache", cache_bytes: 1 << 11, ..moved.script };
    DelayScenario { script, step: 3, ..moved }
}

/// An inner node is split, swept, and merged away before the splitting client has added its record.
pub fn growing_and_merged() -> DelayScenario {
    let script = Script { name: "growing and merged", load: load(600, 1.0), ..growing().script };
    let mut others = concat(&[vec![Op::Sweep], deletes((0..256).filter(|n| n % 32 != 1))]);
    others.extend(vec![Op::Maintain; 3]);
    DelayScenario { script, others, by_ns: 40_000_000, ..growing() }
}
