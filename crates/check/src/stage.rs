//! The compute nodes of a run, and what happens to them: who works, who is dead, frozen, or on the way back.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use dmtree_fabric::sim::{CrashPoint, SimFabric};
use dmtree_fabric::{Endpoint, Fabric, NodeId, Result};

use crate::case::Case;
use crate::fault::{End, Ending, Happened, NodeFault};
use crate::server::Server;

/// How a compute node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Its clients work.
    Up,
    /// It stands still until it is thawed.
    Frozen,
    /// It has crashed and will come back.
    RemoteClient,
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

struct Incarnation {
    condition: Cell<Condition>,
    /// Which incarnation works.
    incarnation: Cell<u32>,
    /// It is to leave in good order, and to come back so long after, ns, if at all.
    leaving: Cell<Option<Option<u64>>>,
    /// Operations and calls of maintenance that run on it.
    inside: Cell<u32>,
}

/// All that happens.
pub(crate) struct Stage<'a> {
    case: &'a Case,
    fabric: SimFabric,
    server: Arc<Server>,
    lives: Vec<Incarnation>,
    /// How often the lives of a fault have ended, by the number of the fault.
    turns: Vec<Cell<u32>>,
    /// The first memory node is lost: nothing works any more.
    headless: Cell<bool>,
    /// Until when each memory node stands still, ns; for ever when it is lost.
    still: Vec<Cell<u64>>,
    /// What happens has come to its end.
    calm: Cell<bool>,
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
    pub(crate) fn new(case: &'a Case, fabric: SimFabric, server: Arc<Server>) -> Self {
        let incarnation = |cn| Incarnation {
            condition: Cell::new(Condition::Up),
            incarnation: Cell::new(fabric.incarnation(NodeId::compute(cn)).unwrap_or(0)),
            leaving: Cell::default(),
            inside: Cell::default(),
        };
        Self {
            case,
            server,
            turns: vec![Cell::new(0); case.node_faults.len()],
            headless: Cell::new(false),
            still: vec![Cell::new(0); usize::from(case.pool.memory_nodes)],
            calm: Cell::new(false),
            lives: (0..case.pool.compute_nodes).map(incarnation).collect(),
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
        for (i, fault) in self.case.node_faults.iter().enumerate() {
            match *fault {
                NodeFault::Crash { cn, verb, place, how, .. } => {
                    let point = CrashPoint { verb, place };
                    self.fabric.crash_at(NodeId::compute(cn), point, how)?;
                }
                NodeFault::Freeze { .. }
                | NodeFault::LoseMemory { .. }
                | NodeFault::Drop { .. } => self.waiting.borrow_mut().push(i),
                NodeFault::Cut { at_ns, .. }
                | NodeFault::Outage { at_ns, .. }
                | NodeFault::Turns { at_ns, .. }
                | NodeFault::Standstill { at_ns, .. }
                | NodeFault::Stall { at_ns, .. }
                | NodeFault::Jump { at_ns, .. } => {
                    self.plan(self.fabric.now() + at_ns, Due::Begin(i));
                }
                NodeFault::Drift { .. } | NodeFault::News { .. } => self.note(*fault, 0),
            }
        }
        Ok(())
    }

    /// What has not happened yet does not happen any more; what has is undone where it can be.
    pub(crate) fn calm(&self) {
        (0..self.lives.len()).for_each(|cn| self.fabric.spare(node(cn)));
        self.waiting.borrow_mut().clear();
        self.due.borrow_mut().retain(|(_, due)| !matches!(due, Due::Begin(_)));
        if self.case.rejoins() {
            // What stands still goes on together.
            self.heal();
            self.server.go_on();
            let found = self.still.iter().filter(|still| still.get() < u64::MAX);
            found.for_each(|still| still.set(0));
            self.due.borrow_mut().retain(|(_, due)| !matches!(due, Due::Thaw(_)));
            let frozen = self.lives.iter().filter(|l| l.condition.get() == Condition::Frozen);
            frozen.for_each(|incarnation| incarnation.condition.set(Condition::Up));
        }
        self.calm.set(true);
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

    /// How each compute node is, in words.
    pub(crate) fn summary(&self) -> String {
        let one = |(cn, incarnation): (usize, &Incarnation)| {
            let (condition, inside) = (incarnation.condition.get(), incarnation.inside.get());
            let leaves = if incarnation.leaving.get().is_some() { " leaves" } else { "" };
            let no = incarnation.incarnation.get();
            format!("cn{cn} (incarnation {no}) {condition:?}{leaves} runs {inside}")
        };
        self.lives.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Nodes whose clients work or will work again.
    pub(crate) fn living(&self) -> impl Iterator<Item = usize> {
        (0..self.lives.len()).filter(|cn| self.condition(*cn) != Condition::Gone)
    }

    /// A node that has lost its membership. It comes back as a new life where nodes do.
    pub(crate) fn expel(&self, cn: usize) {
        match self.case.rejoins() && !self.headless.get() {
            true => self.end(cn, Ending::Process, Some(self.case.lease_ns / 8)),
            false => self.lives[cn].condition.set(Condition::Gone),
        }
    }

    /// A life ends, and the next begins so long after, if any does.
    fn end(&self, cn: usize, ending: Ending, back_ns: Option<u64>) {
        let incarnation = &self.lives[cn];
        incarnation.leaving.set(None);
        let _ = self.fabric.crash(node(cn), ending.how());
        self.crashes.set(self.fabric.crashes());
        self.due.borrow_mut().retain(|(_, due)| *due != Due::Restart(cn));
        match back_ns.filter(|_| !self.headless.get()) {
            Some(after) => {
                incarnation.condition.set(Condition::RemoteClient);
                self.plan(self.fabric.now() + after, Due::Restart(cn));
            }
            None => incarnation.condition.set(Condition::Gone),
        }
    }

    /// The same, in good order where the node can; true when that has begun.
    fn ask_to_end(&self, cn: usize, ending: Ending, back_ns: Option<u64>) -> bool {
        let incarnation = &self.lives[cn];
        match (incarnation.condition.get(), ending) {
            (Condition::Up, Ending::Leaves) => incarnation.leaving.set(Some(back_ns)),
            (Condition::Up | Condition::Frozen, _) => self.end(cn, ending, back_ns),
            (Condition::RemoteClient, _) => {
                // It stays away as long as the others.
                self.due.borrow_mut().retain(|(_, due)| *due != Due::Restart(cn));
                match back_ns {
                    Some(after) => self.plan(self.fabric.now() + after, Due::Restart(cn)),
                    None => incarnation.condition.set(Condition::Gone),
                }
            }
            (Condition::Gone, _) => return false,
        }
        true
    }

    /// Whether a node is to leave in good order: its clients begin nothing any more.
    pub(crate) fn is_leaving(&self, cn: usize) -> bool {
        self.lives[cn].leaving.get().is_some()
    }

    /// It has left.
    pub(crate) fn left(&self, cn: usize) {
        let back_ns = self.lives[cn].leaving.get().flatten();
        self.end(cn, Ending::Leaves, back_ns);
    }

    /// Something runs on a node, until this is dropped.
    pub(crate) fn enter(&self, cn: usize) -> Inside<'_> {
        let inside = &self.lives[cn].inside;
        inside.set(inside.get() + 1);
        Inside(inside)
    }

    /// Whether something runs on a node.
    pub(crate) fn is_busy(&self, cn: usize) -> bool {
        self.lives[cn].inside.get() > 0
    }

    /// Whether the first memory node is lost, and the membership with it.
    pub(crate) fn is_headless(&self) -> bool {
        self.headless.get()
    }

    /// Whether a memory node is lost.
    pub(crate) fn is_lost(&self, mn: usize) -> bool {
        self.still[mn].get() == u64::MAX
    }

    /// Whether a memory node does anything now.
    pub(crate) fn is_still(&self, mn: usize) -> bool {
        self.fabric.now() < self.still[mn].get()
    }

    fn stand_still(&self, mn: usize, until: u64) {
        let still = &self.still[mn];
        still.set(still.get().max(until));
        if mn == 0 {
            self.server.stand_still(until);
        }
    }

    fn lose_the_first(&self) {
        self.headless.set(true);
        self.server.lose();
        let away = self.lives.iter().filter(|l| l.condition.get() == Condition::RemoteClient);
        away.for_each(|incarnation| incarnation.condition.set(Condition::Gone));
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
        for (cn, incarnation) in self.lives.iter().enumerate() {
            let up = matches!(incarnation.condition.get(), Condition::Up | Condition::Frozen);
            if !up || !self.fabric.is_down(node(cn)) {
                continue;
            }
            let its = |f: &&NodeFault| matches!(f, NodeFault::Crash { cn: c, .. } if usize::from(*c) == cn);
            let Some(fault) = self.case.node_faults.iter().find(its) else { continue };
            self.note(*fault, running(Some(cn)));
            let back = match fault {
                NodeFault::Crash { back_ns, .. } => *back_ns,
                _ => None,
            };
            incarnation.condition.set(if back.is_some() {
                Condition::RemoteClient
            } else {
                Condition::Gone
            });
            if let Some(after) = back {
                self.plan(self.fabric.now() + after, Due::Restart(cn));
            }
            out.push(cn);
        }
    }

    fn notice_verbs(&self, running: &dyn Fn(Option<usize>) -> u32, out: &mut Vec<usize>) {
        let reached = |i: &usize| match self.case.node_faults[*i] {
            NodeFault::Freeze { cn, verb, .. }
            | NodeFault::LoseMemory { cn, verb, .. }
            | NodeFault::Drop { cn, verb } => self.fabric.issued(NodeId::compute(cn)) >= verb,
            _ => true,
        };
        let due: Vec<usize> = self.waiting.borrow().iter().copied().filter(reached).collect();
        self.waiting.borrow_mut().retain(|i| !due.contains(i));
        for i in due {
            match self.case.node_faults[i] {
                NodeFault::Freeze { cn, for_ns, .. } => {
                    let cn = usize::from(cn);
                    if self.condition(cn) == Condition::Up {
                        self.note(self.case.node_faults[i], running(Some(cn)));
                        self.lives[cn].condition.set(Condition::Frozen);
                        self.plan(self.fabric.now() + for_ns, Due::Thaw(cn));
                        out.push(cn);
                    }
                }
                NodeFault::LoseMemory { mn, .. } => {
                    self.note(self.case.node_faults[i], running(None));
                    let _ = self.fabric.lose_memory_node(NodeId::memory(mn));
                    self.crashes.set(self.fabric.crashes());
                    self.still[usize::from(mn)].set(u64::MAX);
                    if mn == 0 {
                        self.lose_the_first();
                        out.extend(0..self.lives.len());
                    }
                }
                NodeFault::Drop { cn, .. } => {
                    let cn = usize::from(cn);
                    self.note(self.case.node_faults[i], running(Some(cn)));
                    self.drops[cn].set(self.drops[cn].get() + 1);
                    out.push(cn);
                }
                _ => {}
            }
        }
    }

    /// A fault has happened.
    pub(crate) fn note(&self, fault: NodeFault, inside: u32) {
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
            Due::Begin(i) => self.begin_fault(i, running),
            Due::Heal(i) => {
                self.each_link(i, |a, b| self.fabric.heal(a, b));
                Vec::new()
            }
        }
    }

    /// A fault begins; the nodes to which it happens.
    fn begin_fault(&self, i: usize, running: &dyn Fn(Option<usize>) -> u32) -> Vec<usize> {
        let (fault, now) = (self.case.node_faults[i], self.fabric.now());
        let inside = match fault {
            NodeFault::Cut { cn, .. } | NodeFault::Turns { cn, .. } => running(Some(cn.into())),
            _ => running(None),
        };
        self.note(fault, inside);
        let still = |for_ns| {
            self.each_link(i, |a, b| self.fabric.cut(a, b));
            self.plan(now + for_ns, Due::Heal(i));
        };
        match fault {
            NodeFault::Cut { for_ns, .. } => still(for_ns),
            NodeFault::Stall { mn, for_ns, .. } => {
                still(for_ns);
                self.stand_still(mn.into(), now + for_ns);
            }
            NodeFault::Standstill { for_ns, memory, .. } => {
                if memory {
                    still(for_ns);
                    (0..self.still.len()).for_each(|mn| self.stand_still(mn, now + for_ns));
                }
                let up = |cn: &usize| self.condition(*cn) == Condition::Up;
                let frozen: Vec<usize> = (0..self.lives.len()).filter(up).collect();
                for cn in &frozen {
                    self.lives[*cn].condition.set(Condition::Frozen);
                    self.plan(now + for_ns, Due::Thaw(*cn));
                }
                return frozen;
            }
            NodeFault::Outage { end, back, for_ns, .. } => {
                let there: Vec<usize> = self.living().collect();
                let ended = there.iter().enumerate().filter(|(n, cn)| {
                    // One after the other, the last one first.
                    let back_ns =
                        (*n < back.into()).then_some(for_ns + 3_000 * (9 - *n as u64 % 9));
                    self.ask_to_end(**cn, end, back_ns)
                });
                return ended.map(|(_, cn)| *cn).collect();
            }
            NodeFault::Turns { cn, times, ends, away_ns, up_ns, .. } => {
                let (cn, turn) = (usize::from(cn), &self.turns[i]);
                let end = ends[turn.get() as usize % ends.len()];
                let ended = self.condition(cn) == Condition::Up && !self.is_leaving(cn);
                if ended {
                    self.ask_to_end(cn, end, Some(away_ns));
                }
                turn.set(turn.get() + 1);
                if turn.get() < times {
                    self.plan(now + away_ns + up_ns, Due::Begin(i));
                }
                return if ended { vec![cn] } else { Vec::new() };
            }
            NodeFault::Jump { by_ns, .. } => self.server.jump(by_ns),
            _ => {}
        }
        Vec::new()
    }

    /// The links that a fault cuts.
    fn each_link(&self, i: usize, f: impl Fn(NodeId, NodeId)) {
        let all = |mn: u16| (0..self.lives.len()).for_each(|cn| f(node(cn), NodeId::memory(mn)));
        match self.case.node_faults[i] {
            NodeFault::Cut { cn, to, .. } => f(NodeId::compute(cn), end(to)),
            NodeFault::Stall { mn, .. } => all(mn),
            NodeFault::Standstill { memory: true, .. } => {
                (0..self.case.pool.memory_nodes).for_each(all);
            }
            _ => {}
        }
    }

    /// A node is back, as its present incarnation.
    pub(crate) fn back(&self, cn: usize) {
        self.lives[cn].incarnation.set(self.fabric.incarnation(node(cn)).unwrap_or(0));
        self.lives[cn].condition.set(Condition::Up);
    }

    /// Whether memory has been lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.happened.borrow().iter().any(|h| matches!(h.fault, NodeFault::LoseMemory { .. }))
    }

    /// Whether something that has happened lets an operation fail like this.
    pub(crate) fn excuses(&self, by: &Doer, e: &dmtree_fabric::Error) -> bool {
        let excuses = |h: &Happened| match h.fault {
            // Afterwards everything works again.
            f if f.is_of_restarts() && self.calm.get() => false,
            NodeFault::LoseMemory { mn: 0, .. } => h.excuses(by.cn as u16, e),
            NodeFault::LoseMemory { mn, .. } => h.excuses(by.cn as u16, e) && self.went_to(mn, by),
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
        self.happened.borrow().iter().any(|h| h.expels(cn as u16))
    }
}

/// Something runs on a node until this is dropped.
pub(crate) struct Inside<'a>(&'a Cell<u32>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
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
