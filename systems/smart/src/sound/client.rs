//! A client: the view that one fabric slot has of the index, and how its operations begin and end.
//!
//! Every operation that posts verbs runs under a pin (`parts::held`), which keeps memory that it
//! can reach from being reused. The client records every leaf lock before the CAS that takes it
//! (`Running::hold`), and forgets it after the release (`Running::let_go`). Locks that remain when
//! the operation ends are abandoned locks: the next operation of this compute node that meets one,
//! or maintenance, releases it (`update.rs`).
//!
//! A crash of the whole compute node loses the list. Other compute nodes then take the locks over
//! after its access is revoked, by the holder's number and incarnation in the lock word.

use std::cell::Cell;
use std::sync::Arc;

use dmtree_fabric::{Buf, Endpoint, Error, GlobalAddr, Result};
use dmtree_parts::held::{RemoteLock, Running};
use dmtree_parts::tree::block;
use dmtree_pool::{BlockPtr, Grant};

use super::format::leaf::{Holder, Stored, Word};
use super::format::slot::fits;
use super::node::SmartNode;

/// A client of the sound SMART: one fabric slot. [`dmtree_parts::RangeIndex`] documents its
/// operations.
pub struct Smart {
    pub(crate) ep: Endpoint,
    pub(crate) node: Arc<SmartNode>,
    /// It holds leaves, and those that it has tried to lock with unknown outcome.
    pub(crate) op: Running<SmartNode>,
    pub(crate) holder: Holder,
    rounds: Cell<u64>,
}

impl std::fmt::Debug for Smart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Smart({:?})", self.ep)
    }
}

/// The lock of a leaf, with its lock word while it is held.
#[derive(Clone, Copy, Debug)]
pub struct LeafLock {
    pub at: GlobalAddr,
    pub word: Word,
}

impl RemoteLock for LeafLock {
    type Tag = GlobalAddr;
    type Key = u64;

    fn tag(&self) -> GlobalAddr {
        self.at
    }

    fn key(&self) -> u64 {
        self.at.bits()
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
            op: Running::new(&ep, &node),
            holder: Holder { node: ep.node().index() as u16, incarnation },
            rounds: Cell::new(0),
            ep,
            node,
        }
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
        let at = pool.alloc_block(&self.ep, index, len, Some(near.node())).await?;
        taken.block = Some(at);
        let mut buf = self.ep.buf(len).await?;
        block::fill(at, &mut buf, &[], value);
        self.ep.write(at.addr(), buf).await?;
        Ok(Stored::Block(at))
    }

    pub(crate) async fn take_leaf(&self, key: &[u8], taken: &mut Taken) -> Result<Grant> {
        let lines = self.node.shape.lines(key.len());
        let grant = self.node.pool.alloc(&self.ep, self.node.leaves(lines), None).await?;
        taken.leaf = Some((lines, grant));
        within_reach(grant)
    }

    pub(crate) async fn take_node(&self, taken: &mut Taken) -> Result<Grant> {
        let grant = self.node.pool.alloc(&self.ep, &self.node.nodes, None).await?;
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
    Err(Error::full(format!(
        "{} is out of reach: this index uses 1024 memory nodes of 4 TiB at most",
        g.addr
    )))
}
