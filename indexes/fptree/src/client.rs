//! A client: the view that one fabric slot has of the index, and its memory allocation.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_fabric::{Endpoint, Error, GlobalAddr, OpOutcome, Result};
use dmtree_parts::Write;

use crate::format::leaf::Sibling;
use crate::format::table;
use crate::node::FpNode;
use crate::options::{Locks, Tables};

/// An FPTree client: one fabric slot. [`dmtree_parts::RangeIndex`] documents its operations.
pub struct FpTree {
    pub(crate) ep: Endpoint,
    pub(crate) node: Arc<FpNode>,
    /// The root as last READ; null when unknown.
    pub(crate) root: Cell<GlobalAddr>,
    /// The inner nodes of the last descent, from the root to the bottom; empty when the route came
    /// from the cache.
    pub(crate) path: RefCell<Vec<GlobalAddr>>,
    /// A conflict forced the present operation to repeat a step.
    pub(crate) retried: Cell<bool>,
    /// Memory for inner nodes, allocated before a split begins, so that a full pool does not stop
    /// the split half way.
    pub(crate) spare_inner: RefCell<Vec<GlobalAddr>>,
    /// The value to write; the buffer is reused.
    pub(crate) value: Cell<Vec<u8>>,
    /// Cache hits that are not yet added to the node's count. Clients then need not share a counter
    /// for every operation.
    hits: Cell<u64>,
}

/// Spare inner nodes. A split that cascades through more levels allocates more on its way.
const SPARE_INNER: usize = 4;

impl Drop for FpTree {
    fn drop(&mut self) {
        self.node.hits.fetch_add(self.hits.get(), Ordering::Relaxed);
    }
}

impl std::fmt::Debug for FpTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FpTree({:?})", self.ep)
    }
}

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
        ep.set_timeout(node.o.timeout_ms.saturating_mul(1_000_000));
        Self {
            ep,
            node,
            root: Cell::new(GlobalAddr::NULL),
            path: RefCell::default(),
            retried: Cell::new(false),
            spare_inner: RefCell::default(),
            value: Cell::default(),
            hits: Cell::new(0),
        }
    }

    /// Refuses a key of another length than the index has.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        if key.len() != self.node.g.key {
            return Err(Error::invalid(format!(
                "a key of {} bytes in an index with keys of exactly {}",
                key.len(),
                self.node.g.key
            )));
        }
        Ok(())
    }

    /// Refuses a value of another length than the index has.
    pub(crate) fn check_value(&self, value: &[u8]) -> Result<()> {
        if value.len() != self.node.g.value {
            return Err(Error::invalid(format!(
                "a value of {} bytes in an index with values of exactly {}",
                value.len(),
                self.node.g.value
            )));
        }
        Ok(())
    }

    pub(crate) fn check_write<'a>(&self, w: &Write<'a>) -> Result<&'a [u8]> {
        match *w {
            Write::Put(v) | Write::Insert(v) | Write::Update(v) => self.check_value(v).map(|()| v),
            Write::Delete => Err(unsupported("delete")),
            Write::CompareAndSet { .. } => Err(unsupported("compare-and-set")),
        }
    }

    /// Counts a lookup that found its bottom node.
    pub(crate) fn count_hit(&self) {
        self.hits.set(self.hits.get() + 1);
        if self.hits.get() == 256 {
            self.node.hits.fetch_add(self.hits.replace(0), Ordering::Relaxed);
        }
    }

    /// The outcome to count for an operation: `plain`, or `Retried` if a step was repeated.
    pub(crate) fn outcome(&self, plain: OpOutcome) -> OpOutcome {
        match plain {
            OpOutcome::InsertSplit => plain,
            _ if self.retried.get() => OpOutcome::Retried,
            _ => plain,
        }
    }

    // ---- memory ----

    /// Memory for a leaf (and its lock) and for its table.
    pub(crate) async fn new_leaf(&self, capacity: usize) -> Result<Sibling> {
        let (pool, objects) = (&self.node.pool, &self.node.objects);
        let lock = if self.node.o.locks == Locks::Leaf { 8 } else { 0 };
        let bytes = self.node.g.leaf_bytes(capacity) + lock;
        let leaf = pool.alloc_bump(&self.ep, objects, bytes as u32).await?;
        let bytes = table::bytes(capacity) as u32;
        let striped = match self.node.o.tables {
            Tables::Compute => pool.alloc_stripe(&self.ep, &self.node.tables, bytes).await?,
            Tables::Memory => None,
        };
        // Compute nodes have no room left: this leaf has its table on a memory node.
        let table = match striped {
            Some(at) => at,
            None => pool.alloc_bump(&self.ep, objects, bytes).await?,
        };
        Ok(Sibling { leaf, table, capacity })
    }

    /// Memory for an inner node.
    pub(crate) async fn new_inner(&self) -> Result<GlobalAddr> {
        if let Some(at) = self.spare_inner.borrow_mut().pop() {
            return Ok(at);
        }
        let bytes = self.node.g.inner_bytes() as u32;
        self.node.pool.alloc_bump(&self.ep, &self.node.objects, bytes).await
    }

    /// Allocates spare inner nodes, so that a split finds memory.
    pub(crate) async fn reserve_inner(&self) -> Result<()> {
        while self.spare_inner.borrow().len() < SPARE_INNER {
            let bytes = self.node.g.inner_bytes() as u32;
            let at = self.node.pool.alloc_bump(&self.ep, &self.node.objects, bytes).await?;
            self.spare_inner.borrow_mut().push(at);
        }
        Ok(())
    }
}

fn unsupported(what: &str) -> Error {
    Error::new(
        dmtree_fabric::ErrorKind::Unsupported,
        format!("the published design has no {what}; use the index dmtree"),
    )
}

/// The error of a descending scan.
pub(crate) fn no_reverse() -> Error {
    unsupported("descending scan")
}
