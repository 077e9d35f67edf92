//! Leaves with images at their owners: a crash at every verb of what changes both, of the client
//! and, in turn, of the node that owns the image.

use dmtree_check::scenario::sweeps::{at_least, double_crash, everywhere};
use dmtree_engine::Options;

use super::scenario::{Op, Script, changes, value};
use super::{in_blocks, merging, one_leaf, relocating, splitting};

/// A script over leaves with images.
pub(super) fn imaged(script: Script) -> Script {
    let options = Options { images: 0.5, ..script.options.typed() };
    let cache_bytes = script.cache_bytes.max(1 << 20);
    Script { options: options.into(), cache_bytes, ..script }
}

#[test]
fn insert_update_delete_set() {
    let script = imaged(Script { ops: changes(), ..one_leaf() });
    assert!(at_least(everywhere(&script, 1).points, 300));
}

#[test]
fn values_in_blocks() {
    everywhere(&imaged(in_blocks()), 1);
}

#[test]
fn split() {
    for new in [5, 185, 999] {
        everywhere(&imaged(splitting(new)), 1);
    }
}

#[test]
fn several_at_once() {
    let load = ((0..96).map(|n| n * 10).collect(), 0.5);
    let ops = vec![Op::Many((0..8).map(|n| (n * 77, value(n))).collect())];
    everywhere(&imaged(Script { name: "several at once", load, ops, ..one_leaf() }), 1);
}

#[test]
fn merge() {
    everywhere(&imaged(merging()), 1);
}

#[test]
fn relocation() {
    // A small cache relocates a full leaf to more slots; one image fits.
    let ops = vec![Op::Insert(5, value(1)), Op::Insert(405, value(1)), Op::Maintain];
    let script = relocating(64);
    let least: Options = script.options.typed();
    let cache_bytes = script.cache_bytes * 2 + 16 * 1_024;
    let options = Options { images: 0.5, ..least };
    everywhere(&Script { ops, options: options.into(), cache_bytes, ..script }, 1);
}

/// Twelve leaves, and two cells with images on each of three nodes. The last leaf is used: another
/// one loses its image to it. Then both are written.
fn used() -> Script {
    let load = ((0..384).map(|n| n * 10).collect(), 1.0);
    let hot = 3_830;
    let gets = |count| (0..count).map(|_| Op::Get(hot));
    let mut ops: Vec<_> = gets(8).collect();
    ops.extend([Op::Maintain, Op::Reclaim]);
    ops.extend(gets(8));
    ops.extend([Op::Maintain, Op::Update(hot, value(1)), Op::Insert(hot + 5, value(2))]);
    // Leaves that had images.
    ops.extend((0..5).map(|leaf| Op::Update(leaf * 320, value(3))));
    let options = Options { images: 0.002, ..one_leaf().options.typed() };
    Script { name: "use", load, ops, options: options.into(), ..one_leaf() }
}

#[test]
fn admission_and_eviction() {
    assert!(at_least(everywhere(&used(), 1).points, 1_000));
}

#[test]
fn two_deaths() {
    double_crash(&imaged(splitting(5)), (5, 7));
    double_crash(&imaged(Script { ops: changes(), ..one_leaf() }), (7, 11));
    double_crash(&used(), (11, 13));
}
