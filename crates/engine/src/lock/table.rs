//! Locks of leaves in their tables.
//!
//! Taking a lock:
//!
//! 1. A FIFO guard admits one client of this node at a time.
//! 2. A lock that other nodes wait for is left to them (`fair.rs`).
//! 3. `[CAS lock 0->tag, READ table]`, one chain; with the table comes the first word of an image,
//!    which has the bound (I8). Where a write wants a slot of the image, that READ goes on to it,
//!    or another READ beside it has the slot. The READs execute behind the CAS, so under the lock
//!    the table is exact (F), and so is the slot; no order between the two is needed, because no
//!    other client changes them.
//! 4. A table that is not the route's (leaf, generation, version, fence tag) means a stale route:
//!    the lock is given back. An unbuilt table is built by `recovery/leaf.rs`.
//!
//! Releasing it: `[WRITE table, CAS tag->0]` when fingerprints have changed, else the CAS alone. A
//! WRITE is ordered before an atomic of the same chain, so the lock is never free while the table
//! is old.
//!
//! *Slots.* A live entry of the route's generation, READ from an image under the lock of its table,
//! proves what the table would: the leaf lives, because an image is closed before its leaf dies
//! (I5); and the key is the leaf's (P), because image and leaf are equal (I3). So the entry can be
//! replaced, and the table stays as it is. Where the slot has another key the table is READ, too.
//! With a log that holds for a slot that is not logged (G6); for other ones the table is READ.
//!
//! *Confirmation.* `[CAS lock 0->0, READ table]`: the CAS proves that the lock was free at that
//! instant, and the READ executes behind it. By F the table is then exact at the CAS, or at a later
//! WRITE within the operation.

use std::ops::Range;

use dmtree_fabric::verb::{cas, read, write as write_verb};
use dmtree_fabric::{Buf, Effect, Error, GlobalAddr, Result, Role, Sampled, Stage, Step};
use dmtree_parts::fifo_mutex::FifoGuard;
use dmtree_pool::TableId;

use crate::format::{BODY_AT, LockTag, Place, Table, Ver, View, slot};
use crate::leaf::{Entries, image_at};
use crate::lock::tag::closed;
use crate::lock::{
    BehindLock, Contenders, HeldLock, LOCK_PAUSE_NS, LeafFifoGuard, LeafLocks, Lockable, Locked,
    LockedLeaf, NearSlot, TakenLock, TriedFor, Wanted,
};
use crate::log::Appends;
use crate::recovery::{LeafRecovery, recover_locks_while_waiting};
use crate::{Client, HashedKey, Mark, Mutant, Route, is_away, reached};

/// Result of confirming a route at its table's owner.
pub(crate) enum Confirmed {
    /// The lock was free: the table is exact.
    Exact(Table),
    /// The lock was free, and the table was never written since its cell was zeroed: its owner is
    /// new.
    Unbuilt,
    /// No table can be read: its owner is away, or the cell holds no (whole) table.
    Odd,
    /// Another client holds the lock.
    Locked,
}

/// The subject of a try: the route of the leaf, what is READ along, the place in the queue of the
/// node.
type TryOf<'t> = (&'t Route, Wanted<'t>, &'t FifoGuard);

/// Locks of leaves in their tables.
#[derive(Clone, Copy)]
pub(crate) struct TableLocks<'c>(pub &'c Client);

impl TableLocks<'_> {
    /// `[CAS lock 0->0, READ table]`: when the lock was free at the CAS, the table is exact at that
    /// instant or at a later one of this operation.
    pub(crate) async fn confirm(self, table: TableId, capacity: usize) -> Result<Confirmed> {
        let c = self.0;
        // The owner is dead or cannot be reached: the leaf answers instead.
        let Some(at) = c.cell(table).await? else { return Ok(Confirmed::Odd) };
        let mut backoff = c.ep.backoff("table being written", at);
        loop {
            let len = Table::body_len(capacity);
            c.ep.step(Step::Table);
            let got = match c.node.has(Mutant::ConfirmWithoutCas) {
                false => c.cas_and_read(at, (0, 0), at.plus(BODY_AT as u64), len).await,
                true => {
                    c.ep.batch((read(at, 8), read(at.plus(BODY_AT as u64), len as u32)))
                        .await
                        .map(|(lock, bytes)| (lock.word(0), bytes))
                }
            };
            let (was, bytes) = match got {
                Ok(got) => got,
                Err(e) if is_away(&e) && !c.node.has(Mutant::OwnerIsNeeded) => {
                    Mark::OwnerAway.hit();
                    return Ok(Confirmed::Odd);
                }
                Err(e) => return Err(e),
            };
            if was != 0 && !c.node.has(Mutant::ConfirmWhileLocked) {
                return Ok(Confirmed::Locked);
            }
            match bytes.extract(|b| Table::view(table, capacity, b)) {
                View::Whole(t) => return Ok(Confirmed::Exact(t)),
                View::Unbuilt => return Ok(Confirmed::Unbuilt),
                // A writer locked and wrote between the two verbs, or the cell has another capacity
                // or owner now.
                View::Torn if backoff.steps() >= 3 => return Ok(Confirmed::Odd),
                View::Torn => backoff.step().await?,
            }
            c.op.retried.set(true);
        }
    }

    /// As [`LeafLocks::lock`](crate::lock::LeafLocks::lock), with what is READ along.
    pub(crate) async fn lock(self, route: &Route, wanted: Wanted<'_>) -> Result<Option<Locked>> {
        let c = self.0;
        c.ep.stage_cost(Stage::LocalQueue, 1);
        let fifo_guard = match c.node.leaf_fifo.try_lock(route.table.bits()) {
            Some(fifo_guard) => fifo_guard,
            None => {
                let _quiescent = c.op.quiescent_section();
                c.node.leaf_fifo.lock(&c.ep, route.table.bits()).await?
            }
        };
        c.ep.point().await;
        Contenders(c).yield_lock(route).await?;
        let mut backoff = c.ep.backoff_within("leaf lock", route.leaf, LOCK_PAUSE_NS);
        let mut tag = c.tags.next();
        let of = (route, wanted, &fifo_guard);
        // The cell at which an earlier try with this tag may have succeeded.
        let mut doubt = None;
        loop {
            let at = c.cell(route.table).await?;
            let tried = self.try_at(of, at, tag, doubt).await?;
            doubt = at.filter(|_| matches!(tried, Tried::InDoubt));
            let cell = at.unwrap_or(GlobalAddr::NULL);
            match tried {
                Tried::Got(table, near, image_word) => {
                    c.hold(tag, Lockable::Leaf(*route));
                    Contenders(c).announce_taken(route, cell, &fifo_guard);
                    let fifo_guard = LeafFifoGuard::Table(Some(fifo_guard));
                    let mut locked = LockedLeaf::new(route, (cell, tag), table, fifo_guard);
                    (locked.near, locked.image_word) = (near, image_word);
                    return Ok(Some(locked));
                }
                Tried::Stale => {
                    Contenders(c).announce_taken(route, cell, &fifo_guard);
                    return Ok(None);
                }
                Tried::InDoubt => Mark::LockInDoubt.hit(),
                Tried::Busy(was) => {
                    if was != 0 {
                        Contenders(c).meet(route, cell, was, backoff.steps()).await?;
                    }
                    let is_due = was == 0 || c.node.is_abandoned(was);
                    if is_due && !Box::pin(LeafRecovery(c).recover(route, cell, was)).await? {
                        return Ok(None);
                    }
                }
            }
            c.op.retried.set(true);
            recover_locks_while_waiting(c).await;
            c.op.quiescent_point();
            LeafLocks(c).pause(&mut backoff, route, doubt.is_some()).await?;
            if doubt.is_none() {
                // The last try may have been given back in vain, and its lock be abandoned.
                c.op.forget_try(tag);
                tag = c.tags.next();
            }
        }
    }

    /// One try, at a cell that may have no owner now. `doubt`: the cell at which an earlier one may
    /// have succeeded.
    async fn try_at(
        self,
        of: TryOf<'_>,
        at: Option<GlobalAddr>,
        tag: LockTag,
        doubt: Option<GlobalAddr>,
    ) -> Result<Tried> {
        let Some(cell) = at else {
            Mark::Unowned.hit();
            return Ok(Tried::InDoubt);
        };
        match self.try_cell(of, cell, tag, doubt == at).await {
            // Tables of a memory node are not reassigned: its loss is the operation's error.
            Err(e) if is_away(&e) && !is_memory(cell) => Ok(Tried::InDoubt),
            tried => tried,
        }
    }

    /// As [`LeafLocks::try_lock`](crate::lock::LeafLocks::try_lock).
    pub(crate) async fn try_lock(self, route: &Route) -> Result<Option<Locked>> {
        let Some(fifo_guard) = self.0.node.leaf_fifo.try_lock(route.table.bits()) else {
            return Ok(None);
        };
        let Some(at) = self.0.cell(route.table).await? else { return Ok(None) };
        let tag = self.0.tags.next();
        match self.try_cell((route, Wanted::Table, &fifo_guard), at, tag, false).await {
            Ok(Tried::Got(table, _, image_word)) => {
                self.0.hold(tag, Lockable::Leaf(*route));
                let fifo_guard = LeafFifoGuard::Table(Some(fifo_guard));
                let mut locked = LockedLeaf::new(route, (at, tag), table, fifo_guard);
                locked.image_word = image_word;
                Ok(Some(locked))
            }
            Ok(_) => Ok(None),
            Err(e) => {
                if e.effect() == Effect::Unknown {
                    self.0.op.leave_try(HeldLock { tag, on: Lockable::Leaf(*route) });
                }
                reached(Err(e)).map(|_: Option<Locked>| None)
            }
        }
    }

    /// `doubt`: an earlier try with this tag may have succeeded.
    async fn try_cell(
        self,
        (route, wanted, fifo_guard): TryOf<'_>,
        at: GlobalAddr,
        tag: LockTag,
        doubt: bool,
    ) -> Result<Tried> {
        self.0.ep.step(Step::Lock);
        let lock = HeldLock { tag, on: Lockable::Leaf(*route) };
        let image = self.image(route);
        // The first word of an image has its bound.
        let len = if route.is_imaged() { image + 8 } else { Table::body_len(route.capacity) };
        let reads = match wanted {
            Wanted::Table => BehindLock::of(at, len, None),
            Wanted::TableAndSlot(slot, _) => BehindLock::of(at, len, Some(self.slot(route, slot))),
            Wanted::Slot(slot, _) => BehindLock::slot(at, &self.slot(route, slot)),
        };
        let began = Appends(self.0).sample();
        let tried = Contenders(self.0).try_for(route, lock, (at, reads), fifo_guard).await;
        Appends(self.0).tried_since(began);
        let TriedFor { was, mut body, beside, said } = tried?;
        if was != 0 && !(doubt && was == tag.0) {
            Mark::LockHeld.hit();
            return Ok(Tried::Busy(was));
        }
        Contenders(self.0).took(route, said.as_ref());
        let mut near = self.near_of(route, wanted, (&body, beside.as_ref()));
        if let Wanted::Slot(slot, key) = wanted {
            if let Some(ver) = near.as_mut().and_then(|near| self.proved_by(near, route)) {
                let mut table = self.0.spare_table();
                table.be_part(route, ver, (slot, key.1.fingerprint()));
                return Ok(Tried::Got(table, near, 0));
            }
            self.0.ep.step(Step::Table);
            // The lock is this operation's, and not in its list yet.
            let read = async {
                let read = self.0.ep.read(at.plus(BODY_AT as u64), len as u32).await;
                read.map_err(Error::effect_unknown)
            };
            body = self.0.op.try_for(&[lock], read).await?;
        }
        // This operation holds the lock: no other client writes this table now, so a torn one is
        // not a table of this leaf.
        let mut table = self.0.spare_table();
        let is_whole = body.extract(|b| table.load(route.table, route.capacity, b));
        if is_whole && (route.matches(&table) || self.0.node.has(Mutant::LockAnyTable)) {
            let image_word = if route.is_imaged() { body.word(image / 8) } else { 0 };
            return Ok(Tried::Got(table, near, image_word));
        }
        self.0.keep_table(table);
        let other = match body.extract(|b| Table::view(route.table, route.capacity, b)) {
            View::Unbuilt => Tried::Busy(0),
            _ => {
                Mark::LockStale.hit();
                Tried::Stale
            }
        };
        self.free(route, at, tag, None).await?;
        Ok(other)
    }

    /// The slot of an image that a try has READ, behind the table's body or beside it.
    fn near_of(
        self,
        route: &Route,
        wanted: Wanted<'_>,
        (body, beside): (&Sampled, Option<&Sampled>),
    ) -> Option<NearSlot> {
        Some(match (wanted, beside) {
            (Wanted::Table, _) => return None,
            (Wanted::Slot(slot, key), _) => self.near(route, (slot, key), body, 0),
            (Wanted::TableAndSlot(slot, key), Some(read)) => self.near(route, (slot, key), read, 0),
            (Wanted::TableAndSlot(slot, key), None) => {
                self.near(route, (slot, key), body, self.slot(route, slot).start)
            }
        })
    }

    /// The version of the leaf, if a slot proves that it lives, that it has the key there, and that
    /// no record of a log says anything of the slot (G6).
    fn proved_by(self, near: &mut NearSlot, route: &Route) -> Option<Ver> {
        if self.0.node.has(Mutant::ImagedSlotTrusted) {
            near.looked.trust();
        }
        Appends(self.0).looked(near.is_logged);
        let ver = near.looked.key_is_there(route.generation).filter(|_| !near.is_logged);
        if ver.is_none() {
            Mark::LockSlotOther.hit();
        }
        ver
    }

    /// Where the image is behind the beginning of the table's body.
    fn image(self, route: &Route) -> usize {
        image_at(GlobalAddr::NULL, route.capacity).offset() as usize - BODY_AT
    }

    /// The same for a slot of the image.
    fn slot(self, route: &Route, slot: usize) -> Range<usize> {
        let g = &self.0.node.g;
        let first = self.image(route) + g.slot_at(slot);
        first..first + g.entry()
    }

    /// A slot that was READ, here in the bytes, against a key.
    fn near(
        self,
        route: &Route,
        (number, key): (usize, HashedKey<'_>),
        read: &Sampled,
        at: usize,
    ) -> NearSlot {
        let (c, place) = (self.0, Place { leaf: route.leaf, slot: number });
        let (mut found, len) = (c.found.take(), c.node.g.entry());
        let (looked, is_logged) = read.extract(|b| {
            let bytes = &b[at..][..len];
            (Entries(c).look(place, bytes, key, &mut found), slot::is_logged(bytes))
        });
        c.found.set(found);
        NearSlot { slot: number, looked, is_logged }
    }

    /// Unlocks a leaf with an unchanged table.
    pub(crate) async fn free(
        self,
        route: &Route,
        at: GlobalAddr,
        tag: LockTag,
        fifo_guard: Option<FifoGuard>,
    ) -> Result<()> {
        let lock = HeldLock { tag, on: Lockable::Leaf(*route) };
        let hook = self.0.leaf_hook.watch(lock, fifo_guard);
        let done = self.0.ep.release(cas(at, tag.0, 0), hook).await;
        self.0.released(tag, done)
    }

    /// WRITEs the table and unlocks behind it: WRITE->atomic is ordered.
    pub(crate) async fn unlock_with(
        self,
        route: Route,
        (at, tag): (GlobalAddr, LockTag),
        mut table: Box<Table>,
        fifo_guard: Option<FifoGuard>,
    ) -> Result<()> {
        let c = self.0;
        debug_assert!(c.op.holds(tag), "a table of {} is written without its lock", route.leaf);
        debug_assert_eq!(table.leaf, route.leaf, "F: the table is the leaf's");
        let body = self.body(&mut table, route.table).await?;
        c.keep_table(table);
        let hook = c.leaf_hook.watch(HeldLock { tag, on: Lockable::Leaf(route) }, fifo_guard);
        if c.node.has(Mutant::UnlockBesideTable) {
            c.ep.detach(write_verb(at.plus(BODY_AT as u64), body), None);
            c.ep.detach(cas(at, tag.0, 0), hook);
            c.op.let_go(tag);
            return Ok(());
        }
        let list = (write_verb(at.plus(BODY_AT as u64), body), cas(at, tag.0, 0));
        let done = c.ep.release(list, hook).await;
        c.released(tag, done)
    }

    /// Closes the table of a tombstone and unlocks it. Awaited: its cell is retired next, and a
    /// WRITE still in flight then could land in the next leaf's table.
    pub(crate) async fn close(self, l: Locked) -> Result<()> {
        let mut table = l.table.clone();
        table.closed = true;
        (0..l.route.capacity).for_each(|i| table.set(i, 0));
        let body = self.body(&mut table, l.route.table).await?;
        let list = (write_verb(l.at.plus(BODY_AT as u64), body), cas(l.at, l.tag.0, 0));
        self.0.ep.step(Step::Structure);
        if self.0.node.has(Mutant::CloseDetached) {
            self.0.ep.detach(list, None);
        } else {
            let closed = reached(self.0.ep.chain(list).await)?;
            drop(l.fifo_guard);
            if closed.is_none() {
                self.close_again(l.tag, &l.route, l.at).await?;
            }
        }
        self.0.op.let_go(l.tag);
        Ok(())
    }

    /// The owner did not answer: whether the table is closed is unknown. When the owner is dead its
    /// cells are gone, and zero at the next owner, where no client finds this leaf alive; else
    /// closing is repeated.
    pub(crate) async fn close_again(
        self,
        tag: LockTag,
        route: &Route,
        at: GlobalAddr,
    ) -> Result<()> {
        let mut backoff = self.0.ep.backoff("the owner of a closed table", at);
        loop {
            match self.0.node.pool.resolve(&self.0.ep, route.table).await {
                Ok(now) if now == at => {}
                Err(e) if !is_away(&e) => return Err(e),
                _ => return Ok(()),
            }
            match self.0.ep.cas(at, tag.0, tag.0).await {
                Ok(was) if was != tag.0 => return Ok(()),
                Ok(_) => {}
                Err(e) if is_away(&e) => {
                    self.0.ep.sleep(100_000).await;
                    backoff.step().await?;
                    continue;
                }
                Err(e) => return Err(e),
            }
            let body = self.body(&mut closed(route), route.table).await?;
            let list = (write_verb(at.plus(BODY_AT as u64), body), cas(at, tag.0, 0));
            match self.0.ep.chain(list).await {
                Err(e) if is_away(&e) => backoff.step().await?,
                other => return other.map(|_| ()),
            }
        }
    }

    /// As [`LeafLocks::take_over`](crate::lock::LeafLocks::take_over).
    pub(crate) async fn take_over(
        self,
        route: &Route,
        at: GlobalAddr,
        was: u64,
        tag: LockTag,
    ) -> Result<Option<TakenLock>> {
        let len = Table::body_len(route.capacity);
        self.0.ep.step(Step::Lock);
        let lock = HeldLock { tag, on: Lockable::Leaf(*route) };
        let taken =
            self.0.try_for(lock, (at, was), read(at.plus(BODY_AT as u64), len as u32)).await;
        let taken = reached(taken.inspect_err(|_| self.0.op.leave_try(lock)))?;
        let Some((_, body)) = taken.filter(|(now, _)| *now == was) else { return Ok(None) };
        self.0.node.adopted(LockTag(was));
        self.0.hold(tag, Lockable::Leaf(*route));
        let table = body.extract(|b| Table::view(route.table, route.capacity, b));
        Ok(Some(TakenLock { route: *route, at, tag, table: Some(table) }))
    }

    /// The bytes of a table that is to be written.
    pub(crate) async fn body(self, table: &mut Table, id: TableId) -> Result<Buf> {
        let mut body = self.0.ep.buf(Table::body_len(table.fps().len()) as u32).await?;
        table.body(id, &mut body);
        Ok(body)
    }
}

pub(crate) fn is_memory(at: GlobalAddr) -> bool {
    at.node().role() == Role::Memory
}

/// Result of a try.
enum Tried {
    /// With the table, or the part of it that a slot tells, the slot that was READ along, and the
    /// first word of the image.
    Got(Box<Table>, Option<NearSlot>, u64),
    Stale,
    /// The lock is held by this tag; 0: the cell was never written since it was zeroed, its owner
    /// is new.
    Busy(u64),
    /// The owner is away. It may have given the lock.
    InDoubt,
}
