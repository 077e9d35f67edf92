//! After the clients and the agents have ended: what they have left in its midst comes to its end
//! before the structure is judged. No task of the simulator runs any more, so this module steps the
//! nodes that live itself.

use std::sync::Arc;

use dmtree_fabric::{
    InProcess, LeaseParameters, Member, MemberState, Membership, NodeId, Result, Role, Standing,
    State,
};
use dmtree_pool::{Cluster, PoolNode};

use crate::case::Case;

/// Steps of each membership agent in which a move that was asked for last has to end.
const SETTLING_STEPS: u32 = 200;
/// Within so many steps a lease has ended: each agent renews its own before.
const STEPS_THAT_RENEW: u32 = 6;
/// No lease ends while the structure is judged, ns: no agent runs then.
const JUDGED_WITHIN_NS: u64 = 3_600_000_000_000;

/// The deaths that have begun end, and the nodes that live carry out the moves of tables that were
/// asked for: a census waits for neither.
pub(crate) fn settle(cluster: &Cluster, case: &Case, living: Vec<Arc<PoolNode>>) -> Result<()> {
    let Some(first) = living.first().cloned() else { return Ok(()) };
    let all = Settling { case, living, first };
    if let Some(judge) = cluster.judge() {
        judge.excuse(all.now()?);
        all.close(judge)?;
        all.take_back_numbers(&judge.latest())?;
        judge.set_lease_parameters(LeaseParameters {
            lease_ns: JUDGED_WITHIN_NS,
            ..LeaseParameters::default()
        });
        judge.excuse(all.now()?);
    }
    for step in 0..SETTLING_STEPS {
        if step > STEPS_THAT_RENEW && all.living.iter().all(|node| node.is_settled()) {
            break;
        }
        all.keep()?;
    }
    Ok(())
}

struct Settling<'a> {
    case: &'a Case,
    living: Vec<Arc<PoolNode>>,
    first: Arc<PoolNode>,
}

impl Settling<'_> {
    fn now(&self) -> Result<u64> {
        Ok(self.first.endpoint(0)?.now())
    }

    /// A step of the agent of each node.
    fn keep(&self) -> Result<()> {
        let pause = self.case.lease_ns / u64::from(STEPS_THAT_RENEW) / self.living.len() as u64;
        for node in &self.living {
            let ep = node.endpoint(0)?;
            // What fails now is tried again by the next step.
            let _ = ep.core().block_on(ep.slot(), async {
                ep.sleep(pause).await;
                node.keep(&ep).await
            });
        }
        Ok(())
    }

    /// A node that crashed or left late may not be gone yet.
    fn close(&self, judge: &InProcess) -> Result<()> {
        let is_over = |m: &MemberState| {
            m.member.node.role() == Role::Compute
                && m.standing != Standing::Gone
                && self.living.iter().all(|node| node.member() != m.member)
        };
        for _ in 0..SETTLING_STEPS {
            let latest = judge.latest();
            if !latest.members.iter().any(is_over) {
                break;
            }
            // The agents of memory nodes have ended, too.
            for m in latest.memory.iter().filter(|m| !m.presence.is_away()) {
                let ep = self.first.endpoint(0)?;
                let _ = ep.core().block_on(ep.slot(), judge.renew(m.member, ep.now()));
            }
            self.keep()?;
        }
        Ok(())
    }

    /// A life that ended before it had joined is unknown to the membership. The first memory node
    /// takes its number back, and it is fenced.
    fn take_back_numbers(&self, latest: &State) -> Result<()> {
        let fabric = self.first.fabric();
        for node in (0..self.case.pool.compute_nodes).map(NodeId::compute) {
            let Some(incarnation) = fabric.incarnation(node) else { continue };
            let member = Member { node, incarnation };
            // Where leases are not kept, a node lives without being known.
            let lives = self.living.iter().any(|node| node.member() == member);
            if lives || latest.standing(member).is_some() {
                continue;
            }
            for mn in 0..self.case.pool.memory_nodes {
                fabric.fence(NodeId::memory(mn), node, incarnation)?;
            }
        }
        Ok(())
    }
}
