//! What nodes of a pool say of their work, and processes of the indexes that they have open.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::latencies::Latencies;
use crate::node::PoolNode;
use crate::wire::locked;

/// What a node says of its work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// On a memory node.
    pub memory: Option<MemoryReport>,
    /// On a compute node.
    pub compute: Option<ComputeReport>,
    /// The indexes that a compute node has open.
    pub indexes: Vec<IndexReport>,
    /// Partitions of fingerprint tables that it serves.
    pub partitions: u64,
}

/// The memory of a memory node, which is handed out in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Bytes of all chunks.
    pub total_bytes: u64,
    /// Bytes of chunks that are handed out.
    pub used_bytes: u64,
}

/// A compute node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComputeReport {
    /// The newest membership epoch that it knows.
    pub epoch: u64,
    /// Whether it serves fingerprint tables and locks to the others.
    pub serves_tables: bool,
    /// Bytes of memory nodes' chunks that it has for later writes.
    pub free_block_bytes: u64,
    /// Unlinked objects that wait until no operation can read them.
    pub retired: u64,
    /// Their bytes.
    pub retired_bytes: u64,
}

/// An index as one compute node uses it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IndexReport {
    /// Its name.
    pub name: String,
    /// Sessions and coroutines that are open.
    pub sessions: u64,
    /// Operations by kind and outcome.
    pub operations: BTreeMap<String, BTreeMap<String, u64>>,
    /// Pieces of maintenance that failed and are tried again.
    pub maintenance_errors: u64,
    /// The cache.
    pub cache: CacheReport,
    /// Verbs towards memory nodes.
    pub memory_side: SideReport,
    /// Verbs towards compute nodes.
    pub compute_side: SideReport,
    /// Dependent round trips of operations.
    pub round_trips: u64,
    /// Operations that repeated a step, by kind.
    pub repeated: BTreeMap<String, u64>,
    /// Waits of operations, by what they waited for.
    pub waits: BTreeMap<String, WaitReport>,
    /// The most awaited objects, the first most often.
    pub most_awaited: Vec<AwaitedReport>,
    /// Sampled latencies by kind of operation.
    pub latencies: BTreeMap<String, Latencies>,
    /// Pieces of maintenance and recovery that are due, by what they do.
    pub due: BTreeMap<String, u64>,
}

/// Waits for one thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitReport {
    /// How many.
    pub waits: u64,
    /// Their time, ns.
    pub ns: u64,
}

/// An object that operations wait for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AwaitedReport {
    /// What it is: "leaf lock".
    pub what: String,
    /// Its address or number.
    pub at: u64,
    /// How many waits at most.
    pub waits: u64,
}

/// A cache of inner nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheReport {
    /// Budget, images included.
    pub budget_bytes: u64,
    /// In use by inner nodes and mirrors.
    pub used_bytes: u64,
    /// Images of leaves, beside those.
    pub image_bytes: u64,
    /// Look-ups that found their bottom node.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Nodes dropped for room.
    pub evictions: u64,
}

/// Verbs towards one kind of node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SideReport {
    /// READs.
    pub reads: u64,
    /// WRITEs.
    pub writes: u64,
    /// Compare-and-swaps and fetch-and-adds.
    pub atomics: u64,
    /// Remote calls.
    pub calls: u64,
    /// Payload of READs.
    pub read_bytes: u64,
    /// Payload of WRITEs.
    pub written_bytes: u64,
}

/// What a compute node's process says of the indexes that it has open, without waiting.
pub type IndexReports = Arc<dyn Fn() -> Vec<IndexReport> + Send + Sync>;

impl PoolNode {
    /// What the process says of its indexes.
    pub fn set_index_reports(&self, reports: IndexReports) {
        *locked(&self.index_reports) = Some(reports);
    }
    /// What this node says of its work.
    pub fn work(&self) -> NodeReport {
        let usage = self.usage();
        let compute = ComputeReport {
            epoch: self.view.state().epoch,
            serves_tables: self.membership().serves_tables(),
            free_block_bytes: usage.free_block_bytes,
            retired: usage.retired,
            retired_bytes: usage.retired_bytes,
        };
        let reports = locked(&self.index_reports).clone();
        let indexes = reports.map_or_else(Vec::new, |reports| reports());
        let partitions = self.owners.partitions();
        NodeReport { memory: None, compute: Some(compute), indexes, partitions }
    }
}
