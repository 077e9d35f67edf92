//! The state that the clients of one compute node share.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use dmtree_fabric::{NodeId, Result};
use dmtree_parts::op::Lookups;
use dmtree_parts::tree::Geometry;
use dmtree_parts::{NodeContext, Root};
use dmtree_pool::{PoolNode, provide};

use crate::host::Host;
use crate::options::Options;
use crate::routes::Routes;
use crate::wire::SERVICE;
use crate::{Mutant, Mutants};

/// The shared state of one index on one compute node.
#[derive(Debug)]
pub struct RpcNode {
    pub(crate) pool: Arc<PoolNode>,
    pub(crate) o: Options,
    pub(crate) g: Geometry,
    pub(crate) root: Root,
    /// How keys are cut into ranges, once this node has learned it: it never changes then.
    pub(crate) borders: OnceLock<Vec<Vec<u8>>>,
    pub(crate) routes: Routes,
    pub(crate) lookups: Arc<Lookups>,
    pub(crate) next_client: AtomicU32,
    mutants: Mutants,
}

/// Memory nodes of this process, and those that it founds, have the service.
pub(crate) fn provide_service() {
    provide(SERVICE, Host::make);
}

impl RpcNode {
    /// The shared state of a compute node.
    ///
    /// # Errors
    /// `InvalidArgument` for options that cannot be.
    pub fn new(cx: &NodeContext, o: &Options, root: Root) -> Result<Self> {
        o.check()?;
        provide_service();
        Ok(Self {
            pool: cx.pool.clone(),
            o: o.clone(),
            g: o.geometry(),
            root,
            borders: OnceLock::new(),
            routes: Routes::new(cx.cache_bytes),
            lookups: Arc::default(),
            next_client: AtomicU32::new(0),
            mutants: Mutants::default(),
        })
    }

    fn memory_node(&self, range: usize) -> NodeId {
        let n = self.pool.memory_nodes();
        NodeId::memory(((self.root.index as usize + range) % n) as u16)
    }

    /// The memory node that has all keys as long as they are not cut, and says how they are.
    pub(crate) fn home(&self) -> NodeId {
        self.memory_node(0)
    }

    /// The memory nodes in the order of their ranges.
    pub(crate) fn owners(&self) -> Vec<NodeId> {
        let cuts = self.borders.get().map_or(0, Vec::len);
        (0..=cuts).map(|range| self.memory_node(range)).collect()
    }

    /// The number of the range of a key.
    pub(crate) fn range_of(&self, key: &[u8]) -> usize {
        let borders = self.borders.get();
        borders.map_or(0, |borders| borders.partition_point(|border| &border[..] <= key))
    }

    /// The memory node of a key.
    pub(crate) fn owner(&self, key: &[u8]) -> NodeId {
        self.memory_node(self.range_of(key))
    }

    /// Whether a mutant is enabled.
    #[inline]
    pub(crate) fn has(&self, m: Mutant) -> bool {
        self.mutants.has(m)
    }
}
