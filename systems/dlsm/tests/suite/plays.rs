//! Crash plays of the sound system: scripts of small MemTables, and which nodes of them die where.

use dmtree_check::scenario::death::{ScriptedCrash, run};
use dmtree_check::scenario::sweeps::double_crash;
use dmtree_check::scenario::{Op, PLACES, READ_BOUND_NS, Script};
use dmtree_dlsm::{DlsmNode, Merging, Mutant, Options};
use dmtree_fabric::sim::How;

use crate::small;

/// MemTables of 16 writes, of which one may wait, and two tables of level 0: writers flush and
/// merge.
pub fn options(merging: Merging) -> Options {
    let o = small(Options { merging, ..Options::sound() });
    let o = Options { level0_slow: 2, level0_stop: 2, ..o };
    Options { memtable_entries: 16, immutables: 1, log_bytes: 4096, subcompactions: 2, ..o }
}

/// One range, of node 0.
pub fn script(name: &'static str, merging: Merging, ops: impl IntoIterator<Item = Op>) -> Script {
    let load = ((0..10).map(|n| n * 10).collect(), 0.7);
    let ops = ops.into_iter().collect();
    Script { load, ops, ..Script::new(name, options(merging)) }
}

/// Two ranges, of nodes 0 and 1.
pub fn of_two(name: &'static str, ops: impl IntoIterator<Item = Op>) -> Script {
    let mut two = script(name, Merging::Near, ops);
    two.options = two.options.changed(|o: Options| Options { owners: 2, ..o });
    two
}

/// The survivor that takes over dies, too. A reader may call both owners that die, one after the
/// other.
pub fn dies_twice(script: Script, steps: (u64, u64)) {
    double_crash(&Script { read_bound_ns: 2 * READ_BOUND_NS, ..script }, steps);
}

/// What a collection finds after crashes of the owner at every so many verbs: bytes of blocks, and
/// of what jobs have made. Nothing has collected before.
pub fn lost(script: Script, verbs: std::ops::Range<u64>, step: usize) -> (u64, u64) {
    let script = Script { swept: false, ..script };
    let mut sum = (0, 0);
    for verb in verbs.step_by(step) {
        let (how, place) = (How::Machine, PLACES[verb as usize % 3]);
        let (whole_write, second, seed) = (false, None, 1);
        let cut = ScriptedCrash { victim: 0, verb, place, how, whole_write, seed, second };
        let ran = run(&script, cut).unwrap_or_else(|what| panic!("{cut:?}: {what}"));
        sum = (sum.0 + ran.lost.space_bytes, sum.1 + ran.lost.bytes);
    }
    sum
}

/// The first of some crashes of a node that shows a mutant.
pub fn shown(mutant: Mutant, script: Script, victim: u16, runs: u64) -> Option<(u64, String)> {
    let on = script.enabling(move |node: &DlsmNode| node.set_mutants(&[mutant]));
    (0..runs).find_map(|seed| {
        let (how, place) = (How::Machine, PLACES[seed as usize % 3]);
        let verb = 20 + seed * 37 % 400;
        let (whole_write, second) = (false, None);
        let cut = ScriptedCrash { victim, verb, place, how, whole_write, seed, second };
        run(&on, cut).err().map(|what| (seed, what))
    })
}
