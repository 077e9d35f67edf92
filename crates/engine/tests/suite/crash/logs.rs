//! Leaves with images, and writes that are durable in a log before their leaves: a crash at every
//! third verb of what is logged, written through, written back and made anew.

use dmtree_check::scenario::sweeps::{at_least, caught, double_crash, everywhere};
use dmtree_engine::{Mutant, Options};

use super::images::imaged;
use super::scenario::{Op, Script, changes, value, with_mutant};
use super::{in_blocks, merging, one_leaf, relocating, splitting};

/// A script over leaves with images and a log.
fn logged(script: Script, log_kib: u32) -> Script {
    let options: Options = imaged(one_leaf()).options.typed();
    let own: Options = script.options.typed();
    let options = Options { images: options.images, log_kib, log_groups: 1, ..own };
    let cache_bytes = script.cache_bytes.max(1 << 20);
    Script { options: options.into(), cache_bytes, ..script }
}

/// The log of one client is full behind these: it has room for 128 records.
fn filling() -> Vec<Op> {
    (0..130).map(|n| Op::Update(n % 20 * 10, value(n))).collect()
}

#[test]
fn insert_update_delete_set() {
    let script = logged(Script { ops: changes(), ..one_leaf() }, 64);
    assert!(at_least(everywhere(&script, 3).points, 100));
}

#[test]
fn values_in_blocks() {
    everywhere(&logged(in_blocks(), 64), 3);
}

#[test]
fn split() {
    for new in [5, 185, 999] {
        let script = splitting(new);
        // The leaf is behind its image when it is split.
        let before = vec![Op::Update(10, value(9)), Op::Update(300, value(9))];
        everywhere(&logged(Script { before, ..script }, 64), 3);
    }
}

#[test]
fn merge() {
    everywhere(&logged(merging(), 64), 3);
}

#[test]
fn relocation() {
    let script = relocating(64);
    let ops = vec![
        Op::Update(10, value(2)),
        Op::Insert(5, value(1)),
        Op::Insert(405, value(1)),
        Op::Maintain,
    ];
    let cache_bytes = script.cache_bytes * 2 + 16 * 1_024;
    let options = Options { images: 0.5, log_kib: 64, log_groups: 1, ..script.options.typed() };
    everywhere(&Script { ops, options: options.into(), cache_bytes, ..script }, 3);
}

/// A full log: a write goes through to its leaf, maintenance writes the leaf back, and the next
/// write has a record again.
fn full() -> Script {
    let mut ops = vec![Op::Update(10, value(201)), Op::Insert(15, value(202)), Op::Delete(20)];
    ops.extend([Op::Maintain, Op::Update(10, value(203)), Op::Delete(30)]);
    logged(Script { name: "full log", before: filling(), ops, ..one_leaf() }, 6)
}

#[test]
fn through_and_back() {
    assert!(at_least(everywhere(&full(), 3).points, 30));
}

/// Half of the ring has been used, and its oldest leaf is still behind: of a segment one more leaf
/// is, and updates of others go past the log.
fn passing() -> Script {
    let load = ((0..100).map(|n| n * 10).collect(), 1.0);
    let before = (0..66).map(|n| Op::Update(10, value(n))).collect();
    let ops = vec![
        Op::Update(400, value(201)),
        Op::Update(400, value(202)),
        Op::Update(800, value(203)),
        Op::Update(800, value(204)),
        Op::Delete(810),
        Op::Update(800, value(205)),
    ];
    logged(Script { name: "past the log", load, before, ops, ..one_leaf() }, 6)
}

#[test]
fn past_the_log() {
    assert!(at_least(everywhere(&passing(), 3).points, 50));
    let ignored = with_mutant(passing(), Mutant::LogBehindIgnored);
    assert!(caught(&ignored).is_some(), "the record of a write before is newer than its leaf");
}

/// Updates go past a log with room where their slot is not logged. One that is has a record until
/// its leaf is written back, and is then updated past the log again.
fn by_slot() -> Script {
    let before = (0..33).flat_map(|n| [Op::Insert(15, value(n)), Op::Delete(15)]).collect();
    let ops = vec![
        Op::Update(10, value(201)),
        Op::Insert(25, value(202)),
        Op::Update(25, value(203)),
        Op::Update(10, value(204)),
        Op::Maintain,
        Op::Update(25, value(205)),
        Op::Update(25, value(206)),
    ];
    let script = logged(Script { name: "by slot", before, ops, ..one_leaf() }, 6);
    let options = Options { log_past: Some(1.0), ..script.options.typed() };
    Script { options: options.into(), ..script }
}

#[test]
fn past_the_log_by_slot() {
    assert!(at_least(everywhere(&by_slot(), 3).points, 50));
    let unmarked = with_mutant(by_slot(), Mutant::LogUnmarked);
    assert!(caught(&unmarked).is_some(), "the record of the insert is newer than the update");
}

#[test]
fn two_deaths() {
    double_crash(&logged(splitting(5), 64), (15, 21));
    double_crash(&logged(Script { ops: changes(), ..one_leaf() }, 64), (21, 33));
    double_crash(&full(), (33, 39));
    double_crash(&by_slot(), (33, 39));
}
