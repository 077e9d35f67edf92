//! Nobody dies, and one verb is late: every verb of somebody's operations in turn begins, half executes, or is heard of two
//! milliseconds after it was posted, and the others do meanwhile all that they have to do. Whoever awaits what he must await is
//! slower for it, and nothing else.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use dmtree_engine::{Defect, DmTree, Options};
use dmtree_fabric::sim::CrashPoint;
use dmtree_fabric::{Error, NodeId, SeededRandom};
use dmtree_parts::RangeIndex;

use crate::drops::effect;
use crate::scene::{Op, Play, Scene, get, key, one_holder, perform, scan, value};
use crate::{PLACES, every, one_leaf, relocating};

/// How late a verb is: longer than all that the others do takes, shorter than a lease, ns.
const LATE_NS: u64 = 3_000_000;
/// Everybody has ended after this time, ns.
const BOUND_NS: u64 = 400_000_000;
/// Whose verbs are late, who works beside him, and who reads.
const LATE: u16 = 1;
const OTHER: u16 = 0;
const READER: u16 = 2;

/// What is done while a verb is late.
#[derive(Clone)]
struct Beside {
    play: Play,
    /// By the others, beside the operations of the play. No key is in both.
    others: Vec<Op>,
    /// The one whose verbs are late reads, once this is done, all the time.
    reads: bool,
    /// Every how many verbs are late, usually.
    step: u64,
}

/// One value of a key: from when it may be seen, and from when nothing older may be.
struct Written {
    value: Option<Vec<u8>>,
    began: u64,
    ended: u64,
}

/// All that a key has been; whoever writes it is alone.
#[derive(Default)]
struct Story {
    keys: BTreeMap<u64, Vec<Written>>,
    /// The newest value that a finished read has seen, and when.
    seen: BTreeMap<u64, (usize, u64)>,
}

impl Story {
    fn begin(&mut self, op: &Op, now: u64) {
        for (k, value) in effect(op) {
            let all = self.keys.entry(k).or_default();
            if all.is_empty() {
                all.push(Written { value: None, began: 0, ended: 0 });
            }
            all.push(Written { value, began: now, ended: u64::MAX });
        }
    }

    fn end(&mut self, op: &Op, now: u64) {
        for (k, _) in effect(op) {
            if let Some(w) = self.keys.get_mut(&k).and_then(|all| all.last_mut()) {
                w.ended = now;
            }
        }
    }

    /// A read from `from` to `to` has found this.
    fn check(&mut self, k: u64, found: Option<&[u8]>, from: u64, to: u64) -> Result<(), String> {
        let Some(all) = self.keys.get(&k) else {
            return if found.is_none() { Ok(()) } else { Err(format!("key {k} is {found:?}")) };
        };
        let least = match self.seen.get(&k) {
            Some((i, at)) if *at < from => *i,
            _ => 0,
        };
        let may = |i: &usize| {
            let over = all.get(i + 1).is_some_and(|next| next.ended < from);
            all[*i].began <= to && !over && all[*i].value.as_deref() == found
        };
        // The oldest that it can be: later reads are judged by it.
        match (least..all.len()).find(may) {
            Some(i) => {
                self.seen.insert(k, (i, to));
                Ok(())
            }
            None => {
                let values: Vec<_> =
                    all.iter().map(|w| (w.began, w.ended, w.value.as_deref().map(show))).collect();
                let found = found.map(show);
                Err(format!("key {k} is {found:?} from {from} to {to}, of {values:?}"))
            }
        }
    }
}

fn show(v: &[u8]) -> String {
    format!("{}({})", String::from_utf8_lossy(&v[..v.len().min(8)]), v.len())
}

/// Every so-many-th key by itself, then all by a scan.
async fn look(
    c: &mut DmTree,
    keys: &[u64],
    nth: usize,
    story: &RefCell<Story>,
) -> Result<(), String> {
    let ep = c.endpoint().clone();
    for k in keys.iter().skip(ep.now() as usize % nth).step_by(nth) {
        let from = ep.now();
        let found = get(c, *k).await.map_err(|e| format!("get of {k}: {e}"))?;
        story.borrow_mut().check(*k, found.as_deref(), from, ep.now())?;
    }
    let from = ep.now();
    let found = scan(c).await.map_err(|e| format!("scan: {e}"))?;
    let all: BTreeSet<u64> = keys.iter().chain(found.keys()).copied().collect();
    for k in all {
        let v = found.get(&k).map(Vec::as_slice);
        story.borrow_mut().check(k, v, from, ep.now()).map_err(|e| format!("scan: {e}"))?;
    }
    Ok(())
}

/// Does these, and writes down what may be seen.
async fn work(c: &mut DmTree, ops: &[Op], story: &RefCell<Story>) -> Result<(), String> {
    let ep = c.endpoint().clone();
    for op in ops {
        story.borrow_mut().begin(op, ep.now());
        perform(c, op).await.map_err(|e| format!("{op:?}: {e}"))?;
        story.borrow_mut().end(op, ep.now());
    }
    Ok(())
}

/// One run: false when there are not so many verbs.
fn once(beside: &Beside, point: CrashPoint, seed: u64) -> Result<bool, String> {
    let play = &beside.play;
    let scene = Scene::new(play, false, seed);
    let story = Rc::new(RefCell::new(Story::default()));
    let fail = |e: Error| format!("before: {e}");
    let mut first = scene.client(LATE);
    if !play.load.0.is_empty() {
        let mut pairs = play.load.0.iter().map(|k| (key(*k), value(*k)));
        scene.now(first.load(&mut pairs, true, play.load.1.into())).map_err(fail)?;
        let load = Op::Load(play.load.0.clone());
        story.borrow_mut().begin(&load, 0);
        story.borrow_mut().end(&load, 0);
    }
    for op in &play.before {
        story.borrow_mut().begin(op, 0);
        scene.now(perform(&mut first, op)).map_err(fail)?;
        story.borrow_mut().end(op, 0);
    }
    drop(first);
    let mut keys: BTreeSet<u64> = story.borrow().keys.keys().copied().collect();
    let ops = play.ops.iter().chain(&beside.others);
    keys.extend(ops.flat_map(|op| effect(op).into_iter().map(|(k, _)| k)));
    let keys: Rc<Vec<u64>> = Rc::new(keys.into_iter().collect());
    scene.keepers();
    let (late_done, other_done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let late = NodeId::compute(LATE);
    let was_late = Rc::new(Cell::new(false));
    // Whose verb is late.
    {
        let (story, keys, complain) = (story.clone(), keys.clone(), scene.complain());
        let (done, other, was) = (late_done.clone(), other_done.clone(), was_late.clone());
        let (ops, reads, fabric) = (play.ops.clone(), beside.reads, scene.fabric.clone());
        scene.worker(LATE, move |mut c| async move {
            // What it knows is of before.
            let warm = look(&mut c, &keys, 1, &story).await;
            warm.unwrap_or_else(|e| complain(format!("before: {e}")));
            fabric.delay_at(late, point, LATE_NS).expect("known");
            work(&mut c, &ops, &story).await.unwrap_or_else(|e| complain(format!("late: {e}")));
            while reads && !other.get() {
                if let Err(e) = look(&mut c, &keys, 13, &story).await {
                    complain(format!("late reader: {e}"));
                    break;
                }
            }
            was.set(fabric.late_until(late).is_some());
            done.set(true);
        });
    }
    {
        let (story, complain, fabric) = (story.clone(), scene.complain(), scene.fabric.clone());
        let (done, other, ops) = (late_done.clone(), other_done.clone(), beside.others.clone());
        let waits = !beside.reads;
        scene.worker(OTHER, move |mut c| async move {
            let ep = c.endpoint().clone();
            while waits && fabric.late_until(late).is_none() && !done.get() && ep.now() < BOUND_NS {
                ep.sleep(5_000).await;
            }
            if !done.get() {
                let worked = work(&mut c, &ops, &story).await;
                worked.unwrap_or_else(|e| complain(format!("beside: {e}")));
            }
            other.set(true);
        });
    }
    {
        let (story, keys, complain) = (story.clone(), keys.clone(), scene.complain());
        let (done, other) = (late_done.clone(), other_done.clone());
        scene.worker(READER, move |mut c| async move {
            let ep = c.endpoint().clone();
            while !(done.get() && other.get()) {
                if let Err(e) = look(&mut c, &keys, 5, &story).await {
                    complain(format!("reader: {e}"));
                    break;
                }
                ep.sleep(100_000).await;
            }
        });
    }
    let mut policy = SeededRandom::new(seed);
    scene.run(&mut policy, async {
        let mut c = scene.client(OTHER);
        let ep = c.endpoint().clone();
        while !(late_done.get() && other_done.get()) && scene.trouble().is_none() {
            ep.sleep(50_000).await;
            if ep.now() > BOUND_NS {
                return scene.complain()("they do not end".into());
            }
        }
        // What is detached has landed, and readers have ended.
        ep.sleep(LATE_NS + 2_000_000).await;
        if scene.trouble().is_none()
            && let Err(e) = look(&mut c, &keys, 1, &story).await
        {
            scene.complain()(format!("in the end: {e}"));
        }
        if let Err(e) = ep.drain().await {
            scene.complain()(format!("in the end: {e}"));
        }
    });
    if let Some(what) = scene.trouble() {
        return Err(what);
    }
    for cn in 0..play.compute_nodes {
        let mut c = scene.client(cn);
        scene.now(perform(&mut c, &Op::Maintain)).map_err(|e| format!("maintenance: {e}"))?;
    }
    let mut c = scene.client(OTHER);
    scene.now(c.walk()).map_err(|e| format!("walk: {e}"))?;
    let found = scene.now(c.census()).map_err(|e| format!("a census: {e}"))?;
    if !found.is_nothing() {
        return Err(format!("lost or doubly owned memory: {found:?}"));
    }
    one_holder(&scene, &mut c)?;
    Ok(was_late.get())
}

/// Every verb in turn, in every way, `again` times each; runs, and the first that went wrong.
fn all_late(beside: &Beside, again: u64) -> (u64, Option<String>) {
    let mut runs = 0;
    for verb in (1..).step_by(every(beside.step) as usize) {
        let mut late = false;
        for (i, place) in PLACES.into_iter().enumerate() {
            for n in 0..again {
                runs += 1;
                let point = CrashPoint { verb, place };
                let seed = verb * 31 + i as u64 + n * 10_007;
                let ran = std::panic::catch_unwind(|| once(beside, point, seed));
                match ran {
                    Ok(Ok(was)) => late |= was,
                    Ok(Err(what)) => return (runs, Some(format!("{point:?} {seed}: {what}"))),
                    Err(_) => return (runs, Some(format!("{point:?} {seed}: a panic"))),
                }
            }
        }
        if !late {
            return (runs, None);
        }
    }
    unreachable!("operations end")
}

fn harmless(beside: &Beside) {
    let (runs, wrong) = all_late(beside, 1);
    eprintln!("{}: {runs} runs", beside.play.name);
    if let Some(what) = wrong {
        panic!("{}: {what}", beside.play.name);
    }
}

fn load(n: u64, fill: f64) -> (Vec<u64>, f64) {
    ((0..n).map(|n| n * 10).collect(), fill)
}

/// Inserts of keys that end in `digit`, so that nobody else has them.
fn inserts(keys: impl IntoIterator<Item = u64>, digit: u64) -> Vec<Op> {
    keys.into_iter().map(|n| Op::Insert(n * 10 + digit, value(n + 1))).collect()
}

fn updates(keys: impl IntoIterator<Item = u64>) -> Vec<Op> {
    keys.into_iter().map(|n| Op::Update(n * 10, value(n + 5_000))).collect()
}

fn deletes(keys: impl IntoIterator<Item = u64>) -> Vec<Op> {
    keys.into_iter().map(|n| Op::Delete(n * 10)).collect()
}

fn concat(parts: &[Vec<Op>]) -> Vec<Op> {
    parts.concat()
}

fn writing() -> Beside {
    let ops = vec![
        Op::Update(50, value(1)),
        Op::Insert(51, value(2)),
        Op::Delete(60),
        Op::Set(70, value(70), Some(value(3))),
    ];
    let others = concat(&[inserts(0..6, 3), updates(8..12), deletes(12..14), inserts(6..14, 4)]);
    Beside { play: Play { name: "writing", ops, ..one_leaf() }, others, reads: false, step: 1 }
}

fn splitting() -> Beside {
    let play = Play { name: "splitting", load: load(64, 1.0), ops: inserts([5], 1), ..one_leaf() };
    let others = concat(&[updates(0..4), inserts([40], 3), vec![Op::Sweep], inserts(10..14, 3)]);
    Beside { play, others, reads: false, step: 1 }
}

/// The new leaf is merged away before the one who made it has added its record.
fn split_and_merged() -> Beside {
    let play =
        Play { name: "split and merged", load: load(64, 1.0), ops: inserts([5], 1), ..one_leaf() };
    let gone = (0..32).filter(|n| *n != 5);
    let others = concat(&[
        vec![Op::Sweep],
        deletes(gone),
        vec![Op::Maintain],
        inserts([40], 3),
        inserts(41..50, 3),
        vec![Op::Maintain],
    ]);
    Beside { play, others, reads: false, step: 1 }
}

fn growing() -> Beside {
    let play = Play { name: "growing", load: load(256, 1.0), ops: inserts([5], 1), ..one_leaf() };
    let more = concat(&[inserts(240..256, 3), inserts(240..256, 4)]);
    let others = concat(&[inserts((1..8).map(|leaf| leaf * 32 + 5), 3), more]);
    Beside { play, others, reads: false, step: 1 }
}

fn merging() -> Beside {
    let before = deletes((0..64).filter(|n| n % 8 != 0));
    let ops = vec![Op::Maintain];
    let play = Play { name: "merging", load: load(64, 1.0), before, ops, ..one_leaf() };
    let others = concat(&[inserts(0..4, 3), updates([32, 40]), inserts(30..36, 3)]);
    Beside { play, others, reads: false, step: 1 }
}

fn merging_inner() -> Beside {
    let before = deletes((0..400).filter(|n| n % 50 != 0));
    let ops = vec![Op::Maintain];
    let play =
        Play { name: "merging inner nodes", load: load(400, 0.5), before, ops, ..one_leaf() };
    let others = concat(&[inserts([0, 100, 200, 300], 3), vec![Op::Maintain]]);
    Beside { play, others, reads: false, step: 5 }
}

fn moving() -> Beside {
    let ops = vec![Op::Insert(5, value(1)), Op::Maintain];
    let play = Play { name: "moving", ops, ..relocating(64) };
    let others = concat(&[
        updates(2..6),
        inserts([40], 3),
        inserts(0..8, 4),
        vec![Op::Maintain],
        inserts(10..18, 4),
    ]);
    Beside { play, others, reads: false, step: 1 }
}

fn loading() -> Beside {
    let ops = vec![Op::Load((0..40).map(|n| n * 10).collect())];
    let play = Play { name: "loading", load: (Vec::new(), 1.0), ops, ..one_leaf() };
    Beside { play, others: vec![Op::Sweep], reads: false, step: 1 }
}

/// The one who is late reads while leaves split, merge, and lie where others lay.
fn reading() -> Beside {
    let options = Options { value_inline_bytes: 64, ..one_leaf().options };
    let play = Play { name: "reading", options, load: load(64, 1.0), ..one_leaf() };
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
    Beside { play, others, reads: true, step: 11 }
}

fn reading_moved() -> Beside {
    let play = Play { name: "reading what moves", ..relocating(64) };
    let others = concat(&[
        inserts([5, 40], 3),
        vec![Op::Maintain],
        inserts(0..60, 4),
        vec![Op::Maintain],
        deletes(0..60),
        vec![Op::Maintain],
    ]);
    Beside { play, others, reads: true, step: 11 }
}

#[test]
fn a_late_write() {
    harmless(&writing());
}

#[test]
fn a_late_split() {
    harmless(&splitting());
    harmless(&split_and_merged());
    harmless(&growing());
}

#[test]
fn a_late_merge() {
    harmless(&merging());
    harmless(&merging_inner());
}

#[test]
fn a_late_move() {
    harmless(&moving());
    harmless(&loading());
}

#[test]
fn a_late_reader() {
    harmless(&reading());
    harmless(&reading_moved());
}

/// Teeth: for each defect the plays that may show it.
#[test]
fn late_verbs_find_defects() {
    let plays: [fn() -> Beside; 10] = [
        writing,
        splitting,
        split_and_merged,
        growing,
        merging,
        moving,
        loading,
        merging_inner,
        reading,
        reading_moved,
    ];
    let asked = std::env::var("DMTREE_TEETH").ok();
    let Some(asked) = asked else { return };
    for d in Defect::ALL.iter().filter(|d| asked.split(',').any(|n| n == d.name())) {
        for play in plays {
            let mut beside = play();
            beside.play.defect = Some(*d);
            let (runs, wrong) = all_late(&beside, 2);
            eprintln!("{d:?} in {}: {runs} runs: {wrong:?}", beside.play.name);
        }
    }
}
