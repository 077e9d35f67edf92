//! Bump allocators, for designs that never free: pieces of any size, cut in 8-byte steps from chunk
//! after chunk. Chunks of memory nodes come round robin from all of them, and so do stretches of
//! compute nodes' table memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use dmtree_fabric::{Endpoint, Error, GlobalAddr, NodeId, Result, WaitReason};

use crate::chunks::RunRequest;
use crate::layout::ChunkUse;
use crate::obtain::Supply;
use crate::obtain::{Source, Turn, Turns};
use crate::owners::ask_stretch;
use crate::wire::locked;

/// The remainder of the last chunk or stretch.
#[derive(Debug, Default)]
struct Remainder(Option<(GlobalAddr, u64)>);

impl Remainder {
    fn cut(&mut self, bytes: u64) -> Option<GlobalAddr> {
        let (at, left) = self.0?;
        let rest = left.checked_sub(bytes)?;
        self.0 = Some((at.plus(bytes), rest));
        Some(at)
    }
}

fn rounded(bytes: u32) -> u64 {
    u64::from(bytes.clamp(1, 1 << 30)).next_multiple_of(8)
}

/// Cuts pieces from chunks of memory nodes. Fresh memory is zero. Nothing is ever returned.
#[derive(Debug)]
pub struct Bump {
    index: u32,
    kind: u8,
    chunk_bytes: u64,
    remainder: Mutex<Remainder>,
    turns: Turns,
}

/// A request for a piece.
struct AllocationRequest<'b> {
    from: &'b Bump,
    bytes: u64,
}

impl Source for AllocationRequest<'_> {
    type Item = GlobalAddr;

    fn take(&self, _only: Option<usize>) -> Option<GlobalAddr> {
        locked(&self.from.remainder).cut(self.bytes)
    }

    fn add(&self, node: usize, offset: u64) -> Option<GlobalAddr> {
        let mut remainder = locked(&self.from.remainder);
        let at = GlobalAddr::new(NodeId::memory(node as u16), offset);
        remainder.0 = Some((at, self.from.chunk_bytes));
        remainder.cut(self.bytes)
    }

    fn request(&self) -> RunRequest {
        // To the record, a chunk of words.
        let Bump { index, kind, .. } = *self.from;
        RunRequest { used_for: ChunkUse::Arena, kind, index, object_bytes: 8, count: 1, least: 0 }
    }

    fn turns(&self) -> &Turns {
        &self.from.turns
    }
}

/// A request for a region: a run of chunks, whole.
struct RegionRequest {
    of: Bump,
    chunks: u32,
}

impl Source for RegionRequest {
    type Item = GlobalAddr;

    fn take(&self, _only: Option<usize>) -> Option<GlobalAddr> {
        None
    }

    fn add(&self, node: usize, offset: u64) -> Option<GlobalAddr> {
        Some(GlobalAddr::new(NodeId::memory(node as u16), offset))
    }

    fn request(&self) -> RunRequest {
        let one = AllocationRequest { from: &self.of, bytes: 8 };
        // To the record, a run of objects of a chunk each: a collection that looks for lost objects
        // passes few.
        let object_bytes = u32::try_from(self.of.chunk_bytes).unwrap_or(1 << 31);
        RunRequest { count: self.chunks, object_bytes, ..one.request() }
    }

    fn turns(&self) -> &Turns {
        &self.of.turns
    }
}

/// Cuts pieces from stretches of the compute nodes' table memory: one stretch of one node after the
/// other.
#[derive(Debug)]
pub struct Stripes {
    stretch_bytes: u64,
    remainder: Mutex<Remainder>,
    turns: Turns,
    /// No compute node has room. Final: stretches never come back.
    full: AtomicBool,
}

fn no_chunk(node: NodeId) -> Error {
    Error::full(format!("{node} has too few free chunks: create the pool with more memory"))
}

fn on_node(at: GlobalAddr, node: NodeId) -> Result<GlobalAddr> {
    if at.node() == node { Ok(at) } else { Err(no_chunk(node)) }
}

impl Supply<'_> {
    /// A bump allocator of this node over chunks of memory nodes. `kind` goes into the chunks'
    /// records.
    pub fn bump(self, index: u32, kind: u8) -> Bump {
        Bump {
            index,
            kind,
            chunk_bytes: self.0.shape.chunk_bytes,
            remainder: Mutex::default(),
            turns: Turns::starting_at(self.0.cn.index()),
        }
    }

    /// A piece of `bytes`, rounded up to whole words.
    ///
    /// # Errors
    /// `Full` when no memory node has a chunk, `InvalidArgument` for pieces larger than one; those
    /// of the fabric.
    pub async fn alloc_bump(self, ep: &Endpoint, from: &Bump, bytes: u32) -> Result<GlobalAddr> {
        self.cut(ep, from, bytes, None).await
    }

    async fn cut(
        self,
        ep: &Endpoint,
        from: &Bump,
        bytes: u32,
        near: Option<NodeId>,
    ) -> Result<GlobalAddr> {
        let bytes = rounded(bytes);
        self.0.check_fits("a piece", bytes)?;
        self.obtain(ep, &AllocationRequest { from, bytes }, near).await
    }

    /// A piece on this very memory node, in a chunk of its own: for structures that every memory
    /// node has one of.
    ///
    /// # Errors
    /// As [`Supply::alloc_bump`]; `Full` when this memory node has no chunk.
    pub async fn alloc_bump_on(
        self,
        ep: &Endpoint,
        (index, kind): (u32, u8),
        bytes: u32,
        node: NodeId,
    ) -> Result<GlobalAddr> {
        self.alloc_bump_near(ep, &self.bump(index, kind), bytes, node).await
    }

    /// A piece on this very memory node, from an allocator that serves no other node.
    ///
    /// # Errors
    /// As [`Supply::alloc_bump_on`].
    pub async fn alloc_bump_near(
        self,
        ep: &Endpoint,
        from: &Bump,
        bytes: u32,
        node: NodeId,
    ) -> Result<GlobalAddr> {
        on_node(self.cut(ep, from, bytes, Some(node)).await?, node)
    }

    /// A region of any size on this very memory node: a run of whole chunks. It is zero, and is
    /// never returned.
    ///
    /// # Errors
    /// `Full` when this memory node has no such run; those of the fabric.
    pub async fn alloc_region(
        self,
        ep: &Endpoint,
        (index, kind): (u32, u8),
        bytes: u64,
        node: NodeId,
    ) -> Result<GlobalAddr> {
        let request = self.region((index, kind), bytes, node)?;
        on_node(self.obtain(ep, &request, Some(node)).await?, node)
    }

    fn region(self, (index, kind): (u32, u8), bytes: u64, node: NodeId) -> Result<RegionRequest> {
        let chunks = bytes.max(1).div_ceil(self.0.shape.chunk_bytes);
        let chunks = u32::try_from(chunks).map_err(|_| no_chunk(node))?;
        Ok(RegionRequest { of: self.bump(index, kind), chunks })
    }

    /// As [`Supply::alloc_region`], if this memory node has such a run now: it waits for no other
    /// client and for no other node.
    ///
    /// # Errors
    /// As [`Supply::alloc_region`].
    pub async fn alloc_region_at_once(
        self,
        ep: &Endpoint,
        owner: (u32, u8),
        bytes: u64,
        node: NodeId,
    ) -> Result<GlobalAddr> {
        self.obtain_at_once(ep, &self.region(owner, bytes, node)?, node).await
    }

    /// A bump allocator of this node over stretches of compute nodes' table memory, `stretch_bytes`
    /// long where there is room.
    pub fn stripes(self, stretch_bytes: u64) -> Stripes {
        Stripes {
            stretch_bytes: stretch_bytes.max(64),
            remainder: Mutex::default(),
            turns: Turns::starting_at(self.0.cn.index()),
            full: AtomicBool::new(false),
        }
    }

    /// A piece of `bytes`, rounded up to whole words, zero. `None` when all compute nodes are full.
    pub async fn alloc_stripe(
        self,
        ep: &Endpoint,
        from: &Stripes,
        bytes: u32,
    ) -> Result<Option<GlobalAddr>> {
        let bytes = rounded(bytes);
        let here = |from: &Stripes| locked(&from.remainder).cut(bytes);
        if let Some(at) = here(from) {
            return Ok(Some(at));
        }
        let why = WaitReason { what: "a stretch of table memory", at: bytes };
        let _turn = Turn::acquire(&from.turns.asking, ep, why).await?;
        if let Some(at) = here(from) {
            return Ok(Some(at));
        }
        if from.full.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let nodes = usize::from(self.0.shape.compute_nodes);
        let first = from.turns.cursor.load(Ordering::Relaxed);
        for n in (0..nodes).map(|k| (first + k) % nodes) {
            let owner = NodeId::compute(n as u16);
            if !self.0.view.is_worth_asking(owner) {
                continue;
            }
            let stretch = ask_stretch(ep, owner, from.stretch_bytes.max(bytes), bytes).await?;
            if stretch.is_some() {
                from.turns.cursor.store(n + 1, Ordering::Relaxed);
                locked(&from.remainder).0 = stretch;
                return Ok(here(from));
            }
        }
        from.full.store(true, Ordering::Relaxed);
        Ok(None)
    }
}
