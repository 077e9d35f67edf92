//! A client: the view that one fabric slot has of the index, and its memory allocation.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_fabric::{Buf, Endpoint, Error, ErrorKind, GlobalAddr, OpOutcome, Result};
use dmtree_parts::Write;

use crate::node::SmartNode;

/// A SMART (or ART) client: one fabric slot. [`dmtree_parts::RangeIndex`] documents its operations.
pub struct Smart {
    pub(crate) ep: Endpoint,
    pub(crate) node: Arc<SmartNode>,
    /// The value that this client writes into words of lock tables.
    pub(crate) tag: u64,
    /// Leaves and nodes that were written and never linked; later operations use them.
    spare_leaves: RefCell<Vec<GlobalAddr>>,
    spare_nodes: RefCell<Vec<GlobalAddr>>,
    /// A conflict forced the present operation to repeat a step.
    pub(crate) retried: Cell<bool>,
    /// Cache hits that are not yet added to the node's count. Clients then need not share a counter
    /// for every operation.
    hits: Cell<u64>,
}

impl Drop for Smart {
    fn drop(&mut self) {
        self.node.hits.fetch_add(self.hits.get(), Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Smart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Smart({:?})", self.ep)
    }
}

impl Smart {
    /// The client of one slot.
    pub fn new(ep: Endpoint, node: Arc<SmartNode>) -> Self {
        ep.set_timeout(node.o.timeout_ms.saturating_mul(1_000_000));
        let tag = u64::from(ep.node().bits()) << 32 | (u64::from(ep.slot()) + 1);
        Self {
            ep,
            node,
            tag,
            spare_leaves: RefCell::default(),
            spare_nodes: RefCell::default(),
            retried: Cell::new(false),
            hits: Cell::new(0),
        }
    }

    /// Refuses a key of another length than the index has.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        of_length("key", key, self.node.g.key)
    }

    /// The value of a write; refuses writes that the published design does not have.
    pub(crate) fn check_write<'a>(&self, w: &Write<'a>) -> Result<&'a [u8]> {
        match *w {
            Write::Put(v) | Write::Insert(v) | Write::Update(v) => {
                of_length("value", v, self.node.g.value).map(|()| v)
            }
            Write::Delete => Err(unsupported("delete")),
            Write::CompareAndSet { .. } => Err(unsupported("compare-and-set")),
        }
    }

    /// Refuses a value of another length than the index has.
    pub(crate) fn check_value(&self, value: &[u8]) -> Result<()> {
        of_length("value", value, self.node.g.value)
    }

    /// Counts a lookup that found a slot in the cache.
    pub(crate) fn count_hit(&self) {
        self.hits.set(self.hits.get() + 1);
        if self.hits.get() == 256 {
            self.node.hits.fetch_add(self.hits.replace(0), Ordering::Relaxed);
        }
    }

    /// The outcome to count for an operation: `plain`, or `Retried` if a step was repeated.
    pub(crate) fn outcome(&self, plain: OpOutcome) -> OpOutcome {
        match plain {
            OpOutcome::InsertSplit | OpOutcome::Shared => plain,
            _ if self.retried.get() => OpOutcome::Retried,
            _ => plain,
        }
    }

    // ---- memory ----

    /// Memory for a leaf.
    pub(crate) async fn new_leaf(&self) -> Result<GlobalAddr> {
        if let Some(at) = self.spare_leaves.borrow_mut().pop() {
            return Ok(at);
        }
        let bytes = self.node.g.leaf_footprint() as u32;
        self.node.pool.alloc_bump(&self.ep, &self.node.leaves, bytes).await
    }

    /// Memory for a node of any type. Memory that was never written is zero.
    pub(crate) async fn new_node(&self) -> Result<GlobalAddr> {
        if let Some(at) = self.spare_nodes.borrow_mut().pop() {
            return Ok(at);
        }
        let bytes = self.node.g.node_footprint() as u32;
        self.node.pool.alloc_bump(&self.ep, &self.node.nodes, bytes).await
    }

    /// Keeps a leaf that was never linked for later use.
    pub(crate) fn give_back_leaf(&self, at: GlobalAddr) {
        self.spare_leaves.borrow_mut().push(at);
    }

    /// Keeps nodes that were never linked for later use. Only their first four slots were written,
    /// and the next use overwrites these.
    pub(crate) fn give_back_nodes(&self, at: impl IntoIterator<Item = GlobalAddr>) {
        self.spare_nodes.borrow_mut().extend(at);
    }

    /// A buffer, all zero.
    pub(crate) async fn blank(&self, bytes: usize) -> Result<Buf> {
        let mut image = self.ep.buf(bytes as u32).await?;
        image.fill(0);
        Ok(image)
    }
}

fn of_length(what: &str, bytes: &[u8], wanted: usize) -> Result<()> {
    if bytes.len() == wanted {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a {what} of {} bytes in an index with {what}s of exactly {wanted}",
        bytes.len()
    )))
}

fn unsupported(what: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("the published design has no {what}; use the index dmtree"),
    )
}

/// A descending scan.
pub(crate) fn no_reverse() -> Error {
    unsupported("descending scan")
}
