//! Crash points and delay injection for the sound SMART, in small trees: a crash at every verb of
//! every operation, and a delay of every verb. Acknowledged writes are not lost; reads continue;
//! the next client completes the unfinished changes of the crashed client; every piece of memory
//! has one owner afterwards.

#![expect(clippy::disallowed_macros, reason = "tests print their counts")]

mod late;

use std::rc::Rc;

use dmtree_check::scenario::delay::delay_every_verb;
use dmtree_check::scenario::sweeps::{self, Tally, at_least, some_of};
use dmtree_check::scenario::{Op, changes, value};
use dmtree_parts::AnyNode;
use dmtree_smart::sound::{Mutant, Options, SmartNode};

type Script = dmtree_check::scenario::Script;

/// Keys are decimal, so a node has at most ten children, and types 4, 8 and 16.
fn script(name: &'static str, load: impl Iterator<Item = u64>) -> Script {
    let mut keys: Vec<u64> = load.collect();
    keys.sort_unstable();
    Script { load: (keys, 1.0), ..Script::new(name, Options::default()) }
}

fn few() -> Script {
    script("few", (0..20).map(|n| n * 10))
}

fn crash_at_every_verb(script: &Script, step: u64) -> Tally {
    let tally = sweeps::everywhere(script, step);
    eprintln!("{}: {tally:?}", script.name);
    tally
}

fn two_crashes(script: &Script, steps: (u64, u64)) {
    eprintln!("{}, two crashes: {:?}", script.name, sweeps::double_crash(script, steps));
}

/// Inserts into free slots, updates in place, and deletes.
fn changing() -> Script {
    Script { name: "changing", ops: changes(), ..few() }
}

/// The fifth and the ninth child of a node: the node gets a larger type, twice.
fn growing() -> Script {
    let load = (0..4).map(|n| n * 10 + 1).chain([500, 501, 502, 503]);
    let ops = vec![Op::Insert(504, value(1)), Op::Insert(41, value(2))];
    let more = (505..510).map(|n| Op::Insert(n, value(n)));
    Script { ops: ops.into_iter().chain(more).collect(), ..script("growing", load) }
}

/// A leaf in the slot of another key's leaf: both go below a new node.
fn splitting_leaves() -> Script {
    let ops = vec![Op::Insert(5_001, value(1)), Op::Insert(7_777, value(2))];
    Script { ops, ..script("a leaf splits", [5_000, 7_000, 100_000].into_iter()) }
}

/// A new node between a node and the one above.
fn splitting_prefixes() -> Script {
    let load = (0..3).map(|n| 123_450 + n).chain([1, 2]);
    let ops = vec![Op::Insert(123_999, value(1)), Op::Insert(129_999, value(2))];
    Script { ops, ..script("a prefix splits", load) }
}

/// Values in blocks, longer and shorter than the values before.
fn in_blocks() -> Script {
    let ops = vec![
        Op::Insert(55, vec![7; 300]),
        Op::Update(55, vec![8; 400]),
        Op::Update(50, vec![9; 60]),
        Op::Update(50, vec![9; 5]),
        Op::Delete(55),
    ];
    Script { name: "blocks", ops, ..few() }
}

/// All keys of a node are deleted, the node is removed, and its memory is reused.
fn emptying() -> Script {
    let load = (0..3).map(|n| 500 + n).chain([0, 900_000]);
    let deletes = (0..3).map(|n| Op::Delete(500 + n));
    let inserts = (0..3).map(|n| Op::Insert(500 + n, value(n)));
    let ops = deletes.chain([Op::Maintain]).chain(inserts).collect();
    Script { ops, ..script("emptying", load) }
}

fn loading(n: u64) -> Script {
    let ops = vec![Op::Load((0..n).map(|n| n * 10).collect())];
    Script { ops, ..script("loading", [].into_iter()) }
}

#[test]
fn insert_update_delete_set() {
    assert!(at_least(crash_at_every_verb(&changing(), 1).points, 200));
}

#[test]
fn changes_of_structure() {
    for script in [growing(), splitting_leaves(), splitting_prefixes(), emptying()] {
        crash_at_every_verb(&script, 1);
    }
}

#[test]
fn values_in_blocks_and_several_at_once() {
    crash_at_every_verb(&in_blocks(), 1);
    let ops = vec![Op::Many((0..8).map(|n| (n * 77, value(n))).collect())];
    crash_at_every_verb(&Script { name: "several at once", ops, ..few() }, 1);
}

#[test]
fn bulk_load() {
    crash_at_every_verb(&loading(10), 1);
    crash_at_every_verb(&loading(60), 7);
}

#[test]
fn two_crashes_around_an_update() {
    let ops = vec![Op::Update(10, value(9)), Op::Insert(11, value(8)), Op::Delete(20)];
    let script = Script { ops, ..script("update", (0..4).map(|n| n * 10)) };
    two_crashes(&script, (1, 2));
}

#[test]
fn two_crashes_around_a_split() {
    two_crashes(&splitting_leaves(), (1, 2));
    two_crashes(&splitting_prefixes(), (1, 2));
}

#[test]
fn two_crashes_around_the_removal_of_a_node() {
    two_crashes(&emptying(), (2, 3));
}

/// Mutation test: the crash points and the delays find the mutants.
#[test]
fn mutants_are_found() {
    let enabled = |script: Script, d: Mutant| Script {
        enable: Some(Rc::new(move |node: &AnyNode| node.typed::<SmartNode>().set_mutants(&[d]))),
        ..script
    };
    let by_crash: [(Mutant, Script); 4] = [
        (Mutant::SlotBeforeLeaf, changing()),
        (Mutant::SlotBeforeNode, splitting_leaves()),
        (Mutant::ReleaseBeforeArea, changing()),
        (Mutant::NoTakeOver, changing()),
    ];
    let mut missed = Vec::new();
    for (d, script) in some_of(by_crash) {
        match sweeps::caught(&enabled(script, d)) {
            Some((points, what)) => eprintln!("{d:?}: {points} crash points: {what}"),
            None => missed.push(d.name()),
        }
    }
    for (d, mut scenario) in late::mutants() {
        scenario.script = enabled(scenario.script, d);
        match delay_every_verb(&scenario, 2) {
            (runs, Some(what)) => eprintln!("{d:?}: {runs} late verbs: {what}"),
            (_, None) => missed.push(d.name()),
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
