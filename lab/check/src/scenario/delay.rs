//! Delay injection: in turn, every verb of one client begins, half executes, or reports its
//! completion three milliseconds late, and the other clients run their operations meanwhile. A
//! protocol that awaits every edge is slower, and its results stay the same. In some scenarios a
//! node has crashed before, and the delayed client recovers.

use std::cell::Cell;
use std::rc::Rc;

use dmtree_fabric::sim::{CrashPoint, How, Place};
use dmtree_fabric::{Error, ErrorKind, NodeId};

use super::play::{Play, within};
use super::sweeps::{every, tried};
use super::{Op, PLACES, Script};

/// The usual delay: longer than all operations of the others, shorter than a lease, ns.
const DELAY_NS: u64 = 3_000_000;
/// All clients have ended after this time, ns.
const BOUND_NS: u64 = 400_000_000;
/// The delayed client's node, its concurrent writer's, and the reader's.
const DELAYED: u16 = 1;
const OTHER: u16 = 0;
const READER: u16 = 2;
/// The node that crashes first, in some scenarios.
const VICTIM: u16 = 3;

/// A scenario with a delayed verb.
#[derive(Clone)]
pub struct DelayScenario {
    /// The initial state, and the operations of the delayed client.
    pub script: Script,
    /// Operations of the other client, concurrent with the script. No key is written by both.
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

impl DelayScenario {
    /// Others work while one verb of the script is delayed; every verb is, in turn.
    pub fn new(script: Script, others: Vec<Op>) -> Self {
        let (reads, twin, again) = (false, false, 0);
        Self { script, others, reads, step: 1, dead: Vec::new(), twin, again, by_ns: DELAY_NS }
    }
}

#[derive(Debug, Default)]
struct Progress {
    /// The victim has crashed, or ended.
    begun: Cell<bool>,
    delayed_done: Cell<bool>,
    other_done: Cell<bool>,
}

/// One run; `crash`: the crash point of the victim. Returns whether a verb was delayed, and whether
/// the victim crashed.
fn once(
    plan: &DelayScenario,
    point: CrashPoint,
    crash: Option<CrashPoint>,
    seed: u64,
) -> Result<(bool, bool), String> {
    let ops = plan.script.ops.iter().chain(&plan.others).chain(&plan.dead);
    let play = Play::begin((&plan.script, DELAYED), ops, (false, seed))?;
    let progress = Rc::<Progress>::default();
    let survived = crash.map(|crash| play.victim((VICTIM, plan.dead.clone()), crash, How::Machine));
    progress.begun.set(crash.is_none());
    delayed(plan, &play, progress.clone(), point);
    other(plan, &play, progress.clone());
    // Behind a crash it begins with the delayed verb.
    let (p, of) = (play.clone(), progress.clone());
    let begins = move || crash.is_none() || is_late(&p) || of.delayed_done.get();
    play.reader(READER, u64::MAX, begins);
    play.run(seed, main(plan, &play, &progress, survived.as_deref()))?;
    let crashed = play.is_down(VICTIM);
    let nodes = 0..plan.script.compute_nodes;
    let nodes: Vec<u16> = nodes.filter(|cn| !(crashed && *cn == VICTIM)).collect();
    play.judge(&plan.script, &nodes, crashed)?;
    Ok((is_late(&play), crashed))
}

/// Whether a verb has been delayed.
fn is_late(play: &Play) -> bool {
    play.scenario.fabric.late_until(NodeId::compute(DELAYED)).is_some()
}

/// The client with the delayed verb.
fn delayed(plan: &DelayScenario, play: &Rc<Play>, progress: Rc<Progress>, point: CrashPoint) {
    let ops = plan.script.ops.clone();
    let (reads, again, by_ns) = (plan.reads, plan.again, plan.by_ns);
    play.client((DELAYED, "delayed"), move |play, mut c| async move {
        let (fabric, me) = (&play.scenario.fabric, NodeId::compute(DELAYED));
        // Warms its cache with the initial state.
        play.read_all(&mut c, 1, u64::MAX).await?;
        while !progress.begun.get() {
            c.endpoint().sleep(5_000).await;
        }
        fabric.delay_at(me, point, by_ns)?;
        if again > 0 {
            let next = CrashPoint { verb: point.verb + again, place: Place::Before };
            fabric.delay_at(me, next, 2 * by_ns)?;
        }
        play.work(&mut c, DELAYED, &ops).await?;
        while reads && !progress.other_done.get() {
            play.read_all(&mut c, 13, u64::MAX).await?;
        }
        progress.delayed_done.set(true);
        Ok(())
    });
}

/// The concurrent writer.
fn other(plan: &DelayScenario, play: &Rc<Play>, progress: Rc<Progress>) {
    let ops = plan.others.clone();
    let waits = !plan.reads;
    let cn = if plan.twin { DELAYED } else { OTHER };
    play.client((cn, "concurrent"), move |play, mut c| async move {
        let ep = c.endpoint().clone();
        let done = || progress.delayed_done.get();
        while waits && !is_late(&play) && !done() && ep.now() < BOUND_NS {
            ep.sleep(5_000).await;
        }
        // (A client that does not await the verb may have ended.)
        if !done() || is_late(&play) {
            play.work(&mut c, cn, &ops).await?;
        }
        progress.other_done.set(true);
        Ok(())
    });
}

/// Waits for the crash if there is to be one, and for all clients.
async fn main(
    plan: &DelayScenario,
    play: &Play,
    progress: &Progress,
    survived: Option<&Cell<bool>>,
) -> Result<(), Error> {
    let scenario = &play.scenario;
    let mut c = scenario.client(OTHER);
    let ep = c.endpoint().clone();
    if let Some(survived) = survived
        && play.crashes(&ep, VICTIM, survived).await?
    {
        for cn in [OTHER, DELAYED, READER] {
            scenario.settled(&ep, cn, &[VICTIM]).await;
        }
    }
    progress.begun.set(true);
    while !(progress.delayed_done.get() && progress.other_done.get())
        && scenario.trouble().is_none()
    {
        ep.sleep(50_000).await;
        within(ep.now(), BOUND_NS).map_err(|e| e.context("the clients"))?;
    }
    play.stop_readers(&c).await;
    // Detached verbs have landed.
    ep.sleep(plan.by_ns + 2_000_000).await;
    if scenario.trouble().is_none() {
        play.read_all(&mut c, 1, u64::MAX).await?;
    }
    ep.drain().await
}

/// Checks that no delay does harm, for every [`every`]-th verb.
///
/// # Panics
/// When a run fails.
pub fn harmless(plan: &DelayScenario) {
    let sparse = DelayScenario { step: every(plan.step), ..plan.clone() };
    if let (runs, Some(what)) = delay_every_verb(&sparse, 1) {
        panic!("{}, run {runs}: {what}", plan.script.name);
    }
}

/// Delays every verb in turn, at every place, `again` times each.
///
/// # Panics
/// When the operations never end.
pub fn delay_every_verb(plan: &DelayScenario, again: u64) -> Tally {
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
pub fn delay_every_verb_after(
    plan: &DelayScenario,
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
                match tried(|| once(plan, point, crash, seed)) {
                    Ok((late, dead)) => (delayed, crashed) = (delayed | late, crashed | dead),
                    Err(what) => return ((runs, Some(format!("{point:?} {seed}: {what}"))), true),
                }
            }
        }
        if !delayed {
            return ((runs, None), crashed);
        }
    }
    unreachable!("operations end")
}

/// The caller asks again for a move while another one, or a recovery, is under way; other errors
/// stay.
pub fn was_accepted(asked: Result<bool, Error>) -> Result<bool, Error> {
    match asked {
        Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::Unreachable) => Ok(false),
        asked => asked,
    }
}
