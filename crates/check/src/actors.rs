//! Who acts in a run: clients in their seats, the keepers of their nodes, maintenance, and what makes things happen to all of them.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use dmtree_fabric::{
    Endpoint, ErrorKind, Fabric, Member, MemoryAgent, MemoryState, NodeId, Result, Standing, State,
    Worker,
};
use dmtree_parts::{RangeIndex, Work};
use dmtree_pool::PoolNode;

use crate::drive::{
    Guarded, LOOK_NS, Shared, Who, doer, droppable, excused, failed, liveness, safety,
};
use crate::fault::NodeFault;
use crate::stage::{Condition, Due, wait_until};
use crate::test_cluster::TestCluster;
use crate::verdict::Finding;

/// Pause of a node's maintenance, ns.
const TEND_NS: u64 = 2_000_000;
/// Steps of an agent in a lease, and while a death is under way.
const STEPS_PER_LEASE: u64 = 16;
const STEPS_PER_LEASE_OF_A_DEATH: u64 = 256;
/// Longer than any verb that nothing awaits takes, ns.
const LANDED_NS: u64 = 2_000_000;

/// A client of the run over all its node's lives.
pub(crate) struct Seat<I> {
    pub number: u32,
    pub cn: usize,
    pub slot: u32,
    /// Its next operation.
    pub next: Cell<usize>,
    /// The client, and the incarnation of the node to which it belongs.
    pub index: RefCell<Option<(u32, I)>>,
}

/// What the clients and keepers of a run are made of.
pub(crate) struct Actors<'a, I: RangeIndex> {
    pub test_cluster: &'a TestCluster<I>,
    pub shared: &'a Shared<'a>,
    pub seats: Vec<Seat<I>>,
    /// A slot for the keeper of each compute node.
    pub membership_agents: Vec<u32>,
    /// A slot for the maintenance of each.
    pub maintenance_actors: Vec<u32>,
    pub nodes: RefCell<Vec<Arc<I::Node>>>,
    /// The memory nodes that have agents, each with a way to wait; none where compute nodes have to do without.
    pub agents: Vec<(Member, Endpoint)>,
    pub fault_scheduler: Endpoint,
    pub fault_actor: Endpoint,
}

impl<I: RangeIndex> Actors<'_, I> {
    /// A way to memory for a slot of a node. Nothing when the node has rightly lost its membership, and has not heard of it.
    fn endpoint(&self, cn: usize, slot: u32) -> Option<Endpoint> {
        let shared = self.shared;
        match self.test_cluster.cluster.fabric().attach(NodeId::compute(cn as u16)) {
            Err(e) if e.kind() == ErrorKind::Fenced && shared.stage.may_be_expelled(cn) => {
                shared.stage.expel(cn);
                shared.out(cn);
                None
            }
            attached => {
                let transport = self.must("attach", attached)?;
                Some(Endpoint::new(shared.core.clone(), transport, slot))
            }
        }
    }

    /// Waits until a node is a member in its present life.
    async fn joined(&self, cn: usize, ep: &Endpoint) -> Option<()> {
        let incarnation = self.shared.stage.incarnation(cn);
        let pool = self.must("the node", self.test_cluster.cluster.compute_node(cn))?;
        while pool.standing(pool.cn(), incarnation) != Some(Standing::Living) {
            if self.shared.stage.is_headless() {
                return None;
            }
            ep.sleep(LOOK_NS).await;
        }
        Some(())
    }

    /// A client of the present life of its node, when the node has joined.
    async fn take_seat(&self, seat: &Seat<I>) -> Option<I> {
        let incarnation = self.shared.stage.incarnation(seat.cn);
        let ep = self.endpoint(seat.cn, seat.slot)?;
        if !self.shared.case.node_faults.is_empty() {
            self.joined(seat.cn, &ep).await?;
            let pool = self.must("the node", self.test_cluster.cluster.compute_node(seat.cn))?;
            while pool.check_lease(&ep).is_err() {
                if self.shared.stage.is_headless() {
                    return None;
                }
                ep.sleep(LOOK_NS).await;
            }
        }
        if let Some((_, client)) = seat.index.take().filter(|(its, _)| *its == incarnation) {
            return Some(client);
        }
        Some(I::client(ep, self.nodes.borrow()[seat.cn].clone()))
    }

    fn must<T>(&self, what: &str, result: Result<T>) -> Option<T> {
        match result {
            Ok(out) => Some(out),
            Err(e) => {
                self.shared.found(Finding::Structure(format!("{what}: {e}")));
                None
            }
        }
    }

    /// One phase: clients, the keepers of their nodes, and what happens to them.
    pub(crate) fn phase<'w>(&'w self, worker: &mut Worker<'w>, liveness_now: bool) {
        let shared = self.shared;
        self.seat_clients(worker, liveness_now);
        if shared.case.node_faults.is_empty() {
            return;
        }
        self.keep_nodes(worker);
        if shared.case.node_faults.iter().any(NodeFault::hits_the_living) {
            for (cn, slot) in self.maintenance_actors.iter().enumerate() {
                let work = move || async move { self.tend(cn, *slot).await.unwrap_or_default() };
                worker.spawn(*slot, Guarded::new(shared, Who::MembershipAgent(cn), work));
            }
        }
        let work = move || self.direct();
        worker.spawn(self.fault_scheduler.slot(), Guarded::new(shared, Who::FaultScheduler, work));
    }

    /// What the maintenance of the other phases has left in its midst is brought to its end, on all nodes together: one may wait for
    /// what another has left.
    pub(crate) fn tidy<'w>(&'w self, worker: &mut Worker<'w>) {
        let shared = self.shared;
        self.keep_nodes(worker);
        for cn in shared.stage.living() {
            let slot = self.maintenance_actors[cn];
            let work = move || async move { self.tidy_node(cn, slot).await.unwrap_or_default() };
            worker.spawn(slot, Guarded::new(shared, Who::Tidier(cn), work));
        }
    }

    async fn tidy_node(&self, cn: usize, slot: u32) -> Option<()> {
        let ep = self.endpoint(cn, slot)?;
        // What the end of a phase has dropped in its midst leaves its locks to others when its last verb has ended.
        while !ep.is_quiet() {
            self.must("what was dropped", ep.check_deadline("verbs that were dropped", 0))?;
            ep.sleep(1_000).await;
        }
        let mut index = I::client(ep, self.nodes.borrow()[cn].clone());
        while self.must("maintenance", index.maintain().await)? != Work::None {}
        Some(())
    }

    fn keep_nodes<'w>(&'w self, worker: &mut Worker<'w>) {
        for (cn, slot) in self.membership_agents.iter().enumerate() {
            let work = move || self.keep(cn, *slot);
            worker.spawn(*slot, Guarded::new(self.shared, Who::MembershipAgent(cn), work));
        }
        for (me, ep) in &self.agents {
            let work = move || self.act(*me, ep);
            worker.spawn(ep.slot(), Guarded::new(self.shared, Who::Agent, work));
        }
    }

    /// The agent of a memory node; that of the first has the membership judge, too.
    async fn act(&self, me: Member, ep: &Endpoint) {
        let (shared, server, mn) = (self.shared, &self.shared.server, me.node.index());
        let mut agent = MemoryAgent::new(me);
        let revoke = |dead: Member| shared.fabric.fence(me.node, dead.node, dead.incarnation);
        while !shared.stage.is_lost(mn) {
            let mut quiet = true;
            if !shared.stage.is_still(mn) {
                if mn == 0 {
                    server.tick(ep.now());
                    self.find_the_lost();
                }
                // What fails now is tried again.
                quiet = agent.step(&**server, &revoke, ep.now()).await.unwrap_or(true);
            }
            let steps = if quiet { STEPS_PER_LEASE } else { STEPS_PER_LEASE_OF_A_DEATH };
            ep.sleep(shared.case.lease_ns / steps).await;
        }
    }

    /// The first memory node notices that the process of another one has ended.
    fn find_the_lost(&self) {
        let judge = self.shared.server.judge();
        let state = judge.latest();
        let gone = |m: &&MemoryState| self.shared.stage.is_lost(m.member.node.index());
        state.away().filter(gone).for_each(|m| judge.lose(m.member));
    }

    fn seat_clients<'w>(&'w self, worker: &mut Worker<'w>, liveness_now: bool) {
        let shared = self.shared;
        for seat in &self.seats {
            let work = move || async move {
                let Some(mut client) = self.take_seat(seat).await else { return };
                let node = self.test_cluster.cluster.compute_node(seat.cn);
                let Some(pool) = self.must("the node", node) else { return };
                match liveness_now {
                    true => {
                        self.memory_is_back(&pool, client.endpoint()).await;
                        liveness(&mut client, shared, seat.number).await;
                    }
                    false => safety(&mut client, shared, (seat.number, &*pool), &seat.next).await,
                }
                seat.index.replace(Some((shared.stage.incarnation(seat.cn), client)));
            };
            let who = Who::Client(seat.number, seat.cn);
            worker.spawn(seat.slot, Guarded::new(shared, who, work));
        }
    }

    /// A memory node that stood still renews its lease before clients count on it; the phase's end
    /// is the deadline.
    async fn memory_is_back(&self, pool: &PoolNode, ep: &Endpoint) {
        let stage = &self.shared.stage;
        while pool.away().iter().any(|(mn, _)| !stage.is_lost(mn.index())) {
            ep.sleep(LOOK_NS).await;
        }
    }

    /// What somebody has to do on every node, whether or not its clients do anything: maintenance, now and then. Operations that
    /// fail leave locks behind, and the next operation of their node may never come.
    async fn tend(&self, cn: usize, slot: u32) -> Option<()> {
        let ep = self.endpoint(cn, slot)?;
        self.joined(cn, &ep).await?;
        let mut index = I::client(ep, self.nodes.borrow()[cn].clone());
        loop {
            index.endpoint().sleep(TEND_NS).await;
            if self.shared.stage.is_leaving(cn) {
                continue;
            }
            let _inside = self.shared.stage.enter(cn);
            let by = doer(self.shared, cn, index.endpoint());
            match droppable(self.shared, cn, index.maintain()).await {
                Some(Err(e)) if e.kind() == ErrorKind::Fenced && !self.shared.case.rejoins() => {
                    return None;
                }
                Some(Err(e)) if !excused(self.shared, &by, &e) => {
                    self.shared.found(failed(cn as u32, "maintenance of its node".to_owned(), &e));
                }
                _ => {}
            }
        }
    }

    /// The keeper of a node in one of its lives.
    async fn keep(&self, cn: usize, slot: u32) {
        let shared = self.shared;
        let Some(ep) = self.endpoint(cn, slot) else { return };
        let Some(pool) = self.must("the node", self.test_cluster.cluster.compute_node(cn)) else {
            return;
        };
        let mut heard = 0;
        loop {
            if shared.stage.is_leaving(cn) && !shared.stage.is_busy(cn) {
                return self.leave(cn, &pool, &ep).await;
            }
            let kept = pool.keep(&ep).await;
            if kept.is_ok() {
                heard = ep.now();
            }
            match kept {
                Err(e) if e.kind() == ErrorKind::Fenced => {
                    let latest =
                        self.test_cluster.cluster.judge().expect("in this process").latest();
                    if latest.is_living(pool.member()) {
                        ep.sleep(shared.case.lease_ns / STEPS_PER_LEASE).await;
                        continue;
                    }
                    if !shared.stage.may_be_expelled(cn) {
                        let members = shared.members();
                        let now = shared.fabric.now();
                        shared.found(Finding::Expelled(format!(
                            "at {now} ns: {e}; its keeper was last heard of at {heard} ns; \
                             {members}; running: {}",
                            shared.open().join("; ")
                        )));
                    }
                    shared.stage.expel(cn);
                    shared.out(cn);
                    return;
                }
                _ => ep.sleep(shared.case.lease_ns / STEPS_PER_LEASE).await,
            }
        }
    }

    /// A node whose clients have come to their ends leaves in good order, and its process ends.
    async fn leave(&self, cn: usize, pool: &PoolNode, ep: &Endpoint) {
        let shared = self.shared;
        ep.sleep(LANDED_NS).await;
        // When it does not come to its end it is as if the process were killed.
        let _ = pool.depart(ep, shared.case.lease_ns / STEPS_PER_LEASE).await;
        shared.stage.left(cn);
        shared.out(cn);
    }

    /// Makes happen what is due.
    async fn direct(&self) {
        let (shared, stage) = (self.shared, &self.shared.stage);
        loop {
            let is_due = || stage.next().is_some_and(|at| at <= shared.fabric.now());
            wait_until(&self.fault_scheduler, is_due, || stage.next()).await;
            let Some(due) = stage.take_due() else { continue };
            let hit = match due {
                Due::Restart(cn) if stage.condition(cn) != Condition::RemoteClient => Vec::new(),
                Due::Restart(cn) => {
                    let back = shared.fabric.restart(NodeId::compute(cn as u16));
                    let node = back.and_then(|()| self.test_cluster.revive(cn));
                    let Some(node) = self.must("a restart", node) else { return };
                    self.nodes.borrow_mut()[cn] = node;
                    stage.back(cn);
                    vec![cn]
                }
                other => {
                    if let Due::Thaw(cn) = other {
                        shared.availability.thawed(cn);
                    }
                    stage.apply(other, &|cn| shared.running(cn))
                }
            };
            shared.wake(|of| of.is_some_and(|cn| hit.contains(&cn)));
        }
    }

    /// Every death has been dealt with, and every node that works knows it: what follows from a death is done by those who have
    /// heard of it.
    pub(crate) async fn settled(&self) {
        let (shared, ep) = (self.shared, &self.fault_actor);
        while shared.busy.get() > 1 {
            ep.sleep(LOOK_NS).await;
        }
        let still = |s: Standing| matches!(s, Standing::Living | Standing::Gone);
        loop {
            let state = self.test_cluster.cluster.judge().expect("in this process").latest();
            let over = state.planned.is_none()
                && state.members.iter().all(|m| still(m.standing))
                && state.away().all(|m| shared.stage.is_lost(m.member.node.index()))
                && state.living().all(|m| self.is_up(m));
            let all = shared.stage.living().next().is_none();
            if all || (over && shared.stage.living().all(|cn| self.knows(cn, &state))) {
                return;
            }
            ep.sleep(LOOK_NS).await;
        }
    }

    /// Whether a member works indeed, and goes on to: the lease of one that has crashed may not have
    /// ended yet, and one that leaves would end among those that are judged.
    fn is_up(&self, m: Member) -> bool {
        let (stage, cn) = (&self.shared.stage, m.node.index());
        stage.condition(cn) == Condition::Up
            && stage.incarnation(cn) == m.incarnation
            && !stage.is_leaving(cn)
    }

    /// Whether a node has heard how far everybody has come.
    fn knows(&self, cn: usize, state: &State) -> bool {
        let Ok(pool) = self.test_cluster.cluster.compute_node(cn) else { return false };
        let heard = |m: Member| pool.standing(m.node, m.incarnation);
        state.is_living(pool.member())
            && state.members.iter().all(|m| heard(m.member) == Some(m.standing))
    }
}
