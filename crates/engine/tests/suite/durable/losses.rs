//! Nodes that are lost in a first life: compute nodes, and the journal node for a while.
//!
//! Leases are short, and memory nodes and the journal node hold one, as in a pool of several
//! processes: each revokes the access of a dead compute node before it acknowledges that, and only
//! then locks of the dead are taken over.

use std::rc::Rc;
use std::sync::Arc;

use dmtree_check::harness::Harness;
use dmtree_fabric::{Fabric, LeaseParameters, Member, MemoryAgent, NodeId};
use dmtree_journal::Level;

use super::journal::{SimJournal, Wrong};
use super::nodes;
use super::plan::{End, Plan};

/// Time for acknowledgements, ns: operations of a living node may be stalled for as long.
const ACKNOWLEDGE_NS: u64 = 20_000_000;
const STEPS_PER_LEASE: u64 = 16;

/// Begins what a life has beside its clients.
pub fn begin(plan: &Plan, harness: &Rc<Harness>, journal: &Arc<SimJournal>) {
    let membership = harness.test_cluster.membership();
    membership.set_lease_parameters(LeaseParameters {
        lease_ns: plan.lease_ns,
        acknowledge_ns: ACKNOWLEDGE_NS,
        ..LeaseParameters::default()
    });
    let memory = (0..harness.test_cluster.cluster.memory_nodes() as u16).map(NodeId::memory);
    let hosts: Vec<NodeId> = memory.chain(plan.is_remote.then_some(NodeId::journal(0))).collect();
    membership.set_agents(hosts.len() as u16);
    hosts.into_iter().for_each(|host| agent(plan, harness, host));
    harness.membership_agents_at(|_| plan.lease_ns / STEPS_PER_LEASE);
    compute_nodes(plan, harness);
    journal_node(plan, harness, journal);
}

/// The membership agent of a memory node or the journal node, over all its incarnations.
fn agent(plan: &Plan, harness: &Rc<Harness>, host: NodeId) {
    let slot = harness.core().add_slot();
    let (ep, fabric) = (harness.endpoint_beside(slot), harness.fabric.clone());
    let membership = harness.test_cluster.cluster.membership().clone();
    let pause_ns = plan.lease_ns / STEPS_PER_LEASE;
    let fences = plan.wrong != Some(Wrong::FencedAccepted) || host != NodeId::journal(0);
    harness.spawn_beside(slot, async move {
        let member = || Member { node: host, incarnation: fabric.incarnation(host).unwrap_or(0) };
        let revoke = |dead: Member| match fences {
            true => fabric.revoke(host, dead.node, dead.incarnation),
            false => Ok(()),
        };
        let (mut me, mut agent) = (member(), MemoryAgent::new(member()));
        loop {
            if me != member() {
                (me, agent) = (member(), MemoryAgent::new(member()));
            }
            if !fabric.is_down(host) {
                // The next step retries a failure.
                let _ = agent.step(&*membership, &revoke, ep.now()).await;
            }
            ep.sleep(pause_ns).await;
        }
    });
}

/// Compute nodes are lost at their times.
fn compute_nodes(plan: &Plan, harness: &Rc<Harness>) {
    let slot = harness.core().add_slot();
    let (ep, of, losses) = (harness.endpoint_beside(slot), harness.clone(), plan.losses.clone());
    harness.spawn_beside(slot, async move {
        let mut still = Vec::new();
        for loss in losses {
            ep.sleep(loss.at_ns.saturating_sub(ep.now())).await;
            match loss.end {
                End::Crash(how) => {
                    of.fabric.crash(NodeId::compute(loss.cn), how).expect("a node");
                }
                End::Lapse => still.push(of.pool(loss.cn).heartbeat()),
            }
        }
        // The workers that stand still do so to the end.
        std::future::pending::<()>().await;
        drop(still);
    });
}

/// The journal node ends at its time, and begins again with what it finds.
fn journal_node(plan: &Plan, harness: &Rc<Harness>, journal: &Arc<SimJournal>) {
    let Some((at_ns, away_ns)) = plan.journal_node_ends else { return };
    let slot = harness.core().add_slot();
    let (ep, fabric, journal) =
        (harness.endpoint_beside(slot), harness.fabric.clone(), journal.clone());
    let process = plan.level != Level::Sync;
    harness.spawn_beside(slot, async move {
        let node = NodeId::journal(0);
        ep.sleep(at_ns).await;
        fabric.crash(node, dmtree_fabric::sim::How::Machine).expect("a node");
        journal.dies(process);
        ep.sleep(away_ns).await;
        fabric.restart(node).expect("down");
        nodes::serve(&fabric, node, journal, Arc::default());
    });
}
