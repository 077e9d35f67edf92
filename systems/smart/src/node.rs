//! The state that the clients of one compute node share.

use std::sync::Arc;

use dmtree_fabric::{Error, Result};
use dmtree_parts::combine::Combiner;
use dmtree_parts::delegation::LocalTable;
use dmtree_parts::lock_words::{LockTables, Locks};
use dmtree_parts::published::{Base, Limits};
use dmtree_parts::{NodeContext, Root};
use dmtree_pool::Bump;

use crate::cache::PrefixCache;
use crate::format::Geometry;
use crate::options::Options;

/// Kinds of chunks of this index, as the pool records them: leaves, inner nodes, lock tables.
const LEAVES_KIND: u8 = 1;
const NODES_KIND: u8 = 2;
const LOCKS_KIND: u8 = 3;
/// Entries of the local lock table. (The published table has 4 Mi entries of 192 bytes. If two
/// keys meet in one entry, they only miss a chance to share.)
const PLACES: usize = 16_384;
/// Most readers of one batch, as published.
const READERS: u32 = 8;

/// The shared state of one index on one compute node.
#[derive(Debug)]
pub struct SmartNode {
    base: Base,
    pub(crate) o: Options,
    pub(crate) g: Geometry,
    pub(crate) cache: PrefixCache,
    /// Delegation, combining and hand-over as published.
    pub(crate) local: Arc<LocalTable>,
    /// Delegation and combining in batches that are closed when the verb is posted.
    pub(crate) readers: Arc<Combiner>,
    pub(crate) writers: Arc<Combiner>,
    /// Locks in tables.
    pub(crate) locks: Locks,
    pub(crate) leaves: Bump,
    pub(crate) nodes: Bump,
}

dmtree_parts::begins_with!(SmartNode => Base, base);

impl SmartNode {
    /// The shared state of a compute node.
    ///
    /// # Errors
    /// `InvalidArgument` for impossible options, and for a cache budget that is too small.
    pub fn new(cx: &NodeContext, o: &Options, root: Root) -> Result<Self> {
        o.check()?;
        let g = Geometry::new(o);
        let (key, value, timeout_ms) = (g.key, g.value, o.timeout_ms);
        let limits = Limits { key, value, timeout_ms, least_cache: Self::least_cache_bytes(&g) };
        let base = Base::new(cx, root, limits)?;
        if cx.pool.memory_nodes() > 256 {
            return Err(Error::invalid("a slot can name 256 memory nodes, and the pool has more"));
        }
        let places = |on: bool| if on { PLACES } else { 1 };
        let combines = o.combining && o.closed_batches;
        Ok(Self {
            base,
            o: o.clone(),
            g,
            cache: PrefixCache::new(
                cx.cache_bytes,
                (!o.indexed_cache).then_some(o.key_bytes.into()),
            ),
            local: LocalTable::new(places(o.delegation || o.combining || o.rear_lock)),
            readers: Combiner::new(places(o.delegation && o.closed_batches), READERS),
            writers: Combiner::new(places(combines), u32::MAX),
            locks: Locks::new(LockTables { words: o.locks, on_chip: true, kind: LOCKS_KIND }),
            leaves: cx.pool.supply().bump(root.index, LEAVES_KIND),
            nodes: cx.pool.supply().bump(root.index, NODES_KIND),
        })
    }

    /// The smallest budget that holds one inner node.
    pub fn least_cache_bytes(g: &Geometry) -> u64 {
        (8 * g.types.largest + 40 * g.key + 64) as u64
    }
}
