//! The membership agent of a compute process without a pool: it holds a lease, hears of crashes,
//! and acknowledges them.

use std::sync::Arc;

use dmtree_fabric::net::NetFabric;
use dmtree_fabric::{
    Change, Endpoint, Fabric, Member, MemberPhase, Membership, MembershipState, Nanos, NodeId,
    Result,
};

/// Steps in a lease.
const STEPS_PER_LEASE: u64 = 16;

/// The agent.
pub(super) struct Agent {
    fabric: NetFabric,
    membership: Arc<dyn Membership>,
    me: Member,
    lease_ns: Nanos,
    renew_at: Nanos,
    state: Arc<MembershipState>,
}

impl Agent {
    pub(super) fn new(fabric: &NetFabric) -> Self {
        let (membership, me, state) = (fabric.membership(), fabric.me(), Arc::default());
        Self { fabric: fabric.clone(), membership, me, lease_ns: 0, renew_at: 0, state }
    }

    /// Joins; returns the former incarnation of this node, if there was one.
    pub(super) async fn join(&mut self, ep: &Endpoint) -> Result<Option<Member>> {
        let asked_at = ep.now();
        let lease = self.membership.join(self.me, asked_at).await?;
        self.lease_ns = lease.for_ns;
        self.renew_at = asked_at + lease.for_ns / 4;
        self.state = self.membership.state(self.me, ep.now()).await?;
        let Member { node, incarnation } = self.me;
        let former = |i: u32| Member { node, incarnation: i };
        Ok((incarnation > 1).then(|| former(incarnation - 1)))
    }

    pub(super) fn pause_ns(&self) -> Nanos {
        self.lease_ns / STEPS_PER_LEASE
    }

    /// The phase of a member, as far as this one knows.
    pub(super) fn phase(&self, m: Member) -> Option<MemberPhase> {
        self.state.phase(m)
    }

    /// One step.
    pub(super) async fn step(&mut self, ep: &Endpoint) -> Result<()> {
        if ep.now() >= self.renew_at {
            let asked_at = ep.now();
            let lease = self.membership.renew(self.me, asked_at).await?;
            self.renew_at = asked_at + lease.for_ns / 4;
        }
        let state = self.membership.state(self.me, ep.now()).await?;
        let own: NodeId = self.me.node;
        for m in &state.memory {
            self.fabric.set_presence(own, m.member.node, m.presence);
        }
        for dead in state.dead().into_iter().filter(|m| m.node != own) {
            self.fabric.abandon(own, dead);
        }
        self.state = state.clone();
        for m in &state.members {
            let open = !m.acknowledged.contains(&self.me);
            match m.phase {
                MemberPhase::Revoking if open => {
                    self.fabric.revoke(own, m.member.node, m.member.incarnation)?;
                    self.propose(ep, Change::Acknowledge(m.member, m.phase)).await?;
                }
                MemberPhase::Draining if open => {
                    self.propose(ep, Change::Acknowledge(m.member, m.phase)).await?;
                }
                MemberPhase::Reassigning if m.claimant == Some(self.me) => {
                    self.propose(ep, Change::Reassigned(m.member)).await?;
                }
                MemberPhase::Reassigning => self.propose(ep, Change::Claim(m.member)).await?,
                _ => {}
            }
        }
        for m in state.away().filter(|m| !m.acknowledged.contains(&self.me)) {
            self.propose(ep, Change::Avoided(m.member)).await?;
        }
        Ok(())
    }

    async fn propose(&self, ep: &Endpoint, change: Change) -> Result<()> {
        self.membership.propose(self.me, change, ep.now()).await
    }

    /// Leaves the pool.
    pub(super) async fn leave(&self, ep: &Endpoint) -> Result<()> {
        self.propose(ep, Change::Leave).await
    }
}
