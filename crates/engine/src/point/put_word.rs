//! Point writes in lock-word mode: one entry, and the release of the lock, in one chain ("Sherman",
//! SIGMOD'22: command combination).
//!
//! The leaf was READ under the lock, so presence, old value and a free slot are known without a
//! further verb. Then one chain, each verb behind the one before it:
//!
//! 1. WRITE the block, when the entry points to one (awaited by itself when it lies on another
//!    memory node);
//! 2. WRITE the shadow, for an update where the fabric does not write an entry as a whole;
//! 3. WRITE the entry, or word0 = free for a delete: the linearization point;
//! 4. `CAS tag->0`. When the lock is handed over to the next local client, this verb is left out,
//!    and the chain is awaited before the hand-over.
//!
//! The lease is checked before the chain. Step 4 is ordered behind step 3, so the next holder READs
//! the entry. The CAS must find the tag: any other word means that the lock was lost, and the
//! outcome is unknown.
//!
//! P holds as with tables: the entry is complete before the lock is free. S holds because an entry
//! carries the leaf's version.
//!
//! A failed chain leaves an abandoned lock that hides one torn slot at most. A crash inside the
//! chain leaves the old entry, a torn one, or the new one, with the lock held or free. The next
//! holder restores a torn update from its shadow and drops a torn insert (`recovery/word.rs`).
//!
//! Inserts that find no free slot split or relocate the leaf after `begin_change`, as with tables.

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{Buf, Error, OpOutcome, Result, Step};
use dmtree_parts::hash::KeyHash;
use dmtree_parts::held::Unlock;
use dmtree_parts::{Outcome, Write};
use dmtree_pool::BlockPtr;

use crate::change::{Relocation, Split, must_relocate};
use crate::client::Client;
use crate::format::slot::{self, Place};
use crate::leaf::{Blocks, Entries, Found, Leaves};
use crate::lock::{LeafFifoGuard, Locked, WordLocks};
use crate::mutants::Mutant;
use crate::point::{Present, Writes, Written, worn_out};

/// WRITEs that change one entry.
struct Change {
    place: Place,
    /// First, if there is one: the block that the entry points to.
    block: Option<(BlockPtr, Buf)>,
    shadow: Option<Buf>,
    entry: Entry,
}

enum Entry {
    Whole(Buf),
    /// word0 of a free slot.
    Free(u64),
}

/// Point writes in lock-word mode.
#[derive(Clone, Copy)]
pub(crate) struct WordWrites<'c>(pub &'c Client);

impl WordWrites<'_> {
    /// The write under the lock; `None` when the leaf had to be relocated first, or its blocks have
    /// changed.
    pub(crate) async fn write(
        self,
        l: Locked,
        (key, hash): (&[u8], KeyHash),
        w: Write<'_>,
    ) -> Result<Option<Written>> {
        let c = self.0;
        let mut old = Vec::new();
        let image = l.image.as_ref().expect("READ under the lock");
        let found = match Leaves(c).find(image, (key, hash), &mut old).await {
            Ok(Found::At(present)) => Ok(Some(present)),
            Ok(Found::Nowhere) => Ok(None),
            Ok(Found::Torn) => {
                Err(Error::corrupt(format!("locked leaf {} points to garbage", l.route.leaf)))
            }
            Err(e) => Err(e),
        };
        let (l, present) = c.under(l, found).await?;
        if let Some((outcome, counted)) = w.refused(present.as_ref().map(|_| &old[..])) {
            c.unlock(l).await?;
            return Ok(Some((outcome, c.op.outcome(counted))));
        }
        match (w.value(), present) {
            (None, Some(p)) => self.delete(l, key, p).await.map(Some),
            (Some(v), Some(p)) => self.update(l, (key, hash, v), p).await.map(Some),
            (Some(v), None) => self.insert(l, (key, hash, v)).await,
            (None, None) => unreachable!("refused above"),
        }
    }

    async fn update(self, l: Locked, pair: (&[u8], KeyHash, &[u8]), p: Present) -> Result<Written> {
        let c = self.0;
        let place = Place { leaf: l.route.leaf, slot: p.slot };
        let change = self.entry_change(&l, place, pair, Some(p.crc)).await;
        let (l, change) = c.under(l, change).await?;
        self.write_and_unlock(l, change).await?;
        Blocks(c).retire(p.block);
        Ok((Outcome::Done, c.op.outcome(OpOutcome::Hit)))
    }

    async fn insert(self, l: Locked, pair: (&[u8], KeyHash, &[u8])) -> Result<Option<Written>> {
        let c = self.0;
        let Some(slot) = l.table.free_slot() else {
            if let Some(capacity) = must_relocate(c, &l) {
                let Some(l) = Box::pin(Relocation::run(c, l, capacity)).await? else {
                    return Ok(None);
                };
                if l.table.ver.range < u8::MAX {
                    return Box::pin(Split::run(c, l, pair)).await.map(Some);
                }
                let e = worn_out(l.route.leaf);
                return c.fail(l, e).await;
            }
            return Box::pin(Split::run(c, l, pair)).await.map(Some);
        };
        let place = Place { leaf: l.route.leaf, slot };
        let change = self.entry_change(&l, place, pair, None).await;
        let (l, change) = c.under(l, change).await?;
        self.write_and_unlock(l, change).await?;
        Ok(Some((Outcome::Done, c.op.outcome(OpOutcome::InsertPlain))))
    }

    async fn delete(self, l: Locked, key: &[u8], p: Present) -> Result<Written> {
        let place = Place { leaf: l.route.leaf, slot: p.slot };
        let entry = Entry::Free(slot::free_word(place, l.table.ver));
        let small = (l.table.live() - 1) * 4 <= l.route.capacity;
        self.write_and_unlock(l, Change { place, block: None, shadow: None, entry }).await?;
        Ok(Writes(self.0).deleted(key, p, small))
    }

    /// A pair for a slot. As [`Entries::write`](crate::client::DmTree).
    async fn entry_change(
        self,
        l: &Locked,
        place: Place,
        pair: (&[u8], KeyHash, &[u8]),
        replaces: Option<u32>,
    ) -> Result<Change> {
        let (block, shadow, entry) = Entries(self.0).images(l, place, pair, replaces).await?;
        Ok(Change { place, block, shadow, entry: Entry::Whole(entry) })
    }

    /// WRITEs a change and releases the lock behind it: WRITE->atomic is ordered.
    async fn write_and_unlock(self, l: Locked, change: Change) -> Result<()> {
        let c = self.0;
        let g = &c.node.g;
        let Change { place, block, shadow, entry } = change;
        let Locked { route, at, tag, fifo_guard, .. } = l;
        let LeafFifoGuard::Word(fifo_guard) = fifo_guard else { unreachable!("locked by a word") };
        let mut list = VerbVec::new();
        if let Some((b, buf)) = block {
            if b.addr().node() == place.leaf.node() {
                list.write(b.addr(), buf);
            } else {
                c.ep.write(b.addr(), buf).await?;
            }
        }
        c.check_lease()?;
        if let Some(shadow) = shadow {
            let at = place.leaf.plus(g.shadow_at(route.capacity) as u64);
            behind(&mut list).write(at, shadow);
        }
        let entry_at = place.leaf.plus(g.slot_at(place.slot) as u64);
        match entry {
            Entry::Whole(entry) => behind(&mut list).write(entry_at, entry),
            Entry::Free(word) => behind(&mut list).write_word(entry_at, word),
        };
        c.ep.step(Step::Entry);
        if !tag.is_changing() && fifo_guard.may_hand_over() {
            c.ep.batch(list).await?;
            return WordLocks(c).unlock(at, tag, fifo_guard).await;
        }
        if c.node.has(Mutant::WordBesideEntry) {
            c.ep.detach(dmtree_fabric::verb::cas(at, tag.0, 0), None);
            c.ep.batch(list).await?;
            c.op.let_go(tag);
            fifo_guard.leave();
            return Ok(());
        }
        let unlock = behind(&mut list).cas(at, tag.0, 0);
        let done = c.ep.batch(list).await?;
        if done.word(unlock) != tag.0 {
            return Err(Error::corrupt(format!("the lock at {at} was lost")).effect_unknown());
        }
        c.op.let_go(tag);
        fifo_guard.leave();
        Ok(())
    }
}

/// The next verb of a chain.
fn behind(list: &mut VerbVec) -> &mut VerbVec {
    if list.is_empty() { list } else { list.then() }
}
