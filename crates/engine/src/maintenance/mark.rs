//! The mark phase: nodes, tables and blocks that are reachable, by cursors over the levels and over
//! the leaves.
//!
//! At any time the ranges of a level's nodes are a partition of all keys (R). A cursor over the
//! level therefore meets every record, and every pair, that is present throughout. An object that
//! the cursor misses was taken from a free list, was put on one, or became a tombstone during the
//! walk, and the gc log names it. A tombstone is logged when it leaves the index: the cursor may
//! have passed its left sibling, which names it, and no queue has it when its client fails before
//! the unlinking is queued.
//!
//! For each node the cursor
//!
//! 1. descends to the node that covers the cursor's key, and READs it whole, of the record's
//!    generation and alive;
//! 2. marks the node, its table, and the blocks of its fences, records or entries;
//! 3. marks the tombstones that `next` passes before the next live node. They are linked, not live:
//!    they are in use until they are unlinked, and a relocated one is remembered with its lower
//!    fence, in case that no queue will unlink it;
//! 4. goes on at the node's upper fence, where the next live node begins. When that one begins
//!    elsewhere a split has not ended: its lower half is repaired, if its client has failed, and
//!    READ again. The collection may run before the sweep that follows a death, for a write
//!    without room.
//!
//! An image that changes is READ again. A node that splits during the walk is marked in its new
//! extent, and its new sibling is met next, or is in the log.
//!
//! A tombstone with the same lower fence as its successor was relocated: the chain goes on at the
//! successor. Otherwise it was merged into its left neighbour, which is marked already, and the
//! chain goes on behind it by `next`.
//!
//! The mark phase writes nothing to memory nodes. Each piece runs under a pin of its own.

use std::borrow::Cow;

use dmtree_fabric::{Result, Step};
use dmtree_pool::{BlockPtr, Span};

use crate::Route;
use crate::format::{SlotState, Stored, inner};
use crate::leaf::{Blocks, LeafCopy, Leaves, NodeHeader, block_of};
use crate::lock::{Confirmed, TableLocks};
use crate::maintenance::{Collection, GcRun};
use crate::recovery::{InnerRecovery, LeafRecovery};
use crate::router::Router;

impl Collection<'_> {
    /// Marks the node of a level that covers a key, and the tombstones that its `next` passes;
    /// returns the next node's lower fence.
    pub(crate) async fn mark_node(
        self,
        level: u8,
        key: &[u8],
        gc_run: &mut GcRun,
    ) -> Result<Option<Vec<u8>>> {
        let c = self.0;
        let g = c.node.g;
        let mut backoff = c.ep.backoff("an inner node to mark", c.node.root.word);
        loop {
            let node = Router(c).descend(key, level).await?;
            c.ep.step(Step::Structure);
            let bytes = c.ep.read(node.addr, g.inner_image() as u32).await?;
            let image = bytes.extract(<[u8]>::to_vec);
            if let Some(h) = inner::check(&g, node.addr, &image)
                && h.forward.is_null()
                && h.ver.generation == node.generation
                && h.level == level
            {
                let hi = Blocks(c).fence(h.hi).await?;
                let lo = Blocks(c).fence(h.lo).await?.unwrap_or_default();
                if &lo[..] <= key && hi.as_deref().is_none_or(|hi| key < hi) {
                    let own = NodeHeader::of(&g, node.addr, &image);
                    if self.inner_tombstones(&own, gc_run).await? {
                        let bytes = u64::from(c.node.inner_arena.key().object_bytes);
                        gc_run.live.add(Span::object(node.addr, bytes));
                        let keys = inner::records(&g, &image).map(|r| r.key);
                        [h.lo, h.hi].into_iter().chain(keys).for_each(|s| mark_stored(s, gc_run));
                        return Ok(hi.map(Cow::into_owned));
                    }
                    InnerRecovery(c).help(node.addr).await?;
                }
            }
            c.node.cache.invalidate(level, &node);
            backoff.step().await?;
        }
    }

    /// Marks tombstones of inner nodes that are still linked behind a node. False: the next live
    /// one does not begin where the node ends.
    async fn inner_tombstones(self, of: &NodeHeader, gc_run: &mut GcRun) -> Result<bool> {
        let bytes = u64::from(self.0.node.inner_arena.key().object_bytes);
        let mut at = of.next;
        while !at.is_null() {
            let h = NodeHeader::read(self.0, at).await?;
            if h.forward.is_null() {
                // The root that a bulk load replaces names the new root, which is no sibling.
                return Ok(h.lo == of.hi || h.level != of.level || h.lo == of.lo);
            }
            gc_run.own.linked.add(Span::object(at, bytes));
            at = h.next;
            self.0.ep.check_deadline("the end of a chain of tombstones", at.bits())?;
        }
        Ok(true)
    }

    /// Marks the leaf that covers a key, its table and its blocks, and the tombstones on the way to
    /// the next one; returns that one's lower fence.
    pub(crate) async fn mark_leaf(self, key: &[u8], gc_run: &mut GcRun) -> Result<Option<Vec<u8>>> {
        let c = self.0;
        let mut route = Router(c).route(key).await?;
        let mut backoff = c.ep.backoff("a leaf to mark", route.leaf);
        let (leaf, passed) = loop {
            if let Some(leaf) = self.settled(&route).await? {
                let h = leaf.header(c);
                if h.ver.generation == route.generation && h.forward.is_null() {
                    let lo = Blocks(c).fence(h.lo).await?.unwrap_or_default();
                    let hi = Blocks(c).fence(h.hi).await?;
                    if &lo[..] <= key && hi.as_deref().is_none_or(|hi| key < hi) {
                        match self.leaf_tombstones(&leaf).await? {
                            Some(passed) => break (leaf, passed),
                            None => _ = LeafRecovery(c).help_route(&route).await?,
                        }
                    }
                }
            }
            backoff.step().await?;
            let fresh = Router(c).fresh_route(key).await?;
            route = Router(c).walk_route(key, &fresh).await?.unwrap_or(fresh);
        };
        self.copy(&leaf, gc_run);
        let hi = Blocks(c).fence(leaf.header(c).hi).await?;
        for (route, is_moved) in passed {
            gc_run.own.linked.add(Span::object(route.leaf, c.node.leaf_bytes(route.capacity)));
            if c.node.has_tables() {
                gc_run.own.linked.add(Span::table(route.table));
            }
            if is_moved {
                gc_run.own.moved.extend(hi.as_deref().map(|lo| (lo.to_vec(), route)));
            }
        }
        Ok(hi.map(Cow::into_owned))
    }

    /// A leaf with entries that name all of its blocks. Where a log may have records of it, that
    /// is its image, once its lock was seen free: a write that has failed leaves a lock, and
    /// perhaps a record with a block that no image names yet. `None`: it could not be seen now.
    async fn settled(self, route: &Route) -> Result<Option<LeafCopy>> {
        let c = self.0;
        if c.node.log.is_none() || !route.is_imaged() {
            return Leaves(c).read(route.leaf, route.capacity).await.map(Some);
        }
        match TableLocks(c).confirm(route.table, route.capacity).await? {
            Confirmed::Exact(_) => Leaves(c).current(route).await.map(Some),
            Confirmed::Locked | Confirmed::Unbuilt | Confirmed::Odd => {
                LeafRecovery(c).help_route(route).await?;
                c.op.quiescent_point();
                Ok(None)
            }
        }
    }

    fn copy(self, leaf: &LeafCopy, gc_run: &mut GcRun) {
        let h = leaf.header(self.0);
        gc_run.live.add(Span::object(leaf.addr, self.0.node.leaf_bytes(leaf.capacity)));
        if self.0.node.has_tables() {
            gc_run.live.add(Span::table(h.table));
        }
        [h.lo, h.hi].into_iter().for_each(|s| mark_stored(s, gc_run));
        for i in 0..leaf.capacity {
            let s = leaf.slot(self.0, i);
            if s.state != SlotState::Free
                && let Some(at) = block_of(&s)
            {
                mark_block(at, gc_run);
            }
        }
    }

    /// The tombstones that are still linked behind a leaf, by `next` or by each other, and whether
    /// each was relocated. `None`: the next live leaf does not begin where the leaf ends.
    async fn leaf_tombstones(self, leaf: &LeafCopy) -> Result<Option<Vec<(Route, bool)>>> {
        let c = self.0;
        let of = NodeHeader::of(&c.node.g, leaf.addr, &leaf.bytes);
        let (mut at, mut passed) = (of.next, Vec::new());
        while !at.is_null() {
            let h = NodeHeader::read(c, at).await?;
            if h.forward.is_null() || !h.is_leaf(&c.node) {
                return Ok((h.lo == of.hi).then_some(passed));
            }
            let is_moved = NodeHeader::read(c, h.forward).await?.lo == h.lo;
            passed.push((h.route(at), is_moved));
            // A merge in progress: its left neighbour is the leaf, and the chain continues behind
            // it.
            at = if is_moved { h.forward } else { h.next };
            c.ep.check_deadline("the end of a chain of tombstones", at.bits())?;
        }
        Ok(Some(passed))
    }
}

fn mark_stored(s: Stored<'_>, gc_run: &mut GcRun) {
    if let Stored::Block(at) = s {
        mark_block(at, gc_run);
    }
}

fn mark_block(at: BlockPtr, gc_run: &mut GcRun) {
    if !at.is_null() {
        gc_run.live.add(Span::block(at));
    }
}
