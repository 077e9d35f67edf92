//! Moving a leaf to another address: its range is worn out, or it shall have more slots.
//!
//! The steps under the lock of the old leaf L:
//!
//! 1. READ L; take memory for the new leaf S and its table; lock the parent with room for one more
//!    record. Every step that can fail for want of memory comes before the commit.
//! 2. WRITE S and S's table, awaited. S carries L's fences and all of its live entries.
//! 3. `L.forward = S` commits.
//! 4. L's slots are blanked under the next range. B: S is not published before every older copy of
//!    its keys is gone.
//! 5. `[WRITE new record, WRITE old record free, CAS parent unlock]`. For one instant the parent
//!    shows two records of one key; a reader of such an image reads again.
//! 6. L's table is closed and its lock released, awaited: the cell is retired next, and a late
//!    WRITE would land in another leaf's table.
//! 7. Later, as a chore: the left sibling's `next` is changed from L to the live end of the chain,
//!    under its lock. Only then is L retired.
//!
//! Step 7 keeps L's address unused while any `next` names it. A dangling `next` would let a
//! recovery take another leaf's fences for a sibling's, and destroy data. Tombstones of one chain
//! may be unlinked in any order: the first unlink makes the left sibling name the live end, and the
//! others find themselves bypassed.
//!
//! A crash before step 3 leaves S unreachable (the garbage collection finds it) and L as it was. A
//! crash after it leaves a tombstone with an abandoned lock and the parent's lock: the client that
//! takes over the parent blanks L and replaces the record (`recover_inner.rs`), and the client that
//! takes over L closes its table and queues the unlink (`recover_tombstone.rs`).
//!
//! When there is no memory for S, the lock comes back to the caller, which splits or fails instead.

use dmtree_fabric::verb::{cas, write as write_verb, write_word};
use dmtree_fabric::{ErrorKind, GlobalAddr, Result, Step};
use dmtree_parts::held::Unlock;
use dmtree_pool::{Grant, TableId};

use crate::client::{DmTree, LeafCopy, Route, is_away};
use crate::format::Ver;
use crate::format::inner::{free_word, put_record};
use crate::format::leaf::{FenceArea, HeaderParts, put_free, put_header, put_slot};
use crate::format::slot::SlotState;
use crate::format::table::{BODY_AT, LockTag, Table};
use crate::invariants::{self, LeafState};
use crate::lock::Locked;
use crate::marks::Mark;
use crate::mutants::Mutant;
use crate::node::Chore;
use crate::parent::LockedInner;
use crate::split::NewLeaf;

impl DmTree {
    /// Moves the locked leaf to a new one of `capacity` slots. The lock comes back when there is no
    /// memory for that.
    pub(crate) async fn relocate(&self, mut l: Locked, capacity: usize) -> Result<Option<Locked>> {
        let leaf = self.image_of(&mut l).await;
        let (l, leaf) = self.under(l, leaf).await?;
        let s = match self.new_leaf(capacity).await {
            Err(e) if e.kind() == ErrorKind::Full => return Ok(Some(l)),
            s => s,
        };
        let (mut l, s) = self.under(l, s).await?;
        let low = self.fence_bytes(leaf.header(self).lo).await?.unwrap_or_default();
        let parent = match self.lock_parent_with_room(&low).await {
            Ok(parent) => parent,
            Err(e) => {
                self.forget_leaf(&s);
                if e.kind() == ErrorKind::Full {
                    return Ok(Some(l));
                }
                return self.fail(l, e).await;
            }
        };
        let Some(at) = parent.node.position(leaf.addr) else {
            // The record is still missing (its publication found no memory): there is nothing to
            // replace.
            Mark::RelocateNoRecord.hit();
            self.unlock(parent).await?;
            self.forget_leaf(&s);
            return Ok(Some(l));
        };
        let table = match self.write_relocated(&mut l, &leaf, &s).await {
            Ok(table) => table,
            Err(e)
                if is_away(&e)
                    && self.node.has_tables()
                    && self.ep.cas(s.table_at, 0, 0).await.is_err() =>
            {
                // The owner of the new table is away: handled like missing memory.
                self.forget_leaf(&s);
                self.unlock(parent).await?;
                return Ok(Some(l));
            }
            Err(e) => return Err(e),
        };
        if self.node.has(Mutant::BlankBeforeInto) {
            self.blank(&leaf, &l.table, GlobalAddr::NULL).await?;
        }
        self.commit_forward(leaf.addr, s.grant.addr).await?;
        if !self.node.has(Mutant::NoBlank) {
            self.blank(&leaf, &l.table, s.grant.addr).await?;
        }
        self.replace_record(parent, at, &s).await?;
        self.fill_mirror(&low, &s.route(table.fence), table.fps());
        let route = l.route;
        if !self.close_table(l).await? {
            return Ok(None);
        }
        let chore = Chore::Unlink {
            lo: low,
            leaf: route.leaf,
            generation: route.generation,
            capacity: route.capacity,
            table: route.table,
        };
        if self.node.has(Mutant::RetireRelocatedEarly) {
            let tombstone = Grant { addr: route.leaf, generation: route.generation };
            self.node.pool.retire(self.node.leaf_arena(route.capacity), tombstone);
            self.retire_table(route.table);
            return Ok(None);
        }
        self.node.push_chore(chore);
        Ok(None)
    }

    /// The locked bottom node of a key, with a free record.
    async fn lock_parent_with_room(&self, low: &[u8]) -> Result<LockedInner> {
        loop {
            let Some(n) = self.lock_inner(1, low).await? else {
                return Err(dmtree_fabric::Error::corrupt("the tree has no bottom level"));
            };
            if n.node.len() < self.node.g.fanout {
                return Ok(n);
            }
            self.split_inner(n).await?;
        }
    }

    /// The new leaf and its table.
    async fn write_relocated(&self, l: &mut Locked, leaf: &LeafCopy, s: &NewLeaf) -> Result<Table> {
        let g = &self.node.g;
        let (header, ver, addr) = (leaf.header(self), s.ver(), s.grant.addr);
        let mut image = self.ep.buf(g.leaf_bytes(s.capacity) as u32).await?;
        image.fill(0);
        let parts = HeaderParts {
            ver,
            table: s.table,
            slots: s.capacity,
            level: 0,
            lo: &FenceArea::lo_of(g, &leaf.bytes),
            hi: &FenceArea::hi_of(g, &leaf.bytes),
            next: header.next,
            forward: GlobalAddr::NULL,
        };
        put_header(g, addr, &mut image, &parts);
        let mut table = Table::new(addr, ver, l.table.fence, s.capacity);
        let mut used = 0;
        for (from, slot) in leaf.live(self) {
            put_slot(g, addr, &mut image, used, &slot, SlotState::Live, ver);
            table.set(used, l.table.fps()[from]);
            used += 1;
        }
        (used..s.capacity).for_each(|i| put_free(g, addr, &mut image, i, ver));
        let moved = LeafState { addr, image: &image, table: &table };
        debug_assert!(
            invariants::is_relocation(g, (&leaf.bytes, l.table.live()), &moved),
            "relocation of {} to {addr} breaks P, F, B, R or S",
            leaf.addr
        );
        if !self.node.has_tables() {
            self.check_lease()?;
            self.begin_change(&mut [l], Some((s.grant, image))).await?;
            return Ok(table);
        }
        let body = self.table_body(&mut table, s.table).await?;
        let table_at = s.table_at.plus(BODY_AT as u64);
        self.ep.step(Step::Structure);
        if self.node.has(Mutant::RelocateBeforeSibling) {
            self.ep.detach(write_verb(addr, image), None);
            self.ep.write(table_at, body).await?;
            return Ok(table);
        }
        self.ep.batch((write_verb(addr, image), write_verb(table_at, body))).await?;
        Ok(table)
    }

    /// Commits: the leaf's range goes to the leaf at `forward`.
    pub(crate) async fn commit_forward(&self, leaf: GlobalAddr, forward: GlobalAddr) -> Result<()> {
        self.check_lease()?;
        self.ep.write_word(leaf.plus(self.node.g.forward_at() as u64), forward.bits()).await
    }

    /// Frees the slots of a tombstone, under the next range.
    pub(crate) async fn blank(
        &self,
        leaf: &LeafCopy,
        table: &Table,
        forward: GlobalAddr,
    ) -> Result<()> {
        let g = &self.node.g;
        let (header, ver) = (leaf.header(self), table.ver.bumped());
        let mut image = self.ep.buf(g.leaf_image(leaf.capacity) as u32).await?;
        image.copy_from_slice(&leaf.bytes);
        let parts = HeaderParts {
            ver,
            table: header.table,
            slots: leaf.capacity,
            level: 0,
            lo: &FenceArea::lo_of(g, &leaf.bytes),
            hi: &FenceArea::hi_of(g, &leaf.bytes),
            next: header.next,
            forward,
        };
        put_header(g, leaf.addr, &mut image, &parts);
        (0..leaf.capacity).for_each(|i| put_free(g, leaf.addr, &mut image, i, ver));
        self.ep.write(leaf.addr, image).await.map(|_| ())
    }

    /// `[WRITE new record, WRITE old record free, CAS unlock]`.
    async fn replace_record(&self, n: LockedInner, old: usize, s: &NewLeaf) -> Result<()> {
        let g = self.node.g;
        let mut n = n;
        let index = n.node.free_place().expect("room was made");
        let mut record = self.ep.buf(g.record() as u32).await?;
        let r = n.node.record(old);
        put_record(&g, n.addr, n.ver, index, &mut record, (r.area, r.mode), &s.child());
        let (new_at, old_at) = (g.record_at(index), g.record_at(r.index));
        let free = free_word(n.addr, n.ver, r.index);
        let (old_index, key) = (r.index, n.node.key(old).to_vec());
        n.node.remove(old_index, free);
        n.node.add(index, &record, &key);
        let list = (
            write_verb(n.addr.plus(new_at as u64), record),
            write_word(n.addr.plus(old_at as u64), free),
            cas(n.addr.plus(g.inner_lock_at() as u64), n.tag.0, 0),
        );
        self.ep.step(Step::Structure);
        self.check_lease()?;
        self.ep.chain(list).await?;
        self.written_inner(n).await
    }

    /// Closes the table of a tombstone and unlocks it. Awaited: its cell is retired next, and a
    /// WRITE still in flight then could land in the next leaf's table. False when another client
    /// will retire the leaf.
    pub(crate) async fn close_table(&self, l: Locked) -> Result<bool> {
        if !self.node.has_tables() {
            return self.close_by_lock_word(l.at, l.tag).await;
        }
        let mut table = l.table.clone();
        table.closed = true;
        (0..l.route.capacity).for_each(|i| table.set(i, 0));
        let body = self.table_body(&mut table, l.route.table).await?;
        let list = (write_verb(l.at.plus(BODY_AT as u64), body), cas(l.at, l.tag.0, 0));
        self.ep.step(Step::Structure);
        if self.node.has(Mutant::CloseDetached) {
            self.ep.detach(list, None);
            self.op.let_go(l.tag);
            return Ok(true);
        }
        let closed = self.ep.chain(list).await.map(|_| ());
        drop(l.fifo_guard);
        if closed.as_ref().is_err_and(is_away) {
            self.close_again(l.tag, &l.route, l.at).await?;
        } else {
            closed?;
        }
        self.op.let_go(l.tag);
        Ok(true)
    }

    /// The owner did not answer: whether the table is closed is unknown. When the owner is dead its
    /// cells are gone, and zero at the next owner, where no client finds this leaf alive; else
    /// closing is repeated.
    async fn close_again(&self, tag: LockTag, route: &Route, at: GlobalAddr) -> Result<()> {
        let mut backoff = self.ep.backoff("the owner of a closed table", at);
        loop {
            match self.node.pool.resolve(&self.ep, route.table).await {
                Ok(now) if now == at => {}
                Err(e) if !is_away(&e) => return Err(e),
                _ => return Ok(()),
            }
            let mut table = Table::new(
                route.leaf,
                Ver { generation: route.generation, range: 0 },
                0,
                route.capacity,
            );
            table.closed = true;
            let was = match self.ep.cas(at, tag.0, tag.0).await {
                Ok(was) => was,
                Err(e) if is_away(&e) => {
                    self.ep.sleep(100_000).await;
                    backoff.step().await?;
                    continue;
                }
                Err(e) => return Err(e),
            };
            if was != tag.0 {
                return Ok(());
            }
            let body = self.table_body(&mut table, route.table).await?;
            let list = (write_verb(at.plus(BODY_AT as u64), body), cas(at, tag.0, 0));
            match self.ep.chain(list).await {
                Err(e) if is_away(&e) => backoff.step().await?,
                other => return other.map(|_| ()),
            }
        }
    }

    /// Makes the left sibling of a relocated tombstone name its successor, and retires the leaf.
    /// False when it has to be tried again.
    pub(crate) async fn unlink(
        &self,
        lo: &[u8],
        tombstone: Grant,
        capacity: usize,
        table: TableId,
    ) -> Result<bool> {
        let leaf = self.read_leaf(tombstone.addr, capacity).await?;
        if leaf.header(self).ver.generation != tombstone.generation
            || leaf.header(self).forward.is_null()
        {
            return Err(dmtree_fabric::Error::corrupt(format!(
                "leaf {} is no tombstone",
                tombstone.addr
            )));
        }
        if !lo.is_empty() {
            let parent = self.descend_below(Some(lo)).await?;
            let Some(i) = parent.keys().below(Some(lo)) else { return Ok(false) };
            let route = crate::route::route_of(&parent.record(i));
            let Some(left) = self.lock_route(&route).await? else {
                self.fresh_route(parent.keys().get(i)).await?;
                return Ok(false);
            };
            let copy = self.read_leaf(route.leaf, route.capacity).await?;
            // The leaf that named the tombstone ended where the tombstone begins. A leaf that
            // reaches over that place has taken all of them in: the successor was merged away,
            // behind a chain that the unlinking of another leaf, or a repair, had bypassed.
            let hi = self.fence_bytes(copy.header(self).hi).await?;
            let reaches = hi.is_none_or(|hi| &hi[..] >= lo);
            let next = copy.header(self).next;
            let (successor, through) = self.live_successor(next, tombstone.addr, capacity).await?;
            if successor != next {
                let at = route.leaf.plus(self.node.g.next_at() as u64);
                self.ep.write_word(at, successor.bits()).await?;
            }
            self.unlock(left).await?;
            if !through && !reaches {
                Mark::UnlinkAgain.hit();
                return Ok(false);
            }
        }
        Mark::Unlinked.hit();
        self.node.pool.log_retired(tombstone.addr);
        self.node.pool.retire(self.node.leaf_arena(capacity), tombstone);
        self.retire_table(table);
        Ok(true)
    }

    /// The live leaf at the end of a chain of tombstones, and whether the chain passes through
    /// `dead`. Leaves of one chain may be unlinked in any order: the first client makes the left
    /// sibling name the live end.
    async fn live_successor(
        &self,
        first: GlobalAddr,
        tombstone: GlobalAddr,
        capacity: usize,
    ) -> Result<(GlobalAddr, bool)> {
        let (mut at, mut through) = (first, false);
        while !at.is_null() {
            through |= at == tombstone;
            let forward = self.read_leaf(at, capacity).await?.header(self).forward;
            if forward.is_null() {
                break;
            }
            at = forward;
            self.ep.check_deadline("the end of a chain of tombstones", at.bits())?;
        }
        Ok((at, through))
    }
}
