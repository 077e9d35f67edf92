//! A node crashes at a chosen verb, and a survivor perhaps at another one. No acknowledged write is
//! lost, reads and writes of the survivors stay within their bounds, and in the end the structure
//! is whole and every piece of memory has one holder.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use dmtree_fabric::sim::{CrashPoint, How, Place};
use dmtree_fabric::{Error, ErrorKind, NodeId, SeededRandom};
use dmtree_parts::{Fill, Outcome, RangeIndex, Write};

use super::{
    Op, READ_BOUND_NS, Scenario, Script, Values, WRITE_BOUND_NS, effect, get, key, one_holder,
    perform, scan, value,
};

/// The crash of a run.
#[derive(Clone, Copy, Debug)]
pub struct ScriptedCrash {
    /// This node,
    pub victim: u16,
    /// at this verb,
    pub verb: u64,
    /// before, in or after it,
    pub place: Place,
    /// like this.
    pub how: How,
    /// Whether a WRITE that is cut has landed whole or not at all.
    pub whole_write: bool,
    /// The seed of all random choices.
    pub seed: u64,
    /// A survivor crashes, too: at this verb after the first crash.
    pub second: Option<(u64, Place)>,
}

/// The expected keys: acknowledged writes, and possible effects of the operation in flight.
#[derive(Default)]
struct Model {
    sure: Values,
    /// Keys of the operation in flight, with their new values.
    open: BTreeMap<u64, Option<Vec<u8>>>,
    /// Its keys with a new value that a read has found.
    turned: BTreeMap<u64, bool>,
}

impl Model {
    fn begin(&mut self, op: &Op) {
        self.open.clear();
        self.turned.clear();
        self.open.extend(effect(op));
    }

    fn acknowledge(&mut self) {
        for (k, v) in std::mem::take(&mut self.open) {
            match v {
                Some(v) => _ = self.sure.insert(k, v),
                None => _ = self.sure.remove(&k),
            }
        }
    }

    /// Checks the result of a read that began in the state `was`.
    fn check(
        &mut self,
        k: u64,
        seen: Option<&[u8]>,
        was: (Option<Vec<u8>>, bool),
    ) -> Result<(), String> {
        let sure = self.sure.get(&k).map(Vec::as_slice);
        let open = self.open.get(&k);
        let (old, turned) = was;
        if let Some(new) = open
            && seen == new.as_deref()
            && seen != sure
        {
            self.turned.insert(k, true);
            return Ok(());
        }
        if turned && open.is_some() {
            return Err(format!("key {k} was new and is {seen:?} again"));
        }
        // Acknowledged during the read: both values are right.
        if seen == sure || seen == old.as_deref() {
            return Ok(());
        }
        Err(format!("key {k} is {seen:?}, not {sure:?} (or {open:?})"))
    }

    fn state_of(&self, k: u64) -> (Option<Vec<u8>>, bool) {
        (self.sure.get(&k).cloned(), self.turned.get(&k).copied().unwrap_or(false))
    }
}

/// Measurements of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrashRun {
    /// The victim crashed in its operations.
    pub died: bool,
    /// The second node crashed, too.
    pub second_died: bool,
    /// Longest read of the survivors, ns.
    pub longest_read_ns: u64,
    /// Longest write, ns.
    pub longest_write_ns: u64,
}

/// The state that the tasks of a run share.
#[derive(Clone)]
struct Observed {
    model: Rc<RefCell<Model>>,
    keys: Rc<Vec<u64>>,
    measured: Rc<RefCell<CrashRun>>,
    /// The victim has finished its operations.
    done: Rc<Cell<bool>>,
    /// The reader shall end, and has ended.
    stop: Rc<Cell<bool>>,
    stopped: Rc<Cell<bool>>,
}

/// Disarms a crash: no node reaches this verb.
const NEVER: CrashPoint = CrashPoint { verb: u64::MAX / 2, place: Place::Before };

/// One run of a scenario; the failure, if there is one.
///
/// # Errors
/// Its description.
pub fn run<I: RangeIndex>(script: &Script<I>, cut: ScriptedCrash) -> Result<CrashRun, String> {
    let scenario = Scenario::new(script, cut.whole_write, cut.seed);
    let others: Vec<u16> = (0..script.compute_nodes).filter(|n| *n != cut.victim).collect();
    let (survivor, last) = (others[0], *others.last().expect("three at least"));
    let model = prepare(&scenario, script, cut.victim)?;
    let keys = keys_of(script, &model);
    let watch = Observed {
        model: Rc::new(RefCell::new(model)),
        keys: Rc::new(keys),
        measured: Rc::default(),
        done: Rc::default(),
        stop: Rc::default(),
        stopped: Rc::default(),
    };
    scenario.membership_agents();
    spawn_victim(&scenario, script, cut, &watch);
    spawn_reader(&scenario, survivor, &watch);
    if cut.second.is_some() {
        second_survivor(&scenario, (cut.victim, last), &watch);
    }
    let mut policy = SeededRandom::new(cut.seed);
    scenario.run(&mut policy, async {
        if let Err(what) = survive(&scenario, script, cut, (survivor, last), &watch).await {
            scenario.complain()(what);
        }
    });
    if let Some(what) = scenario.trouble() {
        return Err(what);
    }
    let measured = *watch.measured.borrow();
    if measured.died {
        judge(&scenario, script, survivor)?;
    }
    Ok(measured)
}

/// Runs the operations before the scenario.
fn prepare<I: RangeIndex>(
    scenario: &Scenario<I>,
    script: &Script<I>,
    victim: u16,
) -> Result<Model, String> {
    let mut model = Model::default();
    let fail = |e: Error| format!("before: {e}");
    let mut first = scenario.client(victim);
    for op in [Op::Load(script.load.0.clone())].iter().chain(&script.before) {
        model.begin(op);
        match op {
            Op::Load(keys) if keys.is_empty() => {}
            Op::Load(keys) => {
                let mut pairs = keys.iter().map(|k| (key(*k), value(*k)));
                let load = first.load(&mut pairs, true, Fill::Even(script.load.1));
                scenario.now(load).map_err(fail)?;
            }
            op => scenario.now(perform(&mut first, op)).map_err(fail)?,
        }
        model.acknowledge();
    }
    Ok(model)
}

/// All keys that are present or may become present.
fn keys_of<I: RangeIndex>(script: &Script<I>, model: &Model) -> Vec<u64> {
    let new = script.ops.iter().flat_map(|op| effect(op).into_iter().map(|(k, _)| k));
    let mut keys: Vec<u64> = model.sure.keys().copied().chain(new).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn spawn_victim<I: RangeIndex>(
    scenario: &Scenario<I>,
    script: &Script<I>,
    cut: ScriptedCrash,
    watch: &Observed,
) {
    let (w, ops, fabric) = (watch.clone(), script.ops.clone(), scenario.fabric.clone());
    let (complain, me) = (scenario.complain(), NodeId::compute(cut.victim));
    scenario.worker(cut.victim, |mut c| async move {
        c.endpoint().sleep(1_500_000).await;
        let point = CrashPoint { verb: cut.verb, place: cut.place };
        fabric.crash_at(me, point, cut.how).expect("known");
        for op in &ops {
            w.model.borrow_mut().begin(op);
            if let Err(e) = perform(&mut c, op).await {
                complain(format!("the victim's {op:?}: {e}"));
                return;
            }
            w.model.borrow_mut().acknowledge();
        }
        fabric.crash_at(me, NEVER, cut.how).expect("known");
        w.done.set(true);
    });
}

/// A client that reads all the time.
fn spawn_reader<I: RangeIndex>(scenario: &Scenario<I>, cn: u16, watch: &Observed) {
    let (w, complain) = (watch.clone(), scenario.complain());
    scenario.worker(cn, |mut c| async move {
        for round in 0.. {
            if w.stop.get() {
                w.stopped.set(true);
                return;
            }
            if let Err(what) = read_round(&mut c, round, &w, &complain).await {
                complain(what);
                return;
            }
            c.endpoint().sleep(50_000).await;
        }
    });
}

async fn read_round<I: RangeIndex>(
    c: &mut I,
    round: usize,
    w: &Observed,
    complain: &impl Fn(String),
) -> Result<(), String> {
    let ep = c.endpoint().clone();
    let took = |began: u64, what: &str| {
        let took = ep.now() - began;
        let mut measured = w.measured.borrow_mut();
        measured.longest_read_ns = measured.longest_read_ns.max(took);
        if took > READ_BOUND_NS {
            complain(format!("a {what} took {} us", took / 1000));
        }
    };
    for (i, k) in w.keys.iter().enumerate() {
        if !(i + round).is_multiple_of(5) {
            continue;
        }
        let was = w.model.borrow().state_of(*k);
        let began = ep.now();
        match get(c, *k).await {
            Ok(v) => {
                let seen = w.model.borrow_mut().check(*k, v.as_deref(), was);
                seen.map_err(|e| format!("a reader meanwhile: {e}"))?;
            }
            Err(e) => complain(format!("get meanwhile: {e}")),
        }
        took(began, "get");
    }
    let began = ep.now();
    if let Err(e) = scan(c).await {
        complain(format!("scan meanwhile: {e}"));
    }
    took(began, "scan");
    Ok(())
}

/// A second survivor recovers every lock that it meets, and may crash in a recovery.
fn second_survivor<I: RangeIndex>(
    scenario: &Scenario<I>,
    (victim, cn): (u16, u16),
    watch: &Observed,
) {
    let (w, fabric) = (watch.clone(), scenario.fabric.clone());
    let complain = scenario.complain();
    scenario.worker(cn, |mut c| async move {
        let ep = c.endpoint().clone();
        while !fabric.is_down(NodeId::compute(victim)) {
            ep.sleep(10_000).await;
        }
        for k in w.keys.iter() {
            let again = async {
                let Some(v) = get(&mut c, *k).await? else { return Ok(()) };
                match c.write(&key(*k), Write::Update(&v)).await? {
                    Outcome::Done | Outcome::NotFound => Ok(()),
                    other => Err(Error::corrupt(format!("{other:?}"))),
                }
            };
            if let Err(e) = again.await {
                complain(format!("the second survivor at {k}: {e}"));
            }
        }
        if let Err(e) = c.sweep().await {
            complain(format!("the second survivor's sweep: {e}"));
        }
        fabric.crash_at(ep.node(), NEVER, How::Machine).expect("known");
    });
}

/// Waits for the crash, runs into all its traces, and lets the reader end.
async fn survive<I: RangeIndex>(
    scenario: &Scenario<I>,
    script: &Script<I>,
    cut: ScriptedCrash,
    (cn, last): (u16, u16),
    w: &Observed,
) -> Result<(), String> {
    let mut c = scenario.client(cn);
    let ep = c.endpoint().clone();
    let victim = NodeId::compute(cut.victim);
    while !w.done.get() && !scenario.fabric.is_down(victim) && scenario.trouble().is_none() {
        ep.sleep(20_000).await;
        if ep.now() > 5_000_000_000 {
            return Err("the victim neither ends nor crashes".into());
        }
    }
    if w.done.get() {
        return Ok(());
    }
    w.measured.borrow_mut().died = true;
    let mut dead = vec![cut.victim];
    if let Some((verb, place)) = cut.second {
        let second = NodeId::compute(last);
        scenario.fabric.crash_at(second, CrashPoint { verb, place }, How::Machine).expect("known");
        // It runs on its own task.
        for _ in 0..400 {
            if scenario.fabric.is_down(second) || last == cn {
                break;
            }
            ep.sleep(200_000).await;
        }
        if last != cn && scenario.fabric.is_down(second) {
            w.measured.borrow_mut().second_died = true;
            dead.push(last);
        }
    }
    meet_all(&mut c, w, &scenario.complain()).await?;
    scenario.settled(&ep, cn, &dead).await;
    for _ in 0..if script.swept { 3 } else { 0 } {
        c.sweep().await.map_err(|e| format!("sweep: {e}"))?;
        perform(&mut c, &Op::Maintain).await.map_err(|e| format!("maintenance: {e}"))?;
    }
    for k in w.keys.iter() {
        let was = w.model.borrow().state_of(*k);
        let seen = get(&mut c, *k).await.map_err(|e| format!("get of {k} in the end: {e}"))?;
        let seen = w.model.borrow_mut().check(*k, seen.as_deref(), was);
        seen.map_err(|e| format!("in the end: {e}"))?;
    }
    let n = w.keys.last().copied().unwrap_or(0);
    for k in [n + 1, n + 2] {
        let insert = Op::Insert(k, value(k));
        perform(&mut c, &insert).await.map_err(|e| format!("insert of {k} in the end: {e}"))?;
    }
    // The run stops no reader in the middle of a recovery.
    w.stop.set(true);
    while !w.stopped.get() && scenario.trouble().is_none() {
        ep.sleep(10_000).await;
    }
    if let Err(e) = ep.drain().await {
        // An unlock at an owner that crashed: moot.
        assert!(e.kind() == ErrorKind::Unreachable, "{e}");
    }
    ep.sleep(100_000).await;
    Ok(())
}

/// Reads and writes every key: the survivor waits, recovers, and continues.
async fn meet_all<I: RangeIndex>(
    c: &mut I,
    w: &Observed,
    complain: &impl Fn(String),
) -> Result<(), String> {
    let ep = c.endpoint().clone();
    for k in w.keys.iter() {
        let was = w.model.borrow().state_of(*k);
        let began = ep.now();
        let seen = get(c, *k).await.map_err(|e| format!("get of {k} after: {e}"))?;
        let right = w.model.borrow_mut().check(*k, seen.as_deref(), was);
        right.map_err(|e| format!("after: {e}"))?;
        // Writes each value again, so that every leaf is locked; the value stays.
        let Some(v) = seen else { continue };
        let op = Op::Update(*k, v);
        let middle = ep.now();
        if let Err(e) = perform(c, &op).await {
            // The key may be absent: the operation in flight was a delete that took effect
            // meanwhile.
            let gone = w.model.borrow().open.get(k) == Some(&None);
            if !(gone && e.to_string().contains("NotFound")) {
                return Err(format!("{op:?} after: {e}"));
            }
        }
        let mut measured = w.measured.borrow_mut();
        measured.longest_read_ns = measured.longest_read_ns.max(middle - began);
        measured.longest_write_ns = measured.longest_write_ns.max(ep.now() - middle);
        if ep.now() - middle > WRITE_BOUND_NS {
            complain(format!("a write took {} us", (ep.now() - middle) / 1000));
        }
    }
    Ok(())
}

/// Checks every invariant, and that no memory is lost.
fn judge<I: RangeIndex>(scenario: &Scenario<I>, script: &Script<I>, cn: u16) -> Result<(), String> {
    let mut c = scenario.client(cn);
    if script.swept {
        scenario.now(perform(&mut c, &Op::Maintain)).map_err(|e| format!("maintenance: {e}"))?;
    }
    let walked = scenario.now(c.walk());
    let excused = |e: &Error| script.unmet.is_some_and(|what| e.to_string().contains(what));
    if !script.swept && walked.as_ref().is_err_and(excused) {
        return Ok(());
    }
    let shape = walked.map_err(|e| format!("walk: {e}"))?;
    let found = scenario.now(scan(&mut c)).map_err(|e| format!("a last scan: {e}"))?;
    if found.len() as u64 != shape.keys {
        return Err(format!("{} keys in a scan, {} in the walk", found.len(), shape.keys));
    }
    one_holder(scenario, &mut c)
}
