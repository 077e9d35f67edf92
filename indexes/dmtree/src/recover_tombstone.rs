//! Repairing dead leaves: those that went `into` another one by a merge or a relocation that nobody has brought to its end. Their slots
//! are blanked, their record and their link go, their table says that they are buried, and whoever buries them retires them.

use dmtree_fabric::verb::{cas, write as write_verb};
use dmtree_fabric::{GlobalAddr, Result, Step};
use dmtree_pool::Grant;

use crate::client::{DmTree, Route, Validation, is_away};
use crate::format::Ver;
use crate::format::leaf::{HeaderParts, put_free, put_header};
use crate::format::table::{BODY_AT, LockTag, Table, View};
use crate::marks::Mark;
use crate::node::Chore;
use crate::unvalidated::Unvalidated;

/// A dead or waiting heir is looked at again after this long, ns.
const LOOK_AGAIN_NS: u64 = 20_000;

impl DmTree {
    /// A dead leaf whose lock died with its home, and which its owner was blanking: readers cannot pass it while it is torn. All do
    /// the same to it, so no lock is needed; it is not reused while this operation runs.
    pub(crate) async fn help_dead(&self, route: &Route) -> Result<()> {
        let h = self.unvalidated_header(route.leaf).await?;
        let torn =
            !h.into.is_null() && h.ver.generation == route.generation && h.slots == route.capacity;
        if torn && h.table == route.table {
            Mark::RecoverDead.hit();
            self.check_lease()?;
            self.blank_unvalidated(route.leaf, &h).await?;
        }
        Ok(())
    }

    /// From m4 on: the neighbour's slots, `next`, its record, its table. Its entries are all in the heir: m1 was awaited before m2.
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
            return self.finish_merged_word(&route).await;
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

    /// Removes the record of a dead leaf whose range its left neighbour has, if it is there.
    async fn drop_record(&self, low: &[u8], addr: GlobalAddr) -> Result<()> {
        let Some(parent) = self.lock_inner(1, low).await? else { return Ok(()) };
        match parent.records.iter().position(|r| r.child.addr == addr && r.key == low) {
            Some(i) if i > 0 => {
                let index = parent.records[i].index;
                self.remove_record(parent, index).await
            }
            _ => self.unlock_inner(parent).await,
        }
    }

    /// Frees all slots of a dead leaf, torn or not.
    pub(crate) async fn blank_unvalidated(&self, addr: GlobalAddr, h: &Unvalidated) -> Result<()> {
        let g = self.node.g;
        let len = g.leaf_image(h.slots) as u32;
        let bytes = self.ep.read(addr, len).await?;
        let old = bytes.extract(<[u8]>::to_vec);
        let now = Unvalidated::of(&g, addr, &old);
        // Whoever repairs a parent blanks its dead children, too: two who do it at once write the same.
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
            into: now.into,
        };
        put_header(&g, addr, &mut image, &parts);
        (0..h.slots).for_each(|i| put_free(&g, addr, &mut image, i, ver));
        self.ep.step(Step::Structure);
        self.ep.write(addr, image).await.map(|_| ())
    }

    /// Marks the table of a dead leaf and unlocks it, awaited.
    async fn close(&self, route: &Route, at: GlobalAddr, tag: LockTag) -> Result<bool> {
        if !self.node.has_tables() {
            return self.close_word(at, tag).await;
        }
        let ver = Ver { generation: route.generation, range: 0 };
        let mut table = Table::new(route.leaf, ver, 0, route.capacity);
        table.dead = true;
        let body = self.table_body(&mut table, route.table).await?;
        let list = (write_verb(at.plus(BODY_AT as u64), body), cas(at, tag.0, 0));
        let done = self.ep.chain(list).await.map(|_| ());
        self.unlocked(tag, done).map(|()| true)
    }

    /// A leaf that went `into` another, and whose lock is abandoned: its heir first, then itself. As [`DmTree::recover_leaf`].
    pub(crate) async fn finish_dead(
        &self,
        route: &Route,
        h: &Unvalidated,
        at: GlobalAddr,
        was: u64,
    ) -> Result<bool> {
        let successor = self.unvalidated_header(h.into).await?;
        let relocated = successor.lo == h.lo;
        if !relocated && successor.into.is_null() && successor.next == route.leaf {
            // The merge is not finished: that is the heir's business.
            self.recover_successor(h.into, &successor).await?;
            return Ok(true);
        }
        let tag = self.next_tag();
        let tag = match self.take_over(route, at, was, tag).await? {
            None => return Ok(true),
            // Locked by a stale record behind the burial: whoever buried it retires it.
            Some((tag, body)) if is_closed(&body, route.leaf) => {
                Mark::RecoverClosed.hit();
                self.give_lock_back(at, tag).await?;
                return Ok(false);
            }
            Some((tag, _)) => tag,
        };
        Mark::RecoverDead.hit();
        self.check_lease()?;
        self.blank_unvalidated(route.leaf, h).await?;
        // The fence is the heir's, too: when its block is gone, the heir was merged away, and the record with it.
        let low = match self.fence_key_in(&h.lo, Validation::Unvalidated).await {
            Err(e) if e.kind() == dmtree_fabric::ErrorKind::Corrupt => None,
            low => Some(low?.unwrap_or_default()),
        };
        match &low {
            None => Mark::RecoverDeadLate.hit(),
            // Whoever locks the parent replaces the record: its lock was held by the one who relocated.
            Some(low) if relocated => {
                if let Some(parent) = self.lock_inner(1, low).await? {
                    self.unlock_inner(parent).await?;
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
            // Its left sibling is not known: it stays linked, and is not reused.
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
        Box::pin(self.look_and_recover(&route)).await?;
        self.quiescent_point();
        self.ep.sleep(LOOK_AGAIN_NS).await;
        self.ep.check_deadline("the heir of a dead leaf", addr.bits())
    }
}

/// Whether a table says that its leaf is dead, and everything about it is done but for retiring it.
pub(crate) fn is_closed(body: &View, leaf: GlobalAddr) -> bool {
    matches!(body, View::Whole(t) if t.dead && t.leaf == leaf)
}
