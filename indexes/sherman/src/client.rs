//! A client: the view that one fabric slot has of the index, and its memory allocation.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_fabric::{Buf, Endpoint, Error, GlobalAddr, OpOutcome, Result};
use dmtree_parts::Write;

use crate::node::ShermanNode;

/// A Sherman (or FG) client: one fabric slot. [`dmtree_parts::RangeIndex`] documents its
/// operations.
pub struct Sherman {
    pub(crate) ep: Endpoint,
    pub(crate) node: Arc<ShermanNode>,
    /// The value that this client writes into lock words.
    pub(crate) tag: u64,
    /// Inner pages of the last descent, by level; empty when the cache supplied the leaf.
    pub(crate) path: RefCell<Vec<GlobalAddr>>,
    /// Pages allocated before a split begins, so that a full pool does not stop the split half way.
    spare: RefCell<Vec<GlobalAddr>>,
    /// A conflict forced the present operation to repeat a step.
    pub(crate) retried: Cell<bool>,
    /// Cache hits that are not yet added to the node's count. Clients then need not share a counter
    /// for every operation.
    hits: Cell<u64>,
}

/// Spare pages. A split that cascades through more levels allocates more pages on its way.
const SPARE: usize = 5;

impl Drop for Sherman {
    fn drop(&mut self) {
        self.node.hits.fetch_add(self.hits.get(), Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Sherman {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sherman({:?})", self.ep)
    }
}

impl Sherman {
    /// The client of one slot.
    pub fn new(ep: Endpoint, node: Arc<ShermanNode>) -> Self {
        ep.set_timeout(node.o.timeout_ms.saturating_mul(1_000_000));
        let tag = u64::from(ep.node().bits()) << 32 | (u64::from(ep.slot()) + 1);
        Self {
            ep,
            node,
            tag,
            path: RefCell::default(),
            spare: RefCell::default(),
            retried: Cell::new(false),
            hits: Cell::new(0),
        }
    }

    /// Refuses a key of another length than the index has.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        of_length("key", key, self.node.g.key)
    }

    /// Refuses a value of another length than the index has.
    pub(crate) fn check_value(&self, value: &[u8]) -> Result<()> {
        of_length("value", value, self.node.g.value)
    }

    pub(crate) fn check_write(&self, w: &Write<'_>) -> Result<()> {
        match *w {
            Write::Put(v) | Write::Insert(v) | Write::Update(v) => self.check_value(v),
            Write::Delete => Ok(()),
            Write::CompareAndSet { new, .. } => new.map_or(Ok(()), |v| self.check_value(v)),
        }
    }

    /// Counts a lookup that found its page in the cache.
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

    /// Allocates spare pages, so that a split finds memory.
    pub(crate) async fn reserve(&self) -> Result<()> {
        while self.spare.borrow().len() < SPARE {
            let bytes = self.node.g.footprint() as u32;
            let at = self.node.pool.alloc_bump(&self.ep, &self.node.pages, bytes).await?;
            self.spare.borrow_mut().push(at);
        }
        Ok(())
    }

    /// Memory for a page.
    pub(crate) async fn new_page(&self) -> Result<GlobalAddr> {
        if let Some(at) = self.spare.borrow_mut().pop() {
            return Ok(at);
        }
        let bytes = self.node.g.footprint() as u32;
        self.node.pool.alloc_bump(&self.ep, &self.node.pages, bytes).await
    }

    /// A buffer for the image of a page, all zero.
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

/// The error of a descending scan.
pub(crate) fn no_reverse() -> Error {
    Error::new(
        dmtree_fabric::ErrorKind::Unsupported,
        "the published design has no descending scan; use the index dmtree",
    )
}
