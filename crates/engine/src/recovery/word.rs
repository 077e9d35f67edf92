//! Recovery in lock-word mode: abandoned lock words, and slots that a dead writer has torn.
//!
//! - *A plain tag.* Its holder changed one entry at most, by WRITEs in one chain. The word is freed
//!   by `CAS tag->0` and nothing else: a torn slot refuses every image of the leaf until the next
//!   holder repairs it (`repair_slots`), or a reader that waits for the image does so. The word
//!   does not name the leaf, so the client that frees it could not repair it.
//! - *A changing tag.* It names a leaf with an announced change. The word is taken over by another
//!   changing tag of the same leaf, and `leaf.rs` repairs the leaf as it does with a table:
//!   split, merge, relocation and load have the same steps and the same commit words.
//!
//! A torn slot is restored from the shadow when its word0 is the old or the new one; otherwise it
//! was an insert that was never acknowledged, and it is freed. P holds: an acknowledged entry was
//! written whole before its release.
//!
//! One word serves many leaves. The take-over of a changing tag therefore covers only the leaf that
//! the tag names; a tombstone's word counts as this tombstone's only while the tag names it.
//!
//! After a death one node walks all lock words and recovers those of dead clients
//! (`sweep`); a word that needs lost memory for its repair is passed over. Without that
//! sweep a leaf with no further writers would stay locked.
//!
//! A crash during a take-over leaves a changing tag of the same leaf, and the next client repeats
//! the recovery. A crash after the freeing of a plain tag leaves at most the torn slot that was
//! there before.

use dmtree_fabric::{Error, GlobalAddr, Result, Step};

use crate::format::{LockTag, Place, slot};
use crate::leaf::{Blocks, NodeHeader};
use crate::lock::WordLocks;
use crate::recovery::{LeafRecovery, from_shadow};
use crate::router::Router;
use crate::{Client, Mark, Mutant, Route, Unlock, is_away};

/// Recovers abandoned lock words.
#[derive(Clone, Copy)]
pub(crate) struct WordRecovery<'c>(pub &'c Client);

impl WordRecovery<'_> {
    /// An abandoned lock word: what it hides is repaired, and the word is free again, unless it
    /// changes meanwhile.
    pub(crate) async fn recover(self, at: GlobalAddr, was: u64) -> Result<()> {
        let c = self.0;
        let tag = LockTag(was);
        if !tag.is_changing() || c.node.has(Mutant::WordForgetsChange) {
            c.check_lease()?;
            c.ep.step(Step::Lock);
            let now = c.ep.cas(at, was, 0).await?;
            if now == was {
                Mark::WordFreed.hit();
            }
            c.node.adopted_at(tag, at);
            return Ok(());
        }
        let leaf = WordLocks(c).named_by(at, tag).await?;
        let h = NodeHeader::read(c, leaf).await?;
        if !h.is_leaf(&c.node) {
            return Err(Error::corrupt(format!("the lock at {at} names {leaf}, which is no leaf")));
        }
        Box::pin(LeafRecovery(c).recover(&h.route(leaf), at, was)).await.map(|_| ())
    }

    /// Whether no change of a tombstone is in progress. A dead client's change is finished.
    pub(crate) async fn is_unchanged(self, route: &Route) -> Result<bool> {
        let word = WordLocks(self.0).words().await?.at.by_place(route.leaf)?;
        let was = self.0.ep.cas(word.at, 0, 0).await?;
        let changes = was != 0 && LockTag(was).is_changing();
        if !changes || WordLocks(self.0).named_by(word.at, LockTag(was)).await? != route.leaf {
            return Ok(true);
        }
        if self.0.node.is_abandoned_at(was, word.at) {
            Mark::GcLock.hit();
            self.recover(word.at, was).await?;
        }
        Ok(false)
    }

    /// A reader has met a torn leaf for long, or a sweep passes by. (A leaf without a record may
    /// belong to a client that has not published it: it is left alone.)
    pub(crate) async fn help(self, route: &Route) -> Result<()> {
        let c = self.0;
        let word = WordLocks(c).words().await?.at.by_place(route.leaf)?;
        let was = c.ep.cas(word.at, 0, 0).await?;
        if c.node.is_abandoned_at(was, word.at) {
            Mark::HelpLeaf.hit();
            return self.recover(word.at, was).await;
        }
        if was != 0 {
            return Ok(());
        }
        let h = NodeHeader::read(c, route.leaf).await?;
        if !h.whole || !h.forward.is_null() {
            return Ok(());
        }
        let low = Blocks(c).fence_key(&h.lo).await?.unwrap_or_default();
        let mut found = Router(c).fresh_route(&low).await?;
        if found.leaf != route.leaf {
            let Some(walked) = Router(c).walk_route(&low, &found).await? else { return Ok(()) };
            found = walked;
        }
        // The client that locks it next repairs it.
        if found.leaf == route.leaf
            && let Some(l) = WordLocks(c).try_lock(&found).await?
        {
            c.unlock(l).await?;
        }
        Ok(())
    }

    /// Slots of a locked leaf that a dead writer has torn: an update is restored from its shadow,
    /// an insert is dropped.
    pub(crate) async fn repair_slots(self, route: &Route) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        c.check_lease()?;
        c.ep.step(Step::Structure);
        let bytes = c.ep.read(route.leaf, g.leaf_bytes(route.capacity) as u32).await?;
        let image = bytes.extract(<[u8]>::to_vec);
        let ver = NodeHeader::of(&g, route.leaf, &image).ver;
        for i in 0..route.capacity {
            let place = Place { leaf: route.leaf, slot: i };
            let at = g.slot_at(i);
            if slot::check(&g, place, &image[at..at + g.entry()]).is_some() {
                continue;
            }
            let to = route.leaf.plus(at as u64);
            c.ep.step(Step::Entry);
            let blind = c.node.has(Mutant::WordDropsTorn);
            match from_shadow(&g, place, route.capacity, &image).filter(|_| !blind) {
                Some(entry) => {
                    Mark::RecoverShadow.hit();
                    let mut buf = c.ep.buf(entry.len() as u32).await?;
                    buf.copy_from_slice(&entry);
                    c.ep.write(to, buf).await?;
                }
                None => {
                    Mark::RecoverTorn.hit();
                    c.ep.write_word(to, slot::free_word(place, ver)).await?;
                }
            }
        }
        Ok(())
    }

    /// A dead trainer's claim is free again.
    async fn free_claim(self) -> Result<()> {
        let c = self.0;
        if c.node.models.is_none() || c.node.has(Mutant::LearnClaimKept) {
            return Ok(());
        }
        let at = c.node.root.claim();
        let was = c.ep.cas(at, 0, 0).await?;
        match c.node.is_abandoned_at(was, at) {
            true => self.recover(at, was).await,
            false => Ok(()),
        }
    }

    /// After a death one node checks all lock words.
    pub(crate) async fn sweep(self) -> Result<()> {
        self.free_claim().await?;
        let words = WordLocks(self.0).words().await?;
        for m in 0..words.at.nodes() {
            let held = match words.at.held_on(&self.0.ep, m).await {
                // This memory is lost.
                Err(e) if is_away(&e) => continue,
                held => held?,
            };
            for (at, was) in held {
                self.0.ep.renew_deadline();
                if !self.0.node.is_abandoned_at(was, at) {
                    continue;
                }
                match self.0.op.part(self.recover(at, was)).await {
                    // Memory that its repair needs is lost.
                    Err(e) if is_away(&e) => {}
                    recovered => recovered?,
                }
            }
        }
        Ok(())
    }
}
