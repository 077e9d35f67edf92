//! What a pool is made of.

use dmtree_fabric::local::Knobs;
use dmtree_fabric::{Error, GlobalAddr, NodeId, Result};

use crate::ids::COMPUTE_PARTITIONS;
use crate::layout::{NodeLayout, compute_base};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Smallest chunk.
const MIN_CHUNK: u64 = 64 * KIB;
/// Largest chunk that is chosen by default.
const DEFAULT_CHUNK: u64 = 32 * MIB;
/// A node holds chunks of several purposes for every index that it uses: many indexes find room
/// beside each other when chunks are a small part of a region.
const CHUNKS_OF_A_REGION: u64 = 512;
/// A region has at least so many chunks where that lets a chunk hold [`LEAST_PIECES`].
const FEWEST_CHUNKS: u64 = 64;
/// Lock tables of published designs are one piece of this many bytes.
const LEAST_PIECES: u64 = 128 * KIB;
/// More memory nodes than this have no use for one pool yet.
const MAX_MEMORY_NODES: u16 = 4096;
/// A compute node has a thread for each.
const MAX_JOURNAL_NODES: u16 = 64;

/// Options of an embedded pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// How many memory nodes.
    pub memory_nodes: u16,
    /// How many compute nodes.
    pub compute_nodes: u16,
    /// Bytes of every memory node's region.
    pub memory_bytes_per_node: u64,
    /// Bytes of every compute node's region, where fingerprint tables live; 0 chooses 1/32 of all
    /// memory, 4 MiB at least.
    pub compute_bytes_per_node: u64,
    /// Bytes of a chunk, a power of two; `None` chooses 1/512 of a region, 128 KiB to 32 MiB
    /// (64 KiB where 128 KiB are more than 1/64 of it).
    pub chunk_bytes: Option<u64>,
    /// Bits of a generation, 1 to 16. Small values wear addresses out quickly, for tests.
    pub generation_bits: u8,
    /// Test knobs of the in-process fabric.
    pub knobs: Knobs,
    /// The journal nodes of a pool of several processes that lasts.
    pub journal: Option<PoolJournal>,
}

/// The journal of a pool of several processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolJournal {
    /// How many journal nodes it has.
    pub nodes: u16,
    /// Whether an acknowledged write is on a device; a system has it otherwise.
    pub syncs: bool,
    /// Whether writes go on without a journal node that is away. Its part has a gap then, until it
    /// is refilled.
    pub goes_on: bool,
    /// Whether the pool is loaded also from parts that have gaps.
    pub accepts_gaps: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            memory_nodes: 1,
            compute_nodes: 1,
            memory_bytes_per_node: 256 * MIB,
            compute_bytes_per_node: 0,
            chunk_bytes: None,
            generation_bits: 16,
            knobs: Knobs::default(),
            journal: None,
        }
    }
}

impl PoolOptions {
    /// Bytes of a chunk: as given, or chosen.
    pub fn chosen_chunk_bytes(&self) -> u64 {
        self.chunk_bytes.unwrap_or_else(|| {
            let part = |chunks: u64| {
                let share = (self.memory_bytes_per_node / chunks).max(1);
                1u64 << share.ilog2()
            };
            let least = part(FEWEST_CHUNKS).clamp(MIN_CHUNK, LEAST_PIECES);
            part(CHUNKS_OF_A_REGION).clamp(least, DEFAULT_CHUNK)
        })
    }

    /// Bytes of a compute node's region: as given, or chosen.
    pub fn chosen_compute_bytes(&self) -> u64 {
        if self.compute_bytes_per_node != 0 {
            return self.compute_bytes_per_node;
        }
        let total = self.memory_bytes_per_node.saturating_mul(u64::from(self.memory_nodes));
        (total.div_ceil(32).next_multiple_of(64)).max(4 * MIB)
    }

    /// Tells whether a pool can be made of this, and if not, what to change.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn validate(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::invalid(what));
        if self.memory_nodes == 0 || self.memory_nodes > MAX_MEMORY_NODES {
            return refuse(format!(
                "memory_nodes is {}; a pool has 1 to {MAX_MEMORY_NODES}",
                self.memory_nodes
            ));
        }
        if let Some(PoolJournal { nodes, .. }) = self.journal
            && !(1..=MAX_JOURNAL_NODES).contains(&nodes)
        {
            return refuse(format!(
                "the pool has {nodes} journal nodes; choose 1 to {MAX_JOURNAL_NODES}"
            ));
        }
        if self.compute_nodes == 0 || self.compute_nodes > COMPUTE_PARTITIONS {
            return refuse(format!(
                "compute_nodes is {}; a pool has 1 to {COMPUTE_PARTITIONS}",
                self.compute_nodes
            ));
        }
        if !(1..=16).contains(&self.generation_bits) {
            return refuse(format!("generation_bits is {}; choose 1 to 16", self.generation_bits));
        }
        let chunk = self.chosen_chunk_bytes();
        if !chunk.is_power_of_two() || !(MIN_CHUNK..=1 << 30).contains(&chunk) {
            return refuse(format!(
                "chunk_bytes is {chunk}; choose a power of two from 64 KiB to 1 GiB"
            ));
        }
        let (memory, compute) = (self.memory_bytes_per_node, self.chosen_compute_bytes());
        if memory >= GlobalAddr::MAX_OFFSET || compute >= GlobalAddr::MAX_OFFSET {
            return refuse("a region has less than 16 TiB; use more nodes".into());
        }
        for node in 0..self.memory_nodes.min(2) {
            let node = NodeId::memory(node);
            if NodeLayout::new(node, memory, chunk).chunks == 0 {
                let need = NodeLayout::head_bytes(node, 1) + chunk;
                return refuse(format!(
                    "memory_bytes_per_node is {memory}, too little for the head of {node} and one chunk of {chunk} bytes: give it {need} at least, or choose smaller chunks"
                ));
            }
        }
        if compute < compute_base() + KIB {
            return refuse(format!(
                "compute_bytes_per_node is {compute}, too little for one segment of tables: give it {} at least, or 0 to have it chosen",
                compute_base() + KIB
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_sound() {
        let o = PoolOptions::default();
        o.validate().expect("the default is valid");
        assert_eq!((o.chosen_chunk_bytes(), o.chosen_compute_bytes()), (512 * KIB, 8 * MIB));
        let large = PoolOptions { memory_bytes_per_node: 64 << 30, ..o.clone() };
        assert_eq!(large.chosen_chunk_bytes(), 32 * MIB);
        let small = PoolOptions { memory_bytes_per_node: 2 * MIB, ..o };
        assert_eq!(small.chosen_chunk_bytes(), 64 * KIB);
        small.validate().expect("2 MiB hold the head and some chunks");
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_way_out() {
        let ok = PoolOptions::default();
        let bad = [
            PoolOptions { memory_nodes: 0, ..ok.clone() },
            PoolOptions { memory_nodes: u16::MAX, ..ok.clone() },
            PoolOptions { compute_nodes: 0, ..ok.clone() },
            PoolOptions { compute_nodes: 1025, ..ok.clone() },
            PoolOptions { generation_bits: 0, ..ok.clone() },
            PoolOptions { generation_bits: 17, ..ok.clone() },
            PoolOptions { chunk_bytes: Some(100_000), ..ok.clone() },
            PoolOptions { chunk_bytes: Some(4096), ..ok.clone() },
            PoolOptions { memory_bytes_per_node: 0, ..ok.clone() },
            PoolOptions { memory_bytes_per_node: 400 * KIB, ..ok.clone() },
            PoolOptions { memory_bytes_per_node: u64::MAX, ..ok.clone() },
            PoolOptions { compute_bytes_per_node: 512, ..ok.clone() },
            PoolOptions { journal: Some(PoolJournal::default()), ..ok.clone() },
            PoolOptions {
                journal: Some(PoolJournal { nodes: 65, ..PoolJournal::default() }),
                ..ok
            },
        ];
        for o in bad {
            let e = o.validate().expect_err("refused");
            assert_eq!(e.kind(), dmtree_fabric::ErrorKind::InvalidArgument, "{o:?}");
            assert!(e.to_string().len() > 20, "{e}");
        }
    }
}
