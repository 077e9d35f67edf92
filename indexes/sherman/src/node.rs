//! The state that the clients of one compute node share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use dmtree_fabric::{Error, Result};
use dmtree_parts::cache::{CachedNode, NodeCache, Record};
use dmtree_parts::handover::LocalLocks;
use dmtree_parts::lock_words::{LockTables, LockWords};
use dmtree_parts::{NodeContext, Root};
use dmtree_pool::{Bump, PoolNode};

use crate::format::Geometry;
use crate::options::Options;

/// Kind of the chunks of this index that have pages, as the pool records it.
const KIND: u8 = 1;
/// Kind of the chunks that have lock tables.
const LOCKS_KIND: u8 = 2;
/// Most clients of a compute node that hold a lock one after the other by hand-over, as published.
const LONGEST_CHAIN: u32 = 8;

/// The shared state of one index on one compute node.
#[derive(Debug)]
pub struct ShermanNode {
    pub(crate) pool: Arc<PoolNode>,
    pub(crate) o: Options,
    pub(crate) g: Geometry,
    pub(crate) root: Root,
    /// Pages directly above the leaves.
    pub(crate) cache: NodeCache,
    /// The root as a client of this node has last seen it; 0 when unknown.
    pub(crate) top: AtomicU64,
    /// Locks; empty until the addresses of the tables are read.
    pub(crate) locks: std::sync::OnceLock<Locks>,
    pub(crate) pages: Bump,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

/// The lock words as a compute node knows them.
#[derive(Debug)]
pub(crate) struct Locks {
    pub words: LockWords,
    /// Local locks in front of them, with hierarchical locking.
    pub local: Option<Arc<LocalLocks>>,
}

impl Locks {
    pub fn new(o: &Options, words: LockWords) -> Self {
        let local = o.hierarchical.then(|| LocalLocks::new(words.count(), LONGEST_CHAIN));
        Self { words, local }
    }
}

impl ShermanNode {
    /// The shared state of a compute node.
    ///
    /// # Errors
    /// `InvalidArgument` for impossible options, and for a cache budget that is too small.
    pub fn new(cx: &NodeContext, o: &Options, root: Root) -> Result<Self> {
        o.check()?;
        let g = Geometry::new(o);
        let least = Self::least_cache_bytes(&g);
        if cx.cache_bytes < least {
            return Err(Error::invalid(format!(
                "a cache of {} bytes cannot hold one inner page: give it {least} at least",
                cx.cache_bytes
            )));
        }
        Ok(Self {
            pool: cx.pool.clone(),
            o: o.clone(),
            g,
            root,
            cache: NodeCache::new(cx.cache_bytes),
            top: AtomicU64::new(0),
            locks: std::sync::OnceLock::new(),
            pages: cx.pool.bump(root.index, KIND),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    /// The lock tables that this index uses.
    pub(crate) fn lock_tables(&self) -> LockTables {
        LockTables { words: self.o.locks, on_chip: self.o.on_chip, kind: LOCKS_KIND }
    }

    /// The smallest budget that holds one inner page.
    pub fn least_cache_bytes(g: &Geometry) -> u64 {
        let record = size_of::<Record>() + g.key + 12;
        ((g.inner_slots + 1) * record + 2 * g.key + size_of::<CachedNode>() + 128) as u64
    }
}
