//! A caller drops its operation at every await: verbs in flight execute, its locks are given back
//! after the recovery of what they cover, and no other client is kept waiting.

use std::collections::BTreeMap;

use dmtree_engine::Mutant;
use dmtree_fabric::SeededRandom;

use dmtree_check::scenario::sweeps::{at_least, every};

use super::scenario::{
    Op, PLACES, Scenario, Script, dropped_after, effect, get, key, one_holder, perform, value,
    with_mutant,
};
use super::{in_blocks, inner_merging, merging, one_leaf, relocating, splitting};

/// One client of the node has to call maintenance now and then: after this long, ns.
const TEND_NS: u64 = 100_000;
/// No client waits longer for a dropped operation, ns.
const BOUND_NS: u64 = 50_000_000;

type Values = BTreeMap<u64, Option<Vec<u8>>>;

/// Drops all operations of a script together after this many polls; true when they ended before.
fn once(script: &Script, node: u16, polls: u64, whole_write: bool) -> bool {
    let scenario = Scenario::new(script, whole_write, polls * 3 + u64::from(node));
    let mut c = scenario.client(node);
    let mut sure = Values::new();
    if !script.load.0.is_empty() {
        let mut pairs = script.load.0.iter().map(|k| (key(*k), value(*k)));
        scenario.now(c.load(&mut pairs, true, script.load.1.into())).expect("room");
        sure.extend(script.load.0.iter().map(|k| (*k, Some(value(*k)))));
    }
    for op in &script.before {
        scenario.now(perform(&mut c, op)).expect("before");
        sure.extend(effect(op));
    }
    let mut open = None;
    let other = (node + 1) % script.compute_nodes;
    scenario.worker(node, |mut maintenance_actor| async move {
        loop {
            maintenance_actor.endpoint().sleep(TEND_NS).await;
            maintenance_actor.maintain().await.expect("maintenance");
        }
    });
    scenario.run(&mut SeededRandom::new(polls), async {
        let work = async {
            for op in &script.ops {
                open = Some(op);
                perform(&mut c, op).await.expect("nothing is broken");
                sure.extend(effect(op));
                open = None;
            }
        };
        _ = dropped_after(polls, work).await;
        let mut others = scenario.client(other);
        let ep = others.endpoint().clone();
        let changed = open.map(effect).unwrap_or_default();
        let near = changed.iter().flat_map(|(k, _)| [*k, k + 1]).chain([0, 31, 330, 2_001]);
        for k in near.collect::<Vec<_>>() {
            let began = ep.now();
            let seen = get(&mut others, k).await.expect("reads go on");
            let was = sure.get(&k).cloned().flatten();
            let new = changed.iter().find(|(n, _)| *n == k).map(|(_, v)| v.clone());
            if seen != was && Some(&seen) != new.as_ref() {
                scenario.complain()(format!("key {k} is {seen:?}, not {was:?} or {new:?}"));
            }
            perform(&mut others, &Op::Put(k, value(k + 7))).await.expect("writes go on");
            sure.insert(k, Some(value(k + 7)));
            if ep.now() > began + BOUND_NS {
                scenario.complain()(format!("key {k} took {} ns", ep.now() - began));
            }
        }
        // Verbs in flight end.
        ep.sleep(5_000_000).await;
    });
    let ended = open.is_none();
    // The maintenance of the node was dropped with the run: its verbs in flight end, too.
    let ep = scenario.client(other).endpoint().clone();
    let ended_verbs = scenario.now(async move {
        ep.sleep(5_000_000).await;
        Ok(())
    });
    ended_verbs.expect("time passes");
    for cn in [node, other, node] {
        let mut c = scenario.client(cn);
        scenario.now(perform(&mut c, &Op::Maintain)).expect("maintained");
    }
    let changed = open.map(effect).unwrap_or_default();
    let mut c = scenario.client(other);
    for (k, was) in &sure {
        let seen = scenario.now(get(&mut c, *k)).expect("reads");
        let new = changed.iter().find(|(n, _)| n == k).map(|(_, v)| v);
        let rewritten = was.as_ref() == Some(&value(k + 7));
        if seen != *was && (rewritten || new != Some(&seen)) {
            scenario.complain()(format!("in the end key {k} is {seen:?}, not {was:?}"));
        }
    }
    if let Err(e) = scenario.now(c.walk()) {
        scenario.complain()(e.to_string());
    }
    if let Some(what) = scenario.trouble() {
        panic!("{}, node {node}, dropped after {polls} polls: {what}", script.name);
    }
    ended
}

fn at_every_await(script: &Script, step: u64) {
    let mut dropped = 0;
    for node in [1, 0] {
        for polls in (1..).step_by(every(step) as usize) {
            if once(script, node, polls, polls.is_multiple_of(PLACES.len() as u64)) {
                break;
            }
            dropped += 1;
        }
    }
    assert!(at_least(dropped, 10), "{}: {dropped}", script.name);
}

#[test]
fn points_dropped() {
    let script = Script {
        ops: vec![
            Op::Insert(55, value(1)),
            Op::Update(50, value(2)),
            Op::Delete(70),
            Op::Set(80, value(80), Some(value(4))),
        ],
        ..one_leaf()
    };
    at_every_await(&script, 1);
    let load = ((0..96).map(|n| n * 10).collect(), 0.5);
    let ops = vec![Op::Many((0..8).map(|n| (n * 77, value(n))).collect())];
    at_every_await(&Script { name: "several at once", load, ops, ..one_leaf() }, 1);
    let options = script.options.changed(|mut o: dmtree_engine::Options| {
        o.techniques.round_trip_combining = false;
        o
    });
    at_every_await(&Script { name: "without combining", options, ..script }, 1);
}

#[test]
fn blocks_dropped() {
    at_every_await(&in_blocks(), 1);
}

#[test]
fn splits_dropped() {
    [5, 185, 999].into_iter().for_each(|new| at_every_await(&splitting(new), 1));
    let load = ((0..256).map(|n| n * 10).collect(), 1.0);
    let ops = vec![Op::Insert(5, value(1)), Op::Insert(6, value(2))];
    at_every_await(&Script { name: "inner split", load, ops, ..one_leaf() }, 1);
}

#[test]
fn moves_and_merges_dropped() {
    let ops = vec![Op::Insert(5, value(1)), Op::Insert(405, value(1)), Op::Maintain];
    at_every_await(&Script { ops, ..relocating(64) }, 1);
    at_every_await(&merging(), 1);
    at_every_await(&inner_merging(), 17);
}

#[test]
fn loads_dropped() {
    for (name, n, step) in [("load one leaf", 10, 1), ("load two levels", 400, 7)] {
        let ops = vec![Op::Load((0..n).map(|n| n * 10).collect())];
        at_every_await(&Script { name, load: (Vec::new(), 1.0), ops, ..one_leaf() }, step);
    }
}

/// Drops maintenance after this many polls, runs the garbage collection on another node, and
/// completes all recovery after that: a dropped operation's locked objects are not lost ones.
/// Returns the error, or whether maintenance had ended before.
fn counted(script: &Script, polls: u64) -> Result<bool, String> {
    let scenario = Scenario::new(script, false, polls);
    let (mut c, mut other) = (scenario.client(1), scenario.client(0));
    let mut pairs = script.load.0.iter().map(|k| (key(*k), value(*k)));
    scenario.now(c.load(&mut pairs, true, script.load.1.into())).expect("room");
    for op in &script.before {
        scenario.now(perform(&mut c, op)).expect("before");
    }
    let mut ended = false;
    scenario.run(&mut SeededRandom::new(polls), async {
        ended = dropped_after(polls, perform(&mut c, &Op::Maintain)).await.is_some();
        // Verbs in flight end.
        other.endpoint().sleep(1_000_000).await;
        other.endpoint().set_timeout(20_000_000);
        // The read may wait in vain for an image that no client finishes.
        let found = other.gc().await;
        if found.as_ref().is_ok_and(|found| found.doubly > 0) {
            scenario.complain()(format!("a garbage collection has found {found:?}"));
        }
    });
    for cn in [1, 0, 1] {
        let mut c = scenario.client(cn);
        scenario.now(perform(&mut c, &Op::Maintain)).map_err(|e| format!("maintenance: {e}"))?;
    }
    scenario.now(other.walk()).map_err(|e| format!("walk: {e}"))?;
    scenario.trouble().map_or(Ok(()), Err)?;
    one_holder(&scenario, &mut other)?;
    Ok(ended)
}

/// The first number of polls after which an error shows.
fn counted_at_every_await(script: &Script) -> (u64, Option<String>) {
    for polls in 1.. {
        match counted(script, polls) {
            Ok(false) => {}
            Ok(true) => return (polls, None),
            Err(what) => return (polls, Some(what)),
        }
    }
    unreachable!("maintenance ends")
}

/// A merge is dropped behind its commit, where only its lock still leads to the tombstone, and a
/// garbage collection runs. One that ignores locks takes the leaf, and so does the client that
/// finishes the merge.
#[test]
fn a_gc_leaves_what_a_living_node_has_locked() {
    let (runs, wrong) = counted_at_every_await(&merging());
    assert!(wrong.is_none() && runs > 10, "after {runs} polls: {wrong:?}");
    let blind = with_mutant(merging(), Mutant::GcNoLocks);
    let (runs, wrong) = counted_at_every_await(&blind);
    eprintln!("GcNoLocks: {runs} runs: {wrong:?}");
    assert!(wrong.is_some(), "not found");
}
