//! The actors of a run: clients, membership agents, maintenance, and the fault scheduler.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::sync::Arc;

use dmtree_fabric::{
    Endpoint, ErrorKind, Fabric, Member, MemberPhase, MembershipState, MemoryAgent, MemoryState,
    NodeId, Result, Worker,
};
use dmtree_parts::{AnyIndex, AnyNode, Pause, Work, worker};
use dmtree_pool::PoolNode;

use crate::drive::{
    Guarded, POLL_NS, RunContext, TaskRole, droppable, excused, failed, issuer, liveness, safety,
};
use crate::fault::NodeFault;
use crate::node_states::{Due, Issuer, NodeCondition, wait_until};
use crate::verdict::Finding;

/// Pause of a node's maintenance, ns.
const MAINTENANCE_PAUSE_NS: u64 = 2_000_000;
/// Steps of an agent in a lease, and while a recovery is under way.
const STEPS_PER_LEASE: u64 = 16;
const STEPS_PER_LEASE_OF_A_DEATH: u64 = 256;
/// Longer than any verb takes that no operation awaits, ns.
const LANDED_NS: u64 = 2_000_000;

/// A client of the run across all incarnations of its node.
struct ClientActor {
    number: u32,
    cn: usize,
    slot: u32,
    next: Cell<usize>,
    /// The client, and the incarnation of the node to which it belongs.
    index: RefCell<Option<(u32, AnyIndex)>>,
}

/// The actors of a run and their parts.
pub(crate) struct Actors<'a> {
    shared: &'a RunContext<'a>,
    client_actors: Vec<ClientActor>,
    /// A slot for the membership agent of each compute node.
    membership_agents: Vec<u32>,
    /// A slot for the maintenance of each.
    maintenance_actors: Vec<u32>,
    /// The workers of the index: node and slot.
    workers: Vec<(usize, u32)>,
    pub nodes: RefCell<Vec<AnyNode>>,
    /// The memory nodes that have agents, each with an endpoint for waits; empty where compute
    /// nodes do without.
    agents: Vec<(Member, Endpoint)>,
    fault_scheduler: Endpoint,
    fault_actor: Endpoint,
}

impl<'a> Actors<'a> {
    /// All of a case, each with a slot of its own.
    pub(crate) fn new(shared: &'a RunContext<'a>) -> Result<Self> {
        let nodes = &shared.test_cluster.nodes;
        let (case, computes) = (shared.case, nodes.len());
        let clients = (0..case.total()).map(|number| {
            let cn = number as usize % computes;
            let (slot, next, index) = (shared.slot(Some(cn)), Cell::new(0), RefCell::new(None));
            ClientActor { number, cn, slot, next, index }
        });
        let mut client_actors: Vec<_> = clients.collect();
        client_actors.retain(|actor| !case.numbers_of(actor.number).is_empty());
        let of_node = |cn| shared.slot(Some(cn));
        let membership_agents = (0..computes).map(of_node).collect();
        let maintenance_actors = (0..computes).map(of_node).collect();
        let workers = shared.test_cluster.options.workers()? as usize;
        let workers = (0..workers * computes).map(|n| n % computes);
        let workers = workers.map(|cn| (cn, of_node(cn))).collect();
        let of_test = || shared.attached(None, shared.slot(None));
        let agent = |mn| {
            let node = NodeId::memory(mn);
            let incarnation = shared.fabric.incarnation(node).unwrap_or(0);
            Ok((Member { node, incarnation }, of_test()?))
        };
        let memory_nodes = if case.rejoins() { case.pool.memory_nodes } else { 0 };
        Ok(Self {
            shared,
            client_actors,
            membership_agents,
            maintenance_actors,
            workers,
            nodes: RefCell::new(nodes.clone()),
            agents: (0..memory_nodes).map(agent).collect::<Result<_>>()?,
            fault_scheduler: of_test()?,
            fault_actor: of_test()?,
        })
    }

    /// Starts a task of the phase.
    fn spawn<'w, F: Future<Output = Option<()>> + 'w>(
        &'w self,
        worker: &mut Worker<'w>,
        (slot, role): (u32, TaskRole),
        work: impl Fn() -> F + 'w,
    ) {
        worker.spawn(slot, Guarded::new(self.shared, role, work));
    }

    /// The phase lasts until the pool is quiescent.
    pub(crate) fn wait_for_quiescence<'w>(&'w self, worker: &mut Worker<'w>) {
        let role = TaskRole { counts: true, ..TaskRole::beside(None) };
        self.spawn(worker, (self.fault_actor.slot(), role), || self.quiesced());
    }

    /// An endpoint for a slot of a node. `None` when a fault has cost the node its membership, and
    /// it has not heard of it.
    fn endpoint(&self, cn: usize, slot: u32) -> Option<Endpoint> {
        let shared = self.shared;
        match shared.attached(Some(cn), slot) {
            Err(e) if e.kind() == ErrorKind::Revoked && shared.node_states.may_be_expelled(cn) => {
                shared.node_states.expel(cn);
                shared.out(cn);
                None
            }
            attached => self.must("attach", attached),
        }
    }

    /// Waits until the present incarnation of a node is a member.
    async fn joined(&self, cn: usize, ep: &Endpoint) -> Option<()> {
        let incarnation = self.shared.node_states.incarnation(cn);
        let pool = self.pool(cn)?;
        let living =
            || pool.membership().phase(pool.cn(), incarnation) == Some(MemberPhase::Living);
        self.until(ep, living).await
    }

    /// Waits for the membership; `None` when it is lost for good.
    async fn until(&self, ep: &Endpoint, holds: impl Fn() -> bool) -> Option<()> {
        while !holds() {
            if self.shared.node_states.membership_lost.get() {
                return None;
            }
            ep.sleep(POLL_NS).await;
        }
        Some(())
    }

    /// A client of the present incarnation of its node, when the node has joined.
    async fn attach_client(&self, actor: &ClientActor) -> Option<AnyIndex> {
        let incarnation = self.shared.node_states.incarnation(actor.cn);
        let ep = self.endpoint(actor.cn, actor.slot)?;
        if !self.shared.case.node_faults.is_empty() {
            self.joined(actor.cn, &ep).await?;
            let pool = self.pool(actor.cn)?;
            self.until(&ep, || pool.check_lease(&ep).is_ok()).await?;
        }
        if let Some((_, client)) = actor.index.take().filter(|(its, _)| *its == incarnation) {
            return Some(client);
        }
        Some(self.nodes.borrow()[actor.cn].client(ep))
    }

    fn must<T>(&self, what: &str, result: Result<T>) -> Option<T> {
        let found = |e| self.shared.found(Finding::structure(format!("{what}: {e}")));
        result.map_err(found).ok()
    }

    fn pool(&self, cn: usize) -> Option<Arc<PoolNode>> {
        self.must("the node", self.shared.test_cluster.cluster.compute_node(cn))
    }

    /// One phase: clients, the agents of their nodes, and faults.
    pub(crate) fn phase<'w>(&'w self, worker: &mut Worker<'w>, liveness_now: bool) {
        let shared = self.shared;
        self.spawn_clients(worker, liveness_now);
        for (cn, slot) in &self.workers {
            self.spawn(worker, (*slot, TaskRole::beside(Some(*cn))), || {
                self.run_worker(*cn, *slot)
            });
        }
        if shared.case.node_faults.is_empty() {
            return;
        }
        self.spawn_agents(worker);
        let case = &shared.case;
        // Where nodes fail, a change of the budget may be dropped as an operation may.
        if case.shrinks_at > 0 || case.node_faults.iter().any(NodeFault::hits_the_living) {
            for (cn, slot) in self.maintenance_actors.iter().enumerate() {
                let maintenance = move || self.maintain_periodically(cn, *slot);
                self.spawn(worker, (*slot, TaskRole::beside(Some(cn))), maintenance);
            }
        }
        let scheduler = (self.fault_scheduler.slot(), TaskRole::beside(None));
        self.spawn(worker, scheduler, || self.schedule_faults());
    }

    /// Completes the maintenance that the other phases have left unfinished, on all nodes together:
    /// one node may wait for another.
    pub(crate) fn finish_maintenance<'w>(&'w self, worker: &mut Worker<'w>) {
        self.spawn_agents(worker);
        for cn in self.shared.node_states.living() {
            let slot = self.maintenance_actors[cn];
            let maintenance = move || self.finish_maintenance_on(cn, slot);
            let role = TaskRole { counts: true, ..TaskRole::beside(Some(cn)) };
            self.spawn(worker, (slot, role), maintenance);
        }
    }

    async fn finish_maintenance_on(&self, cn: usize, slot: u32) -> Option<()> {
        let ep = self.endpoint(cn, slot)?;
        // An operation that the end of a phase has dropped leaves its locks to recovery when its
        // last verb has ended.
        while !ep.is_quiet() {
            self.must("dropped verbs", ep.check_deadline("verbs that were dropped", 0))?;
            ep.sleep(1_000).await;
        }
        let mut index = self.nodes.borrow()[cn].client(ep);
        while self.must("maintenance", index.maintain().await)? != Work::None {}
        while !self.must("a worker", index.work().await)?.is_rest() {}
        Some(())
    }

    fn spawn_agents<'w>(&'w self, worker: &mut Worker<'w>) {
        for (cn, slot) in self.membership_agents.iter().enumerate() {
            let agent = move || self.run_membership_agent(cn, *slot);
            self.spawn(worker, (*slot, TaskRole::beside(Some(cn))), agent);
        }
        for (me, ep) in &self.agents {
            let agent = move || self.run_memory_agent(*me, ep);
            self.spawn(worker, (ep.slot(), TaskRole::beside(None)), agent);
        }
    }

    /// The agent of a memory node; the first one also ticks the membership server.
    async fn run_memory_agent(&self, me: Member, ep: &Endpoint) -> Option<()> {
        let (shared, server, mn) = (self.shared, &self.shared.server, me.node.index());
        let mut agent = MemoryAgent::new(me);
        let revoke = |dead: Member| shared.fabric.revoke(me.node, dead.node, dead.incarnation);
        while !shared.node_states.is_lost(mn) {
            let mut quiet = true;
            if !shared.node_states.is_stalled(mn) {
                if mn == 0 {
                    server.tick(ep.now());
                    self.report_lost_memory();
                }
                // The next step retries a failure.
                quiet = agent.step(&**server, &revoke, ep.now()).await.unwrap_or(true);
            }
            let steps = if quiet { STEPS_PER_LEASE } else { STEPS_PER_LEASE_OF_A_DEATH };
            ep.sleep(shared.case.lease_ns / steps).await;
        }
        None
    }

    /// The first memory node notices that the process of another one has ended.
    fn report_lost_memory(&self) {
        let judge = self.shared.server.judge();
        let state = judge.latest();
        let gone = |m: &&MemoryState| self.shared.node_states.is_lost(m.member.node.index());
        state.away().filter(gone).for_each(|m| judge.lose(m.member));
    }

    fn spawn_clients<'w>(&'w self, worker: &mut Worker<'w>, liveness_now: bool) {
        let shared = self.shared;
        for actor in &self.client_actors {
            let work = move || async move {
                let mut client = self.attach_client(actor).await?;
                let pool = self.pool(actor.cn)?;
                match liveness_now {
                    true => {
                        self.await_memory(&pool, client.endpoint()).await;
                        liveness(&mut client, shared, actor.number).await;
                    }
                    false => safety(&mut client, shared, (actor.number, &*pool), &actor.next).await,
                }
                actor.index.replace(Some((shared.node_states.incarnation(actor.cn), client)));
                Some(())
            };
            let (cn, client) = (Some(actor.cn), Some(actor.number));
            let role = TaskRole { cn, client, counts: true };
            self.spawn(worker, (actor.slot, role), work);
        }
    }

    /// A memory node that stalled renews its lease before clients use it; the end of the phase is
    /// the deadline.
    async fn await_memory(&self, pool: &PoolNode, ep: &Endpoint) {
        let node_states = &self.shared.node_states;
        while pool.membership().away().iter().any(|(mn, _)| !node_states.is_lost(mn.index())) {
            ep.sleep(POLL_NS).await;
        }
    }

    /// Periodic maintenance on every node, whether or not its clients run: an operation that fails
    /// leaves locks behind, and the next operation of its node may never come.
    async fn maintain_periodically(&self, cn: usize, slot: u32) -> Option<()> {
        let ep = self.endpoint(cn, slot)?;
        self.joined(cn, &ep).await?;
        let mut index = self.nodes.borrow()[cn].client(ep);
        loop {
            index.endpoint().sleep(MAINTENANCE_PAUSE_NS).await;
            if self.shared.node_states.is_leaving(cn) {
                continue;
            }
            let by = issuer(self.shared, cn, index.endpoint());
            self.piece("maintenance of its node", by, index.maintain()).await?;
        }
    }

    /// A worker of the index in one incarnation of its node.
    async fn run_worker(&self, cn: usize, slot: u32) -> Option<()> {
        let ep = self.endpoint(cn, slot)?;
        if !self.shared.case.node_faults.is_empty() {
            self.joined(cn, &ep).await?;
        }
        let mut index = self.nodes.borrow()[cn].client(ep.clone());
        loop {
            while self.shared.node_states.is_leaving(cn) {
                ep.sleep(POLL_NS).await;
            }
            let by = issuer(self.shared, cn, &ep);
            ep.renew_deadline();
            let pause = self.piece("a worker of its node", by, index.work()).await?;
            let pause = pause.unwrap_or(Pause::For(MAINTENANCE_PAUSE_NS));
            worker::rest(&ep, &pause, &|| self.shared.node_states.is_leaving(cn)).await;
        }
    }

    /// Executes a piece of background work of a node: `Some(None)` when it fails with an excuse, or
    /// is dropped; `None` when the membership is lost for good.
    async fn piece<T>(
        &self,
        what: &str,
        by: Issuer,
        work: impl Future<Output = Result<T>>,
    ) -> Option<Option<T>> {
        let shared = self.shared;
        let _inside = shared.node_states.enter(by.cn);
        match droppable(shared, by.cn, work).await {
            Some(Ok(out)) => return Some(Some(out)),
            Some(Err(e)) if e.kind() == ErrorKind::Revoked && !shared.case.rejoins() => {
                return None;
            }
            Some(Err(e)) if !excused(shared, &by, &e) => {
                shared.found(failed(by.cn as u32, what.to_owned(), &e));
            }
            _ => {}
        }
        Some(None)
    }

    /// The membership agent of a node in one incarnation.
    async fn run_membership_agent(&self, cn: usize, slot: u32) -> Option<()> {
        let shared = self.shared;
        let (ep, pool) = (self.endpoint(cn, slot)?, self.pool(cn)?);
        let mut heard = 0;
        loop {
            if shared.node_states.is_leaving(cn) && !shared.node_states.is_busy(cn) {
                return self.leave(cn, &pool, &ep).await;
            }
            match pool.membership().membership_step(&ep).await {
                Ok(_) => heard = ep.now(),
                Err(e)
                    if e.kind() == ErrorKind::Revoked
                        && !shared.server.judge().latest().is_living(pool.member()) =>
                {
                    if !shared.node_states.may_be_expelled(cn) {
                        let what = format!(
                            "at {} ns: {e}; its last successful renewal was at {heard} ns; {}; \
                             running: {}",
                            shared.fabric.now(),
                            shared.members(),
                            shared.open().join("; ")
                        );
                        shared.found(Finding::Other("expelled", None, what));
                    }
                    shared.node_states.expel(cn);
                    shared.out(cn);
                    return None;
                }
                Err(_) => {}
            }
            ep.sleep(shared.case.lease_ns / STEPS_PER_LEASE).await;
        }
    }

    /// A node leaves in good order after its clients have ended, and its process ends.
    async fn leave(&self, cn: usize, pool: &PoolNode, ep: &Endpoint) -> Option<()> {
        let shared = self.shared;
        ep.sleep(LANDED_NS).await;
        // A departure that does not finish counts as a kill.
        let _ = pool.partitions().depart(ep, shared.case.lease_ns / STEPS_PER_LEASE).await;
        shared.node_states.left(cn);
        shared.out(cn);
        None
    }

    /// Applies events when they are due.
    async fn schedule_faults(&self) -> Option<()> {
        let (shared, node_states) = (self.shared, &self.shared.node_states);
        loop {
            let is_due = || node_states.next().is_some_and(|at| at <= shared.fabric.now());
            wait_until(&self.fault_scheduler, is_due, || node_states.next()).await;
            let Some(due) = node_states.take_due() else { continue };
            let hit = match due {
                Due::Restart(cn) if node_states.condition(cn) != NodeCondition::Restarting => {
                    Vec::new()
                }
                Due::Restart(cn) => {
                    let back = shared.fabric.restart(NodeId::compute(cn as u16));
                    shared.renew_slots(cn);
                    let node = back.and_then(|()| self.shared.test_cluster.revive(cn));
                    self.nodes.borrow_mut()[cn] = self.must("a restart", node)?;
                    node_states.back(cn);
                    vec![cn]
                }
                other => {
                    if let Due::Thaw(cn) = other {
                        shared.availability.thawed(cn);
                    }
                    node_states.apply(other, &|cn| shared.running(cn))
                }
            };
            shared.wake(|of| of.is_some_and(|cn| hit.contains(&cn)));
        }
    }

    /// Waits until every crash is recovered, and every running node knows it: each node acts on a
    /// crash only after it has heard of it.
    async fn quiesced(&self) -> Option<()> {
        let (shared, ep) = (self.shared, &self.fault_actor);
        while shared.busy.get() > 1 {
            ep.sleep(POLL_NS).await;
        }
        let still = |s: MemberPhase| matches!(s, MemberPhase::Living | MemberPhase::Gone);
        loop {
            let state = shared.server.judge().latest();
            let over = state.planned.is_none()
                && state.members.iter().all(|m| still(m.phase))
                && state.away().all(|m| shared.node_states.is_lost(m.member.node.index()))
                && state.living().all(|m| self.is_up(m));
            let all = shared.node_states.living().next().is_none();
            if all || (over && shared.node_states.living().all(|cn| self.knows(cn, &state))) {
                return Some(());
            }
            ep.sleep(POLL_NS).await;
        }
    }

    /// Whether a member runs and will continue to: the lease of a crashed member may not have ended
    /// yet, and a member that leaves would end while the structure is judged.
    fn is_up(&self, m: Member) -> bool {
        let (node_states, cn) = (&self.shared.node_states, m.node.index());
        node_states.condition(cn) == NodeCondition::Up
            && node_states.incarnation(cn) == m.incarnation
            && !node_states.is_leaving(cn)
    }

    /// Whether a node has heard the phase of every member.
    fn knows(&self, cn: usize, state: &MembershipState) -> bool {
        let Ok(pool) = self.shared.test_cluster.cluster.compute_node(cn) else { return false };
        let heard = |m: Member| pool.membership().phase(m.node, m.incarnation);
        state.is_living(pool.member())
            && state.members.iter().all(|m| heard(m.member) == Some(m.phase))
    }
}
