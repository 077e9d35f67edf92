//! How busy each server was.

use super::world::World;
use crate::addr::NodeId;
use crate::transport::Nanos;
use std::sync::atomic::Ordering;

/// Busy times of one node's servers since the last reset, ns, and the bytes and verbs that they
/// served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeUsage {
    /// The node.
    pub node: NodeId,
    /// Wire towards the node.
    pub in_wire_ns: Nanos,
    /// Wire from the node.
    pub out_wire_ns: Nanos,
    /// The NIC's pipeline for verbs of others.
    pub responder_ns: Nanos,
    /// The NIC's pipeline for the node's own verbs.
    pub initiator_ns: Nanos,
    /// How long atomics waited for others on the same word, all together.
    pub same_word_wait_ns: Nanos,
    /// Cores that serve remote calls, all together.
    pub rpc_ns: Nanos,
    /// Cores that run data services, all together.
    pub data_ns: Nanos,
    /// Cores that run jobs, all together: as many as for data services.
    pub job_ns: Nanos,
    /// The number of these cores.
    pub data_cores: u32,
    /// Bytes that came by the wire, headers included.
    pub in_bytes: u64,
    /// Bytes that left by the wire, headers included.
    pub out_bytes: u64,
    /// READs served.
    pub reads: u64,
    /// WRITEs served.
    pub writes: u64,
    /// Atomics served.
    pub atomics: u64,
    /// Remote calls served.
    pub rpcs: u64,
}

/// One client thread's CPU since the last reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadUsage {
    /// Its node.
    pub node: NodeId,
    /// Its number among the node's threads.
    pub number: u32,
    /// Busy time, ns.
    pub cpu_ns: Nanos,
}

/// How busy everything was between two times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Virtual time of the last reset, ns.
    pub since_ns: Nanos,
    /// Virtual time now, ns.
    pub until_ns: Nanos,
    /// All nodes, in the order in which they were added.
    pub nodes: Vec<NodeUsage>,
    /// All client threads, in the order in which they were attached.
    pub threads: Vec<ThreadUsage>,
}

pub(super) fn of(w: &World, since: Nanos, until: Nanos) -> Usage {
    let nodes = w.nics.iter().map(|n| NodeUsage {
        node: n.node(),
        in_wire_ns: n.in_wire.busy / 1000,
        out_wire_ns: n.out_wire.busy / 1000,
        responder_ns: n.responder.busy / 1000,
        initiator_ns: n.initiator.busy / 1000,
        same_word_wait_ns: n.same_word / 1000,
        rpc_ns: n.cores.iter().map(|c| c.busy).sum::<u64>() / 1000,
        data_ns: n.data_cores.busy / 1000,
        job_ns: n.job_cores.iter().map(|c| c.busy.load(Ordering::Relaxed)).sum::<u64>() / 1000,
        data_cores: w.costs.data_cores,
        in_bytes: n.served.in_bytes,
        out_bytes: n.served.out_bytes,
        reads: n.served.reads,
        writes: n.served.writes,
        atomics: n.served.atomics,
        rpcs: n.served.calls,
    });
    let threads = w.threads.iter().filter(|t| !t.is_job).map(|t| ThreadUsage {
        node: w.nics[t.nic as usize].node(),
        number: t.number,
        cpu_ns: t.cpu.busy.load(Ordering::Relaxed) / 1000,
    });
    Usage { since_ns: since, until_ns: until, nodes: nodes.collect(), threads: threads.collect() }
}

pub(super) fn reset(w: &mut World) {
    w.nics.iter_mut().for_each(super::nic::Nic::forget);
    for cpu in w.threads.iter().map(|t| &t.cpu) {
        cpu.busy.store(0, Ordering::Relaxed);
        cpu.since.store(w.now, Ordering::Relaxed);
    }
}
