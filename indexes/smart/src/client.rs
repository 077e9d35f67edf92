//! A client: one slot's view of the index, and where its memory comes from.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_fabric::{Buf, Endpoint, Error, ErrorKind, GlobalAddr, OpOutcome, Result};
use dmtree_parts::Write;

use crate::node::SmartNode;

/// A SMART (or ART) client: one slot. See [`dmtree_parts::RangeIndex`] for what it does.
pub struct Smart {
    pub(crate) ep: Endpoint,
    pub(crate) node: Arc<SmartNode>,
    /// What its locks in tables carry.
    pub(crate) tag: u64,
    /// Leaves and nodes that were written and that nobody has seen: to be used again.
    spare_leaves: RefCell<Vec<GlobalAddr>>,
    spare_nodes: RefCell<Vec<GlobalAddr>>,
    /// Something forced the present operation to repeat a step.
    pub(crate) retried: Cell<bool>,
    /// Cache hits not yet added to the node's, so that clients do not share a counter per operation.
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

    /// The value of a write that the published design has.
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

    /// The outcome to count for an operation that went this way.
    pub(crate) fn outcome(&self, plain: OpOutcome) -> OpOutcome {
        match plain {
            OpOutcome::InsertSplit | OpOutcome::Shared => plain,
            _ if self.retried.get() => OpOutcome::Retried,
            _ => plain,
        }
    }

    // ---- memory -----------------------------------------------------------------------------------------------------

    /// Memory for a leaf.
    pub(crate) async fn new_leaf(&self) -> Result<GlobalAddr> {
        if let Some(at) = self.spare_leaves.borrow_mut().pop() {
            return Ok(at);
        }
        let bytes = self.node.g.leaf_footprint() as u32;
        self.node.pool.alloc_bump(&self.ep, &self.node.leaves, bytes).await
    }

    /// Memory for a node of any type. What was never written is zero.
    pub(crate) async fn new_node(&self) -> Result<GlobalAddr> {
        if let Some(at) = self.spare_nodes.borrow_mut().pop() {
            return Ok(at);
        }
        let bytes = self.node.g.node_footprint() as u32;
        self.node.pool.alloc_bump(&self.ep, &self.node.nodes, bytes).await
    }

    /// A leaf that nobody has seen.
    pub(crate) fn give_back_leaf(&self, at: GlobalAddr) {
        self.spare_leaves.borrow_mut().push(at);
    }

    /// Nodes that nobody has seen. Of them only the first four slots were written, which the next use writes, too.
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
