//! The membership agent of a memory node: it renews the node's lease, and revokes the access of
//! dead nodes.

use std::collections::BTreeMap;

use super::{Change, Member, MemberPhase, Membership, MembershipState};
use crate::addr::NodeId;
use crate::error::Result;
use crate::transport::Nanos;

/// The agent of a memory node. Its embedder calls [`MemoryAgent::step`] periodically, many times
/// within a lease.
#[derive(Debug)]
pub struct MemoryAgent {
    me: Member,
    joined: bool,
    renew_at: Nanos,
    /// The latest incarnation with revoked access at this host, by node.
    revoked: BTreeMap<NodeId, u32>,
    lease_ns: Nanos,
    gaps: u64,
}

impl MemoryAgent {
    /// The agent of a node that has not joined.
    pub fn new(me: Member) -> Self {
        Self { me, joined: false, renew_at: 0, revoked: BTreeMap::new(), lease_ns: 0, gaps: 0 }
    }

    /// How long a lease is, ns; 0 before the first.
    pub fn lease_ns(&self) -> Nanos {
        self.lease_ns
    }

    /// The parts of the journal with a gap, as of the last step ([`MembershipState::gaps`]).
    pub fn gaps(&self) -> u64 {
        self.gaps
    }

    /// One step; joins at first. `now` is the node's reading of the fabric's clock; when `revoke`
    /// returns, no verb of a member or of a former incarnation of it executes at this node any
    /// more. Any step may fail, or be the last one. True when no death is under way.
    ///
    /// # Errors
    /// Transient ones: call again. `Revoked` when the membership knows another incarnation of this
    /// node.
    pub async fn step(
        &mut self,
        membership: &dyn Membership,
        revoke: &dyn Fn(Member) -> Result<()>,
        now: Nanos,
    ) -> Result<bool> {
        if !self.joined || now >= self.renew_at {
            let lease = match self.joined {
                false => membership.join(self.me, now).await?,
                true => membership.renew(self.me, now).await?,
            };
            self.joined = true;
            self.lease_ns = lease.for_ns;
            self.renew_at = now + lease.for_ns / 4;
        }
        let state = membership.state(self.me, now).await?;
        self.gaps = state.gaps();
        self.revoke(revoke, &state)?;
        for m in state.members.iter().filter(|m| m.phase == MemberPhase::Revoking) {
            if !m.acknowledged.contains(&self.me) {
                let done = Change::Acknowledge(m.member, MemberPhase::Revoking);
                membership.propose(self.me, done, now).await?;
            }
        }
        if state.presence(self.me.node).is_away() {
            membership.propose(self.me, Change::Returned(state.epoch), now).await?;
        }
        Ok(!state.members.iter().any(|m| m.phase == MemberPhase::Revoking))
    }

    /// Revoke before the acknowledgement: it states that no verb of the dead node executes here.
    fn revoke(
        &mut self,
        revoke: &dyn Fn(Member) -> Result<()>,
        state: &MembershipState,
    ) -> Result<()> {
        for dead in state.dead() {
            let known = self.revoked.get(&dead.node).copied().unwrap_or(0);
            if known < dead.incarnation {
                revoke(dead)?;
                self.revoked.insert(dead.node, dead.incarnation);
            }
        }
        Ok(())
    }
}
