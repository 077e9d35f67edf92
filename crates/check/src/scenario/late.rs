//! One verb is late: every verb of somebody's operations in turn begins, half executes, or is heard of three milliseconds after it was
//! posted, and the others do meanwhile all that they have to do. Whoever awaits what he must await is slower for it, and nothing
//! else. In some plays somebody has died before, and the one who is late repairs what is left.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use dmtree_fabric::sim::{CrashPoint, How, Place};
use dmtree_fabric::{Error, ErrorKind, NodeId, SeededRandom};
use dmtree_parts::RangeIndex;
use dmtree_pool::PoolNode;

use super::sweeps::every;
use super::{
    Op, PAUSE_NS, PLACES, Scenario, Script, effect, get, key, one_holder, perform, scan, value,
};

/// How late a verb is, usually: longer than all that the others do takes, shorter than a lease, ns.
const LATE_NS: u64 = 3_000_000;
/// What nobody can hold any more is free after this time, ns; who is late holds on to what he may have seen.
const RECLAIM_NS: u64 = 1_000_000;
/// Everybody has ended after this time, ns.
const BOUND_NS: u64 = 400_000_000;
/// Whose verbs are late, who works beside him, and who reads.
const LATE: u16 = 1;
const OTHER: u16 = 0;
const READER: u16 = 2;
/// Who dies first, in some plays.
const VICTIM: u16 = 3;

/// What is done while a verb is late.
pub struct DelayScenario<I: RangeIndex> {
    /// What it begins with, and what the one does whose verbs are late.
    pub script: Script<I>,
    /// By the others, beside the operations of the play. No key is in both.
    pub others: Vec<Op>,
    /// The one whose verbs are late reads, once this is done, all the time.
    pub reads: bool,
    /// Every how many verbs are late, usually.
    pub step: u64,
    /// Somebody else does this first, and dies at some verb of it. Nobody else begins before that has been dealt with.
    pub dead: Vec<Op>,
    /// The others are another client of the same node.
    pub twin: bool,
    /// So many verbs behind the one that is late there is one that is twice as late; 0: there is none.
    pub again: u64,
    /// How late, ns.
    pub by_ns: u64,
}

impl<I: RangeIndex> DelayScenario<I> {
    /// Others work while one verb of the play is late; every verb is, in turn.
    pub fn new(script: Script<I>, others: Vec<Op>) -> Self {
        let (reads, twin, again) = (false, false, 0);
        Self { script, others, reads, step: 1, dead: Vec::new(), twin, again, by_ns: LATE_NS }
    }
}

impl<I: RangeIndex> Clone for DelayScenario<I> {
    fn clone(&self) -> Self {
        let Self { script, others, dead, .. } = self;
        Self { script: script.clone(), others: others.clone(), dead: dead.clone(), ..*self }
    }
}

impl<I: RangeIndex> std::fmt::Debug for DelayScenario<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Beside({:?}, {:?}, {:?})", self.script, self.others, self.dead)
    }
}

/// One value of a key: from when it may be seen, and from when nothing older may be.
struct Written {
    value: Option<Vec<u8>>,
    began: u64,
    ended: u64,
}

/// All that a key has been; whoever writes it is alone.
#[derive(Default)]
struct KeyHistory {
    keys: BTreeMap<u64, Vec<Written>>,
    /// The newest value that a finished read has seen, and when.
    seen: BTreeMap<u64, (usize, u64)>,
}

impl KeyHistory {
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
async fn look<I: RangeIndex>(
    c: &mut I,
    keys: &[u64],
    nth: usize,
    history: &RefCell<KeyHistory>,
) -> Result<(), String> {
    let ep = c.endpoint().clone();
    for k in keys.iter().skip(ep.now() as usize % nth).step_by(nth) {
        let from = ep.now();
        let found = get(c, *k).await.map_err(|e| format!("get of {k}: {e}"))?;
        history.borrow_mut().check(*k, found.as_deref(), from, ep.now())?;
    }
    let from = ep.now();
    let found = scan(c).await.map_err(|e| format!("scan: {e}"))?;
    let all: BTreeSet<u64> = keys.iter().chain(found.keys()).copied().collect();
    for k in all {
        let v = found.get(&k).map(Vec::as_slice);
        history.borrow_mut().check(k, v, from, ep.now()).map_err(|e| format!("scan: {e}"))?;
    }
    Ok(())
}

/// Does these, and writes down what may be seen.
async fn work<I: RangeIndex>(
    c: &mut I,
    pool: &PoolNode,
    ops: &[Op],
    history: &RefCell<KeyHistory>,
) -> Result<(), String> {
    let ep = c.endpoint().clone();
    for op in ops {
        let began = ep.now();
        while matches!(op, Op::Reclaim)
            && pool.reclaim(&ep).await.map_err(|e| format!("{op:?}: {e}"))?.waiting > 0
            && ep.now() < began + RECLAIM_NS
        {
            ep.sleep(PAUSE_NS / 8).await;
        }
        while matches!(op, Op::HandOver)
            && !later(pool.hand_over(&ep).await).map_err(|e| format!("{op:?}: {e}"))?
        {
            ep.sleep(PAUSE_NS).await;
            ep.renew_deadline();
        }
        history.borrow_mut().begin(op, ep.now());
        perform(c, op).await.map_err(|e| format!("{op:?}: {e}"))?;
        history.borrow_mut().end(op, ep.now());
    }
    Ok(())
}

/// What a run has shown: whether a verb was late, and whether somebody died.
#[derive(Clone, Copy, Debug)]
struct Ran {
    late: bool,
    died: bool,
}

/// Who has come how far.
#[derive(Debug, Default)]
struct Progress {
    /// The one who dies has died, or ended.
    begun: Cell<bool>,
    late_done: Cell<bool>,
    other_done: Cell<bool>,
    was_late: Cell<bool>,
    survived: Cell<bool>,
}

/// One run.
struct Run<'b, I: RangeIndex> {
    beside: &'b DelayScenario<I>,
    scenario: Scenario<I>,
    history: Rc<RefCell<KeyHistory>>,
    keys: Rc<Vec<u64>>,
    so_far: Rc<Progress>,
}

/// One run; `death` says where the one dies who does.
fn once<I: RangeIndex>(
    beside: &DelayScenario<I>,
    point: CrashPoint,
    death: Option<CrashPoint>,
    seed: u64,
) -> Result<Ran, String> {
    let run = Run::begin(beside, seed).map_err(|e| format!("before: {e}"))?;
    run.scenario.membership_agents();
    run.so_far.begun.set(death.is_none());
    if let Some(death) = death {
        run.victim(death);
    }
    run.late(point);
    run.other();
    run.reader(death.is_some());
    run.to_its_end(seed, death.is_some())?;
    run.judge()
}

impl<'b, I: RangeIndex> Run<'b, I> {
    /// Before time begins.
    fn begin(beside: &'b DelayScenario<I>, seed: u64) -> Result<Self, Error> {
        let script = &beside.script;
        let scenario = Scenario::new(script, false, seed);
        let mut history = KeyHistory::default();
        let mut first = scenario.client(LATE);
        if !script.load.0.is_empty() {
            let mut pairs = script.load.0.iter().map(|k| (key(*k), value(*k)));
            scenario.now(first.load(&mut pairs, true, script.load.1.into()))?;
            let load = Op::Load(script.load.0.clone());
            history.begin(&load, 0);
            history.end(&load, 0);
        }
        for op in &script.before {
            history.begin(op, 0);
            scenario.now(perform(&mut first, op))?;
            history.end(op, 0);
        }
        drop(first);
        let mut keys: BTreeSet<u64> = history.keys.keys().copied().collect();
        let ops = script.ops.iter().chain(&beside.others).chain(&beside.dead);
        keys.extend(ops.flat_map(|op| effect(op).into_iter().map(|(k, _)| k)));
        let keys = Rc::new(keys.into_iter().collect());
        let (history, so_far) = (Rc::new(RefCell::new(history)), Rc::default());
        Ok(Self { beside, scenario, history, keys, so_far })
    }

    /// Who dies first.
    fn victim(&self, death: CrashPoint) {
        let (history, so_far) = (self.history.clone(), self.so_far.clone());
        let (fabric, ops) = (self.scenario.fabric.clone(), self.beside.dead.clone());
        let (complain, pool) = (self.scenario.complain(), self.scenario.pool(VICTIM));
        self.scenario.worker(VICTIM, move |mut c| async move {
            c.endpoint().sleep(1_500_000).await;
            let me = NodeId::compute(VICTIM);
            fabric.crash_at(me, death, How::Machine).expect("known");
            let worked = work(&mut c, &pool, &ops, &history).await;
            worked.unwrap_or_else(|e| complain(format!("who is to die: {e}")));
            fabric.spare(me);
            so_far.survived.set(true);
        });
    }

    /// Whose verb is late.
    fn late(&self, point: CrashPoint) {
        let (history, keys, so_far) =
            (self.history.clone(), self.keys.clone(), self.so_far.clone());
        let (complain, fabric) = (self.scenario.complain(), self.scenario.fabric.clone());
        let (ops, pool) = (self.beside.script.ops.clone(), self.scenario.pool(LATE));
        let (reads, again, by_ns) = (self.beside.reads, self.beside.again, self.beside.by_ns);
        let me = NodeId::compute(LATE);
        self.scenario.worker(LATE, move |mut c| async move {
            // What it knows is of before.
            let warm = look(&mut c, &keys, 1, &history).await;
            warm.unwrap_or_else(|e| complain(format!("before: {e}")));
            while !so_far.begun.get() {
                c.endpoint().sleep(5_000).await;
            }
            fabric.delay_at(me, point, by_ns).expect("known");
            if again > 0 {
                let next = CrashPoint { verb: point.verb + again, place: Place::Before };
                fabric.delay_at(me, next, 2 * by_ns).expect("known");
            }
            let worked = work(&mut c, &pool, &ops, &history).await;
            worked.unwrap_or_else(|e| complain(format!("late: {e}")));
            while reads && !so_far.other_done.get() {
                if let Err(e) = look(&mut c, &keys, 13, &history).await {
                    complain(format!("late reader: {e}"));
                    break;
                }
            }
            so_far.was_late.set(fabric.late_until(me).is_some());
            so_far.late_done.set(true);
        });
    }

    /// Who works beside him.
    fn other(&self) {
        let (history, so_far) = (self.history.clone(), self.so_far.clone());
        let (complain, fabric) = (self.scenario.complain(), self.scenario.fabric.clone());
        let (ops, waits) = (self.beside.others.clone(), !self.beside.reads);
        let (node, late) = (if self.beside.twin { LATE } else { OTHER }, NodeId::compute(LATE));
        let pool = self.scenario.pool(node);
        self.scenario.worker(node, move |mut c| async move {
            let ep = c.endpoint().clone();
            let done = || so_far.late_done.get();
            while waits && fabric.late_until(late).is_none() && !done() && ep.now() < BOUND_NS {
                ep.sleep(5_000).await;
            }
            // (Who does not await the verb may have ended.)
            if !done() || fabric.late_until(late).is_some() {
                let worked = work(&mut c, &pool, &ops, &history).await;
                worked.unwrap_or_else(|e| complain(format!("beside: {e}")));
            }
            so_far.other_done.set(true);
        });
    }

    /// Who reads; behind a death only what is late is of interest.
    fn reader(&self, waits: bool) {
        let (history, keys, so_far) =
            (self.history.clone(), self.keys.clone(), self.so_far.clone());
        let (complain, fabric) = (self.scenario.complain(), self.scenario.fabric.clone());
        let late = NodeId::compute(LATE);
        self.scenario.worker(READER, move |mut c| async move {
            let ep = c.endpoint().clone();
            while waits && fabric.late_until(late).is_none() && !so_far.late_done.get() {
                ep.sleep(5_000).await;
            }
            while !(so_far.late_done.get() && so_far.other_done.get()) {
                if let Err(e) = look(&mut c, &keys, 5, &history).await {
                    complain(format!("reader: {e}"));
                    break;
                }
                ep.sleep(100_000).await;
            }
        });
    }

    fn has_died(&self) -> bool {
        self.scenario.fabric.is_down(NodeId::compute(VICTIM))
    }

    /// Runs all of them.
    fn to_its_end(&self, seed: u64, death: bool) -> Result<(), String> {
        let (scenario, so_far) = (&self.scenario, &self.so_far);
        let mut policy = SeededRandom::new(seed);
        scenario.run(&mut policy, async {
            let mut c = scenario.client(OTHER);
            let ep = c.endpoint().clone();
            if death {
                while !so_far.survived.get() && !self.has_died() {
                    ep.sleep(20_000).await;
                }
                // (What ends with an unlocking that is not awaited may die with it, and have ended.)
                if self.has_died() {
                    for cn in [OTHER, LATE, READER] {
                        scenario.settled(&ep, cn, &[VICTIM]).await;
                    }
                }
                so_far.begun.set(true);
            }
            while !(so_far.late_done.get() && so_far.other_done.get())
                && scenario.trouble().is_none()
            {
                ep.sleep(50_000).await;
                if ep.now() > BOUND_NS {
                    return scenario.complain()("they do not end".into());
                }
            }
            // What is detached has landed, and readers have ended.
            ep.sleep(self.beside.by_ns + 2_000_000).await;
            if scenario.trouble().is_none()
                && let Err(e) = look(&mut c, &self.keys, 1, &self.history).await
            {
                scenario.complain()(format!("in the end: {e}"));
            }
            if let Err(e) = ep.drain().await {
                scenario.complain()(format!("in the end: {e}"));
            }
        });
        scenario.trouble().map_or(Ok(()), Err)
    }

    /// The structure, and who holds what.
    fn judge(self) -> Result<Ran, String> {
        let (scenario, died) = (&self.scenario, self.has_died());
        for cn in (0..self.beside.script.compute_nodes).filter(|cn| !(died && *cn == VICTIM)) {
            let mut c = scenario.client(cn);
            scenario
                .now(perform(&mut c, &Op::Maintain))
                .map_err(|e| format!("maintenance: {e}"))?;
        }
        let mut c = scenario.client(OTHER);
        scenario.now(c.walk()).map_err(|e| format!("walk: {e}"))?;
        let found = scenario.now(c.gc()).map_err(|e| format!("a census: {e}"))?;
        if !died && !found.is_nothing() {
            return Err(format!("lost or doubly owned memory: {found:?}"));
        }
        one_holder(scenario, &mut c)?;
        Ok(Ran { late: self.so_far.was_late.get(), died })
    }
}

/// Nothing goes wrong, whichever verb is late ([`every`] so many are).
///
/// # Panics
/// When something does.
pub fn harmless<I: RangeIndex>(beside: &DelayScenario<I>) {
    let sparse = DelayScenario { step: every(beside.step), ..beside.clone() };
    if let (runs, Some(what)) = all_late(&sparse, 1) {
        panic!("{}, run {runs}: {what}", beside.script.name);
    }
}

/// Every verb in turn, in every way, `again` times each.
///
/// # Panics
/// When the operations never end.
pub fn all_late<I: RangeIndex>(beside: &DelayScenario<I>, again: u64) -> Tally {
    if beside.dead.is_empty() {
        return all_late_after(beside, None, again).0;
    }
    let mut runs = 0;
    for verb in (1..).step_by(beside.step as usize) {
        let place = PLACES[(verb / beside.step) as usize % 3];
        let ((n, wrong), died) = all_late_after(beside, Some(CrashPoint { verb, place }), again);
        runs += n;
        if wrong.is_some() || !died {
            return (runs, wrong.map(|w| format!("death at {verb} {place:?}, {w}")));
        }
    }
    unreachable!("operations end")
}

/// Runs, and the first that went wrong.
pub type Tally = (u64, Option<String>);

/// The same behind a death; and whether there was one.
///
/// # Panics
/// When the operations never end.
pub fn all_late_after<I: RangeIndex>(
    beside: &DelayScenario<I>,
    death: Option<CrashPoint>,
    again: u64,
) -> (Tally, bool) {
    let (mut runs, mut died) = (0, false);
    for verb in (1..).step_by(beside.step as usize) {
        let mut late = false;
        for (i, place) in PLACES.into_iter().enumerate() {
            for n in 0..again {
                runs += 1;
                let point = CrashPoint { verb, place };
                let seed = verb * 31 + i as u64 + n * 10_007;
                let ran = catch_unwind(AssertUnwindSafe(|| once(beside, point, death, seed)));
                let wrong = match ran {
                    Ok(Ok(ran)) => {
                        late |= ran.late;
                        died |= ran.died;
                        continue;
                    }
                    Ok(Err(what)) => what,
                    Err(_) => "a panic".to_owned(),
                };
                return ((runs, Some(format!("{point:?} {seed}: {wrong}"))), true);
            }
        }
        if !late {
            return ((runs, None), died);
        }
    }
    unreachable!("operations end")
}

/// A move is asked for again while another one, or a death, is under way.
///
/// # Errors
/// All others.
pub fn later(asked: Result<bool, Error>) -> Result<bool, Error> {
    match asked {
        Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::Unreachable) => Ok(false),
        asked => asked,
    }
}
