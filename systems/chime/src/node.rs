//! The state that the clients of one compute node share.

use std::sync::Arc;

use dmtree_fabric::Result;
use dmtree_parts::blink::Pages;
use dmtree_parts::cache::{CachedNode, Record};
use dmtree_parts::published::{Base, Limits};
use dmtree_parts::sharing::Sharers;
use dmtree_parts::{CacheStats, NodeContext, Root};

use crate::format::Geometry;
use crate::hotspot::Hotspots;
use crate::options::Options;

/// Kind of the chunks of this index, as the pool records it.
const KIND: u8 = 1;

/// The shared state of one index on one compute node.
#[derive(Debug)]
pub struct ChimeNode {
    base: Base,
    pub(crate) o: Options,
    pub(crate) g: Geometry,
    pub(crate) pages: Pages,
    /// Where hot keys are.
    pub(crate) hotspots: Option<Hotspots>,
    pub(crate) sharers: Arc<Sharers>,
}

dmtree_parts::begins_with!(ChimeNode => Base, base);

impl ChimeNode {
    /// The shared state of a compute node.
    ///
    /// # Errors
    /// `InvalidArgument` for impossible options, and for a cache budget that is too small.
    pub fn new(cx: &NodeContext, o: &Options, root: Root) -> Result<Self> {
        o.check()?;
        let g = Geometry::new(o);
        let (key, value, timeout_ms) = (g.key, g.value, o.timeout_ms);
        let limits = Limits { key, value, timeout_ms, least_cache: Self::least_cache_bytes(o) };
        let base = Base::new(cx, root, limits)?;
        let hotspot_bytes = (cx.cache_bytes as f64 * o.hotspot_share) as u64;
        let pages =
            Pages::new(cx.cache_bytes - hotspot_bytes, cx.pool.supply().bump(root.index, KIND));
        Ok(Self {
            base,
            o: o.clone(),
            g,
            pages: pages.with_upper_levels(o.upper_levels).with_root_read(),
            hotspots: (o.hotspot_share > 0.0).then(|| Hotspots::new(hotspot_bytes)),
            sharers: Sharers::new(o.delegation, o.combining, o.closed_batches),
        })
    }

    /// The smallest budget that holds one inner node beside the hotspot buffer.
    pub fn least_cache_bytes(o: &Options) -> u64 {
        let (key, records) = (o.key_bytes as usize, o.inner_span as usize + 1);
        let record = size_of::<Record>() + key + 12;
        let least = records * record + 2 * key + size_of::<CachedNode>() + 128;
        (least as f64 / (1.0 - o.hotspot_share)).ceil() as u64
    }

    /// Both parts of the cache; the hotspot buffer counts as mirrors.
    pub fn cache_stats(&self) -> CacheStats {
        let pages = self.pages.cache.stats();
        let Some((budget, used)) = self.hotspots.as_ref().map(Hotspots::bytes) else {
            return pages;
        };
        CacheStats {
            budget_bytes: pages.budget_bytes + budget,
            used_bytes: pages.used_bytes + used,
            mirror_bytes: used,
            ..pages
        }
    }
}
