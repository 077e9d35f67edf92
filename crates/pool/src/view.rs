//! What a compute node knows of the membership, and what follows from it for its clients.
//!
//! The agent stores every newer state here; clients read it. Three facts that clients need for
//! every operation are kept beside it as atomics, each one load: until when the lease surely holds
//! by the own clock, how many deaths are complete, and whether any memory node is away.
//!
//! Invariants. The lease here ends before it ends at the membership server: it counts from the
//! reading of the own clock before the request, and the granted time leaves out the largest drift.
//! A directory entry is stored only under the lock of the state, after a check against it
//! ([`may_use`]), and the agent drops entries under the same lock: so no entry outlives the state
//! that forbids it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dmtree_fabric::wait::WaitQueue;
use dmtree_fabric::{
    Endpoint, Error, Lease, Member, MemberPhase, MembershipState, NodeId, Presence, Result, Role,
};

use crate::membership_status::OwnStanding;
use crate::wire::locked;

/// One node's view.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) me: Member,
    /// The newest state that this node acts on. Locked while bases of tables are stored or dropped,
    /// so that none is stored against an older state.
    state: Mutex<Arc<MembershipState>>,
    /// Woken at each newer state.
    pub(crate) news: WaitQueue,
    /// Reading of the own clock up to which the lease surely holds; `u64::MAX` before the node has
    /// joined: no lease is checked then.
    lease_until: AtomicU64,
    /// Deaths that are complete.
    pub(crate) deaths: AtomicU64,
    /// Whether memory nodes are away.
    any_away: AtomicBool,
    /// For tests: how much faster the own clock runs, in millionths.
    pub(crate) drift_ppm: AtomicI64,
    /// Whether the membership is lost for good, and the last error about it.
    pub(crate) standing: OwnStanding,
}

impl View {
    pub(crate) fn new(me: Member) -> Self {
        Self {
            me,
            state: Mutex::default(),
            news: WaitQueue::new(),
            lease_until: AtomicU64::new(u64::MAX),
            deaths: AtomicU64::new(0),
            any_away: AtomicBool::new(false),
            drift_ppm: AtomicI64::new(0),
            standing: OwnStanding::default(),
        }
    }

    /// Caches the facts of a new state that clients need often.
    pub(crate) fn hear(&self, state: &MembershipState) {
        self.deaths.store(state.deaths, Ordering::Relaxed);
        self.any_away.store(state.away().next().is_some(), Ordering::Relaxed);
    }

    /// Fails when a memory node is away. Costs a load while none is.
    pub(crate) fn check_presence(&self, node: NodeId) -> Result<()> {
        if !self.any_away.load(Ordering::Relaxed) {
            return Ok(());
        }
        match locked(&self.state).presence(node) {
            Presence::Present => Ok(()),
            away => Err(away.refusal(node)),
        }
    }

    /// Fails when any memory node is away.
    pub(crate) fn check_memory(&self) -> Result<()> {
        if !self.any_away.load(Ordering::Relaxed) {
            return Ok(());
        }
        let state = locked(&self.state);
        let mut memory = state.away().filter(|m| m.member.node.role() == Role::Memory);
        memory.next().map_or(Ok(()), |m| Err(m.presence.refusal(m.member.node)))
    }

    /// The own clock, ns.
    pub(crate) fn clock(&self, ep: &Endpoint) -> u64 {
        let now = ep.now();
        match self.drift_ppm.load(Ordering::Relaxed) {
            0 => now,
            ppm => {
                now.saturating_add_signed((i128::from(now) * i128::from(ppm) / 1_000_000) as i64)
            }
        }
    }

    pub(crate) fn extend(&self, asked_at: u64, lease: Lease) {
        self.lease_until
            .store(asked_at.saturating_add(lease.for_ns).min(u64::MAX - 1), Ordering::SeqCst);
    }

    pub(crate) fn end_lease(&self) {
        self.lease_until.store(0, Ordering::SeqCst);
    }

    /// Fails when this node's lease has ended by its own clock. Costs a load while there is no
    /// membership.
    #[inline]
    pub(crate) fn check_lease(&self, ep: &Endpoint) -> Result<()> {
        // The operation may have written before it was held up.
        self.check_lease_untouched(ep).map_err(Error::effect_unknown)
    }

    /// The same for an operation that has changed nothing yet: it may be tried again.
    #[inline]
    pub(crate) fn check_lease_untouched(&self, ep: &Endpoint) -> Result<()> {
        if self.holds_lease(ep) { Ok(()) } else { Err(self.ended()) }
    }

    /// Whether the lease surely holds, by the own clock.
    #[inline]
    pub(crate) fn holds_lease(&self, ep: &Endpoint) -> bool {
        let until = self.lease_until.load(Ordering::Relaxed);
        until == u64::MAX || self.clock(ep) < until
    }

    #[cold]
    fn ended(&self) -> Error {
        Error::revoked(format!(
            "the lease of {} has ended: it is slow, cut off, or was declared dead",
            self.me
        ))
    }

    /// The error of a membership that is lost for good.
    #[cold]
    pub(crate) fn lost(&self) -> Error {
        Error::revoked(format!("{} has lost its membership", self.me))
    }

    pub(crate) fn state(&self) -> Arc<MembershipState> {
        locked(&self.state).clone()
    }

    pub(crate) fn with_state<T>(&self, f: impl FnOnce(&mut Arc<MembershipState>) -> T) -> T {
        f(&mut locked(&self.state))
    }

    /// Whether no verb of a member executes at any node any more.
    pub(crate) fn is_revoked(&self, member: Member) -> bool {
        locked(&self.state).phase(member).is_some_and(|s| s >= MemberPhase::Draining)
    }

    /// Whether a node is worth a call: as far as is known it is living.
    pub(crate) fn is_worth_asking(&self, node: NodeId) -> bool {
        if node.role() == Role::Memory {
            return self.check_presence(node).is_ok();
        }
        // Before any node has joined, all count as living.
        let state = locked(&self.state);
        let mut incarnations = state.members.iter().filter(|m| m.member.node == node);
        state.members.is_empty() || incarnations.any(|m| m.phase == MemberPhase::Living)
    }
}

/// Whether tables of a partition may be used where the directory says they are.
pub(crate) fn may_use(state: &MembershipState, partition: u16, owner: Member) -> bool {
    let dead = state.phase(owner).is_some_and(|s| s != MemberPhase::Living);
    let moving = state.planned.as_ref().is_some_and(|p| p.partitions.contains(&partition));
    !dead && !moving
}
