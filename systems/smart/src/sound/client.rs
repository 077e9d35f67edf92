//! A client: the view that one fabric slot has of the index, and how its operations begin and end.
//!
//! Every operation that posts verbs first pins the client's reclamation epoch (`Smart::pin`), and
//! leaves it when the [`Pinned`] guard is dropped. Memory that the operation can reach is not
//! reused in between. A client that only waits for another local operation, and holds no leaf,
//! leaves the epoch for that time (`Smart::rest`, a quiescent section), so that it does not delay
//! reclamation.
//!
//! The client records every leaf lock before the CAS that takes it (`Smart::record_lock`), and
//! forgets it after the release (`Smart::forget_lock`). Locks that remain when the operation ends
//! are abandoned locks: the operation failed, or its caller dropped the future. They go to the
//! shared list of the compute node, and the next operation of this node that meets one, or
//! maintenance, releases it (`update.rs`).
//!
//! Invariant: an operation has not ended before its last verb has executed. A dropped operation can
//! have verbs in flight, so its epoch and its abandoned locks wait until the endpoint is quiet.
//!
//! A crash of the whole compute node loses the list. Other compute nodes then take the locks over
//! after its access is revoked, by the holder's number and incarnation in the lock word.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::{Buf, Endpoint, Error, ErrorKind, GlobalAddr, OpOutcome, Result};
use dmtree_parts::op::counted;
use dmtree_parts::tree::block;
use dmtree_pool::{BlockPtr, EpochHandle, Grant};

use super::format::leaf::{Holder, Stored, Word};
use super::format::slot::fits;
use super::node::SmartNode;

/// A client of the sound SMART: one fabric slot. [`dmtree_parts::RangeIndex`] documents its
/// operations.
pub struct Smart {
    pub(crate) ep: Endpoint,
    pub(crate) node: Arc<SmartNode>,
    pub(crate) epoch: RefCell<Rc<EpochHandle>>,
    pub(crate) holder: Holder,
    /// Leaves that the present operation holds, or has tried to lock with unknown outcome, each
    /// with its lock word in that case.
    pub(crate) held: RefCell<Vec<(GlobalAddr, Word)>>,
    /// A conflict forced the present operation to repeat a step.
    pub(crate) retried: Cell<bool>,
    rounds: Cell<u64>,
}

impl std::fmt::Debug for Smart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Smart({:?})", self.ep)
    }
}

/// A running operation. While it exists, memory that the operation can reach is not reused. Its
/// drop turns the leaf locks that are left into abandoned locks.
///
/// A caller may drop its future at any await. Verbs in flight execute all the same, so the
/// operation ends only after them: its epoch and its abandoned locks wait for that, and the client
/// continues with another epoch handle.
pub(crate) struct Pinned<'c>(&'c Smart);

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let c = self.0;
        let held = c.held.take();
        if c.ep.is_quiet() {
            held.into_iter().for_each(|(at, word)| c.node.add_abandoned_lock(at, word));
            c.epoch.borrow().leave();
            return;
        }
        let epoch = c.epoch.replace(Rc::new(c.node.pool.register()));
        let node = c.node.clone();
        c.ep.when_quiet(move || {
            held.into_iter().for_each(|(at, word)| node.add_abandoned_lock(at, word));
            epoch.leave();
        });
    }
}

/// Memory that an operation has allocated and not linked yet.
#[derive(Default)]
pub(crate) struct Taken {
    pub leaf: Option<(usize, Grant)>,
    pub nodes: Vec<Grant>,
    pub block: Option<BlockPtr>,
}

impl Smart {
    /// The client of one slot.
    pub fn new(ep: Endpoint, node: Arc<SmartNode>) -> Self {
        let incarnation = node.pool.fabric().incarnation(ep.node()).unwrap_or(0) as u16;
        ep.set_timeout(node.o.timeout_ms.saturating_mul(1_000_000));
        Self {
            epoch: RefCell::new(Rc::new(node.pool.register())),
            holder: Holder { node: ep.node().index() as u16, incarnation },
            held: RefCell::default(),
            retried: Cell::new(false),
            rounds: Cell::new(0),
            ep,
            node,
        }
    }

    pub(crate) fn pin(&self) -> Pinned<'_> {
        self.epoch.borrow().enter();
        self.retried.set(false);
        Pinned(self)
    }

    /// Leaves the epoch while the operation waits for another one of its node. `None` if it holds a
    /// leaf.
    pub(crate) fn quiescent_section(&self) -> Option<dmtree_pool::QuiescentSection> {
        self.held.borrow().is_empty().then(|| self.epoch.borrow().quiescent_section())
    }

    /// Records that the operation holds a leaf, or tries to lock it.
    pub(crate) fn record_lock(&self, at: GlobalAddr, word: Word) {
        let mut held = self.held.borrow_mut();
        held.retain(|(a, _)| *a != at);
        held.push((at, word));
    }

    /// Records that the operation does not hold the leaf any more.
    pub(crate) fn forget_lock(&self, at: GlobalAddr) {
        self.held.borrow_mut().retain(|(a, _)| *a != at);
    }

    /// The outcome to count for an operation: `plain`, or `Retried` if a step was repeated.
    pub(crate) fn outcome(&self, plain: OpOutcome) -> OpOutcome {
        counted(plain, &self.retried)
    }

    pub(crate) fn next_round(&self) -> u64 {
        self.rounds.set(self.rounds.get().wrapping_add(1));
        self.rounds.get()
    }

    // ---- memory ----

    /// Stores a value: inline in its leaf, or in a block, which is written here.
    pub(crate) async fn store<'v>(
        &self,
        value: &'v [u8],
        near: GlobalAddr,
        taken: &mut Taken,
    ) -> Result<Stored<'v>> {
        if value.len() <= self.node.shape.value {
            return Ok(Stored::Inline(value));
        }
        let (pool, index) = (&self.node.pool, self.node.root.index);
        let len = block::bytes(0, value.len());
        let near = (!near.is_null()).then(|| near.node());
        let at = pool.alloc_block(&self.ep, index, len, near).await?;
        taken.block = Some(at);
        let mut buf = self.ep.buf(len).await?;
        block::fill(at, &mut buf, &[], value);
        self.ep.write(at.addr(), buf).await?;
        Ok(Stored::Block(at))
    }

    /// Memory for the leaf of a key.
    pub(crate) async fn take_leaf(
        &self,
        key: &[u8],
        near: GlobalAddr,
        taken: &mut Taken,
    ) -> Result<Grant> {
        let lines = self.node.shape.lines(key.len());
        let near = (!near.is_null()).then(|| near.node());
        let arena = self.node.leaves(lines);
        let grant = self.node.pool.alloc(&self.ep, arena, near).await?;
        taken.leaf = Some((lines, grant));
        within_reach(grant)
    }

    /// Memory for a node.
    pub(crate) async fn take_node(&self, near: GlobalAddr, taken: &mut Taken) -> Result<Grant> {
        let near = (!near.is_null()).then(|| near.node());
        let grant = self.node.pool.alloc(&self.ep, &self.node.nodes, near).await?;
        taken.nodes.push(grant);
        within_reach(grant)
    }

    /// Gives back memory that was never linked.
    pub(crate) fn give_back(&self, taken: Taken) {
        let pool = &self.node.pool;
        if let Some((lines, g)) = taken.leaf {
            pool.give_back(self.node.leaves(lines), g);
        }
        taken.nodes.into_iter().for_each(|g| pool.give_back(&self.node.nodes, g));
        if let Some(b) = taken.block {
            pool.give_back_block(self.node.root.index, b);
        }
    }

    pub(crate) fn retire_value(&self, value: Stored<'_>) {
        if let Stored::Block(b) = value
            && !b.is_null()
        {
            self.node.pool.retire_block(self.node.root.index, b);
        }
    }

    /// A zeroed buffer of `len` bytes.
    pub(crate) async fn buf(&self, len: usize) -> Result<Buf> {
        self.ep.buf(len as u32).await
    }
}

fn within_reach(g: Grant) -> Result<Grant> {
    if fits(g.addr) {
        return Ok(g);
    }
    Err(Error::new(
        ErrorKind::Full,
        format!("{} is out of reach: this index uses 1024 memory nodes of 4 TiB at most", g.addr),
    ))
}
