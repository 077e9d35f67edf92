//! A client: the view that one fabric slot has of the index, and its memory allocation.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use dmtree_fabric::{Endpoint, GlobalAddr, Result};
use dmtree_parts::published::{Client, Spare};

use crate::format::leaf::Sibling;
use crate::format::table;
use crate::node::FpNode;
use crate::options::{Locks, Tables};

/// An FPTree client: one fabric slot. [`dmtree_parts::RangeIndex`] documents its operations.
#[derive(Debug)]
pub struct FpTree {
    client: Client<FpNode>,
    /// The root as last READ; null when unknown.
    pub(crate) root: Cell<GlobalAddr>,
    /// The inner nodes of the last descent, from the root to the bottom; empty when the route came
    /// from the cache.
    pub(crate) path: RefCell<Vec<GlobalAddr>>,
    /// Inner nodes allocated before a split begins.
    spare_inner: Spare,
    /// The value to write; the buffer is reused.
    pub(crate) value: RefCell<Vec<u8>>,
}

/// Spare inner nodes. A split that cascades through more levels allocates more on its way.
const SPARE_INNER: usize = 4;

dmtree_parts::begins_with!(FpTree => Client<FpNode>, client);

/// A leaf as a record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub leaf: GlobalAddr,
    pub table: GlobalAddr,
    pub capacity: usize,
    pub version: u32,
    /// The bottom inner node that has the record.
    pub bottom: GlobalAddr,
    /// The record is from the cache.
    pub cached: bool,
}

impl FpTree {
    /// The client of one slot.
    pub fn new(ep: Endpoint, node: Arc<FpNode>) -> Self {
        Self {
            client: Client::new(ep, node),
            root: Cell::new(GlobalAddr::NULL),
            path: RefCell::default(),
            spare_inner: Spare::default(),
            value: RefCell::default(),
        }
    }

    /// Memory for a leaf (and its lock) and for its table.
    pub(crate) async fn new_leaf(&self, capacity: usize) -> Result<Sibling> {
        let (pool, objects) = (&self.node.pool, &self.node.objects);
        let lock = if self.node.o.locks == Locks::Leaf { 8 } else { 0 };
        let bytes = self.node.g.leaf_bytes(capacity) + lock;
        let leaf = pool.supply().alloc_bump(&self.ep, objects, bytes as u32).await?;
        let bytes = table::bytes(capacity) as u32;
        let striped = match self.node.o.tables {
            Tables::Compute => {
                pool.supply().alloc_stripe(&self.ep, &self.node.tables, bytes).await?
            }
            Tables::Memory => None,
        };
        // Compute nodes have no room left: this leaf has its table on a memory node.
        let table = match striped {
            Some(at) => at,
            None => pool.supply().alloc_bump(&self.ep, objects, bytes).await?,
        };
        Ok(Sibling { leaf, table, capacity })
    }

    pub(crate) async fn new_inner(&self) -> Result<GlobalAddr> {
        self.take(&self.spare_inner, &self.node.objects, self.node.g.inner_bytes()).await
    }

    /// Allocates spare inner nodes, so that a split finds memory.
    pub(crate) async fn reserve_inner(&self) -> Result<()> {
        let bytes = self.node.g.inner_bytes();
        self.fill(&self.spare_inner, SPARE_INNER, &self.node.objects, bytes).await
    }
}
