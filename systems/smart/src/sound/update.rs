//! Changes a leaf's value in place, under its lock; deletes a leaf.
//!
//! | round trip | verbs |
//! |---|---|
//! | 1 | READ leaf |
//! | 2 | CAS word: free -> held (and READ leaf, where the old value matters) |
//! | 3 | [WRITE the other area, CAS word: that area counts, version + 1, free] |
//!
//! The second CAS is the linearization point. A delete is one CAS without the lock: live ->
//! tombstone.
//!
//! Invariants: only the lock holder writes the area that does not count, so the value that counts
//! stays whole. The lock word has the version, so the CAS that takes the lock proves that nothing
//! has changed since the READ; the version may wrap around only after `VERSION_WRAP_NS`. The
//! version in the area's check rejects an area that is from another version.
//!
//! A crash of the holder leaves its value unchanged, because an unfinished WRITE is in the area
//! that does not count. When the access of the holder's compute node is revoked, the next client
//! takes the abandoned lock over by CAS. If only the operation ended (an error, a dropped future),
//! the lock is in the list of abandoned locks of its compute node; the next operation of this node
//! that meets the leaf, or maintenance, releases it. If a holder's release finds another word, the
//! access of its node was revoked: the error is `Revoked`, and the effect unknown.

use dmtree_fabric::verb::{cas, read, write};
use dmtree_fabric::{Effect, Error, GlobalAddr, OpOutcome, Result, Step};
use dmtree_parts::Outcome;
use dmtree_parts::combine::LeaderGuard;
use dmtree_parts::fifo_mutex::FifoGuard;
use dmtree_parts::held::Unlock;
use dmtree_parts::maintenance::Maintained;
use dmtree_parts::op::Written;
use dmtree_pool::BlockPtr;

use super::client::{LeafLock, Smart, Taken};
use super::format::leaf::{LeafState, Stored, Word};
use super::get::LeafView;
use super::get::Reads;
use super::mutants::Mutant;
use super::node::Task;
use super::remove::Removals;
use super::write::seal;

/// A leaf that has the same version less than this time after its READ is unchanged: fewer than
/// 2^19 updates fit into this time, so the version cannot have wrapped around.
const VERSION_WRAP_NS: u64 = 1_000_000;

pub(crate) struct LockedLeaf {
    at: GlobalAddr,
    word: Word,
    key_bytes: usize,
    /// The block of the value that counts; null if it is inline.
    block: BlockPtr,
    _guard: FifoGuard,
}

/// Updates of present keys.
pub(crate) struct Updates<'c>(pub(crate) &'c Smart);

impl Updates<'_> {
    /// A put or an update of a present key. `None`: the leaf is not the key's any more.
    pub(crate) async fn update(
        &self,
        view: LeafView,
        value: &[u8],
        lease: &mut Option<LeaderGuard>,
    ) -> Result<Option<Written>> {
        let Some(held) = self.lock_leaf(&view, None).await? else { return Ok(None) };
        let value = seal(lease, value);
        self.replace(held, &value).await?;
        Ok(Some((Outcome::Done, self.0.op.outcome(OpOutcome::Hit))))
    }

    pub(crate) async fn compare_and_set(
        &self,
        key: &[u8],
        view: LeafView,
        expected: &[u8],
        new: Option<&[u8]>,
    ) -> Result<Option<Written>> {
        let mut old = Vec::new();
        let Some(held) = self.lock_leaf(&view, Some(&mut old)).await? else { return Ok(None) };
        if old != expected {
            self.0.unlock(held).await?;
            return Ok(Some((Outcome::Mismatch, self.0.op.outcome(OpOutcome::Hit))));
        }
        match new {
            Some(value) => self.replace(held, value).await?,
            None => {
                self.release(held, LeafState::Tombstone).await?;
                self.unlink_soon(key).await;
            }
        }
        Ok(Some((Outcome::Done, self.0.op.outcome(OpOutcome::Hit))))
    }

    /// A delete: one CAS, without the lock.
    pub(crate) async fn delete(&self, key: &[u8], view: LeafView) -> Result<Option<Written>> {
        let mut backoff = self.0.ep.backoff("leaf locked by another client", view.at);
        let free = self.await_free(&view, view.word.bits(), false, &mut backoff).await?;
        let Some(mut word) = free else { return Ok(None) };
        loop {
            let tombstone = word.held_by(None).in_state(LeafState::Tombstone);
            let was = self.0.ep.cas(view.at, word.bits(), tombstone.bits()).await?;
            if was == word.bits() {
                self.unlink_soon(key).await;
                return Ok(Some((Outcome::Done, self.0.op.outcome(OpOutcome::Hit))));
            }
            self.0.op.retried.set(true);
            match self.await_free(&view, was, false, &mut backoff).await? {
                Some(free) => word = free,
                None => return Ok(None),
            }
        }
    }

    /// The word of a leaf as soon as it is free, or the access of its holder is revoked. `was`: the
    /// word that a CAS has returned. `None`: the leaf is not the key's any more, or the key is
    /// absent.
    async fn await_free(
        &self,
        view: &LeafView,
        was: u64,
        has_local_lock: bool,
        backoff: &mut dmtree_fabric::Backoff<'_>,
    ) -> Result<Option<Word>> {
        let mut bits = was;
        loop {
            let word = Word::of_bits(bits).filter(|w| w.generation == view.word.generation);
            let Some(word) = word.filter(|w| w.state == LeafState::Live) else { return Ok(None) };
            match word.holder {
                None => return Ok(Some(word)),
                Some(holder) if self.0.node.is_revoked(holder) => return Ok(Some(word)),
                Some(_) => {}
            }
            let own = self.0.node.abandoned_locks.get(&view.at.bits());
            match own.is_some_and(|lock| lock.word == word) {
                true if has_local_lock => self.recover_lock_under_local_lock(view.at).await?,
                true => self.recover_lock(view.at).await?,
                false => backoff.step().await?,
            }
            bits = self.0.ep.read(view.at, 8).await?.word(0);
        }
    }

    /// Takes a leaf's lock, and reads the value that counts into `old`, if wanted. `None`: the leaf
    /// is not the key's any more.
    async fn lock_leaf(
        &self,
        view: &LeafView,
        mut old: Option<&mut Vec<u8>>,
    ) -> Result<Option<LockedLeaf>> {
        let resting = self.0.op.quiescent_section();
        let guard = self.0.node.fifo.lock(&self.0.ep, view.at.bits()).await?;
        drop(resting);
        self.recover_lock_under_local_lock(view.at).await?;
        let mut backoff = self.0.ep.backoff("leaf locked by another client", view.at);
        let free = self.await_free(view, view.word.bits(), true, &mut backoff).await?;
        let Some(mut word) = free else { return Ok(None) };
        let len = view.lines * 64;
        loop {
            let mine = word.held_by(Some(self.0.holder));
            self.0.op.hold(LeafLock { at: view.at, word: mine });
            self.0.ep.step(Step::Lock);
            let with_image = old.is_some() || word.holder.is_some();
            let (was, image) = match with_image {
                true => {
                    let both = (cas(view.at, word.bits(), mine.bits()), read(view.at, len as u32));
                    let (was, image) = self.0.ep.chain(both).await?;
                    (was, Some(image))
                }
                false => (self.0.ep.cas(view.at, word.bits(), mine.bits()).await?, None),
            };
            if was != word.bits() {
                self.0.op.let_go(view.at);
                self.0.op.retried.set(true);
                match self.await_free(view, was, true, &mut backoff).await? {
                    Some(free) => word = free,
                    None => return Ok(None),
                }
                continue;
            }
            let key_bytes = view.leaf(self.0).key.len();
            let mut held = LockedLeaf {
                at: view.at,
                word: mine,
                key_bytes,
                block: BlockPtr::NULL,
                _guard: guard,
            };
            let same = word.version == view.word.version
                && self.0.ep.now().saturating_sub(view.read_at) < VERSION_WRAP_NS;
            if let (None, true) = (&image, same) {
                held.block = block_of(view.leaf(self.0).value);
                return Ok(Some(held));
            }
            let read = self.read_held(&mut held, len, image, old.as_deref_mut()).await;
            return self.0.under(held, read).await.map(|(held, ())| Some(held));
        }
    }

    /// Reads the value that counts in a locked leaf.
    async fn read_held(
        &self,
        held: &mut LockedLeaf,
        len: usize,
        image: Option<dmtree_fabric::Sampled>,
        mut old: Option<&mut Vec<u8>>,
    ) -> Result<()> {
        let shape = self.0.node.shape;
        let mut image = match image {
            Some(image) => image,
            None => self.0.ep.read(held.at, len as u32).await?,
        };
        let mut backoff = self.0.ep.backoff("locked leaf being read", held.at);
        loop {
            let word = held.word;
            let seen = image.extract(|b| {
                let leaf = shape.check(held.at, b)?;
                let fits = leaf.word.version == word.version && leaf.word.active == word.active;
                if !fits {
                    return None;
                }
                if let (Stored::Inline(v), Some(old)) = (leaf.value, old.as_deref_mut()) {
                    old.clear();
                    old.extend_from_slice(v);
                }
                Some(block_of(leaf.value))
            });
            if let Some(block) = seen {
                held.block = block;
                let Some(old) = old.filter(|_| !block.is_null()) else { return Ok(()) };
                if Reads(self.0).read_block(block, old).await? {
                    return Ok(());
                }
                return Err(Error::corrupt(format!(
                    "leaf {} names a value block, {:#x}, that is not one",
                    held.at,
                    block.bits()
                )));
            }
            // The READ of a chain may sample over the time of earlier verbs. The leaf is held, so a
            // later READ is whole.
            backoff.step().await?;
            image = self.0.ep.read(held.at, len as u32).await?;
        }
    }

    /// Replaces the value of a held leaf, and releases the leaf.
    async fn replace(&self, held: LockedLeaf, value: &[u8]) -> Result<()> {
        let mut taken = Taken::default();
        let stored = self.0.store(value, held.at, &mut taken).await;
        if stored.as_ref().is_err_and(|e| e.effect() == Effect::None) {
            self.0.give_back(std::mem::take(&mut taken));
        }
        let (held, stored) = self.0.under(held, stored).await?;
        let shape = self.0.node.shape;
        let (word, new) = (held.word, held.word.flipped());
        let (held, mut area) = self.0.under(held, self.0.buf(shape.area()).await).await?;
        shape.fill_area(&mut area, held.at, (new.generation, new.version), stored);
        let lease = self.0.node.pool.check_lease(&self.0.ep);
        if lease.is_err() {
            self.0.give_back(taken);
        }
        let (held, ()) = self.0.under(held, lease).await?;
        let area_at = held.at.plus(shape.area_at(held.key_bytes, new.active) as u64);
        self.0.ep.step(Step::Entry);
        let changed = if self.0.node.has(Mutant::ReleaseBeforeArea) {
            let was = self.0.ep.cas(held.at, word.bits(), new.bits()).await;
            self.0.ep.write(area_at, area).await.and(was)
        } else {
            let both = (write(area_at, area), cas(held.at, word.bits(), new.bits()));
            self.0.ep.chain(both).await.map(|(_, was)| was)
        };
        let was = changed.map_err(Error::effect_unknown)?;
        self.0.op.let_go(held.at);
        if was != word.bits() {
            return Err(lock_lost(held.at).effect_unknown());
        }
        self.0.retire_value(Stored::Block(held.block));
        Ok(())
    }

    /// Releases a leaf, which is live with its value unchanged or a tombstone from then on.
    async fn release(&self, held: LockedLeaf, state: LeafState) -> Result<()> {
        let free = held.word.held_by(None).in_state(state);
        let effect = |e: Error| if state == LeafState::Tombstone { e.effect_unknown() } else { e };
        let was = self.0.ep.cas(held.at, held.word.bits(), free.bits()).await.map_err(effect)?;
        self.0.op.let_go(held.at);
        if was != held.word.bits() {
            return Err(effect(lock_lost(held.at)));
        }
        Ok(())
    }

    /// Releases an abandoned lock of this node.
    pub(crate) async fn recover_lock(&self, at: GlobalAddr) -> Result<()> {
        let resting = self.0.op.quiescent_section();
        let _guard = self.0.node.fifo.lock(&self.0.ep, at.bits()).await?;
        drop(resting);
        self.recover_lock_under_local_lock(at).await
    }

    async fn recover_lock_under_local_lock(&self, at: GlobalAddr) -> Result<()> {
        let Some(LeafLock { word, .. }) = self.0.node.abandoned_locks.get(&at.bits()) else {
            return Ok(());
        };
        self.0.ep.cas(at, word.bits(), word.held_by(None).bits()).await?;
        self.0.node.abandoned_locks.remove(&at.bits());
        Ok(())
    }

    /// After a delete: makes the slot vacant. If that fails, it becomes a maintenance task.
    async fn unlink_soon(&self, key: &[u8]) {
        // That also covers a caller that drops the operation here.
        let task = self.0.node.begun(Task::Unlink(key.to_vec()));
        if Removals(self.0).unlink_leaf(key).await.is_ok() {
            task.done();
        }
    }
}

impl Unlock<LockedLeaf> for Smart {
    async fn unlock(&self, held: LockedLeaf) -> Result<()> {
        Updates(self).release(held, LeafState::Live).await
    }

    /// The value that counts is whole whatever has failed before the CAS that replaces it.
    async fn fail<T>(&self, held: LockedLeaf, e: Error) -> Result<T> {
        // If this release fails, the lock becomes an abandoned lock.
        let _ = self.unlock(held).await;
        Err(e)
    }
}

fn block_of(value: Stored<'_>) -> BlockPtr {
    match value {
        Stored::Inline(_) => BlockPtr::NULL,
        Stored::Block(b) => b,
    }
}

fn lock_lost(at: GlobalAddr) -> Error {
    Error::revoked(format!(
        "the lock of leaf {at} was taken over: the access of this compute node is revoked"
    ))
}
