//! Blocks of any size: values and keys that do not fit in place. One space per index and compute
//! node. Small blocks are cut from chunks that they share; a block larger than a chunk is a run of
//! whole chunks.
//!
//! Free space is kept as extents (`extents.rs`), which merge inside a chunk, and as runs.
//! [`BlockSpace::put`] takes a block back, [`Source::take`] cuts the shortest extent that fits,
//! [`BlockSpace::take_whole`] takes out chunks that are free as a whole, so that they can go back
//! to their memory nodes and become anything.
//!
//! Invariants. A block holds no lock word and is written once before it is linked, so its memory
//! needs no type and is cut anew without further ado; readers are protected by the limbo list
//! alone. Freeing twice is detected: a free extent or run that overlaps is refused. A chunk that is
//! about to leave is logged (`first`) while it is still listed here.
//!
//! *The last block.* Of a size of at most half a chunk, a block is granted from the lists only
//! while two of them fit. The last one is for a value that takes the place of another (`spare`):
//! that one's block is free soon. So a full pool can still be written to.

use std::sync::Mutex;

use dmtree_fabric::{GlobalAddr, NodeId};

use crate::chunks::RunRequest;
use crate::extents::Extents;
use crate::gc_log::Span;
use crate::ids::{BlockPtr, block_class_bytes};
use crate::layout::{ChunkUse, NodeLayout};
use crate::obtain::{Source, Turns};
use crate::pieces::Piece;
use crate::shape::Shape;
use crate::wire::locked;

#[derive(Debug, Default)]
struct PerNode {
    /// Where chunk 0 begins.
    chunk0: u64,
    extents: Extents,
    /// Free runs of more than one chunk: offset, chunks.
    runs: Vec<(u64, u32)>,
}

#[derive(Debug)]
struct SpaceState {
    nodes: Vec<PerNode>,
    turn: usize,
}

impl SpaceState {
    /// What is here of a memory node of the pool.
    fn at(&mut self, layout: &NodeLayout) -> &mut PerNode {
        let node = layout.node.index();
        if node >= self.nodes.len() {
            self.nodes.resize_with(node + 1, PerNode::default);
        }
        self.nodes[node].chunk0 = layout.chunk0;
        &mut self.nodes[node]
    }
}

/// One index's free block memory on one compute node.
#[derive(Debug)]
pub(crate) struct BlockSpace {
    index: u32,
    chunk_bytes: u64,
    state: Mutex<SpaceState>,
    turns: Turns,
}

/// How many chunks a block of `bytes` needs.
pub(crate) fn chunks_for(bytes: u32, chunk_bytes: u64) -> u32 {
    u64::from(bytes).div_ceil(chunk_bytes) as u32
}

impl BlockSpace {
    pub(crate) fn new(index: u32, nodes: usize, chunk_bytes: u64, start: usize) -> Self {
        let nodes = (0..nodes).map(|_| PerNode::default()).collect();
        Self {
            index,
            chunk_bytes,
            state: Mutex::new(SpaceState { nodes, turn: start }),
            turns: Turns::starting_at(start),
        }
    }

    /// The index.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Takes a block back; false when it is no block of this memory node, or free already.
    pub(crate) fn put(&self, b: BlockPtr, layout: &NodeLayout) -> bool {
        let (offset, count) = (b.addr().offset(), chunks_for(b.capacity(), self.chunk_bytes));
        let (Some(first), Some(last)) =
            (layout.chunk_of(offset), layout.chunk_of(offset + u64::from(b.capacity()) - 1))
        else {
            return false;
        };
        let mut s = locked(&self.state);
        let n = s.at(layout);
        if count > 1 {
            let ok = layout.chunk(first) == offset
                && !n.runs.iter().any(|(at, c)| {
                    offset < at + u64::from(*c) * self.chunk_bytes
                        && *at < offset + u64::from(count) * self.chunk_bytes
                });
            if ok {
                n.runs.push((offset, count));
            }
            return ok;
        }
        first == last
            && n.extents.put(offset, u64::from(b.capacity()), layout.chunk0, self.chunk_bytes)
    }

    /// Takes out chunks that can go back to the memory nodes: node, offset, chunks. `keep` chunks
    /// stay for the next blocks. `first` logs each of them under the lock.
    pub(crate) fn take_whole(
        &self,
        keep: usize,
        first: impl Fn(usize, u64, u32),
    ) -> Vec<(usize, u64, u32)> {
        let mut out = Vec::new();
        let mut s = locked(&self.state);
        for (i, n) in s.nodes.iter_mut().enumerate() {
            out.extend(n.runs.drain(..).map(|(at, count)| (i, at, count)));
            let whole = n.extents.take_whole(self.chunk_bytes, keep);
            out.extend(whole.into_iter().map(|at| (i, at, 1)));
        }
        out.iter().for_each(|(node, at, count)| first(*node, *at, *count));
        out
    }

    /// Adds free space of any length on one memory node, which was on no list.
    pub(crate) fn adopt(&self, layout: &NodeLayout, offset: u64, bytes: u64) -> bool {
        let mut s = locked(&self.state);
        let n = s.at(layout);
        if bytes > self.chunk_bytes {
            let whole = layout.chunk_at(offset).is_some() && bytes.is_multiple_of(self.chunk_bytes);
            if whole {
                n.runs.push((offset, (bytes / self.chunk_bytes) as u32));
            }
            return whole;
        }
        n.extents.put(offset, bytes, layout.chunk0, self.chunk_bytes)
    }

    /// Takes out one part in `parts` of the free space in chunks that blocks share, rounded up:
    /// first of a chunk in which `least` bytes are free together.
    pub(crate) fn take_free(&self, parts: u64, least: u64, out: &mut Vec<Piece>) {
        let mut s = locked(&self.state);
        for (i, n) in s.nodes.iter_mut().enumerate() {
            let at = |offset| GlobalAddr::new(NodeId::memory(i as u16), offset);
            let left = n.extents.bytes() - n.extents.bytes().div_ceil(parts);
            let mut wanted = least;
            while n.extents.bytes() > left {
                let some = n.extents.take_chunk(wanted, n.chunk0, self.chunk_bytes);
                if some.is_empty() {
                    // No chunk has an extent of the wanted length.
                    break;
                }
                wanted = least.min(64);
                out.extend(some.into_iter().map(|(o, len)| Piece::Space(self.index, at(o), len)));
            }
        }
    }

    /// The free memory here.
    pub(crate) fn list(&self, out: &mut Vec<Span>) {
        let s = locked(&self.state);
        for (n, node) in s.nodes.iter().enumerate() {
            let base = |at: u64| GlobalAddr::new(NodeId::memory(n as u16), at).bits();
            let runs = node.runs.iter().map(|(at, c)| (*at, u64::from(*c) * self.chunk_bytes));
            out.extend(node.extents.all().chain(runs).map(|(at, len)| Span::Bytes(base(at), len)));
        }
    }

    /// Bytes free here.
    pub(crate) fn free_bytes(&self) -> u64 {
        let s = locked(&self.state);
        let runs = s.nodes.iter().flat_map(|n| &n.runs).map(|(_, c)| u64::from(*c)).sum::<u64>();
        s.nodes.iter().map(|n| n.extents.bytes()).sum::<u64>() + runs * self.chunk_bytes
    }
}

/// A request for a block of one class.
pub(crate) struct BlockRequest<'a> {
    pub(crate) space: &'a BlockSpace,
    pub(crate) class: u8,
    pub(crate) shape: &'a Shape,
    /// For a value that takes the place of another: the last block that fits may be used, since one
    /// is free again soon.
    pub(crate) spare: bool,
}

impl BlockRequest<'_> {
    fn bytes(&self) -> u32 {
        block_class_bytes(self.class)
    }

    fn count(&self) -> u32 {
        chunks_for(self.bytes(), self.space.chunk_bytes)
    }

    fn take_at(&self, n: &mut PerNode, node: usize) -> Option<BlockPtr> {
        let count = self.count();
        let offset = if count > 1 {
            let at = n.runs.iter().position(|(_, c)| *c == count)?;
            n.runs.swap_remove(at).0
        } else {
            let bytes = u64::from(self.bytes());
            // The last block is kept for replacements. (Blocks of more than half a chunk have
            // none.)
            if !self.spare && 2 * bytes <= self.space.chunk_bytes && !n.extents.fits_twice(bytes) {
                return None;
            }
            n.extents.take(bytes)?
        };
        Some(BlockPtr::new(NodeId::memory(node as u16), offset, self.class))
    }
}

impl Source for BlockRequest<'_> {
    type Item = BlockPtr;

    fn take(&self, only: Option<usize>) -> Option<BlockPtr> {
        let mut s = locked(&self.space.state);
        if let Some(n) = only {
            return self.take_at(s.nodes.get_mut(n)?, n);
        }
        let count = s.nodes.len();
        let first = s.turn;
        let turns = (0..count).map(|k| (first + k) % count);
        let (n, b) = turns.filter_map(|n| Some((n, self.take_at(&mut s.nodes[n], n)?))).next()?;
        s.turn = (n + 1) % count;
        Some(b)
    }

    fn add(&self, node: usize, offset: u64) -> Option<BlockPtr> {
        let chunk_bytes = self.space.chunk_bytes;
        let layout = self.shape.layout(node)?;
        let mut s = locked(&self.space.state);
        let n = s.at(&layout);
        match self.count() {
            1 => _ = n.extents.put(offset, chunk_bytes, layout.chunk0, chunk_bytes),
            count => n.runs.push((offset, count)),
        }
        self.take_at(n, node)
    }

    fn request(&self) -> RunRequest {
        let (index, count) = (self.space.index, self.count());
        RunRequest {
            used_for: ChunkUse::Blocks,
            kind: 0,
            index,
            object_bytes: 0,
            count,
            least: u64::from(self.bytes()),
        }
    }

    fn turns(&self) -> &Turns {
        &self.space.turns
    }
}
