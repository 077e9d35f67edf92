//! Lock-word mode: leaves without tables. They are read whole, and their locks are words of their
//! memory nodes (`parts::lock_words`), behind local locks that hand them over.
//!
//! A lock's tag is that of its holder: node 16, incarnation 16, 0 1, client 15, acquisition 16
//! bits. A client that is about to change more of a leaf than one entry announces it first by
//! another tag: node 16, incarnation 16, 1 1, change 7, sharer number 24 bits, where word and
//! sharer number name the leaf. So an abandoned lock of the first kind hides one torn slot at most,
//! which the leaf's next holder finds by itself. One of the second kind names the leaf to repair,
//! whichever of the leaves that share the word a client wants.
//!
//! Taking a lock:
//!
//! 1. The local lock of this node, in a quiescent section. It may arrive with the word already
//!    held: the former local holder has handed it over, for a bounded number of times.
//! 2. Otherwise `CAS word 0->tag`. A held word is tried again; an abandoned one is recovered
//!    (`recovery/word.rs`).
//! 3. READ the leaf. It has to be alive, of the route's generation and fences, with one version; a
//!    torn slot is repaired under the lock. The image stays with the lock and takes the place of a
//!    table: its live slots stand in for fingerprints.
//!
//! Changes of whole leaves (split, merge, relocation, load) call `begin_change` before their first
//! WRITE: `[CAS tag -> changing tag] | WRITE new leaf`. A split's new leaf is not reachable yet, so
//! both may share a round trip. Where another leaf was at the address, its header is cleared first:
//! a mix of the two must not pass for the old one.
//!
//! A point write releases its lock in one chain with its entry ("Sherman", SIGMOD'22: command
//! combination), each verb behind the one before it:
//!
//! 1. WRITE the block, when the entry points to one (awaited by itself when it lies on another
//!    memory node);
//! 2. WRITE the shadow, for an update where the fabric does not write an entry as a whole;
//! 3. WRITE the entry, or word0 = free for a delete: the linearization point;
//! 4. `CAS tag->0`. When the lock is handed over to the next local client, this verb is left out,
//!    and the chain is awaited before the hand-over.
//!
//! The lease is checked before the chain. The next holder READs the entry, since step 4 is ordered
//! behind step 3. The CAS must find the tag: any other word means that the lock was lost, and the
//! outcome is unknown. A failed chain, and a crash inside it, leave one torn slot at most, with the
//! lock held or free (`recovery/word.rs`).
//!
//! P, B, R, S and L hold as with tables; F has no object. Readers take no lock: they READ the whole
//! leaf, and follow `forward` and `next`.
//!
//! A release that fails becomes an abandoned lock through its hook, as for tables. A lock that was
//! handed over to an operation that has given up becomes one too. A crash leaves the tag in the
//! word; it tells the node and incarnation, and whether a change of a leaf was announced.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_fabric::verb::{VerbVec, cas, read as read_verb};
use dmtree_fabric::{Buf, Error, ErrorKind, GlobalAddr, Result, Sampled, Stage, Step};
use dmtree_parts::handover::{LocalGuard, LocalLocks};
use dmtree_parts::held::LockNode;
use dmtree_parts::lock_words::{LockTables, LockWord, LockWords};
use dmtree_pool::Grant;

use crate::format::{LockTag, Place, SlotState, Table, check_header, slot};
use crate::hop::{Neighbourhoods, Places};
use crate::leaf::{Blocks, Entries, EntryImages, LeafCopy};
use crate::lock::{
    HeldLock, LOCK_PAUSE_NS, LeafFifoGuard, LeafLocks, Lockable, Locked, LockedLeaf, TakenLock,
};
use crate::recovery::{WordRecovery, recover_locks_while_waiting};
use crate::{Client, DmNode, Mark, Mutant, Route, Unlock, fence_tag};

/// The pool's kind of a chunk of lock words.
const KIND_WORDS: u8 = 3;
/// Clients of a node that may have a lock one after the other ("Sherman", SIGMOD'22; its code).
const LONGEST_CHAIN: u32 = 8;
/// A tag of a change.
const CHANGING: u64 = 1 << 31;
const SHARER_BITS: u32 = 24;
const CHANGES: u64 = 0x7f;

/// The locks of leaves as a compute node knows them.
#[derive(Debug)]
pub(crate) struct LeafLockWords {
    pub at: LockWords,
    pub local: Arc<LocalLocks>,
}

/// A change of one entry.
pub(crate) enum Change {
    /// Another entry.
    Entry(EntryImages),
    /// word0 of a free slot.
    Free(u64),
    /// An image of the leaf, and an entry for a slot that it frees.
    Moved(Buf, EntryImages),
}

/// A lock that was taken, and what was READ behind it.
type Taken = (LockTag, Option<Sampled>);

/// Content of a leaf under its lock.
enum Seen {
    /// All of it, with its live slots as bits.
    Whole(u128),
    /// Another leaf than the route meant.
    Stale,
    /// A slot is torn.
    Torn,
}

impl LockTag {
    /// Whether the holder changes more than one entry.
    pub fn is_changing(self) -> bool {
        self.0 & CHANGING != 0
    }
}

impl DmNode {
    /// The kind of lock tables that the index has.
    pub(crate) fn lock_tables(&self) -> LockTables {
        LockTables {
            words: self.o.techniques.locks,
            on_chip: self.o.techniques.on_chip,
            kind: KIND_WORDS,
        }
    }
}

/// Locks of leaves in words of their memory nodes.
#[derive(Clone, Copy)]
pub(crate) struct WordLocks<'c>(pub &'c Client);

impl<'c> WordLocks<'c> {
    /// The locks; their place is asked for once.
    pub(crate) async fn words(self) -> Result<&'c LeafLockWords> {
        let c = self.0;
        if let Some(words) = c.node.lock_words.get() {
            return Ok(words);
        }
        let at = c.node.lock_tables().find(&c.ep, &c.node.pool, c.node.root).await?;
        Ok(c.node.lock_words.get_or_init(|| self.local_locks(at)))
    }

    /// A lock that was handed over to an operation that has given up is abandoned.
    fn local_locks(self, at: LockWords) -> LeafLockWords {
        let (node, words) = (Arc::downgrade(&self.0.node), at.clone());
        let stranded = move |number, tag| {
            if let (Some(node), Some(word)) = (node.upgrade(), words.numbered(number)) {
                node.abandon(HeldLock { tag: LockTag(tag), on: Lockable::Word(word) });
            }
        };
        let local = LocalLocks::telling(at.count(), LONGEST_CHAIN, Some(Box::new(stranded)));
        LeafLockWords { at, local }
    }

    /// The leaf that a changing tag names.
    pub(crate) async fn named_by(self, word: GlobalAddr, tag: LockTag) -> Result<GlobalAddr> {
        let sharer = tag.0 & ((1 << SHARER_BITS) - 1);
        let named = self.words().await?.at.page_of(word, sharer);
        named.ok_or_else(|| Error::corrupt(format!("the lock at {word} names no leaf")))
    }

    /// A tag that announces a change of a leaf.
    pub(crate) async fn changing_tag(self, leaf: GlobalAddr) -> Result<LockTag> {
        let words = &self.words().await?.at;
        let (sharer, word) = (words.sharer_of(leaf), words.by_place(leaf)?.at);
        if sharer >> SHARER_BITS != 0 {
            return Err(Error::invalid(format!(
                "{} locks per memory node are too few to name leaf {leaf}: create the index with more",
                self.0.node.o.techniques.locks
            )));
        }
        let own = self.0.tags.next().0 >> 32 << 32;
        // Tags repeat after this many changes of a node: never one that an abandoned lock still
        // has.
        for _ in 0..=CHANGES {
            let change = u64::from(self.0.node.changes.fetch_add(1, Ordering::Relaxed)) & CHANGES;
            let tag = LockTag(own | CHANGING | change << SHARER_BITS | sharer);
            if self.0.node.abandoned_locks.get(&(tag.0, word.bits())).is_none() {
                return Ok(tag);
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!(
                "too many changes of leaf {leaf} have failed: let maintenance recover their locks"
            ),
        ))
    }

    /// As [`LeafLocks::lock`]; with a part of the leaf that is enough to know.
    pub(crate) async fn lock(
        self,
        route: &Route,
        part: Option<Range<usize>>,
    ) -> Result<Option<Locked>> {
        let words = self.words().await?;
        let word = words.at.by_place(route.leaf)?;
        self.0.ep.stage_cost(Stage::LocalQueue, 1);
        let quiescent = self.0.op.quiescent_section();
        let fifo_guard = words.local.lock(&self.0.ep, word.number).await?;
        drop(quiescent);
        let handed = fifo_guard.is_handed.then(|| LockTag(fifo_guard.tag()));
        if let Some(tag) = handed {
            Mark::WordHanded.hit();
            self.0.hold(tag, Lockable::Word(word.at));
        }
        self.0.ep.point().await;
        let (tag, read) = match handed {
            Some(tag) => (tag, None),
            None => self.take(&word, &fifo_guard, (route, &part)).await?,
        };
        self.open(route, (word.at, tag), fifo_guard, (part, read)).await
    }

    /// As [`LeafLocks::try_lock`].
    pub(crate) async fn try_lock(self, route: &Route) -> Result<Option<Locked>> {
        let words = self.words().await?;
        let word = words.at.by_place(route.leaf)?;
        let Some(fifo_guard) = words.local.try_lock(word.number) else { return Ok(None) };
        let tag = match fifo_guard.is_handed {
            true => {
                let tag = LockTag(fifo_guard.tag());
                self.0.hold(tag, Lockable::Word(word.at));
                tag
            }
            false => match self.try_word(&word, &fifo_guard, None).await? {
                Ok((tag, _)) => tag,
                Err(_) => return Ok(None),
            },
        };
        self.open(route, (word.at, tag), fifo_guard, (None, None)).await
    }

    /// One try, with a READ of some bytes behind it; returns the content of the word when another
    /// client has it.
    async fn try_word(
        self,
        word: &LockWord,
        fifo_guard: &LocalGuard,
        read: Option<(GlobalAddr, usize)>,
    ) -> Result<std::result::Result<Taken, u64>> {
        let tag = self.0.tags.next();
        let own = HeldLock { tag, on: Lockable::Word(word.at) };
        self.0.ep.step(Step::Lock);
        let (was, bytes) = match read {
            None => (self.0.op.try_for(&[own], self.0.ep.cas(word.at, 0, tag.0)).await?, None),
            Some((at, len)) => {
                let (was, bytes) =
                    self.0.try_for(own, (word.at, 0), read_verb(at, len as u32)).await?;
                (was, Some(bytes))
            }
        };
        if was != 0 {
            Mark::LockHeld.hit();
            return Ok(Err(was));
        }
        self.0.hold(tag, own.on);
        fifo_guard.set_tag(tag.0);
        Ok(Ok((tag, bytes)))
    }

    async fn take(
        self,
        word: &LockWord,
        fifo_guard: &LocalGuard,
        (route, part): (&Route, &Option<Range<usize>>),
    ) -> Result<Taken> {
        let c = self.0;
        let read = match part {
            Some(part) => Some(Neighbourhoods(c).span(route.leaf, part)),
            // A model leads to the leaf that is there now: its READ seldom is in vain.
            None if c.node.models.is_some() => {
                Some((route.leaf, c.node.g.leaf_image(route.capacity)))
            }
            None => None,
        };
        let mut backoff = c.ep.backoff_within("leaf lock", route.leaf, LOCK_PAUSE_NS);
        loop {
            let was = match self.try_word(word, fifo_guard, read).await? {
                Ok(taken) => return Ok(taken),
                Err(was) => was,
            };
            c.op.retried.set(true);
            if c.node.is_abandoned_at(was, word.at) {
                Box::pin(WordRecovery(c).recover(word.at, was)).await?;
            }
            recover_locks_while_waiting(c).await;
            c.op.quiescent_point();
            // A stuck change is that of the leaf that the tag names.
            let leaf = match LockTag(was).is_changing() {
                true => self.named_by(word.at, LockTag(was)).await?,
                false => route.leaf,
            };
            LeafLocks(c).pause(&mut backoff, &Route { leaf, ..*route }, false).await?;
        }
    }

    /// READs the leaf under this operation's lock, or the part of it that is enough, unless that
    /// was READ already. `None`, and the lock is given back, when the route is stale.
    async fn open(
        self,
        route: &Route,
        (at, tag): (GlobalAddr, LockTag),
        fifo_guard: LocalGuard,
        (part, read): (Option<Range<usize>>, Option<Sampled>),
    ) -> Result<Option<Locked>> {
        let fifo_guard = LeafFifoGuard::Word(fifo_guard);
        let opened = match part {
            None => self.read_locked(route, read).await,
            Some(part) => Neighbourhoods(self.0).locked(route, &part, read).await,
        };
        let table = Table::new(route.leaf, crate::format::Ver { generation: 0, range: 0 }, 0, 0);
        let table = Box::new(table);
        let l = LockedLeaf::new(route, (at, tag), table, fifo_guard);
        let (mut l, opened) = self.0.under(l, opened).await?;
        let Some((image, table)) = opened else {
            Mark::LockStale.hit();
            self.0.unlock(l).await?;
            return Ok(None);
        };
        (l.image, *l.table) = (Some(image), table);
        Ok(Some(l))
    }

    /// A locked leaf's image, and the table that would describe it. It may have been READ already.
    /// A dead writer has left a torn slot: it is repaired.
    pub(crate) async fn read_locked(
        self,
        route: &Route,
        mut first: Option<Sampled>,
    ) -> Result<Option<(LeafCopy, Table)>> {
        let c = self.0;
        let g = &c.node.g;
        let mut backoff = c.ep.backoff("a torn slot to be repaired", route.leaf);
        loop {
            let bytes = match first.take() {
                Some(bytes) => bytes,
                None => {
                    c.ep.step(Step::Entry);
                    c.ep.read(route.leaf, g.leaf_image(route.capacity) as u32).await?
                }
            };
            c.ep.stage_cost(Stage::NodeImage, route.capacity as u32);
            let live = match self.see_locked(route, &bytes) {
                Seen::Stale => return Ok(None),
                Seen::Torn => {
                    Mark::WordTorn.hit();
                    c.op.retried.set(true);
                    WordRecovery(c).repair_slots(route).await?;
                    backoff.step().await?;
                    continue;
                }
                Seen::Whole(live) => live,
            };
            let Ok(((), bytes)) = bytes.check(|_| Ok::<_, ()>(())) else { return Ok(None) };
            let image = LeafCopy::whole(g, route.leaf, route.capacity, bytes);
            let h = image.header(c);
            let fence = fence_tag(Blocks(c).fence(h.hi).await?.as_deref());
            if fence != route.fence {
                return Ok(None);
            }
            let mut table = Table::new(route.leaf, h.ver, fence, route.capacity);
            (0..route.capacity).filter(|i| live >> i & 1 == 1).for_each(|i| table.set(i, 1));
            return Ok(Some((image, table)));
        }
    }

    fn see_locked(self, route: &Route, bytes: &Sampled) -> Seen {
        let g = &self.0.node.g;
        bytes.extract(|b| {
            // Alive in this generation under its lock: no other client changes it.
            let h = check_header(g, route.leaf, b).filter(|h| {
                let same = h.ver.generation == route.generation
                    && h.slots == route.capacity
                    && h.level == 0;
                same && h.forward.is_null() && !h.tombstone
            });
            let Some(h) = h else { return Seen::Stale };
            let (mut live, mut torn) = (0u128, false);
            for i in 0..route.capacity {
                let at = g.slot_at(i);
                let place = Place { leaf: route.leaf, slot: i };
                match slot::check(g, place, &b[at..at + g.entry()]) {
                    None => torn = true,
                    Some(s) if s.ver != h.ver || s.state == SlotState::Staged => {
                        return Seen::Stale;
                    }
                    Some(s) => live |= u128::from(s.state == SlotState::Live) << i,
                }
            }
            if torn { Seen::Torn } else { Seen::Whole(live) }
        })
    }

    /// Announces the change of a leaf of which a part was known, and READs all of it.
    pub(crate) async fn announce_and_read(
        self,
        l: &mut Locked,
    ) -> Result<Option<(LeafCopy, Table)>> {
        let (c, leaf) = (self.0, l.route.leaf);
        let tag = self.changing_tag(leaf).await?;
        let own = HeldLock { tag, on: Lockable::Word(l.at) };
        let len = c.node.g.leaf_image(l.route.capacity);
        c.ep.step(Step::Structure);
        let (was, bytes) = c.try_for(own, (l.at, l.tag.0), read_verb(leaf, len as u32)).await?;
        if was != l.tag.0 {
            return Err(lost(l.at));
        }
        c.op.let_go(l.tag);
        c.hold(own.tag, own.on);
        l.tag = tag;
        self.read_locked(&l.route, Some(bytes)).await
    }

    /// Announces the change of these leaves, and WRITEs the image of a new one.
    pub(crate) async fn begin_change(
        self,
        locks: &mut [&mut Locked],
        new: Option<(Grant, Buf)>,
    ) -> Result<()> {
        let mut batch = VerbVec::new();
        let mut own = Vec::with_capacity(locks.len());
        // One that is announced already needs no further tag.
        let is_plain = |l: &&mut &mut Locked| !l.tag.is_changing();
        for l in locks.iter_mut().filter(is_plain) {
            let tag = self.changing_tag(l.route.leaf).await?;
            batch.cas(l.at, l.tag.0, tag.0);
            own.push(HeldLock { tag, on: Lockable::Word(l.at) });
        }
        if let Some((grant, image)) = new {
            self.add_new_leaf(&mut batch, grant, image);
        }
        self.0.ep.step(Step::Structure);
        let done = self.0.op.try_for(&own, self.0.ep.batch(batch)).await?;
        for (i, (l, own)) in locks.iter_mut().filter(is_plain).zip(own).enumerate() {
            if done.word(i) != l.tag.0 {
                return Err(lost(l.at));
            }
            self.0.op.let_go(l.tag);
            self.0.hold(own.tag, own.on);
            l.tag = own.tag;
        }
        Ok(())
    }

    /// The WRITE of a new leaf. Where another leaf was, the header goes first: a mix of the two
    /// must not pass for the old one.
    pub(crate) fn add_new_leaf(self, batch: &mut VerbVec, grant: Grant, image: Buf) {
        if grant.generation > 1 {
            batch.write_word(grant.addr, 0);
            batch.then().write(grant.addr, image);
        } else {
            batch.write(grant.addr, image);
        }
    }

    /// Unlocks, or hands the lock over.
    pub(crate) async fn unlock(
        self,
        at: GlobalAddr,
        tag: LockTag,
        fifo_guard: LocalGuard,
    ) -> Result<()> {
        let Some(fifo_guard) = self.hand_over(at, tag, fifo_guard) else { return Ok(()) };
        let hook = self.0.leaf_hook.watch(HeldLock { tag, on: Lockable::Word(at) }, None);
        let done = self.0.ep.release(cas(at, tag.0, 0), hook).await;
        fifo_guard.leave();
        self.0.released(tag, done)
    }

    /// WRITEs a change of one entry and releases the lock behind it, in one chain.
    pub(crate) async fn unlock_with(self, l: Locked, place: Place, change: Change) -> Result<()> {
        let c = self.0;
        let LockedLeaf { route, at, tag, fifo_guard, .. } = *l;
        let LeafFifoGuard::Word(fifo_guard) = fifo_guard else { unreachable!("locked by a word") };
        let mut list = self.change_list(&route, place, change).await?;
        c.ep.step(Step::Entry);
        if !tag.is_changing() && fifo_guard.may_hand_over() {
            c.ep.batch(list).await?;
            return self.unlock(at, tag, fifo_guard).await;
        }
        if c.node.has(Mutant::WordBesideEntry) {
            c.ep.detach(cas(at, tag.0, 0), None);
            c.ep.batch(list).await?;
        } else {
            let unlock = behind(&mut list).cas(at, tag.0, 0);
            let done = c.ep.batch(list).await?;
            if done.word(unlock) != tag.0 {
                return Err(lost(at));
            }
        }
        c.op.let_go(tag);
        fifo_guard.leave();
        Ok(())
    }

    /// The WRITEs of a change of one entry. A block of another node than the leaf is written first.
    async fn change_list(&self, route: &Route, place: Place, change: Change) -> Result<VerbVec> {
        let c = self.0;
        let mut list = VerbVec::new();
        let (image, change) = match change {
            Change::Moved(image, entry) => (Some(image), Change::Entry(entry)),
            change => (None, change),
        };
        let (shadow, entry) = match change {
            Change::Free(word) => (None, Err(word)),
            Change::Moved(_, entry) | Change::Entry(entry) => {
                let (block, shadow, entry) = entry;
                match block {
                    Some((b, buf)) if b.addr().node() == place.leaf.node() => {
                        list.write(b.addr(), buf);
                    }
                    Some((b, buf)) => _ = c.ep.write(b.addr(), buf).await?,
                    None => {}
                }
                (shadow, Ok(entry))
            }
        };
        c.check_lease()?;
        let is_late = c.node.has(Mutant::HopPairBeforeImage);
        let (image, late) = if is_late { (None, image) } else { (image, None) };
        if let Some(image) = image {
            behind(&mut list).write(route.leaf, image);
        }
        let shadow_at = place.leaf.plus(c.node.g.shadow_at(route.capacity) as u64);
        let clears = shadow.is_some() && c.node.places != Places::Any;
        if let Some(shadow) = shadow {
            behind(&mut list).write(shadow_at, shadow);
        }
        let entry_at = Entries(c).at(place);
        match entry {
            Ok(entry) => behind(&mut list).write(entry_at, entry),
            Err(word) => behind(&mut list).write_word(entry_at, word),
        };
        if clears {
            behind(&mut list).write_word(shadow_at, 0);
        }
        if let Some(image) = late {
            behind(&mut list).write(route.leaf, image);
        }
        Ok(list)
    }

    /// Hands a lock over to the next client of this node, if one waits and the bound allows it;
    /// else returns the FIFO guard.
    pub(crate) fn hand_over(
        self,
        at: GlobalAddr,
        tag: LockTag,
        fifo_guard: LocalGuard,
    ) -> Option<LocalGuard> {
        if tag.is_changing() || !fifo_guard.may_hand_over() {
            return Some(fifo_guard);
        }
        self.0.op.let_go(tag);
        let back = fifo_guard.hand_over()?;
        self.0.hold(tag, Lockable::Word(at));
        Some(back)
    }

    /// Unlocks a tombstone, awaited. False when the outcome is unknown: then the abandoned lock
    /// names the leaf, and its recovery retires the leaf.
    pub(crate) async fn close(self, at: GlobalAddr, tag: LockTag) -> Result<bool> {
        self.0.ep.step(Step::Structure);
        let done = self.0.ep.cas(at, tag.0, 0).await.map(|_| ());
        let certain = done.is_ok();
        self.0.unlocked(tag, done).map(|()| certain)
    }

    /// The lock word of a leaf with its content, if it is an abandoned one that names the leaf.
    pub(crate) async fn abandoned(self, route: &Route) -> Result<Option<(GlobalAddr, u64)>> {
        let word = self.words().await?.at.by_place(route.leaf)?;
        let was = self.0.ep.cas(word.at, 0, 0).await?;
        let tag = LockTag(was);
        let changing = tag.is_changing() && self.0.node.is_abandoned_at(was, word.at);
        let names = changing && self.named_by(word.at, tag).await? == route.leaf;
        Ok(names.then_some((word.at, was)))
    }

    /// As [`LeafLocks::take_over`], as a lock for a change of the leaf.
    pub(crate) async fn take_over(
        self,
        route: &Route,
        at: GlobalAddr,
        was: u64,
    ) -> Result<Option<TakenLock>> {
        let tag = self.changing_tag(route.leaf).await?;
        let own = HeldLock { tag, on: Lockable::Word(at) };
        self.0.ep.step(Step::Lock);
        let now = self.0.op.try_for(&[own], self.0.ep.cas(at, was, tag.0)).await;
        if now.inspect_err(|_| self.0.op.leave_try(own))? != was {
            return Ok(None);
        }
        self.0.node.adopted_at(LockTag(was), at);
        self.0.hold(tag, own.on);
        Ok(Some(TakenLock { route: *route, at, tag, table: None }))
    }
}

/// The next verb of a chain.
fn behind(list: &mut VerbVec) -> &mut VerbVec {
    if list.is_empty() { list } else { list.then() }
}

/// The error for a lock word that has not the tag of its holder any more.
fn lost(at: GlobalAddr) -> Error {
    Error::corrupt(format!("the lock at {at} was lost")).effect_unknown()
}
