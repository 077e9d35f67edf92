//! How full the pool is.

use std::sync::atomic::Ordering;

use dmtree_fabric::{Endpoint, Error, GlobalAddr, NodeId, Presence, Result};

use crate::arena::ArenaKey;
use crate::layout::{ChunkRecord, ChunkUse, NodeLayout, RECORD_BYTES};
use crate::node::PoolNode;
use crate::wire::locked;

/// One arena on one compute node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaUsage {
    /// Which arena.
    pub key: ArenaKey,
    /// Bytes of chunks taken for it.
    pub chunk_bytes: u64,
    /// Addresses with no generation left.
    pub worn_out: u64,
}

/// The memory that one compute node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeUsage {
    /// Its arenas.
    pub arenas: Vec<ArenaUsage>,
    /// Bytes of chunks for blocks that no block uses.
    pub free_block_bytes: u64,
    /// Items on the limbo list.
    pub retired: u64,
    /// Their bytes.
    pub retired_bytes: u64,
    /// Items given back that cannot have been granted: a sign of corruption.
    pub refused: u64,
}

/// Chunks of a memory node that serve one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordUsage {
    /// What they are used for.
    pub used_for: ChunkUse,
    /// The index; 0 for tables.
    pub index: u32,
    /// The arena's kind.
    pub kind: u8,
    /// How many chunks.
    pub chunks: u32,
}

/// One memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Which.
    pub node: NodeId,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Chunks handed out.
    pub used_chunks: u32,
    /// Chunks left.
    pub free_chunks: u32,
    /// Chunks by purpose.
    pub by_use: Vec<RecordUsage>,
}

/// The pool as seen from one compute node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Every memory node that can be used.
    pub memory: Vec<MemoryUsage>,
    /// Those that cannot, and are not counted.
    pub away: Vec<(NodeId, Presence)>,
    /// This compute node.
    pub here: NodeUsage,
}

impl PoolNode {
    /// What this node holds.
    pub fn usage(&self) -> NodeUsage {
        let arenas: Vec<_> = locked(&self.arenas).values().cloned().collect();
        let blocks: Vec<_> = locked(&self.blocks).values().cloned().collect();
        let (retired, retired_bytes) = self.limbo_list.waiting();
        NodeUsage {
            arenas: arenas.iter().map(|a| a.usage()).collect(),
            free_block_bytes: blocks.iter().map(|b| b.free_bytes()).sum(),
            retired,
            retired_bytes,
            refused: self.refused.load(Ordering::Relaxed) as u64,
        }
    }

    /// Reads the owner records of all chunks of a memory node; `None` for a free chunk.
    ///
    /// # Errors
    /// `NotFound` for no memory node, `Corrupt` for a record that stays torn; those of the fabric.
    pub async fn chunk_records(
        &self,
        ep: &Endpoint,
        node: NodeId,
    ) -> Result<Vec<Option<ChunkRecord>>> {
        let found = self.shape.layout(node.index()).filter(|l| l.node == node);
        let layout = &found
            .ok_or_else(|| Error::not_found(format!("{node} is no memory node of this pool")))?;
        let mut out = Vec::with_capacity(layout.chunks as usize);
        // 64 KiB at a time.
        const STEP: u32 = 2048;
        for first in (0..layout.chunks).step_by(STEP as usize) {
            let count = STEP.min(layout.chunks - first);
            out.append(&mut read_records(ep, layout, first, count).await?);
        }
        Ok(out)
    }

    /// Where chunk `i` of a memory node begins.
    pub fn chunk_addr(&self, node: NodeId, i: usize) -> Option<GlobalAddr> {
        let layout = self.shape.layout(node.index()).filter(|l| l.node == node)?;
        (i < layout.chunks as usize).then(|| GlobalAddr::new(node, layout.chunk(i as u32)))
    }

    /// What every memory node has handed out, and what this node holds. One READ per memory node.
    pub async fn usage_all(&self, ep: &Endpoint) -> Result<PoolUsage> {
        let mut memory = Vec::new();
        let away = self.membership().away();
        let is_there = |l: &&NodeLayout| away.iter().all(|(node, _)| *node != l.node);
        for layout in self.shape.layouts().iter().filter(is_there) {
            let records = self.chunk_records(ep, layout.node).await?;
            memory.push(summary(layout, &records));
        }
        Ok(PoolUsage { memory, away, here: self.usage() })
    }
}

async fn read_records(
    ep: &Endpoint,
    layout: &NodeLayout,
    first: u32,
    count: u32,
) -> Result<Vec<Option<ChunkRecord>>> {
    let at = layout.record(first);
    let mut pause = ep.backoff("chunk records", at);
    loop {
        let bytes = ep.read(at, count * RECORD_BYTES as u32).await?;
        let records: Result<Vec<_>> = bytes
            .extract(|b| b.chunks_exact(RECORD_BYTES as usize).map(ChunkRecord::decode).collect());
        match records {
            Ok(records) => return Ok(records),
            // The node is writing one. A record that stays torn belongs to a run that was never
            // granted.
            Err(e) => pause.step().await.map_err(|_| e.context(layout.node.to_string()))?,
        }
    }
}

fn summary(layout: &NodeLayout, records: &[Option<ChunkRecord>]) -> MemoryUsage {
    let mut by_use: Vec<RecordUsage> = Vec::new();
    for r in records.iter().flatten() {
        let same = |u: &RecordUsage| (u.used_for, u.index, u.kind) == (r.used_for, r.index, r.kind);
        let at = by_use.iter().position(same).unwrap_or_else(|| {
            let (used_for, index, kind) = (r.used_for, r.index, r.kind);
            by_use.push(RecordUsage { used_for, index, kind, chunks: 0 });
            by_use.len() - 1
        });
        by_use[at].chunks += 1;
    }
    by_use.sort_by_key(|u| (u.index, u.used_for, u.kind));
    let used = records.iter().flatten().count() as u32;
    MemoryUsage {
        node: layout.node,
        chunk_bytes: layout.chunk_bytes,
        used_chunks: used,
        free_chunks: layout.chunks - used,
        by_use,
    }
}
