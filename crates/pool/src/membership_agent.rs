//! The membership agent of a compute node: renews its lease, follows the epochs of the membership,
//! and does what they ask of the node. The embedder calls [`PoolMembership::membership_step`] again
//! and again, on a slot of its own, with pauses of a small part of a lease; the agents of a pool
//! need no leader.
//!
//! One step, in order:
//!
//! 1. **Renew.** `join` at first, then `renew` once a quarter of the lease has passed and every
//!    registered worker has beaten within half a lease. The lease runs from the reading of the own
//!    clock *before* the call, so it ends here before it ends at the membership server.
//! 2. **Follow.** A newer state replaces the known one. First the presence of memory nodes is
//!    applied (nothing is posted to one that is away); then the directory entries of partitions
//!    with a dead owner, or which are to move, are dropped under the lock that guards the state;
//!    then links to the dead are abandoned, links to restarted nodes are set up, and a [`Drain`] of
//!    the operations that run now is taken for every death and move that is draining.
//! 3. **Acknowledge.** *Revoking*: revokes the access of the dead node at this host. *Draining*:
//!    answers when the drain of step 2 is over. *Away*: answers that nothing is posted to that
//!    memory node any more. A planned move likewise. *Refilled* (a journal node with a gap):
//!    answers when the drain of step 2 is over; what begins later waits for the journal node.
//! 4. **Coordinate.** The first agent that finds every acknowledgement carries a death on: it
//!    revokes the access at memory nodes that hold no lease themselves, claims the reassignment,
//!    carries it out (`reassign.rs`) and reports it. The membership lets one claimant act at a
//!    time.
//!
//! Invariants. An agent acknowledges *draining* only after every operation that could have used the
//! dead node's tables has ended or has passed a quiescent point: the directory entries are dropped
//! before the drain is taken. A connection to a new incarnation is made only after the former one
//! has drained here, so no address of the former one is used on it. A membership that is lost stays
//! lost.
//!
//! Crashes and drops. Every step may be repeated and may stop anywhere. Acknowledgements and claims
//! are idempotent proposals; a claim of an agent that dies goes to the next claimant, which repeats
//! the reassignment. Coordination of one death that fails returns its error after the remaining
//! deaths were tried, so one death that cannot go on does not hold back the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dmtree_fabric::trace::{Event, report};
use dmtree_fabric::{
    Change, Endpoint, Member, MemberPhase, MemberState, MembershipState, Move, NodeId, Presence,
    Result, Role,
};

use crate::epoch::Drain;
use crate::node::PoolNode;
use crate::wire::locked;

/// The state that an agent keeps between two steps.
#[derive(Debug, Default)]
pub(crate) struct AgentState {
    joined: bool,
    /// Operations that have to end before a death, or a move (by its membership epoch), is
    /// acknowledged.
    drains: BTreeMap<(Option<Member>, u64), Drain>,
    pulses: Vec<(Arc<AtomicU64>, u64, u64)>,
    /// How long a worker may make no progress, ns.
    patience_ns: u64,
    /// The move that this node carried out last, by its membership epoch: news of its end may come
    /// late.
    carried_out: u64,
    /// Asked for before this reading of the own clock, the lease is due for renewal.
    renew_at: u64,
    /// Whether every table has been found to have an owner: see `Partitions::keep_with_share`.
    #[cfg(feature = "tcp")]
    pub(crate) has_share: bool,
    /// Whether this node owns tables.
    pub(crate) serves: bool,
}

/// The heartbeat of a worker thread. While a worker makes no progress, the node's lease is not
/// renewed. Dropped, it is deregistered.
#[derive(Debug)]
pub struct Heartbeat {
    beats: Arc<AtomicU64>,
    node: Arc<PoolNode>,
}

impl Heartbeat {
    pub(crate) fn of(node: &Arc<PoolNode>) -> Self {
        let beats = Arc::new(AtomicU64::new(0));
        locked(&node.agent_state).pulses.push((beats.clone(), u64::MAX, 0));
        Self { beats, node: node.clone() }
    }

    /// The worker makes progress.
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        locked(&self.node.agent_state)
            .pulses
            .retain(|(beats, ..)| !Arc::ptr_eq(beats, &self.beats));
    }
}

/// For the log: each step of a member's life.
fn report_changes(known: &MembershipState, state: &MembershipState) {
    for now in &state.members {
        let then = known.of(now.member).map(|m| m.phase);
        if then != Some(now.phase) {
            let Member { node, incarnation } = now.member;
            let phase = now.phase.in_words();
            report(Event::Membership, || {
                format!("epoch {}: {node} (incarnation {incarnation}): {phase}", state.epoch)
            });
        }
    }
}

/// A node as a member of its pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolMembership<'n>(pub(crate) &'n PoolNode);

impl PoolMembership<'_> {
    /// A test knob: this node's clock runs faster by so many millionths.
    pub fn set_clock_drift(self, ppm: i64) {
        self.0.view.drift_ppm.store(ppm, Ordering::Relaxed);
    }

    /// One step of the membership agent. Joins at first.
    ///
    /// # Errors
    /// `Revoked` when the node has lost its membership: nothing of it works any more. Others are
    /// those of the moment: call again.
    pub async fn membership_step(self, ep: &Endpoint) -> Result<()> {
        ep.renew_deadline();
        self.renew(ep).await?;
        let state = self.0.membership.state(self.0.view.me, ep.now()).await?;
        self.follow(&state);
        self.acknowledge(ep, &state).await?;
        self.coordinate(ep, &state).await
    }

    /// [`PoolMembership::membership_step`] until `until` says so or the membership is lost for
    /// good; pauses of `pause_ns`.
    ///
    /// # Errors
    /// `Revoked`; `Incompatible` when another pool is where this one was.
    pub async fn run_membership(
        self,
        ep: &Endpoint,
        pause_ns: u64,
        until: impl Fn() -> bool,
    ) -> Result<()> {
        self.run_membership_paced(ep, || pause_ns, until).await
    }

    /// As [`PoolMembership::run_membership`], with pauses that may be shorter while others wait for
    /// this node.
    pub(crate) async fn run_membership_paced(
        self,
        ep: &Endpoint,
        pause_ns: impl Fn() -> u64,
        until: impl Fn() -> bool,
    ) -> Result<()> {
        while !until() {
            let kept = self.membership_step(ep).await;
            self.0.view.standing.note(&kept);
            if self.is_lost_by(ep, &kept).await {
                return Err(kept.err().unwrap_or_else(|| self.0.view.lost()));
            }
            ep.sleep(pause_ns()).await;
        }
        Ok(())
    }

    /// Joins, or renews the lease when it is due and every worker makes progress.
    ///
    /// # Errors
    /// As [`PoolMembership::membership_step`].
    pub async fn renew(self, ep: &Endpoint) -> Result<()> {
        let asked_at = self.0.view.clock(ep);
        let me = self.0.view.me;
        let (joined, due, alive) = {
            let mut k = locked(&self.0.agent_state);
            let patience = k.patience_ns;
            for (beats, seen, at) in &mut k.pulses {
                let now = beats.load(Ordering::Relaxed);
                if now != *seen {
                    (*seen, *at) = (now, asked_at);
                }
            }
            let alive = k.pulses.iter().all(|(_, _, at)| asked_at <= at + patience);
            (k.joined, asked_at >= k.renew_at, alive)
        };
        let lease = match joined {
            false => {
                let lease = self.0.membership.join(me, ep.now()).await?;
                // Other members may have died meanwhile: no table is used before the state that the
                // lease belongs to is known.
                let state = loop {
                    let state = self.0.membership.state(me, ep.now()).await?;
                    if state.epoch >= lease.epoch {
                        break state;
                    }
                    ep.sleep(lease.for_ns / 16).await;
                };
                self.follow(&state);
                lease
            }
            true if due && alive => match self.0.membership.renew(me, ep.now()).await {
                Ok(lease) => lease,
                Err(e) => {
                    if e.kind() == dmtree_fabric::ErrorKind::Revoked {
                        self.0.view.end_lease();
                    }
                    return Err(e);
                }
            },
            true => return Ok(()),
        };
        self.0.view.extend(asked_at, lease);
        let mut k = locked(&self.0.agent_state);
        k.joined = true;
        k.patience_ns = lease.for_ns / 2;
        k.renew_at = asked_at + lease.for_ns / 4;
        Ok(())
    }

    /// The next step renews the lease, however much of it is left: its length has changed.
    pub fn renew_soon(self) {
        locked(&self.0.agent_state).renew_at = 0;
    }

    /// The time limit of one call of the agent, ns. The agent renews the lease between two calls,
    /// so a hanging peer must not hold it longer. Every request of the agent may be repeated.
    pub(crate) fn call_ns(self) -> u64 {
        (locked(&self.0.agent_state).patience_ns / 2).max(1)
    }

    /// How long a lease is, ns; 0 before the first.
    pub(crate) fn lease_ns(self) -> u64 {
        locked(&self.0.agent_state).patience_ns * 2
    }

    /// Whether this node owns partitions, as its agent has found it.
    pub(crate) fn serves_tables(self) -> bool {
        locked(&self.0.agent_state).serves
    }

    /// Whether other compute nodes are living, as far as this one knows.
    #[cfg(feature = "tcp")]
    pub(crate) fn has_peers(self) -> bool {
        self.living().iter().any(|m| *m != self.0.view.me)
    }

    /// Acts on a newer state: stops using the tables of dead nodes and those that are to move.
    fn follow(self, state: &Arc<MembershipState>) {
        let newer = self.0.view.with_state(|known| {
            let newer = known.epoch < state.epoch;
            if newer {
                // First: from here on clients of this node take over locks of a dead node, and a
                // memory node that is away has not revoked the access of the dead. So no client may
                // post there any more.
                self.hear_of_memory(known, state);
                report_changes(known, state);
                *known = state.clone();
                self.0.view.hear(state);
                self.0.tables.forget(|partition, owner| {
                    let incarnations = state.members.iter().filter(|m| m.member.node == owner);
                    let dead = incarnations
                        .into_iter()
                        .any(|m| !matches!(m.phase, MemberPhase::Living | MemberPhase::Gone));
                    let moving =
                        state.planned.as_ref().is_some_and(|p| p.partitions.contains(&partition));
                    dead || moving
                });
            }
            newer
        });
        if !newer {
            return;
        }
        self.0.view.news.wake_all();
        // An owner that was full may have cells now.
        self.0.tables.reopen();
        for dead in state.dead().into_iter().filter(|m| m.node != self.0.cn) {
            self.0.fabric.abandon(self.0.cn, dead);
        }
        self.connect(state);
        let mut k = locked(&self.0.agent_state);
        k.drains.retain(|(of, since), _| match of {
            Some(m) if m.node.role() == Role::Journal => {
                state.memory_node(m.node).is_some_and(|n| n.refill.is_some() && n.since == *since)
            }
            Some(m) => state.phase(*m) == Some(MemberPhase::Draining),
            None => state.planned.as_ref().is_some_and(|p| p.since == *since),
        });
        let draining = state.members.iter().filter(|m| m.phase == MemberPhase::Draining);
        for m in draining.filter(|m| !m.acknowledged.contains(&self.0.view.me)) {
            k.drains.entry((Some(m.member), 0)).or_insert_with(|| self.0.epochs.drain());
        }
        let refilled = state.memory.iter().filter(|m| m.refill.is_some());
        for m in refilled.filter(|m| !m.acknowledged.contains(&self.0.view.me)) {
            k.drains.entry((Some(m.member), m.since)).or_insert_with(|| self.0.epochs.drain());
        }
        let planned = state.planned.as_ref().filter(|p| p.phase == MemberPhase::Draining);
        if let Some(p) = planned.filter(|p| !p.acknowledged.contains(&self.0.view.me)) {
            k.drains.entry((None, p.since)).or_insert_with(|| self.0.epochs.drain());
        }
    }

    /// Tells the fabric which memory nodes are away: it refuses verbs to them at once. A journal
    /// node may be back in another incarnation.
    fn hear_of_memory(self, known: &MembershipState, state: &MembershipState) {
        for m in &state.memory {
            if known.memory_node(m.member.node).is_some_and(|k| k.member != m.member) {
                self.0.fabric.connect(self.0.cn, m.member.node, m.member.incarnation);
            }
            if known.presence(m.member.node) != m.presence {
                self.0.fabric.set_presence(self.0.cn, m.member.node, m.presence);
            }
        }
    }

    /// Connects to nodes that have restarted, once no operation of this node uses an address of
    /// their former incarnation: not before the former incarnation has drained.
    fn connect(self, state: &MembershipState) {
        for m in state.members.iter().filter(|m| m.phase == MemberPhase::Living) {
            let Member { node, incarnation } = m.member;
            let former = |o: &&dmtree_fabric::MemberState| {
                o.member.node == node && o.member.incarnation < incarnation
            };
            let drained = state
                .members
                .iter()
                .filter(former)
                .all(|o| matches!(o.phase, MemberPhase::Reassigning | MemberPhase::Gone));
            if drained && self.0.fabric.incarnation(node) == Some(incarnation) {
                self.0.fabric.connect(self.0.cn, node, incarnation);
            }
        }
    }

    /// Does what the phases of the dead ask of this node, and acknowledges it.
    async fn acknowledge(self, ep: &Endpoint, state: &Arc<MembershipState>) -> Result<()> {
        let me = self.0.view.me;
        for m in &state.members {
            let open = !m.acknowledged.contains(&me);
            let done = match m.phase {
                MemberPhase::Revoking if open => {
                    self.0.fabric.revoke(self.0.cn, m.member.node, m.member.incarnation)?;
                    true
                }
                MemberPhase::Draining if open => self.has_drained((Some(m.member), 0)),
                _ => false,
            };
            if done {
                let change = Change::Acknowledge(m.member, m.phase);
                self.0.membership.propose(me, change, ep.now()).await?;
                locked(&self.0.agent_state).drains.remove(&(Some(m.member), 0));
            }
        }
        for m in state.away().filter(|m| !m.acknowledged.contains(&me)) {
            self.0.membership.propose(me, Change::Avoided(m.member), ep.now()).await?;
        }
        let refilled = state.memory.iter().filter(|m| m.refill.is_some());
        for m in refilled.filter(|m| !m.acknowledged.contains(&me)) {
            if self.has_drained((Some(m.member), m.since)) {
                self.0.membership.propose(me, Change::Resumed(m.member), ep.now()).await?;
                locked(&self.0.agent_state).drains.remove(&(Some(m.member), m.since));
            }
        }
        let planned = state.planned.as_ref().filter(|p| p.phase == MemberPhase::Draining);
        if let Some(p) = planned.filter(|p| !p.acknowledged.contains(&me))
            && self.has_drained((None, p.since))
        {
            self.0.membership.propose(me, Change::AcknowledgeMove, ep.now()).await?;
            locked(&self.0.agent_state).drains.remove(&(None, p.since));
        }
        Ok(())
    }

    fn has_drained(self, what: (Option<Member>, u64)) -> bool {
        locked(&self.0.agent_state).drains.get_mut(&what).is_some_and(Drain::is_over)
    }

    /// Carries deaths and moves on. One that cannot go on now does not hold back the others.
    async fn coordinate(self, ep: &Endpoint, state: &Arc<MembershipState>) -> Result<()> {
        let mut outcome = Ok(());
        for m in &state.members {
            let done = self.carry_on(ep, state, m).await;
            outcome = outcome.and(done);
        }
        outcome.and(self.carry_on_move(ep, state).await)
    }

    async fn carry_on(self, ep: &Endpoint, state: &MembershipState, m: &MemberState) -> Result<()> {
        let me = self.0.view.me;
        match m.phase {
            MemberPhase::Revoking if state.is_acknowledged(&m.acknowledged) => {
                // Memory nodes that hold a lease revoke the access themselves.
                let hosts = self.0.shape.layouts().into_iter().map(|l| l.node);
                let hosts: Vec<_> = hosts.filter(|n| state.memory_node(*n).is_none()).collect();
                for host in &hosts {
                    self.0.fabric.revoke(*host, m.member.node, m.member.incarnation)?;
                }
                if !hosts.is_empty() {
                    self.0.membership.propose(me, Change::Revoked(m.member), ep.now()).await?;
                }
            }
            MemberPhase::Reassigning if m.claimant == Some(me) => {
                self.0.partitions().reassign(ep, m.member).await?;
                self.0.membership.propose(me, Change::Reassigned(m.member), ep.now()).await?;
            }
            MemberPhase::Reassigning => {
                self.0.membership.propose(me, Change::Claim(m.member), ep.now()).await?;
            }
            _ => {}
        }
        Ok(())
    }

    async fn carry_on_move(self, ep: &Endpoint, state: &MembershipState) -> Result<()> {
        let me = self.0.view.me;
        let done = locked(&self.0.agent_state).carried_out;
        let open = |p: &&Move| p.phase == MemberPhase::Reassigning && p.since > done;
        let Some(p) = state.planned.as_ref().filter(open) else { return Ok(()) };
        if p.claimant != Some(me) {
            return self.0.membership.propose(me, Change::ClaimMove, ep.now()).await;
        }
        self.0.partitions().carry_out(ep, p).await?;
        self.0.membership.propose(me, Change::Moved, ep.now()).await?;
        locked(&self.0.agent_state).carried_out = p.since;
        Ok(())
    }

    /// Proposes a planned move; returns when the membership has accepted it. One move is under way
    /// at a time; the caller repeats the proposal later.
    pub(crate) async fn plan(
        self,
        ep: &Endpoint,
        partitions: Vec<u16>,
        to: Option<Member>,
    ) -> Result<()> {
        self.0.membership.propose(self.0.view.me, Change::Plan(partitions, to), ep.now()).await
    }

    /// Leaves the pool: no operation of this node works any more. Its tables have moved before
    /// (`Partitions::hand_over`).
    ///
    /// # Errors
    /// `Revoked` when it was dead already.
    pub async fn leave(self, ep: &Endpoint) -> Result<()> {
        self.0.membership.propose(self.0.view.me, Change::Leave, ep.now()).await?;
        self.0.view.end_lease();
        // The next step of the agent then asks for the lease, and learns that it is gone.
        locked(&self.0.agent_state).renew_at = 0;
        Ok(())
    }

    /// The living compute nodes, as far as this one knows.
    pub fn living(self) -> Vec<Member> {
        self.0.view.state().living().collect()
    }

    /// The number of the newest state that this node acts on.
    pub fn epoch(self) -> u64 {
        self.0.view.state().epoch
    }

    /// How many deaths are complete, as far as this node knows. After each, garbage collection can
    /// find the memory that the dead node held.
    pub fn deaths(self) -> u64 {
        self.0.view.deaths.load(Ordering::Relaxed)
    }

    /// Whether this is the first of the living compute nodes, as far as it knows: the one that does
    /// the work which one node does for all.
    pub fn is_first(self) -> bool {
        self.0.view.state().living().next() == Some(self.0.view.me)
    }

    /// Whether every death and every move that this node knows of is complete.
    pub fn has_settled_membership(self) -> bool {
        let state = self.0.view.state();
        let still = |s: MemberPhase| matches!(s, MemberPhase::Living | MemberPhase::Gone);
        state.planned.is_none() && state.members.iter().all(|m| still(m.phase))
    }

    /// The memory nodes that are away, as far as this node knows: what they hold cannot be reached.
    pub fn away(self) -> Vec<(NodeId, Presence)> {
        self.0.view.state().away().map(|m| (m.member.node, m.presence)).collect()
    }

    /// The phase of this incarnation of a node, as far as this node knows.
    pub fn phase(self, node: NodeId, incarnation: u32) -> Option<MemberPhase> {
        debug_assert!(node.role() == Role::Compute);
        self.0.view.state().phase(Member { node, incarnation })
    }
}
