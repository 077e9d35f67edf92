//! Delay injection: in turn, every verb of one client begins, half executes, or reports its
//! completion three milliseconds late, and the other clients run their operations meanwhile. A
//! protocol that awaits every edge is slower, and its results stay the same. In some scenarios a
//! node has crashed before, and the delayed client recovers.

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

/// The usual delay: longer than all operations of the others, shorter than a lease, ns.
const DELAY_NS: u64 = 3_000_000;
/// Memory that no node can reach is free after this time, ns; the delayed client keeps all that it
/// may have seen.
const RECLAIM_NS: u64 = 1_000_000;
/// All clients have ended after this time, ns.
const BOUND_NS: u64 = 400_000_000;
/// The delayed client's node, its concurrent writer's, and the reader's.
const DELAYED: u16 = 1;
const OTHER: u16 = 0;
const READER: u16 = 2;
/// The node that crashes first, in some scenarios.
const VICTIM: u16 = 3;

/// A scenario with a delayed verb.
pub struct DelayScenario<I: RangeIndex> {
    /// The initial state, and the operations of the delayed client.
    pub script: Script<I>,
    /// Operations of the other client, concurrent with the script. No key is in both.
    pub others: Vec<Op>,
    /// The delayed client reads in a loop after its operations.
    pub reads: bool,
    /// Distance of the delayed verbs, usually.
    pub step: u64,
    /// Another client runs these first, and its node crashes at some verb of them. The others begin
    /// after its recovery.
    pub dead: Vec<Op>,
    /// The other client is on the same node.
    pub twin: bool,
    /// A verb so many verbs behind the delayed one has twice its delay; 0: none.
    pub again: u64,
    /// The delay, ns.
    pub by_ns: u64,
}

impl<I: RangeIndex> DelayScenario<I> {
    /// Others work while one verb of the script is delayed; every verb is, in turn.
    pub fn new(script: Script<I>, others: Vec<Op>) -> Self {
        let (reads, twin, again) = (false, false, 0);
        Self { script, others, reads, step: 1, dead: Vec::new(), twin, again, by_ns: DELAY_NS }
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
        write!(f, "DelayScenario({:?}, {:?}, {:?})", self.script, self.others, self.dead)
    }
}

/// One value of a key: from `began` a read may find it, and from `ended` no read may find an older
/// one.
struct Written {
    value: Option<Vec<u8>>,
    began: u64,
    ended: u64,
}

/// The values of each key; a key has one writer.
#[derive(Default)]
struct KeyHistory {
    keys: BTreeMap<u64, Vec<Written>>,
    /// The newest value that a finished read has found, and its end.
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

    /// Checks the result of a read from `from` to `to`.
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
        // Takes the oldest possible value: later reads are judged by it.
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

/// Reads every `nth` key by itself, then all by a scan.
async fn read_all<I: RangeIndex>(
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

/// Runs these operations, and records the values that reads may find.
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
            && !was_accepted(pool.hand_over(&ep).await).map_err(|e| format!("{op:?}: {e}"))?
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

/// The result of a run: whether a verb was delayed, and whether the victim crashed.
#[derive(Clone, Copy, Debug)]
struct Ran {
    delayed: bool,
    crashed: bool,
}

/// The progress of the clients.
#[derive(Debug, Default)]
struct Progress {
    /// The victim has crashed, or ended.
    begun: Cell<bool>,
    delayed_done: Cell<bool>,
    other_done: Cell<bool>,
    was_delayed: Cell<bool>,
    survived: Cell<bool>,
}

/// One run.
struct Run<'b, I: RangeIndex> {
    plan: &'b DelayScenario<I>,
    scenario: Scenario<I>,
    history: Rc<RefCell<KeyHistory>>,
    keys: Rc<Vec<u64>>,
    progress: Rc<Progress>,
}

/// One run; `crash`: the crash point of the victim.
fn once<I: RangeIndex>(
    plan: &DelayScenario<I>,
    point: CrashPoint,
    crash: Option<CrashPoint>,
    seed: u64,
) -> Result<Ran, String> {
    let run = Run::begin(plan, seed).map_err(|e| format!("before: {e}"))?;
    run.scenario.membership_agents();
    run.progress.begun.set(crash.is_none());
    if let Some(crash) = crash {
        run.victim(crash);
    }
    run.delayed(point);
    run.other();
    run.reader(crash.is_some());
    run.run_to_end(seed, crash.is_some())?;
    run.judge()
}

impl<'b, I: RangeIndex> Run<'b, I> {
    /// Prepares the index before time begins.
    fn begin(plan: &'b DelayScenario<I>, seed: u64) -> Result<Self, Error> {
        let script = &plan.script;
        let scenario = Scenario::new(script, false, seed);
        let mut history = KeyHistory::default();
        let mut first = scenario.client(DELAYED);
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
        let ops = script.ops.iter().chain(&plan.others).chain(&plan.dead);
        keys.extend(ops.flat_map(|op| effect(op).into_iter().map(|(k, _)| k)));
        let keys = Rc::new(keys.into_iter().collect());
        let (history, progress) = (Rc::new(RefCell::new(history)), Rc::default());
        Ok(Self { plan, scenario, history, keys, progress })
    }

    /// The client on the node that crashes first.
    fn victim(&self, crash: CrashPoint) {
        let (history, progress) = (self.history.clone(), self.progress.clone());
        let (fabric, ops) = (self.scenario.fabric.clone(), self.plan.dead.clone());
        let (complain, pool) = (self.scenario.complain(), self.scenario.pool(VICTIM));
        self.scenario.worker(VICTIM, move |mut c| async move {
            c.endpoint().sleep(1_500_000).await;
            let me = NodeId::compute(VICTIM);
            fabric.crash_at(me, crash, How::Machine).expect("known");
            let worked = work(&mut c, &pool, &ops, &history).await;
            worked.unwrap_or_else(|e| complain(format!("victim: {e}")));
            fabric.spare(me);
            progress.survived.set(true);
        });
    }

    /// The client with the delayed verb.
    fn delayed(&self, point: CrashPoint) {
        let (history, keys, progress) =
            (self.history.clone(), self.keys.clone(), self.progress.clone());
        let (complain, fabric) = (self.scenario.complain(), self.scenario.fabric.clone());
        let (ops, pool) = (self.plan.script.ops.clone(), self.scenario.pool(DELAYED));
        let (reads, again, by_ns) = (self.plan.reads, self.plan.again, self.plan.by_ns);
        let me = NodeId::compute(DELAYED);
        self.scenario.worker(DELAYED, move |mut c| async move {
            // Warms its cache with the initial state.
            let warm = read_all(&mut c, &keys, 1, &history).await;
            warm.unwrap_or_else(|e| complain(format!("before: {e}")));
            while !progress.begun.get() {
                c.endpoint().sleep(5_000).await;
            }
            fabric.delay_at(me, point, by_ns).expect("known");
            if again > 0 {
                let next = CrashPoint { verb: point.verb + again, place: Place::Before };
                fabric.delay_at(me, next, 2 * by_ns).expect("known");
            }
            let worked = work(&mut c, &pool, &ops, &history).await;
            worked.unwrap_or_else(|e| complain(format!("delayed: {e}")));
            while reads && !progress.other_done.get() {
                if let Err(e) = read_all(&mut c, &keys, 13, &history).await {
                    complain(format!("delayed reader: {e}"));
                    break;
                }
            }
            progress.was_delayed.set(fabric.late_until(me).is_some());
            progress.delayed_done.set(true);
        });
    }

    /// The concurrent writer.
    fn other(&self) {
        let (history, progress) = (self.history.clone(), self.progress.clone());
        let (complain, fabric) = (self.scenario.complain(), self.scenario.fabric.clone());
        let (ops, waits) = (self.plan.others.clone(), !self.plan.reads);
        let (node, late) = (if self.plan.twin { DELAYED } else { OTHER }, NodeId::compute(DELAYED));
        let pool = self.scenario.pool(node);
        self.scenario.worker(node, move |mut c| async move {
            let ep = c.endpoint().clone();
            let done = || progress.delayed_done.get();
            while waits && fabric.late_until(late).is_none() && !done() && ep.now() < BOUND_NS {
                ep.sleep(5_000).await;
            }
            // (A client that does not await the verb may have ended.)
            if !done() || fabric.late_until(late).is_some() {
                let worked = work(&mut c, &pool, &ops, &history).await;
                worked.unwrap_or_else(|e| complain(format!("concurrent: {e}")));
            }
            progress.other_done.set(true);
        });
    }

    /// The reader; behind a crash it begins with the delayed verb.
    fn reader(&self, waits: bool) {
        let (history, keys, progress) =
            (self.history.clone(), self.keys.clone(), self.progress.clone());
        let (complain, fabric) = (self.scenario.complain(), self.scenario.fabric.clone());
        let late = NodeId::compute(DELAYED);
        self.scenario.worker(READER, move |mut c| async move {
            let ep = c.endpoint().clone();
            while waits && fabric.late_until(late).is_none() && !progress.delayed_done.get() {
                ep.sleep(5_000).await;
            }
            while !(progress.delayed_done.get() && progress.other_done.get()) {
                if let Err(e) = read_all(&mut c, &keys, 5, &history).await {
                    complain(format!("reader: {e}"));
                    break;
                }
                ep.sleep(100_000).await;
            }
        });
    }

    fn has_crashed(&self) -> bool {
        self.scenario.fabric.is_down(NodeId::compute(VICTIM))
    }

    /// Runs all clients.
    fn run_to_end(&self, seed: u64, crashes: bool) -> Result<(), String> {
        let (scenario, progress) = (&self.scenario, &self.progress);
        let mut policy = SeededRandom::new(seed);
        scenario.run(&mut policy, async {
            let mut c = scenario.client(OTHER);
            let ep = c.endpoint().clone();
            if crashes {
                while !progress.survived.get() && !self.has_crashed() {
                    ep.sleep(20_000).await;
                }
                // (A script that ends with a detached unlock may have ended before its node
                // crashed.)
                if self.has_crashed() {
                    for cn in [OTHER, DELAYED, READER] {
                        scenario.settled(&ep, cn, &[VICTIM]).await;
                    }
                }
                progress.begun.set(true);
            }
            while !(progress.delayed_done.get() && progress.other_done.get())
                && scenario.trouble().is_none()
            {
                ep.sleep(50_000).await;
                if ep.now() > BOUND_NS {
                    return scenario.complain()("the clients do not end".into());
                }
            }
            // Detached verbs have landed, and readers have ended.
            ep.sleep(self.plan.by_ns + 2_000_000).await;
            if scenario.trouble().is_none()
                && let Err(e) = read_all(&mut c, &self.keys, 1, &self.history).await
            {
                scenario.complain()(format!("in the end: {e}"));
            }
            if let Err(e) = ep.drain().await {
                scenario.complain()(format!("in the end: {e}"));
            }
        });
        scenario.trouble().map_or(Ok(()), Err)
    }

    /// Checks the structure, and the holders of memory.
    fn judge(self) -> Result<Ran, String> {
        let (scenario, crashed) = (&self.scenario, self.has_crashed());
        for cn in (0..self.plan.script.compute_nodes).filter(|cn| !(crashed && *cn == VICTIM)) {
            let mut c = scenario.client(cn);
            scenario
                .now(perform(&mut c, &Op::Maintain))
                .map_err(|e| format!("maintenance: {e}"))?;
        }
        let mut c = scenario.client(OTHER);
        scenario.now(c.walk()).map_err(|e| format!("walk: {e}"))?;
        let found = scenario.now(c.gc()).map_err(|e| format!("a gc: {e}"))?;
        if !crashed && !found.is_nothing() {
            return Err(format!("lost or doubly owned memory: {found:?}"));
        }
        one_holder(scenario, &mut c)?;
        Ok(Ran { delayed: self.progress.was_delayed.get(), crashed })
    }
}

/// Checks that no delay does harm, for every [`every`]-th verb.
///
/// # Panics
/// When a run fails.
pub fn harmless<I: RangeIndex>(plan: &DelayScenario<I>) {
    let sparse = DelayScenario { step: every(plan.step), ..plan.clone() };
    if let (runs, Some(what)) = delay_every_verb(&sparse, 1) {
        panic!("{}, run {runs}: {what}", plan.script.name);
    }
}

/// Delays every verb in turn, at every place, `again` times each.
///
/// # Panics
/// When the operations never end.
pub fn delay_every_verb<I: RangeIndex>(plan: &DelayScenario<I>, again: u64) -> Tally {
    if plan.dead.is_empty() {
        return delay_every_verb_after(plan, None, again).0;
    }
    let mut runs = 0;
    for verb in (1..).step_by(plan.step as usize) {
        let place = PLACES[(verb / plan.step) as usize % 3];
        let ((n, wrong), crashed) =
            delay_every_verb_after(plan, Some(CrashPoint { verb, place }), again);
        runs += n;
        if wrong.is_some() || !crashed {
            return (runs, wrong.map(|w| format!("crash at {verb} {place:?}, {w}")));
        }
    }
    unreachable!("operations end")
}

/// Number of runs, and the first failure.
pub type Tally = (u64, Option<String>);

/// The same after a crash; and whether there was one.
///
/// # Panics
/// When the operations never end.
pub fn delay_every_verb_after<I: RangeIndex>(
    plan: &DelayScenario<I>,
    crash: Option<CrashPoint>,
    again: u64,
) -> (Tally, bool) {
    let (mut runs, mut crashed) = (0, false);
    for verb in (1..).step_by(plan.step as usize) {
        let mut delayed = false;
        for (i, place) in PLACES.into_iter().enumerate() {
            for n in 0..again {
                runs += 1;
                let point = CrashPoint { verb, place };
                let seed = verb * 31 + i as u64 + n * 10_007;
                let ran = catch_unwind(AssertUnwindSafe(|| once(plan, point, crash, seed)));
                let wrong = match ran {
                    Ok(Ok(ran)) => {
                        delayed |= ran.delayed;
                        crashed |= ran.crashed;
                        continue;
                    }
                    Ok(Err(what)) => what,
                    Err(_) => "a panic".to_owned(),
                };
                return ((runs, Some(format!("{point:?} {seed}: {wrong}"))), true);
            }
        }
        if !delayed {
            return ((runs, None), crashed);
        }
    }
    unreachable!("operations end")
}

/// The caller asks again for a move while another one, or a recovery, is under way.
///
/// # Errors
/// All others.
pub fn was_accepted(asked: Result<bool, Error>) -> Result<bool, Error> {
    match asked {
        Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::Unreachable) => Ok(false),
        asked => asked,
    }
}
