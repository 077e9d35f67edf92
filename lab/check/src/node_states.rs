//! The state of each compute node of a run, and the faults that change it: up, frozen, restarting
//! or gone.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use dmtree_fabric::sim::{CrashPoint, How, SimFabric};
use dmtree_fabric::{Endpoint, Fabric, NodeId, Result};
use dmtree_pool::Cluster;

use crate::case::Case;
use crate::fault::{End, Ending, Happened, NodeFault};
use crate::server::Server;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeCondition {
    /// Its clients run.
    Up,
    /// It stalls until it thaws.
    Frozen,
    /// It has crashed and will restart.
    Restarting,
    /// It has crashed, or lost its membership, for good.
    Gone,
}

/// An event that is due at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    Restart(usize),
    Thaw(usize),
    /// The fault of this number begins.
    Begin(usize),
    /// The link of the fault of this number is reconnected.
    Reconnect(usize),
}

struct NodeState {
    condition: Cell<NodeCondition>,
    /// The present incarnation.
    incarnation: Cell<u32>,
    /// It is to leave in good order, and to restart so long after, ns, if at all.
    leaving: Cell<Option<Option<u64>>>,
    /// Operations and maintenance calls that run on it.
    inside: Cell<u32>,
    /// How often its callers have dropped their operations.
    drops: Cell<u32>,
}

/// The states of all nodes, and the faults of the case.
pub(crate) struct NodeStates<'a> {
    case: &'a Case,
    fabric: SimFabric,
    server: Arc<Server>,
    nodes: Vec<NodeState>,
    /// How often each restarting fault has ended its node, by the number of the fault.
    restart_counts: Vec<Cell<u32>>,
    /// The first memory node is lost, and the membership server with it: no operation succeeds any
    /// more.
    pub membership_lost: Cell<bool>,
    /// The end of each memory node's stall, ns; `u64::MAX` when it is lost.
    stalled_until: Vec<Cell<u64>>,
    /// No further fault occurs.
    faults_ended: Cell<bool>,
    /// Crashes that have been noticed.
    crashes: Cell<u64>,
    /// Faults that wait for a verb.
    waiting: RefCell<Vec<usize>>,
    due: RefCell<Vec<(u64, Due)>>,
    pub happened: RefCell<Vec<Happened>>,
}

impl<'a> NodeStates<'a> {
    pub(crate) fn new(case: &'a Case, fabric: SimFabric, server: Arc<Server>) -> Self {
        let up = |cn| NodeState {
            condition: Cell::new(NodeCondition::Up),
            incarnation: Cell::new(fabric.incarnation(NodeId::compute(cn)).unwrap_or(0)),
            leaving: Cell::default(),
            inside: Cell::default(),
            drops: Cell::default(),
        };
        Self {
            case,
            server,
            restart_counts: vec![Cell::new(0); case.node_faults.len()],
            membership_lost: Cell::new(false),
            stalled_until: vec![Cell::new(0); usize::from(case.pool.memory_nodes)],
            faults_ended: Cell::new(false),
            nodes: (0..case.pool.compute_nodes).map(up).collect(),
            crashes: Cell::new(fabric.crashes()),
            waiting: RefCell::default(),
            due: RefCell::default(),
            happened: RefCell::default(),
            fabric,
        }
    }

    /// Arms all faults; those that last for the whole run begin.
    pub(crate) fn begin(&self, cluster: &Cluster) -> Result<()> {
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
                | NodeFault::RestartLoop { at_ns, .. }
                | NodeFault::StallAll { at_ns, .. }
                | NodeFault::Stall { at_ns, .. }
                | NodeFault::Jump { at_ns, .. } => {
                    self.plan(self.fabric.now() + at_ns, Due::Begin(i));
                }
                NodeFault::Drift { cn, ppm } => {
                    cluster.compute_node(cn.into())?.membership().set_clock_drift(ppm);
                    self.record(*fault, 0);
                }
                NodeFault::LateMembership { cn, late_ns } => {
                    self.server.judge().delay_news(NodeId::compute(cn), late_ns);
                    self.record(*fault, 0);
                }
            }
        }
        Ok(())
    }

    /// Cancels the faults that have not occurred, and undoes the others where that is possible.
    pub(crate) fn end_faults(&self) {
        (0..self.nodes.len()).for_each(|cn| self.fabric.spare(node(cn)));
        self.waiting.borrow_mut().clear();
        self.due.borrow_mut().retain(|(_, due)| !matches!(due, Due::Begin(_)));
        if self.case.rejoins() {
            // All stalls end together.
            self.reconnect_links();
            self.server.condition().stalled_until = 0;
            let found = self.stalled_until.iter().filter(|still| still.get() < u64::MAX);
            found.for_each(|still| still.set(0));
            self.due.borrow_mut().retain(|(_, due)| !matches!(due, Due::Thaw(_)));
            let frozen = self.nodes.iter().filter(|l| l.condition.get() == NodeCondition::Frozen);
            frozen.for_each(|state| state.condition.set(NodeCondition::Up));
        }
        self.faults_ended.set(true);
    }

    pub(crate) fn reconnect_links(&self) {
        let cut = |due: &(u64, Due)| matches!(due.1, Due::Reconnect(_));
        let reconnects: Vec<Due> =
            self.due.borrow().iter().filter(|d| cut(d)).map(|d| d.1).collect();
        self.due.borrow_mut().retain(|d| !cut(d));
        reconnects.into_iter().for_each(|due| _ = self.apply(due, &|_| 0));
    }

    pub(crate) fn condition(&self, cn: usize) -> NodeCondition {
        self.nodes[cn].condition.get()
    }

    pub(crate) fn incarnation(&self, cn: usize) -> u32 {
        self.nodes[cn].incarnation.get()
    }

    /// How often the callers on a node have dropped their operations.
    pub(crate) fn drops(&self, cn: usize) -> u32 {
        self.nodes[cn].drops.get()
    }

    /// The state of each compute node, in words.
    pub(crate) fn summary(&self) -> String {
        let one = |(cn, state): (usize, &NodeState)| {
            let (condition, inside) = (state.condition.get(), state.inside.get());
            let leaves = if state.leaving.get().is_some() { " leaves" } else { "" };
            let no = state.incarnation.get();
            format!("cn{cn} (incarnation {no}) {condition:?}{leaves} runs {inside}")
        };
        self.nodes.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Nodes with clients that run or will run again.
    pub(crate) fn living(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|cn| self.condition(*cn) != NodeCondition::Gone)
    }

    /// A node has lost its membership. It comes back as a new incarnation where nodes restart.
    pub(crate) fn expel(&self, cn: usize) {
        match self.case.rejoins() && !self.membership_lost.get() {
            true => self.end(cn, Ending::Process, Some(self.case.lease_ns / 8)),
            false => self.nodes[cn].condition.set(NodeCondition::Gone),
        }
    }

    /// Ends an incarnation; the next one begins so long after, if any does.
    fn end(&self, cn: usize, ending: Ending, back_ns: Option<u64>) {
        let state = &self.nodes[cn];
        state.leaving.set(None);
        let _ = self.fabric.crash(node(cn), ending.how());
        self.crashes.set(self.fabric.crashes());
        self.due.borrow_mut().retain(|(_, due)| *due != Due::Restart(cn));
        self.stays_down(cn, back_ns.filter(|_| !self.membership_lost.get()));
    }

    /// A node is down, and restarts so long after, if at all.
    fn stays_down(&self, cn: usize, back_ns: Option<u64>) {
        self.nodes[cn].condition.set(match back_ns {
            Some(_) => NodeCondition::Restarting,
            None => NodeCondition::Gone,
        });
        if let Some(after) = back_ns {
            self.plan(self.fabric.now() + after, Due::Restart(cn));
        }
    }

    /// Ends an incarnation, in good order where the node can; true when the end has begun.
    fn request_end(&self, cn: usize, ending: Ending, back_ns: Option<u64>) -> bool {
        let state = &self.nodes[cn];
        match (state.condition.get(), ending) {
            (NodeCondition::Up, Ending::Leaves) => state.leaving.set(Some(back_ns)),
            (NodeCondition::Up | NodeCondition::Frozen, _) => self.end(cn, ending, back_ns),
            (NodeCondition::Restarting, _) => {
                // It stays down as long as the others.
                self.due.borrow_mut().retain(|(_, due)| *due != Due::Restart(cn));
                self.stays_down(cn, back_ns);
            }
            (NodeCondition::Gone, _) => return false,
        }
        true
    }

    /// Whether a node is to leave in good order: its clients begin no operation any more.
    pub(crate) fn is_leaving(&self, cn: usize) -> bool {
        self.nodes[cn].leaving.get().is_some()
    }

    /// The node has left.
    pub(crate) fn left(&self, cn: usize) {
        let back_ns = self.nodes[cn].leaving.get().flatten();
        self.end(cn, Ending::Leaves, back_ns);
    }

    /// Counts an operation of a node until the guard is dropped.
    pub(crate) fn enter(&self, cn: usize) -> Inside<'_> {
        let inside = &self.nodes[cn].inside;
        inside.set(inside.get() + 1);
        Inside(inside)
    }

    /// Whether an operation runs on a node.
    pub(crate) fn is_busy(&self, cn: usize) -> bool {
        self.nodes[cn].inside.get() > 0
    }

    /// Whether a memory node is lost.
    pub(crate) fn is_lost(&self, mn: usize) -> bool {
        self.stalled_until[mn].get() == u64::MAX
    }

    /// Whether a memory node stalls now.
    pub(crate) fn is_stalled(&self, mn: usize) -> bool {
        self.fabric.now() < self.stalled_until[mn].get()
    }

    fn stall(&self, mn: usize, until: u64) {
        let stalled = &self.stalled_until[mn];
        stalled.set(stalled.get().max(until));
        if mn == 0 {
            let server = &mut self.server.condition();
            server.stalled_until = server.stalled_until.max(until);
        }
    }

    fn lose_first_memory_node(&self) {
        self.membership_lost.set(true);
        self.server.condition().lost = true;
        let restarting =
            self.nodes.iter().filter(|l| l.condition.get() == NodeCondition::Restarting);
        restarting.for_each(|state| state.condition.set(NodeCondition::Gone));
    }

    fn plan(&self, at: u64, due: Due) {
        self.due.borrow_mut().push((at, due));
    }

    /// The time of the next event, ns.
    pub(crate) fn next(&self) -> Option<u64> {
        self.due.borrow().iter().map(|(at, _)| *at).min()
    }

    /// The event that is due now, if any.
    pub(crate) fn take_due(&self) -> Option<Due> {
        let now = self.fabric.now();
        let mut due = self.due.borrow_mut();
        let i = due.iter().position(|(at, _)| *at <= now)?;
        Some(due.swap_remove(i).1)
    }

    /// Detects faults since the last call; returns the nodes that they hit. `running` counts the
    /// running operations of a node, or of all.
    pub(crate) fn poll_faults(&self, running: &dyn Fn(Option<usize>) -> u32) -> Vec<usize> {
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
        for (cn, state) in self.nodes.iter().enumerate() {
            let up = matches!(state.condition.get(), NodeCondition::Up | NodeCondition::Frozen);
            if !up || !self.fabric.is_down(node(cn)) {
                continue;
            }
            let back = |f: &NodeFault| match *f {
                NodeFault::Crash { cn: c, back_ns, .. } if usize::from(c) == cn => {
                    Some((*f, back_ns))
                }
                _ => None,
            };
            let Some((fault, back_ns)) = self.case.node_faults.iter().find_map(back) else {
                continue;
            };
            self.record(fault, running(Some(cn)));
            self.stays_down(cn, back_ns);
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
                    if self.condition(cn) == NodeCondition::Up {
                        self.record(self.case.node_faults[i], running(Some(cn)));
                        self.nodes[cn].condition.set(NodeCondition::Frozen);
                        self.plan(self.fabric.now() + for_ns, Due::Thaw(cn));
                        out.push(cn);
                    }
                }
                NodeFault::LoseMemory { mn, .. } => {
                    self.record(self.case.node_faults[i], running(None));
                    let _ = self.fabric.crash(NodeId::memory(mn), How::Machine);
                    self.crashes.set(self.fabric.crashes());
                    self.stalled_until[usize::from(mn)].set(u64::MAX);
                    if mn == 0 {
                        self.lose_first_memory_node();
                        out.extend(0..self.nodes.len());
                    }
                }
                NodeFault::Drop { cn, .. } => {
                    let cn = usize::from(cn);
                    self.record(self.case.node_faults[i], running(Some(cn)));
                    self.nodes[cn].drops.set(self.nodes[cn].drops.get() + 1);
                    out.push(cn);
                }
                _ => {}
            }
        }
    }

    pub(crate) fn record(&self, fault: NodeFault, inside: u32) {
        let at_ns = self.fabric.now();
        self.happened.borrow_mut().push(Happened { fault, at_ns, inside });
    }

    /// Applies a due event; returns the nodes that it hits.
    pub(crate) fn apply(&self, due: Due, running: &dyn Fn(Option<usize>) -> u32) -> Vec<usize> {
        match due {
            Due::Restart(_) => Vec::new(),
            Due::Thaw(cn) => {
                if self.condition(cn) == NodeCondition::Frozen {
                    self.nodes[cn].condition.set(NodeCondition::Up);
                }
                vec![cn]
            }
            Due::Begin(i) => self.begin_fault(i, running),
            Due::Reconnect(i) => {
                self.each_link(i, |a, b| self.fabric.heal(a, b));
                Vec::new()
            }
        }
    }

    /// Begins a fault; returns the nodes that it hits.
    fn begin_fault(&self, i: usize, running: &dyn Fn(Option<usize>) -> u32) -> Vec<usize> {
        let (fault, now) = (self.case.node_faults[i], self.fabric.now());
        let inside = match fault {
            NodeFault::Cut { cn, .. } | NodeFault::RestartLoop { cn, .. } => {
                running(Some(cn.into()))
            }
            _ => running(None),
        };
        self.record(fault, inside);
        let cut_links = |for_ns| {
            self.each_link(i, |a, b| self.fabric.cut(a, b));
            self.plan(now + for_ns, Due::Reconnect(i));
        };
        match fault {
            NodeFault::Cut { for_ns, .. } => cut_links(for_ns),
            NodeFault::Stall { mn, for_ns, .. } => {
                cut_links(for_ns);
                self.stall(mn.into(), now + for_ns);
            }
            NodeFault::StallAll { for_ns, memory, .. } => {
                if memory {
                    cut_links(for_ns);
                    (0..self.stalled_until.len()).for_each(|mn| self.stall(mn, now + for_ns));
                }
                let up = |cn: &usize| self.condition(*cn) == NodeCondition::Up;
                let frozen: Vec<usize> = (0..self.nodes.len()).filter(up).collect();
                for cn in &frozen {
                    self.nodes[*cn].condition.set(NodeCondition::Frozen);
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
                    self.request_end(**cn, end, back_ns)
                });
                return ended.map(|(_, cn)| *cn).collect();
            }
            NodeFault::RestartLoop { cn, times, ends, away_ns, up_ns, .. } => {
                let (cn, count) = (usize::from(cn), &self.restart_counts[i]);
                let end = ends[count.get() as usize % ends.len()];
                let ended = self.condition(cn) == NodeCondition::Up && !self.is_leaving(cn);
                if ended {
                    self.request_end(cn, end, Some(away_ns));
                }
                count.set(count.get() + 1);
                if count.get() < times {
                    self.plan(now + away_ns + up_ns, Due::Begin(i));
                }
                return if ended { vec![cn] } else { Vec::new() };
            }
            NodeFault::Jump { by_ns, .. } => self.server.condition().ahead += by_ns,
            _ => {}
        }
        Vec::new()
    }

    /// The links that a fault cuts.
    fn each_link(&self, i: usize, f: impl Fn(NodeId, NodeId)) {
        let all = |mn: u16| (0..self.nodes.len()).for_each(|cn| f(node(cn), NodeId::memory(mn)));
        match self.case.node_faults[i] {
            NodeFault::Cut { cn, to, .. } => f(NodeId::compute(cn), end(to)),
            NodeFault::Stall { mn, .. } => all(mn),
            NodeFault::StallAll { memory: true, .. } => {
                (0..self.case.pool.memory_nodes).for_each(all);
            }
            _ => {}
        }
    }

    /// A node has restarted, as its present incarnation.
    pub(crate) fn back(&self, cn: usize) {
        self.nodes[cn].incarnation.set(self.fabric.incarnation(node(cn)).unwrap_or(0));
        self.nodes[cn].condition.set(NodeCondition::Up);
    }

    /// Whether memory has been lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.happened.borrow().iter().any(|h| matches!(h.fault, NodeFault::LoseMemory { .. }))
    }

    /// Whether a fault that has occurred explains this error of an operation.
    pub(crate) fn excuses(&self, by: &Issuer, e: &dmtree_fabric::Error) -> bool {
        let excuses = |h: &Happened| match h.fault {
            // After the faults every operation succeeds again.
            f if f.is_of_restarts() && self.faults_ended.get() => false,
            NodeFault::LoseMemory { mn: 0, .. } => h.excuses(by.cn as u16, e),
            NodeFault::LoseMemory { mn, .. } => {
                h.excuses(by.cn as u16, e) && self.failed_at(mn, by)
            }
            _ => h.excuses(by.cn as u16, e),
        };
        self.happened.borrow().iter().any(excuses)
    }

    /// Whether a verb or a call of the operation has failed because of a memory node; or any verb
    /// of its node, when another operation may have carried it.
    fn failed_at(&self, mn: u16, by: &Issuer) -> bool {
        let slot = (!by.carried).then_some(by.slot);
        let failed = self.fabric.failed_at(node(by.cn), slot, NodeId::memory(mn));
        failed.is_some_and(|at| at >= by.since_ns)
    }

    /// Whether a fault that has occurred may have cost a node its membership.
    pub(crate) fn may_be_expelled(&self, cn: usize) -> bool {
        self.happened.borrow().iter().any(|h| h.expels(cn as u16))
    }
}

/// Counts an operation of a node until it is dropped.
pub(crate) struct Inside<'a>(&'a Cell<u32>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The issuer of an operation that has failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Issuer {
    pub cn: usize,
    /// The slot that posted its verbs.
    pub slot: u32,
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

/// Waits until `ready` holds; checks when woken and at the times that `next` returns.
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
