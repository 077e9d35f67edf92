//! A node crashes at a chosen verb, and a survivor perhaps at another one. No acknowledged write is
//! lost, reads and writes of the survivors stay within their bounds, and in the end the structure
//! is whole and every piece of memory has one holder.

use std::cell::Cell;
use std::rc::Rc;

use dmtree_fabric::sim::{CrashPoint, How, Place};
use dmtree_fabric::{Error, ErrorKind, NodeId};
use dmtree_parts::Found;

use super::play::{Play, within};
use super::{Op, Script, WRITE_BOUND_NS, perform, value};

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

/// The crashes of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrashRun {
    /// The victim crashed in its operations.
    pub died: bool,
    /// The second node crashed, too.
    pub second_died: bool,
    /// The memory that one garbage collection has found afterwards.
    pub lost: Found,
}

/// One run of a scenario; the failure, if there is one.
///
/// # Errors
/// Its description.
pub fn run(script: &Script, cut: ScriptedCrash) -> Result<CrashRun, String> {
    let others: Vec<u16> = (0..script.compute_nodes).filter(|n| *n != cut.victim).collect();
    let (survivor, last) = (others[0], *others.last().expect("three at least"));
    let seeded = (cut.whole_write, cut.seed);
    let ops = script.ops.iter().chain(&script.beside);
    let play = Play::begin((script, cut.victim), ops, seeded)?;
    let point = CrashPoint { verb: cut.verb, place: cut.place };
    let done = play.victim((cut.victim, script.ops.clone()), point, cut.how);
    play.reader(survivor, script.read_bound_ns, || true);
    if !script.beside.is_empty() {
        let ops = script.beside.clone();
        play.client((survivor, "the client beside"), move |play, mut c| async move {
            c.endpoint().sleep(1_500_000).await;
            play.work(&mut c, survivor, &ops).await
        });
    }
    if cut.second.is_some() {
        second_survivor(&play, cut.victim, last);
    }
    let ran = Cell::new(CrashRun::default());
    play.run(cut.seed, survive(&play, script, cut, (survivor, last), (&done, &ran)))?;
    let mut ran = ran.into_inner();
    if ran.died {
        ran.lost = play.judge(script, &[survivor], true)?;
    }
    Ok(ran)
}

/// A second survivor recovers every lock that it meets, and may crash in a recovery.
fn second_survivor(play: &Rc<Play>, victim: u16, cn: u16) {
    play.client((cn, "the second survivor"), |play, mut c| async move {
        while !play.is_down(victim) {
            c.endpoint().sleep(10_000).await;
        }
        for k in &play.keys {
            if let Some(v) = play.read(&mut c, *k).await? {
                play.perform(&mut c, &Op::Update(*k, v)).await?;
            }
        }
        c.sweep().await.map_err(|e| e.context("sweep"))?;
        play.scenario.fabric.spare(NodeId::compute(cn));
        Ok(())
    });
}

/// Waits for the crash, runs into all its traces, and lets the reader end.
async fn survive(
    play: &Play,
    script: &Script,
    cut: ScriptedCrash,
    (cn, last): (u16, u16),
    (done, ran): (&Cell<bool>, &Cell<CrashRun>),
) -> Result<(), Error> {
    let scenario = &play.scenario;
    let mut c = scenario.client(cn);
    let ep = c.endpoint().clone();
    if !play.crashes(&ep, cut.victim, done).await? {
        return Ok(());
    }
    let mut dead = vec![cut.victim];
    if let Some((verb, place)) = cut.second {
        let second = NodeId::compute(last);
        scenario.fabric.crash_at(second, CrashPoint { verb, place }, How::Machine)?;
        // It runs on its own task.
        for _ in 0..if last == cn { 0 } else { 400 } {
            if play.is_down(last) {
                dead.push(last);
                break;
            }
            ep.sleep(200_000).await;
        }
    }
    ran.set(CrashRun { died: true, second_died: dead.len() > 1, ..CrashRun::default() });
    // Writes each value again, so that every leaf is locked; the value stays.
    for k in &play.keys {
        let Some(v) = play.read(&mut c, *k).await? else { continue };
        let began = ep.now();
        play.perform(&mut c, &Op::Update(*k, v)).await?;
        within(ep.now() - began, WRITE_BOUND_NS).map_err(|e| e.context("a write"))?;
    }
    scenario.settled(&ep, cn, &dead).await;
    for _ in 0..if script.swept { 3 } else { 0 } {
        c.sweep().await.map_err(|e| e.context("sweep"))?;
        perform(&mut c, &Op::Maintain).await.map_err(|e| e.context("maintenance"))?;
    }
    for k in &play.keys {
        play.read(&mut c, *k).await.map_err(|e| e.context("in the end"))?;
    }
    let n = play.keys.last().copied().unwrap_or(0);
    for k in [n + 1, n + 2] {
        let insert = Op::Insert(k, value(k));
        play.perform(&mut c, &insert).await.map_err(|e| e.context("in the end"))?;
    }
    play.stop_readers(&c).await;
    if let Err(e) = ep.drain().await {
        // An unlock at an owner that crashed: moot.
        assert!(e.kind() == ErrorKind::Unreachable, "{e}");
    }
    ep.sleep(100_000).await;
    Ok(())
}
