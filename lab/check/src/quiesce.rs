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
pub(crate) fn quiesce(judge: &InProcess, case: &Case, living: &[Arc<PoolNode>]) -> Result<()> {
    let Some(first) = living.first() else { return Ok(()) };
    let now = || first.endpoint(0).map(|ep| ep.now());
    judge.excuse(now()?);
    await_departures(judge, case, living)?;
    revoke_unknown(&judge.latest(), case, living)?;
    let lease_ns = JUDGED_WITHIN_NS;
    judge.set_lease_parameters(LeaseParameters { lease_ns, ..LeaseParameters::default() });
    judge.excuse(now()?);
    for step in 0..QUIESCING_STEPS {
        if step > STEPS_THAT_RENEW
            && living.iter().all(|node| node.membership().has_settled_membership())
        {
            break;
        }
        step_agents(case, living)?;
    }
    Ok(())
}

fn step_agents(case: &Case, living: &[Arc<PoolNode>]) -> Result<()> {
    let pause = case.lease_ns / u64::from(STEPS_THAT_RENEW) / living.len() as u64;
    for node in living {
        let ep = node.endpoint(0)?;
        // The next step retries a failure.
        let _ = ep.core().block_on(ep.slot(), async {
            ep.sleep(pause).await;
            node.membership().membership_step(&ep).await
        });
    }
    Ok(())
}

/// A node that crashed or left late may not have the phase `Gone` yet.
fn await_departures(judge: &InProcess, case: &Case, living: &[Arc<PoolNode>]) -> Result<()> {
    let is_over = |m: &MemberState| {
        m.member.node.role() == Role::Compute
            && m.phase != MemberPhase::Gone
            && living.iter().all(|node| node.member() != m.member)
    };
    for _ in 0..QUIESCING_STEPS {
        let latest = judge.latest();
        if !latest.members.iter().any(is_over) {
            break;
        }
        // The agents of memory nodes have ended, too.
        for m in latest.memory.iter().filter(|m| !m.presence.is_away()) {
            let ep = living[0].endpoint(0)?;
            let _ = ep.core().block_on(ep.slot(), judge.renew(m.member, ep.now()));
        }
        step_agents(case, living)?;
    }
    Ok(())
}

/// The membership does not know an incarnation that ended before it had joined. The memory nodes
/// revoke its access, which frees its number.
fn revoke_unknown(latest: &MembershipState, case: &Case, living: &[Arc<PoolNode>]) -> Result<()> {
    let fabric = living[0].fabric();
    for node in (0..case.pool.compute_nodes).map(NodeId::compute) {
        let Some(incarnation) = fabric.incarnation(node) else { continue };
        let member = Member { node, incarnation };
        // Without leases, a live node is unknown to the membership, too.
        let is_up = living.iter().any(|node| node.member() == member);
        if is_up || latest.phase(member).is_some() {
            continue;
        }
        for mn in 0..case.pool.memory_nodes {
            fabric.revoke(NodeId::memory(mn), node, incarnation)?;
        }
    }
    Ok(())
}
