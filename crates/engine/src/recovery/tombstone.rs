//! Recovery of tombstones: leaves that forward to another one by a merge or a relocation that a
//! dead client has not finished.
//!
//! A tombstone is finished when its slots are blank, its record is gone from the parent, its table
//! says that it is closed, and it is retired. The client that closes the table retires the leaf, so
//! that it is retired once.
//!
//! For a tombstone with an abandoned lock, in this order:
//!
//! 1. The successor first. When the successor is alive and its `next` still is this leaf, the merge
//!    is not finished: the successor's recovery finishes it (`finish_merge`), and this leaf is
//!    tried again.
//! 2. Take the lock over. A table that says it is closed was locked through a stale record; the
//!    lock is only given back.
//! 3. Check the lease, and blank all slots under the largest range. Clients that repair the same
//!    tombstone write the same bytes.
//! 4. The record. Relocated: locking the parent is enough, because the relocating client held the
//!    parent's lock and the take-over of that lock replaces the record (`inner.rs`).
//!    Merged: the record is removed.
//! 5. Close the table and unlock, awaited, since the cell is retired next.
//! 6. Merged: retire the leaf. Relocated: queue the unlink from the left sibling, which retires it.
//!
//! B is the reason for step 3 before step 4: no copy of the successor's keys may be live when the
//! successor is published. The generation of a tombstone is never published again; L gives the
//! address a larger one when it is reused.
//!
//! A tombstone's fences belong to its successor. When the successor has been merged away in turn,
//! the block of a long fence is freed, and its bytes may be anything: then the record is gone as
//! well, and the tombstone stays linked and unused.
//!
//! A crash here leaves an abandoned lock on a tombstone, as before. After step 5 it leaves a closed
//! tombstone that no client will retire; the garbage collection finds it.

use dmtree_fabric::{GlobalAddr, Result};

use crate::inner::{InnerLocks, Records};
use crate::leaf::{Blocks, LeafMemory, NodeHeader, Tombstones, Validation};
use crate::lock::LeafLocks;
use crate::recovery::LeafRecovery;
use crate::{Chore, Mark, Route, Unlock};

/// Pause before a busy or unreachable successor is checked again, ns.
const INSPECT_AGAIN_NS: u64 = 20_000;

impl LeafRecovery<'_> {
    /// A tombstone that lost its lock with its table's owner while the lock holder was blanking it:
    /// readers cannot pass it while it is torn. All repairs write the same, so no lock is needed.
    ///
    /// A blank one is left alone. It may have been retired before this operation began, with a
    /// route from a cache: then nothing keeps its memory from being freed. What retires a tombstone
    /// blanks it before.
    pub(crate) async fn help_tombstone(self, route: &Route) -> Result<()> {
        let c = self.0;
        let h = NodeHeader::read(c, route.leaf).await?;
        if h.forward.is_null() || !h.is_of(route) || Tombstones(c).is_blank(route).await? {
            return Ok(());
        }
        Mark::RecoverTombstone.hit();
        c.check_lease()?;
        Tombstones(c).blank_unvalidated(route.leaf, &h).await
    }

    /// From m4 on: the neighbour's slots, `next`, its record, its table. Its entries are all in the
    /// successor: m1 was awaited before m2. Returns the successor's new `next`.
    pub(crate) async fn finish_merge(
        self,
        a: &Route,
        addr: GlobalAddr,
        b: &NodeHeader,
    ) -> Result<GlobalAddr> {
        let c = self.0;
        Tombstones(c).blank_unvalidated(addr, b).await?;
        let next = NodeHeader::read(c, addr).await?.next;
        c.ep.write_word(a.leaf.plus(c.node.g.next_at() as u64), next.bits()).await?;
        let low = Blocks(c).fence_key(&b.lo).await?.unwrap_or_default();
        Records(c).drop_record(&low, addr).await?;
        let route = b.route(addr);
        let Some((at, was)) = LeafLocks(c).abandoned(&route).await? else { return Ok(next) };
        let Some(taken) = LeafLocks(c).take_over(&route, at, was).await? else { return Ok(next) };
        if taken.is_closed() {
            return taken.give_back(c).await.map(|()| next);
        }
        if taken.close(c).await? {
            LeafMemory(c).retire(&route);
        }
        Ok(next)
    }

    /// A tombstone with an abandoned lock: first its successor, then itself. As
    /// [`LeafRecovery::recover`].
    pub(crate) async fn finish_tombstone(
        self,
        route: &Route,
        h: &NodeHeader,
        at: GlobalAddr,
        was: u64,
    ) -> Result<bool> {
        let c = self.0;
        let successor = NodeHeader::read(c, h.forward).await?;
        let relocated = successor.lo == h.lo;
        if !relocated && successor.forward.is_null() && successor.next == route.leaf {
            // The merge is not finished: the successor's recovery finishes it.
            Box::pin(self.inspect(&successor.route(h.forward))).await?;
            c.op.quiescent_point();
            c.ep.sleep(INSPECT_AGAIN_NS).await;
            c.ep.check_deadline("the successor of a tombstone", h.forward.bits())?;
            return Ok(true);
        }
        let Some(taken) = LeafLocks(c).take_over(route, at, was).await? else { return Ok(true) };
        if taken.is_closed() {
            // Locked through a stale record after the table was closed: the client that closed it
            // retires the leaf.
            Mark::RecoverClosed.hit();
            return taken.give_back(c).await.map(|()| false);
        }
        Mark::RecoverTombstone.hit();
        c.check_lease()?;
        Tombstones(c).blank_unvalidated(route.leaf, h).await?;
        // The fence is the successor's, too: when its block is gone, the successor was merged away,
        // and the record with it.
        let low = match Blocks(c).fence_key_in(&h.lo, Validation::Unvalidated).await {
            Err(e) if e.kind() == dmtree_fabric::ErrorKind::Corrupt => None,
            low => Some(low?.unwrap_or_default()),
        };
        match &low {
            None => Mark::RecoverTombstoneLate.hit(),
            // The client that locks the parent replaces the record: the relocating client held the
            // parent's lock.
            Some(low) if relocated => {
                if let Some(parent) = InnerLocks(c).lock(1, low).await? {
                    c.unlock(parent).await?;
                }
            }
            Some(low) => Records(c).drop_record(low, route.leaf).await?,
        }
        if !taken.close(c).await? {
            return Ok(false);
        }
        match low {
            Some(lo) if relocated => {
                c.node.push_chore(Chore::Unlink { lo, route: *route });
            }
            // Its left sibling is unknown: the tombstone stays linked, and is not reused.
            None if relocated => {}
            _ => LeafMemory(c).retire(route),
        }
        Ok(false)
    }
}
