//! The compute nodes of a run, and what happens to them: who works, who is dead, frozen, or on the way back.

use std::cell::{Cell, RefCell};

use dmtree_fabric::sim::{CrashPoint, SimFabric};
use dmtree_fabric::{Endpoint, Fabric, NodeId, Result};

use crate::case::Case;
use crate::fault::{End, Fault, Happened};

/// How a compute node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Its clients work.
    Up,
    /// It stands still until it is thawed.
    Frozen,
    /// It has crashed and will come back.
    Away,
    /// It has crashed, or lost its membership, for good.
    Gone,
}

/// What is due at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    Restart(usize),
    Thaw(usize),
    /// The fault of this number begins.
    Begin(usize),
    /// The link of this number is healed.
    Heal(usize),
}

struct Life {
    condition: Cell<Condition>,
    /// Which incarnation works.
    incarnation: Cell<u32>,
}

/// All that happens.
pub(crate) struct Stage<'a> {
    case: &'a Case,
    fabric: SimFabric,
    lives: Vec<Life>,
    /// Crashes that have been noticed.
    crashes: Cell<u64>,
    /// Faults that wait for a verb.
    waiting: RefCell<Vec<usize>>,
    due: RefCell<Vec<(u64, Due)>>,
    pub happened: RefCell<Vec<Happened>>,
    /// How often the callers on a node have dropped what they ran.
    drops: Vec<Cell<u32>>,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(case: &'a Case, fabric: SimFabric) -> Self {
        let life = |cn| Life {
            condition: Cell::new(Condition::Up),
            incarnation: Cell::new(fabric.incarnation(NodeId::compute(cn)).unwrap_or(0)),
        };
        Self {
            case,
            lives: (0..case.pool.compute_nodes).map(life).collect(),
            crashes: Cell::new(fabric.crashes()),
            waiting: RefCell::default(),
            due: RefCell::default(),
            happened: RefCell::default(),
            drops: vec![Cell::new(0); usize::from(case.pool.compute_nodes)],
            fabric,
        }
    }

    /// Sets everything up that is to happen.
    pub(crate) fn begin(&self) -> Result<()> {
        for (i, fault) in self.case.faults.iter().enumerate() {
            match *fault {
                Fault::Crash { cn, verb, place, how, .. } => {
                    let point = CrashPoint { verb, place };
                    self.fabric.crash_at(NodeId::compute(cn), point, how)?;
                }
                Fault::Freeze { .. } | Fault::LoseMemory { .. } | Fault::Drop { .. } => {
                    self.waiting.borrow_mut().push(i)
                }
                Fault::Cut { at_ns, .. } => self.plan(self.fabric.now() + at_ns, Due::Begin(i)),
                Fault::Drift { .. } | Fault::News { .. } => self.note(*fault, 0),
            }
        }
        Ok(())
    }

    /// What has not happened yet does not happen any more; what has is undone where it can be.
    pub(crate) fn calm(&self) {
        (0..self.lives.len()).for_each(|cn| self.fabric.spare(node(cn)));
        self.waiting.borrow_mut().clear();
        self.due.borrow_mut().retain(|(_, due)| !matches!(due, Due::Begin(_)));
    }

    /// Links that are cut still are healed now.
    pub(crate) fn heal(&self) {
        let cut = |due: &(u64, Due)| matches!(due.1, Due::Heal(_));
        let heals: Vec<Due> = self.due.borrow().iter().filter(|d| cut(d)).map(|d| d.1).collect();
        self.due.borrow_mut().retain(|d| !cut(d));
        heals.into_iter().for_each(|due| _ = self.apply(due, &|_| 0));
    }

    pub(crate) fn condition(&self, cn: usize) -> Condition {
        self.lives[cn].condition.get()
    }

    pub(crate) fn incarnation(&self, cn: usize) -> u32 {
        self.lives[cn].incarnation.get()
    }

    /// How often the callers on a node have dropped what they ran.
    pub(crate) fn drops(&self, cn: usize) -> u32 {
        self.drops[cn].get()
    }

    /// Nodes whose clients work or will work again.
    pub(crate) fn living(&self) -> impl Iterator<Item = usize> {
        (0..self.lives.len()).filter(|cn| self.condition(*cn) != Condition::Gone)
    }

    /// A node that has lost its membership.
    pub(crate) fn expel(&self, cn: usize) {
        self.lives[cn].condition.set(Condition::Gone);
    }

    fn plan(&self, at: u64, due: Due) {
        self.due.borrow_mut().push((at, due));
    }

    /// When something is due next, ns.
    pub(crate) fn next(&self) -> Option<u64> {
        self.due.borrow().iter().map(|(at, _)| *at).min()
    }

    /// What is due now, if anything.
    pub(crate) fn take_due(&self) -> Option<Due> {
        let now = self.fabric.now();
        let mut due = self.due.borrow_mut();
        let i = due.iter().position(|(at, _)| *at <= now)?;
        Some(due.swap_remove(i).1)
    }

    /// Looks whether anything has happened since the last call; the nodes to which it has. `running` says how many operations of a
    /// node run, or of all.
    pub(crate) fn look(&self, running: &dyn Fn(Option<usize>) -> u32) -> Vec<usize> {
        let mut out = Vec::new();
        if self.fabric.crashes() != self.crashes.get() {
            self.crashes.set(self.fabric.crashes());
            self.notice_crashes(running, &mut out);
        }
        if !self.waiting.borrow().is_empty() {
            self.notice_verbs(running, &mut out);
        }
        out
    }

    fn notice_crashes(&self, running: &dyn Fn(Option<usize>) -> u32, out: &mut Vec<usize>) {
        for (cn, life) in self.lives.iter().enumerate() {
            let up = matches!(life.condition.get(), Condition::Up | Condition::Frozen);
            if !up || !self.fabric.is_down(node(cn)) {
                continue;
            }
            let its = |f: &&Fault| matches!(f, Fault::Crash { cn: c, .. } if usize::from(*c) == cn);
            let Some(fault) = self.case.faults.iter().find(its) else { continue };
            self.note(*fault, running(Some(cn)));
            let back = match fault {
                Fault::Crash { back_ns, .. } => *back_ns,
                _ => None,
            };
            life.condition.set(if back.is_some() { Condition::Away } else { Condition::Gone });
            if let Some(after) = back {
                self.plan(self.fabric.now() + after, Due::Restart(cn));
            }
            out.push(cn);
        }
    }

    fn notice_verbs(&self, running: &dyn Fn(Option<usize>) -> u32, out: &mut Vec<usize>) {
        let reached = |i: &usize| match self.case.faults[*i] {
            Fault::Freeze { cn, verb, .. }
            | Fault::LoseMemory { cn, verb, .. }
            | Fault::Drop { cn, verb } => self.fabric.issued(NodeId::compute(cn)) >= verb,
            _ => true,
        };
        let due: Vec<usize> = self.waiting.borrow().iter().copied().filter(reached).collect();
        self.waiting.borrow_mut().retain(|i| !due.contains(i));
        for i in due {
            match self.case.faults[i] {
                Fault::Freeze { cn, for_ns, .. } => {
                    let cn = usize::from(cn);
                    if self.condition(cn) == Condition::Up {
                        self.note(self.case.faults[i], running(Some(cn)));
                        self.lives[cn].condition.set(Condition::Frozen);
                        self.plan(self.fabric.now() + for_ns, Due::Thaw(cn));
                        out.push(cn);
                    }
                }
                Fault::LoseMemory { mn, .. } => {
                    self.note(self.case.faults[i], running(None));
                    let _ = self.fabric.lose_memory_node(NodeId::memory(mn));
                    self.crashes.set(self.fabric.crashes());
                }
                Fault::Drop { cn, .. } => {
                    let cn = usize::from(cn);
                    self.note(self.case.faults[i], running(Some(cn)));
                    self.drops[cn].set(self.drops[cn].get() + 1);
                    out.push(cn);
                }
                _ => {}
            }
        }
    }

    /// A fault has happened.
    pub(crate) fn note(&self, fault: Fault, inside: u32) {
        let at_ns = self.fabric.now();
        self.happened.borrow_mut().push(Happened { fault, at_ns, inside });
    }

    /// A link is cut, or a node thawed, or a link healed; the nodes to which it happens.
    pub(crate) fn apply(&self, due: Due, running: &dyn Fn(Option<usize>) -> u32) -> Vec<usize> {
        match due {
            Due::Restart(_) => Vec::new(),
            Due::Thaw(cn) => {
                if self.condition(cn) == Condition::Frozen {
                    self.lives[cn].condition.set(Condition::Up);
                }
                vec![cn]
            }
            Due::Begin(i) => {
                if let Fault::Cut { cn, to, for_ns, .. } = self.case.faults[i] {
                    self.note(self.case.faults[i], running(Some(cn.into())));
                    self.fabric.cut(NodeId::compute(cn), end(to));
                    self.plan(self.fabric.now() + for_ns, Due::Heal(i));
                }
                Vec::new()
            }
            Due::Heal(i) => {
                if let Fault::Cut { cn, to, .. } = self.case.faults[i] {
                    self.fabric.heal(NodeId::compute(cn), end(to));
                }
                Vec::new()
            }
        }
    }

    /// A node is back, as its present incarnation.
    pub(crate) fn back(&self, cn: usize) {
        self.lives[cn].incarnation.set(self.fabric.incarnation(node(cn)).unwrap_or(0));
        self.lives[cn].condition.set(Condition::Up);
    }

    /// Whether memory has been lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.happened.borrow().iter().any(|h| matches!(h.fault, Fault::LoseMemory { .. }))
    }

    /// Whether something that has happened lets an operation fail like this.
    pub(crate) fn excuses(&self, by: &Doer, e: &dmtree_fabric::Error) -> bool {
        let excuses = |h: &Happened| match h.fault {
            Fault::LoseMemory { mn, .. } => h.excuses(by.cn as u16, e) && self.went_to(mn, by),
            _ => h.excuses(by.cn as u16, e),
        };
        self.happened.borrow().iter().any(excuses)
    }

    /// Whether a verb or a call that an operation has posted has failed for want of a memory node; or one of its node, when others may
    /// have carried it.
    fn went_to(&self, mn: u16, by: &Doer) -> bool {
        let slot = by.slot.filter(|_| !by.carried);
        let failed = self.fabric.failed_at(node(by.cn), slot, NodeId::memory(mn));
        failed.is_some_and(|at| at >= by.since_ns)
    }

    /// Whether something has happened that may have cost a node its membership.
    pub(crate) fn may_be_expelled(&self, cn: usize) -> bool {
        let e = dmtree_fabric::Error::new(dmtree_fabric::ErrorKind::Fenced, "");
        self.excuses(&Doer { cn, slot: None, carried: true, since_ns: 0 }, &e)
    }
}

/// Whose operation has failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doer {
    pub cn: usize,
    /// The slot that posted its verbs, if it is known.
    pub slot: Option<u32>,
    /// An operation of another client of its node may have carried it.
    pub carried: bool,
    /// When it began, ns.
    pub since_ns: u64,
}

fn node(cn: usize) -> NodeId {
    NodeId::compute(cn as u16)
}

fn end(to: End) -> NodeId {
    match to {
        End::Compute(c) => NodeId::compute(c),
        End::Memory(m) => NodeId::memory(m),
    }
}

/// Waits until `ready` says so, looking when woken and at the times that `next` says.
pub(crate) async fn wait_until(
    ep: &Endpoint,
    ready: impl Fn() -> bool,
    next: impl Fn() -> Option<u64>,
) {
    let mut armed = 0;
    std::future::poll_fn(|_| {
        if ready() {
            return std::task::Poll::Ready(());
        }
        if let Some(at) = next().filter(|at| *at != armed) {
            armed = at;
            ep.core().wake_at(ep.slot(), at);
        }
        std::task::Poll::Pending
    })
    .await;
}
