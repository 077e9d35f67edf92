//! What the clients of one compute node share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use dmtree_fabric::{Error, GlobalAddr, Result};
use dmtree_parts::cache::{CachedNode, NodeCache, Record};
use dmtree_parts::handover::LocalLocks;
use dmtree_parts::{NodeContext, Root};
use dmtree_pool::{Bump, PoolNode};

use crate::format::Geometry;
use crate::options::Options;

/// What a chunk of this index holds, to the pool: pages of all kinds.
const KIND: u8 = 1;
/// Clients of a node that may have a lock one after the other, as published.
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
    /// The root as last seen by anybody here; 0 when unknown.
    pub(crate) top: AtomicU64,
    /// The lock tables of the memory nodes, by node; none while they are not known.
    pub(crate) tables: std::sync::OnceLock<LockTables>,
    /// Local locks, with hierarchical locking.
    pub(crate) local: Option<Arc<LocalLocks>>,
    pub(crate) pages: Bump,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

/// Where locks are.
#[derive(Clone, Debug)]
pub(crate) struct LockTables {
    /// First word of each memory node's table.
    pub bases: Vec<GlobalAddr>,
    /// Words of each.
    pub words: u64,
}

impl ShermanNode {
    /// The shared state of a compute node.
    ///
    /// # Errors
    /// `InvalidArgument` for options or a budget that cannot be.
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
        let words = Self::lock_words(cx, o);
        let locks = cx.pool.memory_nodes() * words as usize;
        Ok(Self {
            pool: cx.pool.clone(),
            o: o.clone(),
            g,
            root,
            cache: NodeCache::new(cx.cache_bytes),
            top: AtomicU64::new(0),
            tables: std::sync::OnceLock::new(),
            local: o.hierarchical.then(|| LocalLocks::new(locks, LONGEST_CHAIN)),
            pages: cx.pool.bump(root.index, KIND),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    /// Words of a memory node's lock table: on chip as many as there are.
    pub(crate) fn lock_words(cx: &NodeContext, o: &Options) -> u64 {
        let chip = u64::from(cx.pool.fabric().caps().on_chip_bytes) / 8;
        if o.on_chip && chip > 0 { chip } else { o.locks.into() }
    }

    /// The smallest budget that holds one inner page.
    pub fn least_cache_bytes(g: &Geometry) -> u64 {
        let record = size_of::<Record>() + g.key + 12;
        ((g.inner_slots + 1) * record + 2 * g.key + size_of::<CachedNode>() + 128) as u64
    }
}
