//! Exact costs of operations as counts: they do not depend on the machine's speed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use serde::Serialize;

use crate::addr::{ByNode, NodeId, Role};
use crate::core::WaitReason;
use crate::scope::{OpKind, OpOutcome, Stage, Step};
use crate::transport::{Nanos, Opcode, WorkRequest};
use crate::waits::Waits;

/// Verbs and bytes towards one side (all memory nodes, all compute nodes, or one node).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SideCounts {
    /// READs.
    pub read: u64,
    /// WRITEs.
    pub write: u64,
    /// Compare-and-swaps and fetch-and-adds.
    pub atomic: u64,
    /// Remote calls.
    pub rpc: u64,
    /// Payload bytes fetched by READs.
    pub bytes_read: u64,
    /// Payload bytes sent by WRITEs.
    pub bytes_written: u64,
    /// Bytes of requests of remote calls.
    pub bytes_asked: u64,
    /// Bytes of their replies.
    pub bytes_replied: u64,
}

impl SideCounts {
    /// Counts a verb.
    #[inline]
    pub(crate) fn count(&mut self, op: Opcode, len: u32) {
        match op {
            Opcode::Read => {
                self.read += 1;
                self.bytes_read += u64::from(len);
            }
            Opcode::Write | Opcode::WriteWord => {
                self.write += 1;
                self.bytes_written += u64::from(len);
            }
            Opcode::Cas | Opcode::Faa => self.atomic += 1,
        }
    }

    /// Adds another count to this one.
    pub fn add(&mut self, o: &Self) {
        self.add_times(o, 1);
    }

    fn add_times(&mut self, o: &Self, n: u64) {
        self.read += o.read * n;
        self.write += o.write * n;
        self.atomic += o.atomic * n;
        self.rpc += o.rpc * n;
        self.bytes_read += o.bytes_read * n;
        self.bytes_written += o.bytes_written * n;
        self.bytes_asked += o.bytes_asked * n;
        self.bytes_replied += o.bytes_replied * n;
    }

    /// All one-sided verbs, which a NIC serves as target.
    pub fn verbs(&self) -> u64 {
        self.read + self.write + self.atomic
    }
}

/// Cost of one operation, or the sum over several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OpCounts {
    /// Towards memory nodes, detached verbs included.
    pub mn: SideCounts,
    /// Towards compute nodes, detached verbs included.
    pub cn: SideCounts,
    /// Dependent round trips up to the acknowledgement.
    pub round_trips: u64,
    /// Lists posted without waiting (unlocks).
    pub detached: u64,
    /// Doorbells rung: one per queue pair of a posted list.
    pub doorbells: u64,
}

impl OpCounts {
    /// Adds another count to this one.
    pub fn add(&mut self, o: &Self) {
        self.add_times(o, 1);
    }

    fn add_times(&mut self, o: &Self, n: u64) {
        self.mn.add_times(&o.mn, n);
        self.cn.add_times(&o.cn, n);
        self.round_trips += o.round_trips * n;
        self.detached += o.detached * n;
        self.doorbells += o.doorbells * n;
    }
}

/// Operations with this many round trips or more share the last bucket.
pub const ROUND_TRIP_BUCKETS: usize = 64;

/// Sum over the operations of one kind and outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals {
    /// How many operations.
    pub ops: u64,
    /// Their total cost.
    pub counts: OpCounts,
    /// How many took exactly `i` round trips.
    pub round_trip_histogram: [u64; ROUND_TRIP_BUCKETS],
}

impl Default for Totals {
    fn default() -> Self {
        Self { ops: 0, counts: OpCounts::default(), round_trip_histogram: [0; ROUND_TRIP_BUCKETS] }
    }
}

impl Totals {
    /// Adds another sum to this one.
    pub fn add(&mut self, o: &Self) {
        self.ops += o.ops;
        self.counts.add(&o.counts);
        for (a, b) in self.round_trip_histogram.iter_mut().zip(&o.round_trip_histogram) {
            *a += b;
        }
    }

    /// The smallest number of round trips that at least `share` (0 to 1) of the operations did not
    /// exceed.
    pub fn round_trips_quantile(&self, share: f64) -> u64 {
        let need = (self.ops as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (trips, n) in self.round_trip_histogram.iter().enumerate() {
            seen += n;
            if seen >= need {
                return trips as u64;
            }
        }
        ROUND_TRIP_BUCKETS as u64 - 1
    }
}

const CELLS: usize = OpKind::ALL.len() * OpOutcome::ALL.len();

/// Time by step, ns, in the order of [`Step::ALL`].
pub type StepTimes = [Nanos; Step::ALL.len()];

/// Leaves that were divided: how full they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Divided {
    /// Keys in them, without those that found no room.
    pub keys: u64,
    /// Their slots.
    pub slots: u64,
}

impl Divided {
    fn add(&mut self, o: Self) {
        self.keys += o.keys;
        self.slots += o.slots;
    }
}

/// Everything one endpoint counted; sums of several endpoints have the same form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// By operation kind and outcome, only those that occurred.
    pub ops: Vec<(OpKind, OpOutcome, Totals)>,
    /// By target node, only those that were reached.
    pub nodes: Vec<(NodeId, SideCounts)>,
    /// Verbs outside any operation.
    pub loose: OpCounts,
    /// Time by operation kind and step, where it was measured.
    pub steps: Vec<(OpKind, StepTimes)>,
    /// Units charged by CPU stage, where the fabric charges; in the order of [`Stage::ALL`].
    pub charged: [u64; Stage::ALL.len()],
    /// Leaves that it divided.
    pub divided: Divided,
    /// What it has waited for.
    pub waits: Waits,
}

impl Snapshot {
    /// Adds another snapshot to this one.
    pub fn add(&mut self, other: &Self) {
        for (kind, outcome, totals) in &other.ops {
            match self.ops.binary_search_by_key(&(*kind, *outcome), |(k, o, _)| (*k, *o)) {
                Ok(i) => self.ops[i].2.add(totals),
                Err(i) => self.ops.insert(i, (*kind, *outcome, totals.clone())),
            }
        }
        for (node, counts) in &other.nodes {
            match self.nodes.binary_search_by_key(node, |(n, _)| *n) {
                Ok(i) => self.nodes[i].1.add(counts),
                Err(i) => self.nodes.insert(i, (*node, *counts)),
            }
        }
        self.loose.add(&other.loose);
        self.divided.add(other.divided);
        self.waits.add(&other.waits);
        self.charged.iter_mut().zip(&other.charged).for_each(|(a, b)| *a += b);
        for (kind, times) in &other.steps {
            match self.steps.binary_search_by_key(kind, |(k, _)| *k) {
                Ok(i) => self.steps[i].1.iter_mut().zip(times).for_each(|(a, b)| *a += b),
                Err(i) => self.steps.insert(i, (*kind, *times)),
            }
        }
    }

    /// Sum over all outcomes of some kinds.
    pub fn total(&self, kinds: &[OpKind]) -> Totals {
        let mut sum = Totals::default();
        for (kind, _, totals) in &self.ops {
            if kinds.contains(kind) {
                sum.add(totals);
            }
        }
        sum
    }

    /// The sum for one kind and outcome.
    pub fn cell(&self, kind: OpKind, outcome: OpOutcome) -> Totals {
        let at = self.ops.binary_search_by_key(&(kind, outcome), |(k, o, _)| (*k, *o));
        at.map(|i| self.ops[i].2.clone()).unwrap_or_default()
    }
}

/// Verbs and bytes towards one node, packed: each operation compares its cost with that of the last
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NodeCost {
    /// READs, WRITEs, atomics and the node, 16 bits each from the lowest.
    verbs: u64,
    /// Bytes READ and written, 32 bits each.
    bytes: u64,
}

impl NodeCost {
    #[inline]
    fn verb(&mut self, op: Opcode, node: NodeId, len: usize) {
        let node = u64::from(node.bits()) << 48;
        debug_assert!(self.verbs == 0 || self.verbs >> 48 << 48 == node, "one node of each role");
        let (verb, bytes) = match op {
            Opcode::Read => (1, len as u64),
            Opcode::Write | Opcode::WriteWord => (1 << 16, (len as u64) << 32),
            Opcode::Cas | Opcode::Faa => (1 << 32, 0),
        };
        self.verbs = (self.verbs | node) + verb;
        self.bytes += bytes;
    }

    fn counts(&self) -> Option<(NodeId, SideCounts)> {
        let [read, write, atomic] = [0, 16, 32].map(|at| self.verbs >> at & 0xffff);
        let (bytes_read, bytes_written) = (self.bytes & u64::from(u32::MAX), self.bytes >> 32);
        let none = SideCounts::default();
        let counts = SideCounts { read, write, atomic, bytes_read, bytes_written, ..none };
        (self.verbs != 0).then(|| (NodeId::from_bits((self.verbs >> 48) as u16), counts))
    }
}

/// The cost of an operation of few verbs that reaches at most one node of each role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirectCost {
    memory: NodeCost,
    compute: NodeCost,
    round_trips: u16,
    detached: u16,
}

impl DirectCost {
    /// Counts a list that is awaited.
    #[inline]
    pub(crate) fn list(&mut self) {
        self.round_trips += 1;
    }

    /// Counts a list that is not awaited.
    #[inline]
    pub(crate) fn detached_list(&mut self) {
        self.detached += 1;
    }

    /// Whether there was a list.
    pub(crate) fn has_begun(&self) -> bool {
        self.round_trips + self.detached > 0
    }

    /// Counts a verb.
    #[inline]
    pub(crate) fn verb(&mut self, op: Opcode, node: NodeId, len: usize) {
        let side = if node.is_compute() { &mut self.compute } else { &mut self.memory };
        side.verb(op, node, len);
    }

    fn sides(&self) -> impl Iterator<Item = (NodeId, SideCounts)> {
        [self.memory, self.compute].into_iter().filter_map(|side| side.counts())
    }

    fn counts(&self) -> OpCounts {
        let [round_trips, detached] = [self.round_trips, self.detached].map(u64::from);
        // Each list goes to one node.
        let doorbells = round_trips + detached;
        let mut counts = OpCounts { round_trips, detached, doorbells, ..OpCounts::default() };
        for (node, side) in self.sides() {
            match node.role() {
                Role::Memory | Role::Journal => counts.mn = side,
                Role::Compute => counts.cn = side,
            }
        }
        counts
    }
}

/// Operations of one kind that had the same outcome and the same cost: a client counts most of its
/// operations by one more of them.
#[derive(Clone, Copy, Debug)]
struct Alike {
    outcome: OpOutcome,
    cost: DirectCost,
    ops: u64,
}

/// Costs of a kind that are counted apart, by their round trips: a key with another slot of its
/// fingerprint costs one more.
const COSTS: usize = 4;

/// Shared sums of several endpoints.
#[derive(Debug)]
pub(crate) struct Sums {
    alike: RefCell<[[Alike; COSTS]; OpKind::ALL.len()]>,
    loose: RefCell<OpCounts>,
    totals: RefCell<Vec<Option<Box<Totals>>>>,
    nodes: RefCell<ByNode<SideCounts>>,
    steps: RefCell<[StepTimes; OpKind::ALL.len()]>,
    charged: Cell<[u64; Stage::ALL.len()]>,
    divided: Cell<Divided>,
    waits: RefCell<Waits>,
}

impl Sums {
    fn new() -> Self {
        let none = Alike { outcome: OpOutcome::Other, cost: DirectCost::default(), ops: 0 };
        Self {
            alike: RefCell::new([[none; COSTS]; OpKind::ALL.len()]),
            loose: RefCell::default(),
            totals: RefCell::new(vec![None; CELLS]),
            nodes: RefCell::default(),
            steps: RefCell::default(),
            charged: Cell::default(),
            divided: Cell::default(),
            waits: RefCell::default(),
        }
    }
}

/// The live counters of one endpoint.
#[derive(Debug)]
pub(crate) struct Counters {
    current: RefCell<OpCounts>,
    in_op: Cell<bool>,
    /// Times by step of the present operation, where they are measured.
    times: RefCell<StepTimes>,
    timed: Cell<bool>,
    sums: Rc<Sums>,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self::into(Rc::new(Sums::new()))
    }

    /// Counters of one more endpoint that adds to the sums of others.
    pub(crate) fn into(sums: Rc<Sums>) -> Self {
        let (current, times) = (RefCell::default(), RefCell::default());
        Self { current, in_op: Cell::new(false), times, timed: Cell::new(false), sums }
    }

    pub(crate) fn sums(&self) -> Rc<Sums> {
        self.sums.clone()
    }

    #[inline(always)]
    fn with_node(&self, node: NodeId, f: impl FnOnce(&mut SideCounts)) {
        f(self.sums.nodes.borrow_mut().at(node));
    }

    #[inline(always)]
    fn with_current(&self, f: impl FnOnce(&mut OpCounts)) {
        if self.in_op.get() {
            f(&mut self.current.borrow_mut());
        } else {
            f(&mut self.sums.loose.borrow_mut());
        }
    }

    /// Counts a posted list.
    pub(crate) fn posted(&self, list: &[WorkRequest], detached: bool) {
        let mut from = 0;
        for verbs in list.chunk_by(|a, b| a.at.node() == b.at.node()) {
            let (node, mut side) = (verbs[0].at.node(), SideCounts::default());
            verbs.iter().for_each(|wr| side.count(wr.op, wr.len));
            // One queue pair per node.
            let is_first = list[..from].iter().all(|earlier| earlier.at.node() != node);
            self.verbs(node, &side, is_first);
            from += verbs.len();
        }
        self.list(detached);
    }

    /// Counts verbs of a list to a node, and the doorbell if the list did not name the node before.
    #[inline]
    pub(crate) fn verbs(&self, node: NodeId, verbs: &SideCounts, is_first: bool) {
        self.with_current(|c| {
            match node.role() {
                Role::Memory | Role::Journal => c.mn.add(verbs),
                Role::Compute => c.cn.add(verbs),
            }
            c.doorbells += u64::from(is_first);
        });
        self.with_node(node, |n| n.add(verbs));
    }

    /// Counts a list.
    #[inline]
    pub(crate) fn list(&self, detached: bool) {
        self.with_current(|c| if detached { c.detached += 1 } else { c.round_trips += 1 });
    }

    /// Counts a remote call with a request of so many bytes.
    pub(crate) fn called(&self, to: NodeId, bytes: usize) {
        self.with_current(|c| c.round_trips += 1);
        self.with_sides(to, |side| {
            side.rpc += 1;
            side.bytes_asked += bytes as u64;
        });
    }

    /// Counts a reply of so many bytes.
    pub(crate) fn replied(&self, from: NodeId, bytes: usize) {
        self.with_sides(from, |side| side.bytes_replied += bytes as u64);
    }

    /// Changes the counts towards a node, and those towards all of its role.
    fn with_sides(&self, node: NodeId, f: impl Fn(&mut SideCounts)) {
        self.with_current(|c| match node.role() {
            Role::Memory | Role::Journal => f(&mut c.mn),
            Role::Compute => f(&mut c.cn),
        });
        self.with_node(node, f);
    }

    /// Whether an operation has begun.
    #[inline]
    pub(crate) fn is_in_op(&self) -> bool {
        self.in_op.get()
    }

    /// Whether times by step are measured.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.timed.get()
    }

    pub(crate) fn set_timed(&self, on: bool) {
        self.timed.set(on);
    }

    /// CPU time was charged.
    pub(crate) fn charged(&self, stage: Stage, units: u32) {
        let mut all = self.sums.charged.get();
        all[stage as usize] += u64::from(units);
        self.sums.charged.set(all);
    }

    /// A leaf was divided.
    pub(crate) fn divided(&self, leaf: Divided) {
        let mut all = self.sums.divided.get();
        all.add(leaf);
        self.sums.divided.set(all);
    }

    /// Time of the present operation went into a step.
    /// A wait has ended.
    pub(crate) fn waited(&self, why: WaitReason, ns: Nanos) {
        self.sums.waits.borrow_mut().count(why, ns);
        if self.is_timed() {
            self.spent(Step::Wait, ns);
        }
    }

    pub(crate) fn spent(&self, step: Step, ns: Nanos) {
        self.times.borrow_mut()[step as usize] += ns;
    }

    pub(crate) fn begin(&self) {
        *self.current.borrow_mut() = OpCounts::default();
        self.in_op.set(true);
        if self.timed.get() {
            *self.times.borrow_mut() = StepTimes::default();
        }
    }

    pub(crate) fn current(&self) -> OpCounts {
        *self.current.borrow()
    }

    pub(crate) fn end(&self, kind: OpKind, outcome: OpOutcome) {
        self.in_op.set(false);
        if self.timed.get() {
            let sums = &mut self.sums.steps.borrow_mut()[kind as usize];
            sums.iter_mut().zip(self.times.borrow().iter()).for_each(|(a, b)| *a += b);
        }
        self.add_ops((kind, outcome), &self.current.borrow(), 1);
    }

    /// Counts operations of one cost.
    #[inline]
    fn add_ops(&self, (kind, outcome): (OpKind, OpOutcome), cost: &OpCounts, ops: u64) {
        let mut totals = self.sums.totals.borrow_mut();
        let cell = kind as usize * OpOutcome::ALL.len() + outcome as usize;
        let t = totals[cell].get_or_insert_default();
        t.ops += ops;
        t.counts.add_times(cost, ops);
        let trips = (cost.round_trips as usize).min(ROUND_TRIP_BUCKETS - 1);
        t.round_trip_histogram[trips] += ops;
    }

    /// Counts an operation on memory of this process that has ended.
    #[inline]
    pub(crate) fn ended_direct(&self, kind: OpKind, outcome: OpOutcome, cost: &DirectCost) {
        let mut alike = self.sums.alike.borrow_mut();
        let last = &mut alike[kind as usize][usize::from(cost.round_trips) % COSTS];
        if last.outcome == outcome && last.cost == *cost {
            last.ops += 1;
            return;
        }
        let former = std::mem::replace(last, Alike { outcome, cost: *cost, ops: 1 });
        drop(alike);
        self.add_alike(kind, &former);
    }

    /// The present operation has had these costs already.
    pub(crate) fn go_on(&self, cost: &DirectCost) {
        self.current.borrow_mut().add(&cost.counts());
        self.add_nodes(cost, 1);
    }

    fn add_nodes(&self, cost: &DirectCost, ops: u64) {
        for (node, counts) in cost.sides() {
            self.with_node(node, |n| n.add_times(&counts, ops));
        }
    }

    #[cold]
    fn add_alike(&self, kind: OpKind, alike: &Alike) {
        if alike.ops == 0 {
            return;
        }
        self.add_nodes(&alike.cost, alike.ops);
        self.add_ops((kind, alike.outcome), &alike.cost.counts(), alike.ops);
    }

    fn add_all_alike(&self) {
        for kind in OpKind::ALL {
            let alike = self.sums.alike.borrow()[kind as usize];
            self.sums.alike.borrow_mut()[kind as usize].iter_mut().for_each(|a| a.ops = 0);
            alike.iter().for_each(|alike| self.add_alike(kind, alike));
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.add_all_alike();
        let totals = self.sums.totals.borrow();
        let mut ops = Vec::new();
        for kind in OpKind::ALL {
            for outcome in OpOutcome::ALL {
                let cell = kind as usize * OpOutcome::ALL.len() + outcome as usize;
                if let Some(t) = &totals[cell] {
                    ops.push((kind, outcome, (**t).clone()));
                }
            }
        }
        let nodes = self.sums.nodes.borrow();
        let reached = nodes.iter().filter(|(_, c)| **c != SideCounts::default());
        let nodes = reached.map(|(node, counts)| (node, *counts)).collect();
        let steps = self.sums.steps.borrow();
        let steps = OpKind::ALL.into_iter().zip(steps.iter().copied());
        let steps = steps.filter(|(_, t)| *t != StepTimes::default()).collect();
        let loose = *self.sums.loose.borrow();
        let (charged, divided) = (self.sums.charged.get(), self.sums.divided.get());
        let waits = self.sums.waits.borrow().clone();
        Snapshot { ops, nodes, loose, steps, charged, divided, waits }
    }

    /// Resets all counters.
    pub(crate) fn reset(&self) {
        self.add_all_alike();
        *self.sums.loose.borrow_mut() = OpCounts::default();
        self.sums.totals.borrow_mut().iter_mut().for_each(|t| *t = None);
        self.sums.nodes.take();
        *self.sums.steps.borrow_mut() = Default::default();
        self.sums.charged.set(Default::default());
        self.sums.divided.take();
        self.sums.waits.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_round_trips() {
        let mut t = Totals { ops: 100, ..Totals::default() };
        t.round_trip_histogram[1] = 98;
        t.round_trip_histogram[7] = 2;
        assert_eq!((t.round_trips_quantile(0.5), t.round_trips_quantile(0.99)), (1, 7));
    }

    #[test]
    fn snapshots_add_up() {
        let c = Counters::new();
        c.begin();
        c.called(NodeId::memory(1), 10);
        c.replied(NodeId::memory(1), 3);
        c.end(OpKind::Get, OpOutcome::Hit);
        c.divided(Divided { keys: 30, slots: 32 });
        let mut sum = c.snapshot();
        sum.add(&c.snapshot());
        assert_eq!(sum.cell(OpKind::Get, OpOutcome::Hit).counts.mn.rpc, 2);
        let side =
            SideCounts { rpc: 2, bytes_asked: 20, bytes_replied: 6, ..SideCounts::default() };
        assert_eq!(sum.nodes, [(NodeId::memory(1), side)]);
        assert_eq!(sum.divided, Divided { keys: 60, slots: 64 });
        c.reset();
        assert_eq!(c.snapshot(), Snapshot::default());
    }
}
