//! Images of leaves at the owners of their tables.
//!
//! An image lies behind the table in the same cell, and is the leaf byte for byte, header and
//! slots, but for the *bound* in its first word: behind it no slot is in use, so a scan READs no
//! further (I8). With a log its slots also say whether they are logged (G6). Its checksums name the
//! leaf, so bytes of another leaf, or none, are refused as torn.
//!
//! *Readers* take what they answer from the image (I1), or READ the whole of it, and check the
//! lease behind the READ (I6). What they find torn is being changed, or closed, or was never built:
//! the table says which. They hold no lock and let tables move while they wait, so the cell is
//! resolved again for every READ.
//!
//! *Writers* WRITE the memory node first, awaited (I2), then `[WRITE image, WRITE table, CAS
//! tag->0]`, awaited, and acknowledge (I4). When the owner does not answer, the write *rests*: it
//! has happened, but a client that has not heard of the owner's death may still read the old image.
//! So it is acknowledged when the lock is free again, at this owner after a repair, or at the next
//! one, which begins with zero cells.
//!
//! A change that takes keys away from a leaf *closes* the image before it commits: zeros, awaited.
//! From then on no client reads a frozen copy there, whatever becomes of the owner.
//!
//! A crash leaves a lock, or a cell of a new owner; recovery writes image and table together from
//! the leaf (`recovery/leaf.rs`).

use dmtree_fabric::verb::{cas, write as write_verb, write_word};
use dmtree_fabric::{Backoff, Buf, Error, GlobalAddr, Result, Sampled, Step};

use crate::change::Relocation;
use crate::format::{
    BODY_AT, LockTag, Place, bound, check_whole, put_u64, set_bound, slot, table, u64_at,
    with_bound,
};
use crate::leaf::{CellKind, Entries, HELP_AFTER, LeafCopy, Leaves, Probe};
use crate::lock::{Confirmed, HeldLock, LONG_WAIT, Lockable, Locked, LockedLeaf, TableLocks};
use crate::point::MAX_ENTRY;
use crate::recovery::{LeafRecovery, diagnose_leaf, recover_lock};
use crate::{Client, HashedKey, Mark, Mutant, Route, Unlock, is_away, reached};

/// Pause between two looks for the owner of a write that rests, ns.
const REST_NS: u64 = 20_000;

/// What a write of a slot changes of its leaf's table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableChange {
    /// Nothing: it is not written.
    None,
    /// The write count.
    Count,
    /// Any of its fields.
    Any,
}

/// Images of leaves.
#[derive(Clone, Copy)]
pub(crate) struct Images<'c>(pub &'c Client);

/// Where the image is in a cell.
pub(crate) fn image_at(cell: GlobalAddr, capacity: usize) -> GlobalAddr {
    cell.plus(u64::from(table::lines(capacity)) * 64)
}

impl Images<'_> {
    /// An answer from an image counts only within the lease (I6).
    pub(crate) fn vouch(self) -> Result<()> {
        match self.0.node.has(Mutant::ImagedNoLease) {
            false => self.0.check_lease(),
            true => Ok(()),
        }
    }

    /// One READ of a slot at the owner of its leaf, or a look into this node's own memory, against
    /// a key; `None` when it is torn or the
    /// owner is away. An inline value of a hit replaces `out`.
    pub(crate) async fn glance(
        self,
        route: &Route,
        slot: usize,
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Probe>> {
        let Some(cell) = self.0.cell(route.table).await? else { return Ok(None) };
        let probe = self.slot_in(cell, route, slot, key, out).await?;
        self.vouch()?;
        Ok(probe)
    }

    /// The same for a cell of a lock that this operation holds, or that was resolved just now.
    pub(crate) async fn slot_in(
        self,
        cell: GlobalAddr,
        route: &Route,
        slot: usize,
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Probe>> {
        let (c, place) = (self.0, Place { leaf: route.leaf, slot });
        let image = match c.node.has(Mutant::ImagedLeafRead) {
            false => image_at(cell, route.capacity),
            true => route.leaf,
        };
        let (at, len) = (image.plus(c.node.g.slot_at(slot) as u64), c.node.g.entry());
        let looked = if at.node() == c.ep.node()
            && len <= MAX_ENTRY
            && let Some(memory) = c.ep.own_memory()
        {
            let mut own = [0; MAX_ENTRY];
            memory.read(at.offset(), &mut own[..len])?;
            Entries(c).look(place, &own[..len], key, out)
        } else {
            c.ep.step(Step::Entry);
            let read = c.ep.read(at, len as u32);
            let Some(bytes) = reached(read.await)? else { return Ok(None) };
            bytes.extract(|b| Entries(c).look(place, b, key, out))
        };
        match looked.probe() {
            None => Entries(c).judge_looked((looked, route.generation), key.0, out).await,
            told => Ok(told),
        }
    }

    /// READs a slot until it is whole. `None`: the route is stale, or the owner is away.
    pub(crate) async fn probe(
        self,
        route: &Route,
        slot: usize,
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Probe>> {
        let mut backoff = self.0.ep.backoff("entry being written", route.leaf);
        while let Some(cell) = self.0.cell(route.table).await? {
            if let Some(probe) = self.slot_in(cell, route, slot, key, out).await? {
                self.vouch()?;
                return Ok(Some(probe));
            }
            Mark::EntryTorn.hit();
            self.0.op.retried.set(true);
            if !self.wait(&mut backoff, route).await? {
                break;
            }
        }
        Ok(None)
    }

    /// READs the image of a leaf until it is whole. A leaf that has no image there any more is a
    /// tombstone, or has another generation: then it is READ at its memory node.
    pub(crate) async fn read(self, route: &Route) -> Result<LeafCopy> {
        let c = self.0;
        let mut backoff = c.ep.backoff("leaf being written", route.leaf);
        loop {
            if let Some(cell) = c.cell(route.table).await? {
                let copy = self.whole_in(cell, route).await?;
                self.vouch()?;
                if let Some(copy) = copy {
                    return Ok(copy);
                }
                if let Some(copy) = self.without_image(route).await? {
                    return Ok(copy);
                }
            }
            Mark::LeafTorn.hit();
            c.op.retried.set(true);
            // A tombstone stays one, whatever becomes of its lock: its client may be gone.
            if !self.wait(&mut backoff, route).await? {
                return Leaves(c).read(route.leaf, route.capacity).await;
            }
        }
    }

    /// One READ of the image in a cell, as the leaf that it is: no slot says that it is logged.
    /// `None` when it is not whole, or the owner is away.
    pub(crate) async fn whole_in(
        self,
        cell: GlobalAddr,
        route: &Route,
    ) -> Result<Option<LeafCopy>> {
        let (c, g) = (self.0, &self.0.node.g);
        c.ep.step(Step::Structure);
        let read = c.ep.read(image_at(cell, route.capacity), g.leaf_image(route.capacity) as u32);
        let Some(bytes) = reached(read.await)? else { return Ok(None) };
        Ok(self.accept(bytes, route))
    }

    fn accept(self, bytes: Sampled, route: &Route) -> Option<LeafCopy> {
        let g = &self.0.node.g;
        let whole = bytes.check(|b| {
            let header = check_whole(g, route.leaf, b, (route.capacity, false));
            let is_of = |h: &crate::format::Header<'_>| {
                h.slots == route.capacity && h.ver.generation == route.generation
            };
            header.filter(is_of).map(|_| ()).ok_or(())
        });
        let ((), bytes) = whole.ok()?;
        let bytes = bytes.amended(|b| self.set_logged(b, route.capacity, false));
        Some(LeafCopy::whole(g, route.leaf, route.capacity, bytes))
    }

    /// A leaf without an image at its owner: as its memory node has it, when the table is closed or
    /// another leaf's and the leaf is gone; else `None`, and what is missing is built.
    async fn without_image(self, route: &Route) -> Result<Option<LeafCopy>> {
        let c = self.0;
        let is_built = match TableLocks(c).confirm(route.table, route.capacity).await? {
            Confirmed::Locked | Confirmed::Odd => return Ok(None),
            Confirmed::Exact(t) if !t.closed && route.is_of(&t) => return Ok(None),
            Confirmed::Exact(_) => true,
            Confirmed::Unbuilt => false,
        };
        let copy = Leaves(c).read(route.leaf, route.capacity).await?;
        let h = copy.header(c);
        let is_there = h.forward.is_null()
            && h.ver.generation == route.generation
            && h.table == route.table
            && copy.capacity == route.capacity;
        if !is_there {
            return Ok(Some(copy));
        }
        match is_built {
            true => Box::pin(LeafRecovery(c).rebuild_table(route)).await?,
            false => _ = Box::pin(LeafRecovery(c).help_route(route)).await?,
        }
        Ok(None)
    }

    /// As [`Leaves::wait_for`], for an image. False: the route is stale.
    async fn wait(self, backoff: &mut Backoff<'_>, route: &Route) -> Result<bool> {
        let mut is_there = true;
        if backoff.steps() >= HELP_AFTER {
            is_there = Box::pin(LeafRecovery(self.0).help_image(route)).await?;
        }
        if backoff.steps() > 0 && backoff.steps().is_multiple_of(LONG_WAIT) {
            Box::pin(diagnose_leaf(self.0, route.leaf)).await?;
        }
        self.0.op.quiescent_point();
        backoff.step().await?;
        Ok(is_there)
    }

    /// A copy of a leaf, as its image: with its bound (I8).
    pub(crate) async fn image_of(self, leaf: &[u8], capacity: usize) -> Result<Buf> {
        let g = &self.0.node.g;
        let mut image = self.copy_of(&leaf[..g.leaf_image(capacity)]).await?;
        set_bound(g, &mut image, capacity);
        Ok(image)
    }

    /// A copy of an image, as its leaf.
    pub(crate) async fn leaf_of(self, image: &[u8], capacity: usize) -> Result<Buf> {
        let mut leaf = self.copy_of(&image[..self.0.node.g.leaf_image(capacity)]).await?;
        let h0 = with_bound(u64_at(&leaf, 0), capacity, capacity);
        put_u64(&mut leaf, 0, h0);
        Ok(leaf)
    }

    /// A copy of bytes that go to both places.
    pub(crate) async fn copy_of(self, bytes: &[u8]) -> Result<Buf> {
        let mut copy = self.0.ep.buf(bytes.len() as u32).await?;
        copy.copy_from_slice(bytes);
        Ok(copy)
    }

    /// The WRITE that closes the image of a locked leaf. Zeros are no image.
    pub(crate) async fn closing(self, l: &Locked) -> Result<(GlobalAddr, Buf)> {
        let mut zeros = self.0.ep.buf(self.0.node.g.leaf_image(l.route.capacity) as u32).await?;
        zeros.fill(0);
        Ok((image_at(l.at, l.route.capacity), zeros))
    }

    /// Whether the owner of a locked leaf with an image is away.
    pub(crate) async fn is_away(self, l: &Locked) -> bool {
        l.route.is_imaged() && self.0.ep.cas(l.at, 0, 0).await.is_err_and(|e| is_away(&e))
    }

    /// Closes the image of a locked leaf, awaited.
    pub(crate) async fn close(self, l: &Locked) -> Result<()> {
        if !l.route.is_imaged() || self.0.node.has(Mutant::ImagedNotClosed) {
            return Ok(());
        }
        let (at, zeros) = self.closing(l).await?;
        self.0.ep.write(at, zeros).await.map(|_| ())
    }

    /// Takes its image from a locked leaf, which moves to a plain cell. False: without memory for
    /// that the leaf stays as it is.
    pub(crate) async fn take(self, l: Locked) -> Result<bool> {
        let capacity = l.route.capacity;
        match Relocation::run(self.0, l, (capacity, CellKind::Plain)).await? {
            Some(l) => self.0.unlock(l).await.map(|()| false),
            None => Ok(true),
        }
    }

    /// The change for which an image was closed does not take place.
    pub(crate) async fn reopen(self, l: &Locked, leaf: &LeafCopy) -> Result<()> {
        if !l.route.is_imaged() {
            return Ok(());
        }
        // Without a bound: a slot that the lock's holder fills may be any.
        let mut image = self.leaf_of(&leaf.bytes, leaf.capacity).await?;
        // Which ones have records is not known any more (G6).
        self.set_logged(&mut image, leaf.capacity, true);
        self.show(l, image).await
    }

    /// All slots of an image say whether they are logged, where there is a log.
    fn set_logged(self, image: &mut [u8], capacity: usize, is_logged: bool) {
        let g = &self.0.node.g;
        if self.0.node.log.is_some() {
            (0..capacity).for_each(|i| slot::set_logged(&mut image[g.slot_at(i)..], is_logged));
        }
    }

    /// WRITEs the whole image of a locked leaf, as its memory node has it now, awaited. Without an
    /// answer nothing is lost: the owner's tables are built anew.
    pub(crate) async fn show(self, l: &Locked, image: Buf) -> Result<()> {
        let at = image_at(l.at, l.route.capacity);
        reached(self.0.ep.write(at, image).await.map(|_| ())).map(|_| ())
    }

    /// Shows a write of a slot, and what it changes of the table, and unlocks behind both, awaited:
    /// the write may be acknowledged. A slot behind the bound of the image raises it before (I8).
    pub(crate) async fn unlock(
        self,
        l: Locked,
        (slot, bytes): (usize, Buf),
        changes: TableChange,
    ) -> Result<()> {
        let c = self.0;
        let LockedLeaf { route, at, tag, mut table, fifo_guard, image_word, .. } = *l;
        let image_at = image_at(at, route.capacity);
        let is_behind = slot >= bound(image_word, route.capacity);
        let raised = (is_behind && !c.node.has(Mutant::ImagedBoundKept))
            .then(|| write_word(image_at, with_bound(image_word, slot + 1, route.capacity)));
        debug_assert!(raised.is_none() || changes != TableChange::Count, "I8: a live slot");
        let image = write_verb(image_at.plus(c.node.g.slot_at(slot) as u64), bytes);
        let body_at = at.plus(BODY_AT as u64);
        let (mut body, mut count) = (None, None);
        match changes {
            TableChange::None => {}
            TableChange::Count => {
                let (behind, word) = table.counted(route.table);
                count = Some(write_word(body_at.plus(behind as u64), word));
            }
            TableChange::Any => {
                let bytes = TableLocks(c).body(&mut table, route.table).await?;
                body = Some(write_verb(body_at, bytes));
            }
        }
        c.keep_table(table);
        let free = cas(at, tag.0, 0);
        c.ep.step(Step::Table);
        if c.node.has(Mutant::ImagedAckEarly) {
            match count {
                None => c.ep.detach((raised, image, body, free), None),
                Some(count) => c.ep.detach((image, count, free), None),
            }
            c.op.let_go(tag);
            return Ok(());
        }
        // Several lists: most writes do not carry empty places.
        let done = match (raised, body, count) {
            (_, _, Some(count)) => c.ep.chain((image, count, free)).await.map(|all| all.2),
            (None, None, None) => c.ep.chain((image, free)).await.map(|(_, was)| was),
            (None, Some(body), None) => c.ep.chain((image, body, free)).await.map(|all| all.2),
            (raised, body, None) => c.ep.chain((raised, image, body, free)).await.map(|all| all.3),
        };
        match done {
            Ok(was) if was == tag.0 => {
                c.op.let_go(tag);
                Ok(())
            }
            Ok(_) => Err(Error::corrupt(format!("the lock at {at} was lost")).effect_unknown()),
            Err(e) if is_away(&e) => {
                drop(fifo_guard);
                Box::pin(self.rest(tag, &route)).await.map_err(Error::effect_unknown)
            }
            Err(e) => Err(e.effect_unknown()),
        }
    }

    /// A write has happened, and its owner does not answer: returns when no client can read what
    /// was there before.
    async fn rest(self, tag: LockTag, route: &Route) -> Result<()> {
        let c = self.0;
        Mark::ImageRests.hit();
        c.op.give_up(tag);
        let mut pause = c.ep.backoff("the owner of an image", route.leaf);
        loop {
            c.op.quiescent_point();
            c.ep.sleep(REST_NS).await;
            pause.step().await?;
            let Some(at) = c.cell(route.table).await? else { continue };
            match reached(c.ep.cas(at, 0, 0).await)? {
                Some(0) => return Ok(()),
                Some(was) if was == tag.0 => {
                    let lock = HeldLock { tag, on: Lockable::Leaf(*route) };
                    reached(Box::pin(recover_lock(c, lock)).await)?;
                }
                _ => {}
            }
        }
    }
}
