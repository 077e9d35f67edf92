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
//!    parent's lock and the take-over of that lock replaces the record (`recover_inner.rs`).
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

use dmtree_fabric::verb::{cas, write as write_verb};
use dmtree_fabric::{GlobalAddr, Result, Step};
use dmtree_parts::held::Unlock;
use dmtree_pool::Grant;

use crate::client::{DmTree, Route, Validation, is_away};
use crate::format::Ver;
use crate::format::leaf::{HeaderParts, put_free, put_header};
use crate::format::table::{BODY_AT, LockTag, Table, View};
use crate::marks::Mark;
use crate::node::Chore;
use crate::unvalidated::Unvalidated;

/// Pause before a busy or unreachable successor is checked again, ns.
const INSPECT_AGAIN_NS: u64 = 20_000;

impl DmTree {
    /// A tombstone that lost its lock with its table's owner while the lock holder was blanking it:
    /// readers cannot pass it while it is torn. All repairs write the same, so no lock is needed;
    /// it is not reused while this operation runs.
    pub(crate) async fn help_tombstone(&self, route: &Route) -> Result<()> {
        let h = self.unvalidated_header(route.leaf).await?;
        let torn = !h.forward.is_null()
            && h.ver.generation == route.generation
            && h.slots == route.capacity;
        if torn && h.table == route.table {
            Mark::RecoverTombstone.hit();
            self.check_lease()?;
            self.blank_unvalidated(route.leaf, &h).await?;
        }
        Ok(())
    }

    /// From m4 on: the neighbour's slots, `next`, its record, its table. Its entries are all in the
    /// successor: m1 was awaited before m2.
    pub(crate) async fn finish_merge(
        &self,
        a: &Route,
        addr: GlobalAddr,
        b: &Unvalidated,
    ) -> Result<()> {
        let g = self.node.g;
        self.blank_unvalidated(addr, b).await?;
        let next = self.unvalidated_header(addr).await?.next;
        self.ep.write_word(a.leaf.plus(g.next_at() as u64), next.bits()).await?;
        let low = self.fence_key(&b.lo).await?.unwrap_or_default();
        self.drop_record(&low, addr).await?;
        let route = Route {
            leaf: addr,
            generation: b.ver.generation,
            table: b.table,
            capacity: b.slots,
            fence: 0,
        };
        if !self.node.has_tables() {
            return self.finish_merged_lock_word(&route).await;
        }
        let at = match self.node.pool.resolve(&self.ep, b.table).await {
            Err(e) if is_away(&e) => return Ok(()),
            at => at?,
        };
        let was = match self.ep.cas(at, 0, 0).await {
            Err(e) if is_away(&e) => return Ok(()),
            was => was?,
        };
        if !self.node.is_abandoned(was) {
            return Ok(());
        }
        let tag = self.next_tag();
        let tag = match self.take_over(&route, at, was, tag).await? {
            None => return Ok(()),
            Some((tag, body)) if is_closed(&body, addr) => {
                return self.give_lock_back(at, tag).await;
            }
            Some((tag, _)) => tag,
        };
        if self.close(&route, at, tag).await? {
            self.retire_leaf(&route);
        }
        Ok(())
    }

    pub(crate) fn retire_leaf(&self, route: &Route) {
        let Route { leaf: addr, generation, table, capacity, .. } = *route;
        self.node.pool.retire(self.node.leaf_arena(capacity), Grant { addr, generation });
        self.retire_table(table);
    }

    /// Removes the record of a tombstone merged into its left neighbour, if the record is there.
    async fn drop_record(&self, low: &[u8], addr: GlobalAddr) -> Result<()> {
        let Some(parent) = self.lock_inner(1, low).await? else { return Ok(()) };
        match parent.node.position_of(addr, low) {
            Some(i) if i > 0 => {
                let index = parent.node.record(i).index;
                self.remove_record(parent, index).await
            }
            _ => self.unlock(parent).await,
        }
    }

    /// Frees all slots of a tombstone, torn or not.
    pub(crate) async fn blank_unvalidated(&self, addr: GlobalAddr, h: &Unvalidated) -> Result<()> {
        let g = self.node.g;
        let len = g.leaf_image(h.slots) as u32;
        let bytes = self.ep.read(addr, len).await?;
        let old = bytes.extract(<[u8]>::to_vec);
        let now = Unvalidated::of(&g, addr, &old);
        // A client that repairs a parent blanks its tombstones, too: two that do it at once write
        // the same.
        let ver = Ver { generation: h.ver.generation, range: u8::MAX };
        let mut image = self.ep.buf(len).await?;
        image.copy_from_slice(&old);
        let parts = HeaderParts {
            ver,
            table: now.table,
            slots: now.slots,
            level: 0,
            lo: &now.lo,
            hi: &now.hi,
            next: now.next,
            forward: now.forward,
        };
        put_header(&g, addr, &mut image, &parts);
        (0..h.slots).for_each(|i| put_free(&g, addr, &mut image, i, ver));
        self.ep.step(Step::Structure);
        self.ep.write(addr, image).await.map(|_| ())
    }

    /// Closes the table of a tombstone and unlocks it, awaited.
    async fn close(&self, route: &Route, at: GlobalAddr, tag: LockTag) -> Result<bool> {
        if !self.node.has_tables() {
            return self.close_by_lock_word(at, tag).await;
        }
        let ver = Ver { generation: route.generation, range: 0 };
        let mut table = Table::new(route.leaf, ver, 0, route.capacity);
        table.closed = true;
        let body = self.table_body(&mut table, route.table).await?;
        let list = (write_verb(at.plus(BODY_AT as u64), body), cas(at, tag.0, 0));
        let done = self.ep.chain(list).await.map(|_| ());
        self.unlocked(tag, done).map(|()| true)
    }

    /// A tombstone with an abandoned lock: first its successor, then itself. As
    /// [`DmTree::recover_leaf`].
    pub(crate) async fn finish_tombstone(
        &self,
        route: &Route,
        h: &Unvalidated,
        at: GlobalAddr,
        was: u64,
    ) -> Result<bool> {
        let successor = self.unvalidated_header(h.forward).await?;
        let relocated = successor.lo == h.lo;
        if !relocated && successor.forward.is_null() && successor.next == route.leaf {
            // The merge is not finished: the successor's recovery finishes it.
            self.recover_successor(h.forward, &successor).await?;
            return Ok(true);
        }
        let tag = self.next_tag();
        let tag = match self.take_over(route, at, was, tag).await? {
            None => return Ok(true),
            // Locked through a stale record after the table was closed: the client that closed it
            // retires the leaf.
            Some((tag, body)) if is_closed(&body, route.leaf) => {
                Mark::RecoverClosed.hit();
                self.give_lock_back(at, tag).await?;
                return Ok(false);
            }
            Some((tag, _)) => tag,
        };
        Mark::RecoverTombstone.hit();
        self.check_lease()?;
        self.blank_unvalidated(route.leaf, h).await?;
        // The fence is the successor's, too: when its block is gone, the successor was merged away,
        // and the record with it.
        let low = match self.fence_key_in(&h.lo, Validation::Unvalidated).await {
            Err(e) if e.kind() == dmtree_fabric::ErrorKind::Corrupt => None,
            low => Some(low?.unwrap_or_default()),
        };
        match &low {
            None => Mark::RecoverTombstoneLate.hit(),
            // The client that locks the parent replaces the record: the relocating client held the
            // parent's lock.
            Some(low) if relocated => {
                if let Some(parent) = self.lock_inner(1, low).await? {
                    self.unlock(parent).await?;
                }
            }
            Some(low) => self.drop_record(low, route.leaf).await?,
        }
        if !self.close(route, at, tag).await? {
            return Ok(false);
        }
        match low {
            Some(lo) if relocated => {
                let Route { leaf, generation, table, capacity, .. } = *route;
                self.node.push_chore(Chore::Unlink { lo, leaf, generation, capacity, table });
            }
            // Its left sibling is unknown: the tombstone stays linked, and is not reused.
            None if relocated => {}
            _ => self.retire_leaf(route),
        }
        Ok(false)
    }

    async fn recover_successor(&self, addr: GlobalAddr, h: &Unvalidated) -> Result<()> {
        let route = Route {
            leaf: addr,
            generation: h.ver.generation,
            table: h.table,
            capacity: h.slots,
            fence: 0,
        };
        Box::pin(self.inspect_and_recover(&route)).await?;
        self.op.quiescent_point();
        self.ep.sleep(INSPECT_AGAIN_NS).await;
        self.ep.check_deadline("the successor of a tombstone", addr.bits())
    }
}

/// Whether a table says that its leaf is a tombstone with nothing left to do but to retire it.
pub(crate) fn is_closed(body: &View, leaf: GlobalAddr) -> bool {
    matches!(body, View::Whole(t) if t.closed && t.leaf == leaf)
}
