//! Point writes: put, insert and update, all under the lock of the leaf.
//!
//! Verbs of an update, in order: CAS lock; READ slot (of a hot key) or neighbourhood; [WRITE slot,
//! WRITE lock]. Of an insert: CAS lock, and the vacancy word; READ the slots from the home to the
//! first bucket with a free slot; [WRITE the slots from the home to the free one, WRITE vacancy
//! word and lock]. An insert without room divides the leaf (`split.rs`). The WRITE of the slots is
//! the linearization point.
//!
//! Invariants: the lock covers the leaf, so READ and WRITE are one atomic change for writers. A
//! leaf that is not the right one is released before the next one is locked. Keys move as
//! `format/hop.rs` says. The value is fixed directly before the WRITE, when no other writer can
//! join any more.
//!
//! As published an insert looks for its key only as far as the first free slot: behind a slot that
//! a division has freed it misses the key, which is then there twice (`whole_neighbourhood`). An
//! insert that goes right forgets the terminator (`keep_terminator`).
//!
//! A crash between the CAS and the release leaves the lock held, and perhaps a part of the slots
//! written. As published no client recovers them.

use dmtree_fabric::{GlobalAddr, Result, Stage};
use dmtree_parts::Write;
use dmtree_parts::blink::{Descent, Route};
use dmtree_parts::held::Unlock;
use dmtree_parts::op::{ABSENT, INSERTED, UPDATED, Written};
use dmtree_parts::sharing::{SharedWrite, Sharing};

use crate::format::{Leaf, Room};
use crate::index::Chime;
use crate::lock::Held;
use crate::lock::Locks;
use crate::read::Leaves;
use crate::read::Place;
use crate::split::Splits;

/// Writes of a key.
pub(crate) struct Writes<'c>(pub(crate) &'c Chime);

impl Writes<'_> {
    /// A write that may share its WRITE, or that of another writer.
    pub(crate) async fn write_shared(&self, key: &[u8], w: Write<'_>) -> Result<Written> {
        let change = async |sharing: &mut Sharing| {
            let mut job = SharedWrite::new(key, &w, sharing);
            match w {
                Write::Update(_) | Write::Delete => self.update(&mut job).await,
                _ => self.insert(&mut job).await,
            }
        };
        self.0.node.sharers.write(&self.0.ep, (key, &w), change).await
    }

    /// The next route, after a leaf that is not the right one.
    async fn elsewhere(
        &self,
        held: Held,
        leaf: &Leaf<'_>,
        r: &Route,
        (key, place): (&[u8], Place),
    ) -> Result<Route> {
        self.0.unlock(held).await?;
        self.0.ep.check_deadline("the leaf of a key", r.leaf.bits())?;
        match place {
            Place::Stale => self.0.fresh_route(key).await,
            _ => Leaves(self.0).right(leaf, r),
        }
    }

    /// Replaces the value of a key, or deletes the key.
    async fn update(&self, job: &mut SharedWrite<'_>) -> Result<Written> {
        let (g, key) = (&self.0.node.g, job.key);
        let deletes = matches!(job.write, Write::Delete);
        let near = g.parts(g.home(key), g.near);
        let mut r = self.0.route(key).await?;
        loop {
            let (held, word) = match deletes {
                true => Locks(self.0).lock_for_insert(r.leaf).await?,
                false => (Locks(self.0).lock_leaf(r.leaf).await?, 0),
            };
            if !deletes {
                let guessed = Leaves(self.0).guess(r.leaf, key).await;
                let (held, guessed) = self.0.under(held, guessed).await?;
                if let Some((leaf, slot)) = guessed {
                    return self.overwrite(held, r.leaf, (leaf, slot), job).await;
                }
            }
            let (held, leaf) =
                self.0.under(held, Leaves(self.0).read_parts(r.leaf, &near).await).await?;
            let place = Leaves(self.0).place(&leaf, &r, key);
            let found =
                leaf.find(key).filter(|_| matches!(place, Place::Here | Place::HereOrRight));
            if let Some(slot) = found {
                return match deletes {
                    true => self.erase(held, r.leaf, (leaf, slot), word).await,
                    false => self.overwrite(held, r.leaf, (leaf, slot), job).await,
                };
            }
            if place == Place::Here {
                self.0.unlock(held).await?;
                return Ok(ABSENT);
            }
            r = self.elsewhere(held, &leaf, &r, (key, place)).await?;
        }
    }

    /// Replaces the value in a slot.
    async fn overwrite(
        &self,
        held: Held,
        at: GlobalAddr,
        (mut leaf, slot): (Leaf<'_>, usize),
        job: &mut SharedWrite<'_>,
    ) -> Result<Written> {
        self.0.ep.stage_cost(Stage::EntryCheck, 1);
        leaf.set_value(slot, job.value());
        Leaves(self.0).note_slot(at, slot, job.key);
        Locks(self.0).release(held, at, &leaf, &[self.0.node.g.single(slot)], None).await?;
        Ok(UPDATED)
    }

    /// Frees a slot. The slot of the largest key in the vacancy word stays what it is.
    async fn erase(
        &self,
        held: Held,
        at: GlobalAddr,
        (mut leaf, slot): (Leaf<'_>, usize),
        word: u64,
    ) -> Result<Written> {
        let (g, offset) = (&self.0.node.g, leaf.offset(slot));
        let home = g.slot(slot, g.span - offset);
        leaf.remove(slot);
        let word = self.0.node.g.noted(&leaf, word, [slot].into_iter(), &[]);
        Locks(self.0).release(held, at, &leaf, &g.touched(home, offset + 1), Some(word)).await?;
        Ok(UPDATED)
    }

    async fn insert(&self, job: &mut SharedWrite<'_>) -> Result<Written> {
        let (g, key) = (&self.0.node.g, job.key);
        let home = g.home(key);
        let mut r = self.0.route(key).await?;
        loop {
            let (held, word) = Locks(self.0).lock_for_insert(r.leaf).await?;
            let least = if self.0.node.o.whole_neighbourhood { g.near } else { 1 };
            let parts = g.parts(home, g.reach(word, home).max(least));
            let (held, leaf) =
                self.0.under(held, Leaves(self.0).read_parts(r.leaf, &parts).await).await?;
            let place = match Leaves(self.0).place(&leaf, &r, key) {
                Place::HereOrRight => {
                    let right = self.goes_right(&leaf, r.leaf, word, key).await;
                    let (_, right) = self.0.under(held, right).await?;
                    if right { Place::Right } else { Place::Here }
                }
                place => place,
            };
            if place != Place::Here {
                r = self.elsewhere(held, &leaf, &r, (key, place)).await?;
                if !self.0.node.o.keep_terminator && !r.cached && place == Place::Right {
                    r.next = GlobalAddr::NULL;
                }
                continue;
            }
            let Some(slot) = leaf.find(key) else {
                return self.put_new(held, r.leaf, (leaf, word), job).await;
            };
            if let Some(refused) = job.write.refused(Some(leaf.value(slot))) {
                self.0.unlock(held).await?;
                return Ok(refused);
            }
            return self.overwrite(held, r.leaf, (leaf, slot), job).await;
        }
    }

    /// Whether a key that is not in a divided leaf belongs to its right, by the largest key there.
    async fn goes_right(
        &self,
        leaf: &Leaf<'_>,
        at: GlobalAddr,
        word: u64,
        key: &[u8],
    ) -> Result<bool> {
        if leaf.used().any(|i| leaf.key(i) >= key) {
            return Ok(false);
        }
        let g = &self.0.node.g;
        let last = g.largest(word);
        if leaf.has(last) {
            return Ok(!leaf.is_used(last) || leaf.key(last) < key);
        }
        let single = Leaves(self.0).read_parts(at, &[g.single(last)]).await?;
        Ok(!single.is_used(last) || single.key(last) < key)
    }

    /// Puts a new key into a leaf.
    async fn put_new(
        &self,
        held: Held,
        at: GlobalAddr,
        (leaf, word): (Leaf<'_>, u64),
        job: &mut SharedWrite<'_>,
    ) -> Result<Written> {
        let (g, key) = (&self.0.node.g, job.key);
        self.0.ep.stage_cost(Stage::EntryCheck, 1);
        if !g.hopscotch {
            return self.put_sorted(held, at, leaf, job).await;
        }
        let home = g.home(key);
        let (held, mut leaf) = match leaf.has_free_from(home) {
            true => (held, leaf),
            false => self.0.under(held, Leaves(self.0).complete(leaf, at).await).await?,
        };
        let Some(room) = g.room(&leaf.offsets(), home) else {
            // Boxed because it is rare and large.
            return Box::pin(Splits(self.0).split(held, at, leaf, job)).await;
        };
        let Room { moves, slot, reach } = &room;
        if self.0.node.o.whole_moves && !moves.is_empty() {
            let (held, mut leaf) =
                self.0.under(held, Leaves(self.0).complete(leaf, at).await).await?;
            leaf.put_into(&room, key, job.value());
            leaf.raise();
            let word = g.noted(&leaf, word, 0..g.span, moves);
            Locks(self.0).release(held, at, &leaf, &[g.whole()], Some(word)).await?;
            return Ok(INSERTED);
        }
        leaf.put_into(&room, key, job.value());
        let touched = (0..*reach).map(|d| g.slot(home, d));
        let word = g.noted(&leaf, word, touched, moves);
        Locks(self.0).release(held, at, &leaf, &g.touched(home, *reach), Some(word)).await?;
        Leaves(self.0).note_slot(at, *slot, key);
        Ok(INSERTED)
    }

    async fn put_sorted(
        &self,
        held: Held,
        at: GlobalAddr,
        mut leaf: Leaf<'_>,
        job: &mut SharedWrite<'_>,
    ) -> Result<Written> {
        let g = &self.0.node.g;
        if leaf.used().count() == g.span {
            return Box::pin(Splits(self.0).split(held, at, leaf, job)).await;
        }
        self.0.ep.stage_cost(Stage::NodeImage, g.span as u32);
        leaf.insert_sorted(job.key, job.value());
        leaf.raise();
        Locks(self.0).release(held, at, &leaf, &[g.whole()], None).await?;
        Ok(INSERTED)
    }
}
