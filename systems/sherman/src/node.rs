//! The state that the clients of one compute node share.

use dmtree_fabric::Result;
use dmtree_parts::blink::Pages;
use dmtree_parts::cache::{CachedNode, Record};
use dmtree_parts::lock_words::{LockTables, Locks};
use dmtree_parts::published::{Base, Limits};
use dmtree_parts::{NodeContext, Root};

use crate::format::Geometry;
use crate::options::Options;

/// Kind of the chunks of this index that have pages, as the pool records it.
const KIND: u8 = 1;
/// Kind of the chunks that have lock tables.
const LOCKS_KIND: u8 = 2;

/// The shared state of one index on one compute node.
#[derive(Debug)]
pub struct ShermanNode {
    base: Base,
    pub(crate) o: Options,
    pub(crate) g: Geometry,
    pub(crate) pages: Pages,
    pub(crate) locks: Locks,
}

dmtree_parts::begins_with!(ShermanNode => Base, base);

impl ShermanNode {
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
            pages: Pages::new(cx.cache_bytes, cx.pool.supply().bump(root.index, KIND)),
            locks: Locks::new(LockTables { words: o.locks, on_chip: o.on_chip, kind: LOCKS_KIND }),
        })
    }

    /// The smallest budget that holds one inner page.
    pub fn least_cache_bytes(g: &Geometry) -> u64 {
        let record = size_of::<Record>() + g.key + 12;
        ((g.inner_slots + 1) * record + 2 * g.key + size_of::<CachedNode>() + 128) as u64
    }
}
