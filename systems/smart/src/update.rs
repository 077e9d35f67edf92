//! Updates a present key: its leaf is WRITTEN in place under its lock, or replaced.
//!
//! Verbs after the READ of the leaf:
//! - Table lock: CAS lock word; [WRITE leaf, CAS lock word] in one chain, or WRITE leaf and a local
//!   hand-over.
//! - Rear lock: CAS of the word with the leaf's last byte; WRITE leaf; its last byte releases the
//!   lock. A hand-over skips the CAS of the next writer.
//! - Replacement: {WRITE new leaf, WRITE valid flag of the old leaf}; CAS slot: old leaf -> new
//!   leaf. As published the WRITE of the flag comes last, and is not awaited.
//!
//! The linearization point is the WRITE of the leaf, or the CAS of the slot.
//!
//! Invariants: the checksum covers key and value, so a reader never accepts a torn leaf. The image
//! that is WRITTEN has the reverse pointer of the READ; a split between the two is undone in the
//! pointer (DESIGN.md, section 7). The rear lock needs `write_ascending`, so that the lock byte
//! lands last, and `cas_fail_is_readonly`, so that a failing CAS does not undo the release.
//!
//! A crash of the holder leaves the lock held, and perhaps a torn leaf; as published no client
//! recovers either, and later operations time out. With replacement a crash before the CAS leaves
//! the old leaf invalid: readers wait until a writer replaces it.

use dmtree_fabric::{
    Buf, Error, GlobalAddr, OpOutcome, Result, Step, Verified, verb, verb::VerbVec,
};
use dmtree_parts::lock_words::Attempts;
use dmtree_parts::op::{UPDATED, Written};
use dmtree_parts::{Outcome, Write};

use crate::cursor::Cursor;
use crate::cursor::Cursors;
use crate::format::leaf::{self, LockWord, VALID_OFFSET};
use crate::format::slot::Slot;
use crate::index::Smart;
use crate::lock::Locks;
use crate::write::{Job, Sharing};

/// Updates of present keys.
pub(crate) struct Updates<'c>(pub(crate) &'c Smart);

impl Updates<'_> {
    /// The write at its key's leaf. `None`: the slot has changed, and the descent goes on
    /// from its new word.
    pub(crate) async fn found(
        &self,
        job: &mut Job<'_>,
        c: &mut Cursor,
        image: Verified,
    ) -> Result<Option<Written>> {
        if matches!(job.w, Write::Insert(_)) {
            return Ok(Some((Outcome::Exists, OpOutcome::Hit)));
        }
        if let Some(held) = job.held.take() {
            Locks(self.0).unlock(held).await?;
        }
        let (at, mut image) = (c.slot.child(), image.into_buf());
        let o = &self.0.node.o;
        match (o.in_place, o.rear_lock) {
            (false, _) => return self.replace(job, c).await,
            (true, false) => {
                // As published, the leaf is not READ again under the lock.
                let held = Locks(self.0).lock(at).await?;
                job.latest();
                leaf::set_value(&self.0.node.g, &mut image, &job.value);
                Locks(self.0)
                    .write_and_unlock(held, at, image)
                    .await
                    .map_err(Error::effect_unknown)?;
            }
            (true, true) => self.update_under_rear_lock(job, at, image).await?,
        }
        Ok(Some(UPDATED))
    }

    /// Updates a leaf under the lock in its last byte.
    async fn update_under_rear_lock(
        &self,
        job: &mut Job<'_>,
        at: GlobalAddr,
        mut image: Buf,
    ) -> Result<()> {
        let handed = matches!(job.sharing, Sharing::Handover(_, true));
        if !handed {
            self.lock_rear(at, &image).await?;
        }
        job.latest();
        let hand_over = match &job.sharing {
            Sharing::Handover(guard, _) => guard.may_hand_over(),
            _ => false,
        };
        let g = &self.0.node.g;
        leaf::set_value(g, &mut image, &job.value);
        // As published the WRITE clears the lock byte even if the lock is handed over.
        leaf::set_locked(g, &mut image, hand_over && self.0.node.o.locked_handover);
        self.0.ep.step(Step::Entry);
        self.0.ep.write(at, image).await.map_err(Error::effect_unknown)?;
        self.0.ep.point().await;
        if matches!(job.sharing, Sharing::Handover(..))
            && let Sharing::Handover(guard, _) = std::mem::replace(&mut job.sharing, Sharing::None)
        {
            guard.hand_over(hand_over);
        }
        Ok(())
    }

    /// Takes the lock at the end of a leaf. The lock word may also contain bytes of the value,
    /// which other writers may have changed.
    async fn lock_rear(&self, at: GlobalAddr, image: &[u8]) -> Result<()> {
        let g = &self.0.node.g;
        let word_at = at.plus(g.lock_word_at() as u64);
        let mut word = LockWord::of_image(g, image);
        let mut attempts = Attempts::new(&self.0.ep, "lock of a leaf", word_at);
        loop {
            self.0.ep.step(Step::Lock);
            let was = self.0.ep.cas(word_at, word.free, word.held).await?;
            if was == word.free {
                return Ok(());
            }
            self.0.retried.set(true);
            word = LockWord::of(g, was);
            attempts.again().await?;
        }
    }

    /// Replaces the leaf. As published the old leaf becomes invalid last. A client that has the old
    /// leaf in its cache can then return the old value after other clients have returned the new
    /// one.
    async fn replace(&self, job: &mut Job<'_>, c: &mut Cursor) -> Result<Option<Written>> {
        let g = &self.0.node.g;
        let old = c.slot;
        let invalid_at = old.child().plus(VALID_OFFSET);
        let at = match job.leaf {
            Some(at) => at,
            None => self.0.new_leaf().await?,
        };
        job.leaf = Some(at);
        job.latest();
        let mut image = self.0.blank(g.leaf_bytes()).await?;
        leaf::put(g, &mut image, c.at, job.key, &job.value);
        let mut verbs = VerbVec::new();
        verbs.write(at, image);
        if self.0.node.o.invalidate_first {
            verbs.write(invalid_at, self.0.blank(1).await?);
        }
        self.0.ep.step(Step::Entry);
        self.0.ep.batch(verbs).await?;
        let new = Slot::leaf(old.partial(), g.leaf_bytes(), at)?;
        self.0.ep.step(Step::Structure);
        let was = self.0.ep.cas(c.at, old.bits(), new.bits()).await?;
        if was != old.bits() {
            self.0.retried.set(true);
            self.0.ep.check_deadline("a slot to change", c.at.bits())?;
            Cursors(self.0).forget(c);
            c.reread(was);
            return Ok(None);
        }
        job.leaf = None;
        Cursors(self.0).forget_node(c.node, job.key);
        if !self.0.node.o.invalidate_first {
            let byte = self.0.blank(1).await?;
            match self.0.node.o.lazy_repairs {
                true => self.0.ep.detach(verb::write(invalid_at, byte), None),
                false => _ = self.0.ep.write(invalid_at, byte).await?,
            }
        }
        Ok(Some(UPDATED))
    }
}
