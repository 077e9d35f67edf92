//! The state that the clients of one compute node share.

use std::sync::{Arc, Mutex};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{NodeId, Result};
use dmtree_parts::published::{Base, Limits};
use dmtree_parts::sharing::Sharers;
use dmtree_parts::{CacheStats, NodeContext, Root};
use dmtree_pool::Bump;

use crate::directory::{Directory, memory_nodes};
use crate::format::Geometry;
use crate::options::Options;

/// Kind of the chunks of this index, as the pool records it.
pub const KIND: u8 = 1;

/// The shared state of one index on one compute node.
#[derive(Debug)]
pub struct RolexNode {
    base: Base,
    pub(crate) o: Options,
    pub(crate) g: Geometry,
    pub(crate) sharers: Arc<Sharers>,
    /// Memory for synonyms, by memory node: a synonym is on the node of its leaf.
    pub(crate) synonyms: Vec<Bump>,
    directory: Mutex<Option<Arc<Directory>>>,
    cache_bytes: u64,
}

dmtree_parts::begins_with!(RolexNode => Base, base);

impl RolexNode {
    /// The shared state of a compute node.
    ///
    /// # Errors
    /// `InvalidArgument` for impossible options.
    pub fn new(cx: &NodeContext, o: &Options, root: Root) -> Result<Self> {
        o.check()?;
        let g = Geometry::new(o);
        // As published models are never evicted, whatever the budget.
        let (key, value, timeout_ms, least_cache) = (g.key, g.value, o.timeout_ms, 0);
        let base = Base::new(cx, root, Limits { key, value, timeout_ms, least_cache })?;
        let nodes = memory_nodes(cx.pool.memory_nodes());
        Ok(Self {
            base,
            o: o.clone(),
            g,
            sharers: Sharers::new(o.delegation, o.combining, o.closed_batches),
            synonyms: nodes.map(|_| cx.pool.supply().bump(root.index, KIND)).collect(),
            directory: Mutex::default(),
            cache_bytes: cx.cache_bytes,
        })
    }

    /// The memory nodes.
    pub(crate) fn memory_nodes(&self) -> impl Iterator<Item = NodeId> {
        memory_nodes(self.pool.memory_nodes())
    }

    /// The directory that this compute node knows.
    pub(crate) fn known(&self) -> Option<Arc<Directory>> {
        locked(&self.directory).clone()
    }

    /// This compute node has READ, or written, a directory.
    pub(crate) fn learn(&self, directory: &Arc<Directory>) {
        *locked(&self.directory) = Some(directory.clone());
    }

    /// Models, and as mirrors the trained keys.
    pub(crate) fn cache_stats(&self) -> CacheStats {
        let known = self.known();
        let (nodes, models, keys) = known.map_or((0, 0, 0), |d| d.models.size());
        CacheStats {
            budget_bytes: self.cache_bytes,
            used_bytes: models + keys,
            mirror_bytes: keys,
            nodes,
            ..CacheStats::default()
        }
    }
}
