//! A memory node as a holder of memory: runs of chunks for its own services and their jobs.
//!
//! A run's record has the memory node's own id as owner, and is written before the service learns
//! of the run, as for every owner. So no garbage collection takes it, and the death of a compute
//! node leaves nothing to find: it is the service's until that retires it, or the node stops.
//!
//! *What a job takes* is a [`TakenRun`] until the job has named it where others find it. A job that
//! is cancelled, or fails, drops it, which retires it.
//!
//! *Retired runs* wait at their node for every operation that may READ them. A memory node asks no
//! other, so a compute node does ([`GarbageCollection::reclaim_at`]): it lets the node count what
//! is retired, adds 1 to the global epoch, stamps what was counted with the sum, asks every member
//! what runs, and lets the node free what was stamped. The argument is that of `reclaim.rs`:
//! unlinking comes before retiring, counting before the addition, and an operation that runs in the
//! new epoch began after it. The stamp stays at the node, so that operations that begin later hold
//! nothing back, and any client goes on where another has stopped or died.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use dmtree_fabric::{Endpoint, Error, Member, NodeId, Result};
use postcard::fixint;
use serde::{Deserialize, Serialize};

use crate::chunks::{self, ChunkService, RunRequest};
use crate::gc::GarbageCollection;
use crate::layout::{ChunkUse, EPOCH_WORD, first_node};
use crate::wire::locked;

/// Chunks with objects of less than a line are memory that one owner cuts as it likes.
const OBJECT_BYTES: u32 = 8;

/// Runs that their holder has retired, in the order of retirement.
#[derive(Default)]
pub(crate) struct RetiredRuns(Mutex<Retired>);

#[derive(Default)]
struct Retired {
    /// How many were ever retired.
    count: u64,
    /// The last of them: offset, chunks.
    waiting: VecDeque<(u64, u32)>,
    /// So many of them were retired before the global epoch was this.
    stamp: Option<Stamp>,
}

/// How many runs were ever retired when a client counted them, and the global epoch after its
/// addition; 0 before.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Stamp {
    #[serde(with = "fixint::le")]
    counted: u64,
    #[serde(with = "fixint::le")]
    epoch: u64,
}

impl RetiredRuns {
    fn push(&self, run: (u64, u32)) {
        let mut retired = locked(&self.0);
        retired.count += 1;
        retired.waiting.push_back(run);
    }

    /// What waits with a stamp, else how many were ever retired; `None` when none waits.
    pub(crate) fn counted(&self) -> Option<Stamp> {
        let retired = locked(&self.0);
        let all = Stamp { counted: retired.count, epoch: 0 };
        (!retired.waiting.is_empty()).then(|| retired.stamp.unwrap_or(all))
    }

    /// Stamps what a client has counted, unless another was first; the stamp that counts.
    pub(crate) fn stamp(&self, stamp: Stamp) -> Stamp {
        *locked(&self.0).stamp.get_or_insert(stamp)
    }

    /// Takes out those of the first so many.
    ///
    /// # Errors
    /// `InvalidArgument` for more than there ever were.
    pub(crate) fn release(&self, counted: u64) -> Result<Vec<(u64, u32)>> {
        let mut retired = locked(&self.0);
        retired.stamp.take_if(|stamp| stamp.counted <= counted);
        let later = retired.count.checked_sub(counted).ok_or_else(|| {
            Error::invalid(format!("{counted} runs were never retired, but {}", retired.count))
        })?;
        let waiting = retired.waiting.len();
        let due = waiting.saturating_sub(usize::try_from(later).unwrap_or(waiting));
        Ok(retired.waiting.drain(..due).collect())
    }
}

/// A memory node as the holder of memory.
#[derive(Clone)]
pub struct MemoryHolder {
    chunks: Arc<ChunkService>,
    me: Member,
    chunk_bytes: u64,
}

dmtree_fabric::debug_line!(MemoryHolder, it => "MemoryHolder({})", it.me);

impl MemoryHolder {
    pub(crate) fn new(chunks: Arc<ChunkService>, node: NodeId, chunk_bytes: u64) -> Self {
        Self { chunks, me: Member { node, incarnation: 0 }, chunk_bytes }
    }

    /// The memory node.
    pub fn node(&self) -> NodeId {
        self.me.node
    }

    /// Takes a zeroed run of so many bytes at least, for an index.
    ///
    /// # Errors
    /// `Full` when there is none; those of the fabric.
    pub async fn take(&self, ep: &Endpoint, index: u32, bytes: u64) -> Result<TakenRun> {
        let count = u32::try_from(bytes.div_ceil(self.chunk_bytes)).unwrap_or(u32::MAX).max(1);
        let used_for = ChunkUse::Arena;
        let object_bytes = OBJECT_BYTES;
        let run = RunRequest { used_for, kind: 0, index, object_bytes, count, least: 0 };
        match self.chunks.take(ep, self.me, run).await? {
            Some(offset) => {
                let (holder, ep) = (self.clone(), ep.clone());
                Ok(TakenRun { holder, ep, offset, count, is_kept: false })
            }
            None => Err(Error::full(format!(
                "{} has no {count} chunks in a row: delete keys, or give it more memory",
                self.me.node
            ))),
        }
    }

    /// A kept run is unlinked: no operation that begins from now on finds it. Its memory is free
    /// when those that run have ended, after a [`GarbageCollection::reclaim_at`].
    pub fn retire(&self, (offset, bytes): (u64, u64)) {
        self.chunks.retired.push((offset, (bytes / self.chunk_bytes) as u32));
    }
}

/// A run that its service has not named yet: dropped, it is retired.
#[derive(Debug)]
#[must_use = "a run that is dropped goes back"]
pub struct TakenRun {
    holder: MemoryHolder,
    ep: Endpoint,
    offset: u64,
    count: u32,
    is_kept: bool,
}

impl TakenRun {
    /// Where it is in the node's region, and how long, bytes.
    pub fn span(&self) -> (u64, u64) {
        (self.offset, u64::from(self.count) * self.holder.chunk_bytes)
    }

    /// It is the service's from now on; where, and how long, bytes.
    pub fn keep(mut self) -> (u64, u64) {
        self.is_kept = true;
        self.span()
    }
}

impl Drop for TakenRun {
    /// A WRITE of the job may still be on its way.
    fn drop(&mut self) {
        if !self.is_kept {
            let (holder, span) = (self.holder.clone(), self.span());
            self.ep.when_quiet(move || holder.retire(span));
        }
    }
}

impl GarbageCollection<'_> {
    /// Brings back what the services of a memory node have retired, unless a running operation may
    /// hold it; how many chunks. Call it between operations, as `Reclaimer::reclaim`.
    ///
    /// # Errors
    /// Those of the fabric: while a member does not answer, nothing comes back.
    pub async fn reclaim_at(self, ep: &Endpoint, node: NodeId) -> Result<u64> {
        let Some(mut stamp) = chunks::ask_retired(ep, node).await? else { return Ok(0) };
        if stamp.epoch == 0 {
            stamp.epoch = ep.faa(first_node(EPOCH_WORD), 1).await?.wrapping_add(1);
            stamp = chunks::ask_stamp(ep, node, stamp).await?;
        }
        match self.0.reclaimer().oldest_running(ep, stamp.epoch).await? < stamp.epoch {
            true => Ok(0),
            false => chunks::ask_release(ep, node, stamp.counted).await,
        }
    }
}
