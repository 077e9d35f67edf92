//! Nodes that are lost in a first life: compute nodes, and the journal node for a while.
//!
//! Leases are short, and memory nodes and the journal node hold one, as in a pool of several
//! processes: each revokes the access of a dead compute node before it acknowledges that, and only
//! then locks of the dead are taken over.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use dmtree_check::harness::Harness;
use dmtree_fabric::sim::How;
use dmtree_fabric::{Endpoint, Fabric, LeaseParameters, Member, MemberPhase, MemoryAgent, NodeId};
use dmtree_journal::Level;

use super::journal::{SimJournal, Wrong};
use super::nodes::{self, Attached};
use super::order::Ended;
use super::plan::{End, Plan};

/// Time for acknowledgements, ns: operations of a living node may be stalled for as long.
const ACKNOWLEDGE_NS: u64 = 20_000_000;
const STEPS_PER_LEASE: u64 = 16;
/// A call takes longer than this pause to arrive, ns.
const LOOK_NS: u64 = 100;
const LONGEST_WAIT_NS: u64 = 100_000;

/// The ends of compute nodes.
pub type Ends = Rc<RefCell<Vec<Ended>>>;

/// Begins what a life has beside its clients.
pub fn begin(
    plan: &Plan,
    (harness, attached): (&Rc<Harness>, &Attached),
    journal: &Arc<SimJournal>,
    ends: &Ends,
) {
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
    compute_nodes(plan, (harness, attached), journal, ends);
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

/// Waits until a sender has made a call: it has not arrived yet.
async fn a_call_leaves(ep: &Endpoint, sender: &Endpoint) {
    let calls = || sender.snapshot().loose.mn.rpc;
    let (before, until) = (calls(), ep.now() + LONGEST_WAIT_NS);
    while calls() == before && ep.now() < until {
        ep.sleep(LOOK_NS).await;
    }
}

/// Compute nodes are lost at their times.
fn compute_nodes(
    plan: &Plan,
    (harness, attached): (&Rc<Harness>, &Attached),
    journal: &Arc<SimJournal>,
    ends: &Ends,
) {
    for loss in plan.losses.clone() {
        let slot = harness.core().add_slot();
        let (ep, of) = (harness.endpoint_beside(slot), harness.clone());
        let (journal, ends) = (journal.clone(), ends.clone());
        let pause_ns = plan.lease_ns / STEPS_PER_LEASE / 16;
        let senders = attached.senders.get(usize::from(loss.cn)).filter(|_| loss.with_call);
        let sender = senders.map(|senders| senders[0].clone());
        harness.spawn_beside(slot, async move {
            ep.sleep(loss.at_ns).await;
            if let Some(sender) = sender {
                a_call_leaves(&ep, &sender).await;
            }
            let is_fenced = || {
                let me = Member { node: NodeId::compute(loss.cn), incarnation: 1 };
                let phase = of.test_cluster.membership().latest().phase(me);
                phase.is_some_and(|phase| phase > MemberPhase::Revoking)
            };
            let note = || ends.borrow_mut().push(Ended { cn: loss.cn, appends: journal.len() });
            match loss.end {
                End::Crash(how) => {
                    of.fabric.crash(NodeId::compute(loss.cn), how).expect("a node");
                    note();
                }
                End::Lapse => {
                    // Its worker stands still to the end.
                    let _still = of.pool(loss.cn).heartbeat();
                    while !is_fenced() {
                        ep.sleep(pause_ns).await;
                    }
                    note();
                    std::future::pending::<()>().await;
                }
                End::Freeze(for_ns) => {
                    let until = ep.now() + for_ns;
                    of.freeze(loss.cn);
                    while !is_fenced() && ep.now() < until {
                        ep.sleep(pause_ns).await;
                    }
                    if is_fenced() {
                        note();
                    }
                    ep.sleep(until.saturating_sub(ep.now())).await;
                    of.thaw(loss.cn);
                }
            }
        });
    }
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
        fabric.crash(node, How::Machine).expect("a node");
        journal.dies(process);
        ep.sleep(away_ns).await;
        fabric.restart(node).expect("down");
        nodes::serve(&fabric, node, journal, Arc::default());
    });
}
