//! Quiesces the pool after the clients and the agents have ended: operations in flight end before
//! the structure is judged. No task of the simulator runs any more, so this module steps the live
//! nodes itself.

use std::sync::Arc;

use dmtree_fabric::{
    InProcess, LeaseParameters, Member, MemberPhase, MemberState, Membership, MembershipState,
    NodeId, Result, Role,
};
use dmtree_pool::PoolNode;

use crate::case::Case;

/// Bound on the steps of each membership agent until the last requested move has ended.
const QUIESCING_STEPS: u32 = 200;
/// A lease ends within so many steps: each agent renews its own before.
const STEPS_THAT_RENEW: u32 = 6;
/// No lease ends while the structure is judged, ns: no agent runs then.
const JUDGED_WITHIN_NS: u64 = 3_600_000_000_000;

/// Completes the recoveries that have begun, and the moves of tables that live nodes were asked
/// for: GC waits for neither.
pub(crate) fn quiesce(judge: &InProcess, case: &Case, living: Vec<Arc<PoolNode>>) -> Result<()> {
    if living.is_empty() {
        return Ok(());
    }
    let all = Quiescing { case, living };
    judge.excuse(all.now()?);
    all.await_departures(judge)?;
    all.revoke_unknown(&judge.latest())?;
    let lease_ns = JUDGED_WITHIN_NS;
    judge.set_lease_parameters(LeaseParameters { lease_ns, ..LeaseParameters::default() });
    judge.excuse(all.now()?);
    for step in 0..QUIESCING_STEPS {
        if step > STEPS_THAT_RENEW && all.living.iter().all(|node| node.has_settled_membership()) {
            break;
        }
        all.step_agents()?;
    }
    Ok(())
}

struct Quiescing<'a> {
    case: &'a Case,
    living: Vec<Arc<PoolNode>>,
}

impl Quiescing<'_> {
    fn now(&self) -> Result<u64> {
        Ok(self.living[0].endpoint(0)?.now())
    }

    /// Steps the agent of each node.
    fn step_agents(&self) -> Result<()> {
        let pause = self.case.lease_ns / u64::from(STEPS_THAT_RENEW) / self.living.len() as u64;
        for node in &self.living {
            let ep = node.endpoint(0)?;
            // The next step retries a failure.
            let _ = ep.core().block_on(ep.slot(), async {
                ep.sleep(pause).await;
                node.membership_step(&ep).await
            });
        }
        Ok(())
    }

    /// A node that crashed or left late may not have the phase `Gone` yet.
    fn await_departures(&self, judge: &InProcess) -> Result<()> {
        let is_over = |m: &MemberState| {
            m.member.node.role() == Role::Compute
                && m.phase != MemberPhase::Gone
                && self.living.iter().all(|node| node.member() != m.member)
        };
        for _ in 0..QUIESCING_STEPS {
            let latest = judge.latest();
            if !latest.members.iter().any(is_over) {
                break;
            }
            // The agents of memory nodes have ended, too.
            for m in latest.memory.iter().filter(|m| !m.presence.is_away()) {
                let ep = self.living[0].endpoint(0)?;
                let _ = ep.core().block_on(ep.slot(), judge.renew(m.member, ep.now()));
            }
            self.step_agents()?;
        }
        Ok(())
    }

    /// The membership does not know an incarnation that ended before it had joined. The memory
    /// nodes revoke its access, which frees its number.
    fn revoke_unknown(&self, latest: &MembershipState) -> Result<()> {
        let fabric = self.living[0].fabric();
        for node in (0..self.case.pool.compute_nodes).map(NodeId::compute) {
            let Some(incarnation) = fabric.incarnation(node) else { continue };
            let member = Member { node, incarnation };
            // Without leases, a live node is unknown to the membership, too.
            let is_up = self.living.iter().any(|node| node.member() == member);
            if is_up || latest.phase(member).is_some() {
                continue;
            }
            for mn in 0..self.case.pool.memory_nodes {
                fabric.revoke(NodeId::memory(mn), node, incarnation)?;
            }
        }
        Ok(())
    }
}
