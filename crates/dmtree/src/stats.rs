//! What an index and its pool report about themselves.

use dmtree_engine::DmTree;
use dmtree_fabric::{OpCounts, Snapshot};
use dmtree_parts::{CacheStats, RangeIndex, Shape, Write};
use dmtree_pool::{Latencies, PoolUsage};
use serde::{Serialize, Serializer};

use crate::open::OpenIndex;

dmtree_fabric::listed! {
    /// The operations that `stats` counts.
    pub enum Operation {
        /// Point read; `done` is a hit, `not_found` a miss.
        Get,
        /// Unconditional write.
        Put,
        /// Write of a key that must be absent.
        Insert,
        /// Write of a key that must be there.
        Update,
        /// Removal.
        Delete,
        /// Compare-and-set, compare-and-delete.
        CompareAndSet,
        /// A page of a scan.
        Scan,
        /// Several reads together, counted once.
        GetMany,
        /// Several writes together, counted once.
        WriteBatch,
        /// Bulk load, counted once.
        Load,
    }
}

impl Operation {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::CompareAndSet => "compare_and_set",
            Self::Scan => "scan",
            Self::GetMany => "get_many",
            Self::WriteBatch => "write_batch",
            Self::Load => "load",
        }
    }

    /// As what a single write is counted.
    pub(crate) fn of(write: Write<'_>) -> Self {
        match write {
            Write::Put(_) => Self::Put,
            Write::Insert(_) => Self::Insert,
            Write::Update(_) => Self::Update,
            Write::Delete => Self::Delete,
            Write::CompareAndSet { .. } => Self::CompareAndSet,
        }
    }
}

/// How often an operation ended in what way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OperationCounts {
    /// It took effect, or found its key.
    pub done: u64,
    /// The key existed (insert).
    pub exists: u64,
    /// The key was absent.
    pub not_found: u64,
    /// The value differed (compare-and-set).
    pub mismatch: u64,
    /// It ended in an error.
    pub errors: u64,
}

impl OperationCounts {
    /// All together.
    pub fn total(&self) -> u64 {
        self.done + self.exists + self.not_found + self.mismatch + self.errors
    }
}

/// What [`Index::stats`](crate::Index::stats) reports. Cheap: nothing of the index is read.
///
/// Serialized, `operations` is a map from names, and `costs` a list of what `Snapshot::ops` has.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Operations by kind, in the order of [`Operation::ALL`]: all sessions since the index was
    /// opened, the ended ones too.
    #[serde(serialize_with = "by_name")]
    pub operations: Vec<(Operation, OperationCounts)>,
    /// Latencies of one operation in 64 of each session, by kind, in the same order.
    #[serde(serialize_with = "by_name")]
    pub latencies: Vec<(Operation, Latencies)>,
    /// Sessions (and coroutines of async clients) that exist now.
    pub sessions: usize,
    /// What operations cost: verbs, bytes and round trips by kind and outcome. A session publishes
    /// its costs every 512 operations and when it ends, so this may lag behind `operations`.
    #[serde(serialize_with = "by_kind")]
    pub costs: Snapshot,
    /// Pieces of maintenance that ended in an error (and are tried again).
    pub maintenance_errors: u64,
    /// The caches, one entry for every compute node.
    pub caches: Vec<CacheStats>,
    /// The pool.
    pub pool: PoolStats,
}

fn by_name<S: Serializer, T: Serialize>(
    operations: &[(Operation, T)],
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_map(operations.iter().map(|(operation, of)| (operation.name(), of)))
}

/// The operations of one kind and outcome, serialized.
#[derive(Serialize)]
struct Costs<'a> {
    kind: &'static str,
    outcome: &'static str,
    ops: u64,
    counts: &'a OpCounts,
}

fn by_kind<S: Serializer>(costs: &Snapshot, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(costs.ops.iter().map(|(kind, outcome, totals)| Costs {
        kind: kind.name(),
        outcome: outcome.name(),
        ops: totals.ops,
        counts: &totals.counts,
    }))
}

impl Stats {
    pub(crate) fn of(open: &OpenIndex, pool: PoolStats) -> Self {
        let (sum, sessions) = open.counted();
        Self {
            operations: Operation::ALL.map(|what| (what, sum.counts(what))).to_vec(),
            latencies: Operation::ALL.map(|what| (what, sum.latencies.of(what))).to_vec(),
            sessions,
            maintenance_errors: sum.maintenance_errors,
            caches: open.nodes().trees.iter().map(|n| DmTree::cache_stats(n)).collect(),
            pool,
            costs: sum.costs,
        }
    }

    /// The sampled latencies of one kind of operation.
    pub fn latencies_of(&self, what: Operation) -> Latencies {
        self.latencies.get(what as usize).map(|(_, latencies)| *latencies).unwrap_or_default()
    }

    /// The counts of one kind of operation.
    pub fn of_operation(&self, what: Operation) -> OperationCounts {
        self.operations.get(what as usize).map(|(_, counts)| *counts).unwrap_or_default()
    }
}

/// How full a pool is. Memory is handed out in chunks: a used chunk may have room left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PoolStats {
    /// One entry for every memory node.
    pub memory_nodes: Vec<MemoryStats>,
    /// The memory nodes that cannot be used, a line each: what they hold is not counted.
    pub missing: Vec<String>,
}

/// How full one memory node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes of all its chunks.
    pub total_bytes: u64,
    /// Bytes of chunks that were handed out.
    pub used_bytes: u64,
}

impl PoolStats {
    pub(crate) fn of(usage: &PoolUsage) -> Self {
        let node = |m: &dmtree_pool::MemoryUsage| MemoryStats {
            total_bytes: u64::from(m.used_chunks + m.free_chunks) * m.chunk_bytes,
            used_bytes: u64::from(m.used_chunks) * m.chunk_bytes,
        };
        Self {
            memory_nodes: usage.memory.iter().map(node).collect(),
            missing: usage.away.iter().map(|(n, p)| p.refusal(*n).to_string()).collect(),
        }
    }

    /// Bytes of chunks handed out, all memory nodes together.
    pub fn used_bytes(&self) -> u64 {
        self.memory_nodes.iter().map(|m| m.used_bytes).sum()
    }

    /// Bytes of chunks, all memory nodes together.
    pub fn total_bytes(&self) -> u64 {
        self.memory_nodes.iter().map(|m| m.total_bytes).sum()
    }
}

/// What [`Index::shape`](crate::Index::shape) found on a walk through the whole structure.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ShapeStats {
    /// Keys, leaves, levels, bytes.
    pub shape: Shape,
    /// Inner nodes that the caches hold, all compute nodes together.
    pub cached_nodes: u64,
    /// Bytes that the caches hold, all compute nodes together.
    pub cached_bytes: u64,
}

impl ShapeStats {
    pub(crate) fn of(open: &OpenIndex, shape: Shape) -> Self {
        let nodes = open.nodes();
        let caches = nodes.trees.iter().map(|n| DmTree::cache_stats(n));
        let (nodes, bytes) = caches.fold((0, 0), |(n, b), c| (n + c.nodes, b + c.used_bytes));
        Self { shape, cached_nodes: nodes, cached_bytes: bytes }
    }

    /// Bytes on memory nodes for each key: entries, inner nodes, and blocks of long keys and
    /// values.
    pub fn memory_bytes_per_key(&self) -> f64 {
        let bytes = self.shape.structure_bytes + self.shape.block_bytes;
        bytes as f64 / self.shape.keys.max(1) as f64
    }

    /// Bytes of fingerprint tables for each key, on compute nodes unless the option `tables` says
    /// otherwise.
    pub fn table_bytes_per_key(&self) -> f64 {
        self.shape.table_bytes as f64 / self.shape.keys.max(1) as f64
    }

    /// Bytes of cache for each key with a cached way, on one compute node; `None` while nothing is
    /// cached. An estimate: it takes the cached inner nodes for average ones.
    pub fn cache_bytes_per_cached_key(&self) -> Option<f64> {
        let keys_per_node = self.shape.keys as f64 / self.shape.inner_nodes.max(1) as f64;
        let cached_keys = self.cached_nodes as f64 * keys_per_node;
        (cached_keys > 0.0).then(|| self.cached_bytes as f64 / cached_keys)
    }
}
