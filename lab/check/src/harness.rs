//! The harness of runs in virtual time: a cluster on the simulated fabric, the executor of
//! everything that runs there, the history, the first finding, and the judgement in the end.
//! Seeds ([`mod@crate::run`]), scenarios ([`crate::scenario`]) and the crash experiment of the
//! bench run on it.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use dmtree_fabric::sim::SimFabric;
use dmtree_fabric::{Core, Endpoint, Error, Fabric, NodeId, Policy, Result, Transport, Worker};
use dmtree_parts::{AnyIndex, Found, Shape};
use dmtree_pool::PoolNode;

use crate::log::{Answer, Call, Log};
use crate::test_cluster::{Client, TestCluster};
use crate::verdict::Finding;

/// Pause of the membership agents, ns.
pub const PAUSE_NS: u64 = 400_000;

/// What runs on a slot.
type Task = (u32, Pin<Box<dyn Future<Output = ()>>>);

/// A cluster in virtual time, and what runs on it.
pub struct Harness {
    /// The index on every node.
    pub test_cluster: TestCluster,
    /// The fabric that injects the faults.
    pub fabric: SimFabric,
    core: Rc<Core>,
    /// For tasks on no compute node.
    neutral: Rc<dyn Transport>,
    /// The slot of the test itself.
    own: OnceCell<u32>,
    /// Every slot, with the compute node that it belongs to.
    slots: RefCell<Vec<(u32, Option<usize>)>>,
    /// What [`Harness::run`] runs, until `over`.
    tasks: RefCell<Vec<Task>>,
    over: Rc<Cell<bool>>,
    /// Compute nodes that stand still.
    frozen: Rc<RefCell<BTreeSet<u16>>>,
    /// The operations of all clients.
    pub log: RefCell<Log>,
    finding: Rc<RefCell<Option<Finding>>>,
}

impl Harness {
    /// On a cluster with an index; all clients together have so many bytes of buffers.
    ///
    /// # Errors
    /// Those of the fabric.
    pub fn on(test_cluster: TestCluster, fabric: SimFabric, slab_bytes: u64) -> Result<Self> {
        let neutral = fabric.attach(NodeId::memory(0))?;
        let core = Core::new(neutral.clone(), slab_bytes);
        let (own, slots, tasks, over, frozen, log, finding) = Default::default();
        Ok(Self {
            test_cluster,
            fabric,
            core,
            neutral,
            own,
            slots,
            tasks,
            over,
            frozen,
            log,
            finding,
        })
    }

    /// The executor of all tasks.
    pub fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// A slot for a task of a compute node, or of none.
    pub(crate) fn slot(&self, cn: Option<usize>) -> u32 {
        let slot = self.core.add_slot();
        self.slots.borrow_mut().push((slot, cn));
        slot
    }

    /// A compute node is back as a new incarnation: its slots have new clients.
    pub(crate) fn renew_slots(&self, cn: usize) {
        let slots = self.slots.borrow();
        let its = slots.iter().filter(|(_, of)| *of == Some(cn));
        its.for_each(|(slot, _)| self.core.renew_slot(*slot));
    }

    fn own(&self) -> u32 {
        *self.own.get_or_init(|| self.core.add_slot())
    }

    /// An endpoint for a slot of a compute node, or of none.
    pub(crate) fn attached(&self, cn: Option<usize>, slot: u32) -> Result<Endpoint> {
        let transport = match cn {
            Some(cn) => self.fabric.attach(NodeId::compute(cn as u16))?,
            None => self.neutral.clone(),
        };
        Ok(Endpoint::new(self.core.clone(), transport, slot))
    }

    /// An endpoint of a compute node.
    pub fn endpoint(&self, cn: u16, slot: u32) -> Endpoint {
        self.attached(Some(cn.into()), slot).expect("a member")
    }

    /// An endpoint of no compute node.
    pub fn endpoint_beside(&self, slot: u32) -> Endpoint {
        Endpoint::new(self.core.clone(), self.neutral.clone(), slot)
    }

    /// An endpoint of a compute node for the test itself.
    pub fn own_endpoint(&self, cn: u16) -> Endpoint {
        self.endpoint(cn, self.own())
    }

    /// A client for the test itself.
    pub fn client(&self, cn: u16) -> AnyIndex {
        self.test_cluster.nodes[usize::from(cn)].client(self.own_endpoint(cn))
    }

    /// A node's share of the pool.
    pub fn pool(&self, cn: u16) -> Arc<PoolNode> {
        self.test_cluster.cluster.compute_node(usize::from(cn)).expect("exists")
    }

    /// Runs a future while the node is up, and not frozen.
    pub fn spawn(&self, cn: u16, slot: u32, f: impl Future<Output = ()> + 'static) {
        let (fabric, frozen, mut f) = (self.fabric.clone(), self.frozen.clone(), Box::pin(f));
        self.slots.borrow_mut().push((slot, Some(cn.into())));
        let up = poll_fn(move |cx| {
            // No task of a crashed node runs.
            let stands = fabric.is_down(NodeId::compute(cn)) || frozen.borrow().contains(&cn);
            if stands { Poll::Pending } else { f.as_mut().poll(cx) }
        });
        self.spawn_beside(slot, up);
    }

    /// No task of a compute node runs until it is thawed. Its verbs in flight execute, and its NIC
    /// serves its memory.
    pub fn freeze(&self, cn: u16) {
        self.frozen.borrow_mut().insert(cn);
    }

    /// The tasks of a compute node go on.
    pub fn thaw(&self, cn: u16) {
        self.frozen.borrow_mut().remove(&cn);
        self.wake(|of| of == Some(cn.into()));
    }

    /// Runs a future of no compute node.
    pub fn spawn_beside(&self, slot: u32, f: impl Future<Output = ()> + 'static) {
        let (over, mut f) = (self.over.clone(), Box::pin(f));
        let end = poll_fn(move |cx| match over.get() {
            true => Poll::Ready(()),
            false => f.as_mut().poll(cx),
        });
        self.tasks.borrow_mut().push((slot, Box::pin(end)));
    }

    /// A client that runs until its node crashes, or the run is over.
    pub fn worker<F: Future<Output = ()> + 'static>(&self, cn: u16, f: impl FnOnce(AnyIndex) -> F) {
        let slot = self.core.add_slot();
        let client = self.test_cluster.nodes[usize::from(cn)].client(self.endpoint(cn, slot));
        self.spawn(cn, slot, f(client));
    }

    /// Starts a membership agent on every node.
    pub fn membership_agents(&self) {
        self.membership_agents_at(|_| PAUSE_NS);
    }

    /// Membership agents with pauses of their own, ns: the agent with the shorter pause is more
    /// often the first.
    pub fn membership_agents_at(&self, pause_ns: impl Fn(u16) -> u64) {
        (0..self.test_cluster.cluster.compute_nodes() as u16)
            .for_each(|cn| self.membership_agent(cn, pause_ns(cn)));
    }

    /// Starts a membership agent on one node.
    pub fn membership_agent(&self, cn: u16, pause_ns: u64) {
        let slot = self.core.add_slot();
        let (node, ep) = (self.pool(cn), self.endpoint(cn, slot));
        ep.set_timeout(5_000_000);
        self.spawn(cn, slot, async move {
            // A revoked node has no membership.
            let _ = node.membership().run_membership(&ep, pause_ns, || false).await;
        });
    }

    /// Runs everything until `main` has ended.
    pub fn run(&self, policy: &mut dyn Policy, main: impl Future<Output = ()>) {
        self.fabric.set_timed(true);
        let mut worker = Worker::new(self.core.clone());
        let tasks = self.tasks.take();
        let slots: Vec<u32> = tasks.iter().map(|task| task.0).collect();
        tasks.into_iter().for_each(|(slot, task)| worker.spawn(slot, task));
        worker.spawn(self.own(), async move {
            main.await;
            self.over.set(true);
            slots.iter().for_each(|slot| self.core.wake(*slot));
        });
        self.execute(&mut worker, policy);
        drop(worker);
        self.fabric.set_timed(false);
    }

    /// Runs the tasks of an executor until all have ended.
    pub(crate) fn execute(&self, worker: &mut Worker<'_>, policy: &mut dyn Policy) {
        if let Err(stalled) = worker.run(policy) {
            self.found(Finding::Other("stalled", None, stalled.to_string()));
        }
    }

    /// Runs a future of the test itself while time stands still.
    ///
    /// # Errors
    /// The future's.
    pub fn now<T>(&self, f: impl Future<Output = Result<T>>) -> Result<T> {
        self.core.block_on(self.own(), f)
    }

    /// Wakes the tasks of some nodes.
    pub(crate) fn wake(&self, of: impl Fn(Option<usize>) -> bool) {
        let slots = self.slots.borrow();
        slots.iter().filter(|(_, cn)| of(*cn)).for_each(|(slot, _)| self.core.wake(*slot));
    }

    /// A client calls; the number of the record.
    pub fn call(&self, client: u32, call: Call) -> usize {
        self.log.borrow_mut().call(client, self.fabric.now(), call)
    }

    /// A call returns.
    pub fn ret(&self, record: usize, answer: Answer) {
        self.log.borrow_mut().ret(record, self.fabric.now(), answer);
    }

    /// Keeps the first finding, and lets every client end.
    pub(crate) fn found(&self, what: Finding) {
        self.finding.borrow_mut().get_or_insert(what);
        self.wake(|_| true);
    }

    /// Reports a failure; the first one counts.
    pub fn complain(&self) -> impl Fn(String) + use<> {
        let finding = self.finding.clone();
        move |what| _ = finding.borrow_mut().get_or_insert(Finding::Other("failed", None, what))
    }

    /// The first finding.
    pub(crate) fn finding(&self) -> Option<Finding> {
        self.finding.borrow().clone()
    }

    /// The first failure.
    pub fn trouble(&self) -> Option<String> {
        self.finding().map(|f| f.to_string())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.finding.borrow().is_some()
    }
}

/// Judges the memory of an index when nothing runs: one GC frees what crashed nodes and dropped
/// operations have leaked, which is nothing unless it `may_leak`; after it every piece of memory
/// has one holder. Returns what was lost.
pub(crate) fn judge_memory(mut gc: impl FnMut() -> Result<Found>, may_leak: bool) -> Result<Found> {
    let found = gc().map_err(|e| e.context("a gc"))?;
    let again = gc().map_err(|e| e.context("a second gc"))?;
    if found.doubly > 0 || !again.is_nothing() {
        let what = format!("lost or doubly owned memory: {found:?}, then {again:?}");
        return Err(Error::corrupt(what));
    }
    match may_leak || found.is_nothing() {
        true => Ok(found),
        false => Err(Error::corrupt(format!("memory is lost without a fault: {found:?}"))),
    }
}

/// The same of its memory and its structure, in which reads have found so many keys.
pub(crate) fn judge(c: &mut Client, keys: u64, may_leak: bool) -> Result<(Shape, Found)> {
    let found = judge_memory(|| c.gc(), may_leak)?;
    let shape = c.walk().map_err(|e| e.context("walk"))?;
    if shape.keys != keys {
        let walked = shape.keys;
        return Err(Error::corrupt(format!("the walk finds {walked} keys, and reads find {keys}")));
    }
    Ok((shape, found))
}
