//! The state that the clients of one compute node share.

use std::sync::Arc;

use dmtree_fabric::Result;
use dmtree_parts::cache::{CachedNode, NodeCache};
use dmtree_parts::combine::Combiner;
use dmtree_parts::fifo_mutex::FifoMutexes;
use dmtree_parts::published::{Base, Limits};
use dmtree_parts::{NodeContext, Root};
use dmtree_pool::{Bump, Stripes};

use crate::format::Geometry;
use crate::options::Options;
use crate::route::BOTTOM;

/// Kind of the chunks of this index, as the pool records it: leaves, inner nodes and tables
/// together.
const KIND: u8 = 1;
/// Entries for batches of readers, and as many for batches of writers. The artifact has 4 Mi, of
/// 208 bytes each. If two keys meet in one entry, they only miss a chance to share.
const GROUPS: usize = 4096;
/// Most readers of one batch, as published.
const READERS: u32 = 8;

/// The shared state of one index on one compute node.
#[derive(Debug)]
pub struct FpNode {
    base: Base,
    pub(crate) o: Options,
    pub(crate) g: Geometry,
    /// Bottom inner nodes only, with the mirrors of their children's tables.
    pub(crate) cache: NodeCache,
    pub(crate) readers: Arc<Combiner>,
    pub(crate) writers: Arc<Combiner>,
    pub(crate) releases: Arc<FifoMutexes>,
    pub(crate) objects: Bump,
    pub(crate) tables: Stripes,
}

dmtree_parts::begins_with!(FpNode => Base, base);

impl FpNode {
    /// The shared state of a compute node.
    ///
    /// # Errors
    /// `InvalidArgument` for impossible options, and for a cache budget that is too small.
    pub fn new(cx: &NodeContext, o: &Options, root: Root) -> Result<Self> {
        o.check()?;
        let g = Geometry::new(o);
        let (key, value, timeout_ms) = (g.key, g.value, o.timeout_ms);
        let limits = Limits { key, value, timeout_ms, least_cache: Self::least_cache_bytes(&g) };
        Ok(Self {
            base: Base::new(cx, root, limits)?,
            o: o.clone(),
            g,
            cache: NodeCache::new(cx.cache_bytes, o.mirrors.then_some(BOTTOM)),
            readers: Combiner::new(GROUPS, READERS),
            writers: Combiner::new(GROUPS, u32::MAX),
            releases: FifoMutexes::new(GROUPS),
            objects: cx.pool.supply().bump(root.index, KIND),
            tables: cx.pool.supply().stripes(o.table_chunk_bytes.min(Self::longest_stretch(cx))),
        })
    }

    /// Bounds a stretch, so that several allocating nodes find room on every compute node of a
    /// small pool, too. (The artifact's region has 128 chunks.)
    fn longest_stretch(cx: &NodeContext) -> u64 {
        let region = cx.pool.fabric().region_bytes(cx.pool.cn()).unwrap_or(0);
        (region / 64).max(4 << 10)
    }

    /// The smallest budget that holds one inner node with the mirrors of small leaves.
    pub fn least_cache_bytes(g: &Geometry) -> u64 {
        CachedNode::most_bytes(g.fanout, g.key)
    }
}
