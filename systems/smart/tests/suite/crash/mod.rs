//! Crash points and delay injection for the sound SMART, in small trees: a crash at every verb of
//! every operation, and a delay of every verb. Acknowledged writes are not lost; reads continue;
//! the next client completes the unfinished changes of the crashed client; every piece of memory
//! has one owner afterwards.

mod late;

use dmtree_check::scenario::delay::DelayScenario;
use dmtree_check::scenario::small_tree::{SmallTree, tens};
use dmtree_check::scenario::sweeps::{double_crash, everywhere, find_mutants};
use dmtree_check::scenario::{Op, Script, value};
use dmtree_smart::sound::{Mutant, Options, SmartNode};

/// Keys are decimal, so a node has at most ten children, and types 4, 8 and 16. (A radix tree has
/// no leaves that fill up.)
fn tree() -> SmallTree {
    let base = Script::new("smart", Options::default());
    SmallTree { base, full: 16, full_node: 16, apart: 1000 }
}

fn script(name: &'static str, load: impl IntoIterator<Item = u64>, ops: Vec<Op>) -> Script {
    let mut keys: Vec<u64> = load.into_iter().collect();
    keys.sort_unstable();
    tree().script(name, keys, ops)
}

/// The fifth and the ninth child of a node: the node gets a larger type, twice.
fn growing() -> Script {
    let load = (0..4).map(|n| n * 10 + 1).chain([500, 501, 502, 503]);
    let ops = vec![Op::Insert(504, value(1)), Op::Insert(41, value(2))];
    let more = (505..510).map(|n| Op::Insert(n, value(n)));
    script("growing", load, ops.into_iter().chain(more).collect())
}

/// A leaf in the slot of another key's leaf: both go below a new node.
fn splitting_leaves() -> Script {
    let ops = vec![Op::Insert(5_001, value(1)), Op::Insert(7_777, value(2))];
    script("a leaf splits", [5_000, 7_000, 100_000], ops)
}

/// A new node between a node and the one above.
fn splitting_prefixes() -> Script {
    let load = (0..3).map(|n| 123_450 + n).chain([1, 2]);
    let ops = vec![Op::Insert(123_999, value(1)), Op::Insert(129_999, value(2))];
    script("a prefix splits", load, ops)
}

/// All keys of a node are deleted, the node is removed, and its memory is reused.
fn emptying() -> Script {
    let load = (0..3).map(|n| 500 + n).chain([0, 900_000]);
    let deletes = (0..3).map(|n| Op::Delete(500 + n));
    let inserts = (0..3).map(|n| Op::Insert(500 + n, value(n)));
    let ops = deletes.chain([Op::Maintain]).chain(inserts).collect();
    script("emptying", load, ops)
}

/// A script with a mutant enabled, and its name.
fn with(mutant: Mutant, script: Script) -> (&'static str, Script) {
    (mutant.name(), script.enabling(move |node: &SmartNode| node.set_mutants(&[mutant])))
}

#[test]
fn writes() {
    tree().crash_in_writes();
}

#[test]
fn changes_of_structure() {
    for script in [growing(), splitting_leaves(), splitting_prefixes(), emptying()] {
        everywhere(&script, 1);
    }
}

#[test]
fn bulk_load() {
    tree().crash_in_loads();
}

#[test]
fn two_crashes_around_an_update() {
    let ops = vec![Op::Update(10, value(9)), Op::Insert(11, value(8)), Op::Delete(20)];
    double_crash(&script("update", tens(4), ops), (1, 2));
}

#[test]
fn two_crashes_around_a_split() {
    double_crash(&splitting_leaves(), (1, 2));
    double_crash(&splitting_prefixes(), (1, 2));
}

#[test]
fn two_crashes_around_the_removal_of_a_node() {
    double_crash(&emptying(), (2, 3));
}

/// Mutation test: the crash points and the delays find the mutants.
#[test]
fn mutants_are_found() {
    let by_crash = [
        (Mutant::SlotBeforeLeaf, tree().changing()),
        (Mutant::SlotBeforeNode, splitting_leaves()),
        (Mutant::ReleaseBeforeArea, tree().changing()),
        (Mutant::NoTakeOver, tree().changing()),
    ];
    let late = late::filled_again();
    let (name, script) = with(Mutant::CloseUnfrozen, late.script.clone());
    let late = DelayScenario { script, ..late };
    find_mutants(by_crash.map(|(m, script)| with(m, script)), [(name, late)]);
}
