//! Leaves without tables: they are read whole, and their locks are words of their memory nodes (`parts::lock_words`), behind local locks
//! that hand them over.
//!
//! A lock's tag is that of its holder, node 16, incarnation 16, 0 1, client 15, acquisition 16 bits. Who is about to change more of a leaf
//! than one entry says so first: node 16, incarnation 16, 1 1, change 7, turn 24 bits, where word and turn tell the leaf. So an abandoned
//! lock of the first kind hides one torn slot at most, which the leaf's next holder finds by itself, and one of the second kind names
//! what is to be repaired, whichever of the leaves that share the word somebody wants.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_fabric::verb::{VerbVec, cas};
use dmtree_fabric::{Buf, Effect, Error, ErrorKind, GlobalAddr, Result, Sampled, Stage, Step};
use dmtree_parts::handover::{LocalLocks, LocalTurn};
use dmtree_parts::hash::fence_tag;
use dmtree_parts::lock_words::{LockTables, LockWord, LockWords};
use dmtree_pool::{Grant, TableId};

use crate::client::{DmTree, HeldLock, LeafCopy, Lockable, Route};
use crate::format::leaf::check_header;
use crate::format::slot::{self, Place, State};
use crate::format::table::{LockTag, Table};
use crate::lock::{LOCK_PAUSE_NS, LeafTurn, Locked};
use crate::marks::Mark;
use crate::node::DmNode;

/// What a chunk of lock words is to the pool.
const KIND_WORDS: u8 = 3;
/// Clients of a node that may have a lock one after the other ("Sherman", SIGMOD'22; its code).
const LONGEST_CHAIN: u32 = 8;
/// A tag of a change.
const CHANGING: u64 = 1 << 31;
const TURN_BITS: u32 = 24;
const CHANGES: u64 = 0x7f;

/// The locks of leaves as a compute node knows them.
#[derive(Debug)]
pub(crate) struct Words {
    pub at: LockWords,
    pub local: Arc<LocalLocks>,
}

/// What a leaf under its lock shows.
enum Seen {
    /// All of it, with its live slots as bits.
    Whole(u128),
    /// Not the leaf that was meant.
    Stale,
    /// A slot is torn.
    Torn,
}

impl LockTag {
    /// Whether its holder changes more than an entry.
    pub fn is_changing(self) -> bool {
        self.0 & CHANGING != 0
    }
}

impl DmNode {
    /// What kind of lock tables the index has.
    pub(crate) fn lock_tables(&self) -> LockTables {
        LockTables { words: self.o.locks, on_chip: self.o.on_chip, kind: KIND_WORDS }
    }
}

impl DmTree {
    /// The locks; where they are is asked for once.
    pub(crate) async fn words(&self) -> Result<&Words> {
        if let Some(words) = self.node.words.get() {
            return Ok(words);
        }
        let at = self.node.lock_tables().find(&self.ep, &self.node.pool, self.node.root).await?;
        Ok(self.node.words.get_or_init(|| self.local_locks(at)))
    }

    /// A lock that was handed over to somebody who has given up is an orphan.
    fn local_locks(&self, at: LockWords) -> Words {
        let (node, words) = (Arc::downgrade(&self.node), at.clone());
        let stranded = move |number, tag| {
            if let (Some(node), Some(word)) = (node.upgrade(), words.numbered(number)) {
                node.abandoned_lock(HeldLock { tag: LockTag(tag), on: Lockable::Word(word) });
            }
        };
        let local = LocalLocks::telling(at.count(), LONGEST_CHAIN, Some(Box::new(stranded)));
        Words { at, local }
    }

    /// The leaf that a changing tag names.
    pub(crate) async fn named_by(&self, word: GlobalAddr, tag: LockTag) -> Result<GlobalAddr> {
        let turn = tag.0 & ((1 << TURN_BITS) - 1);
        let named = self.words().await?.at.page_of(word, turn);
        named.ok_or_else(|| Error::corrupt(format!("the lock at {word} names no leaf")))
    }

    /// A tag that says that a leaf is about to be changed.
    pub(crate) async fn changing_tag(&self, leaf: GlobalAddr) -> Result<LockTag> {
        let words = &self.words().await?.at;
        let (turn, word) = (words.turn_of(leaf), words.by_place(leaf)?.at);
        if turn >> TURN_BITS != 0 {
            return Err(Error::invalid(format!(
                "{} locks per memory node are too few to name leaf {leaf}: create the index with more",
                self.node.o.locks
            )));
        }
        let own = self.next_tag().0 >> 32 << 32;
        // Tags come back after so many changes of a node: not while one is an orphan's.
        for _ in 0..=CHANGES {
            let change = u64::from(self.node.changes.fetch_add(1, Ordering::Relaxed)) & CHANGES;
            let tag = LockTag(own | CHANGING | change << TURN_BITS | turn);
            if !self.node.is_abandoned_lock_at(tag.0, word) {
                return Ok(tag);
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("too many changes of leaf {leaf} have failed: let maintenance settle them"),
        ))
    }

    /// As [`DmTree::lock_route`].
    pub(crate) async fn lock_by_word(&self, route: &Route) -> Result<Option<Locked>> {
        let words = self.words().await?;
        let word = words.at.by_place(route.leaf)?;
        self.ep.stage_cost(Stage::LocalQueue, 1);
        let resting = self.quiescent_section();
        let turn = words.local.turn(&self.ep, word.number).await?;
        drop(resting);
        let handed = turn.is_handed.then(|| LockTag(turn.tag()));
        if let Some(tag) = handed {
            Mark::WordHanded.hit();
            self.hold(tag, Lockable::Word(word.at));
        }
        self.ep.point().await;
        let tag = match handed {
            Some(tag) => tag,
            None => self.take_word(&word, &turn, route).await?,
        };
        self.open_locked(route, word.at, tag, turn).await
    }

    /// As [`DmTree::try_lock_route`].
    pub(crate) async fn try_lock_by_word(&self, route: &Route) -> Result<Option<Locked>> {
        let words = self.words().await?;
        let word = words.at.by_place(route.leaf)?;
        let Some(turn) = words.local.try_turn(word.number) else { return Ok(None) };
        let tag = match turn.is_handed {
            true => {
                let tag = LockTag(turn.tag());
                self.hold(tag, Lockable::Word(word.at));
                tag
            }
            false => match self.try_word(&word, &turn).await? {
                Ok(tag) => tag,
                Err(_) => return Ok(None),
            },
        };
        self.open_locked(route, word.at, tag, turn).await
    }

    /// One try; what the word holds when somebody else has it.
    async fn try_word(
        &self,
        word: &LockWord,
        turn: &LocalTurn,
    ) -> Result<std::result::Result<LockTag, u64>> {
        let tag = self.next_tag();
        let own = HeldLock { tag, on: Lockable::Word(word.at) };
        self.tries.borrow_mut().push(own);
        self.ep.step(Step::Lock);
        let was = self.ep.cas(word.at, 0, tag.0).await;
        if was.as_ref().map_or_else(|e| e.effect() == Effect::None, |_| true) {
            self.forget_try(tag);
        }
        let was = was?;
        if was != 0 {
            Mark::LockHeld.hit();
            return Ok(Err(was));
        }
        self.hold(tag, own.on);
        turn.set_tag(tag.0);
        Ok(Ok(tag))
    }

    async fn take_word(&self, word: &LockWord, turn: &LocalTurn, route: &Route) -> Result<LockTag> {
        let mut backoff = self.ep.backoff_within("leaf lock", route.leaf, LOCK_PAUSE_NS);
        loop {
            let was = match self.try_word(word, turn).await? {
                Ok(tag) => return Ok(tag),
                Err(was) => was,
            };
            self.retried.set(true);
            if self.node.is_abandoned_at(was, word.at) {
                Box::pin(self.recover_word(word.at, was)).await?;
            }
            self.recover_locks_while_waiting().await;
            self.quiescent_point();
            // A change that is stuck is that of the leaf it names.
            let leaf = match LockTag(was).is_changing() {
                true => self.named_by(word.at, LockTag(was)).await?,
                false => route.leaf,
            };
            self.pause(&mut backoff, &Route { leaf, ..*route }, false).await?;
        }
    }

    /// READs the leaf whose lock is ours. `None`, and the lock is given back, when the route is stale.
    async fn open_locked(
        &self,
        route: &Route,
        at: GlobalAddr,
        tag: LockTag,
        turn: LocalTurn,
    ) -> Result<Option<Locked>> {
        let turn = LeafTurn::Word(turn);
        let opened = self.read_locked(route).await;
        let table = Table::new(route.leaf, crate::format::Ver { generation: 0, range: 0 }, 0, 0);
        let mut l = Locked { route: *route, at, tag, table, turn, image: None };
        match opened {
            Ok(Some((image, table))) => {
                (l.image, l.table) = (Some(image), table);
                Ok(Some(l))
            }
            Ok(None) => {
                Mark::LockStale.hit();
                self.unlock(l).await?;
                Ok(None)
            }
            Err(e) => self.fail_locked(l, e).await,
        }
    }

    /// A locked leaf's image, and what a table of it would say. A torn slot was left by a writer who has died: it is repaired.
    async fn read_locked(&self, route: &Route) -> Result<Option<(LeafCopy, Table)>> {
        let g = &self.node.g;
        let mut backoff = self.ep.backoff("a torn slot to be repaired", route.leaf);
        loop {
            self.ep.step(Step::Entry);
            let bytes = self.ep.read(route.leaf, g.leaf_image(route.capacity) as u32).await?;
            self.ep.stage_cost(Stage::NodeImage, route.capacity as u32);
            let live = match self.see_locked(route, &bytes) {
                Seen::Stale => return Ok(None),
                Seen::Torn => {
                    Mark::WordTorn.hit();
                    self.retried.set(true);
                    self.repair_slots(route).await?;
                    backoff.step().await?;
                    continue;
                }
                Seen::Whole(live) => live,
            };
            let Ok(((), bytes)) = bytes.check(|_| Ok::<_, ()>(())) else { return Ok(None) };
            let image = LeafCopy { addr: route.leaf, capacity: route.capacity, bytes };
            let h = image.header(self);
            let fence = fence_tag(self.fence_bytes(h.hi).await?.as_deref());
            if fence != route.fence {
                return Ok(None);
            }
            let mut table = Table::new(route.leaf, h.ver, fence, route.capacity);
            (0..route.capacity).filter(|i| live >> i & 1 == 1).for_each(|i| table.set(i, 1));
            return Ok(Some((image, table)));
        }
    }

    fn see_locked(&self, route: &Route, bytes: &Sampled) -> Seen {
        let g = &self.node.g;
        bytes.extract(|b| {
            // Alive in this life under its lock: nobody else changes it, and nothing else is there.
            let h = check_header(g, route.leaf, b).filter(|h| {
                let same = h.ver.generation == route.generation
                    && h.slots == route.capacity
                    && h.level == 0;
                same && h.into.is_null() && !h.dead
            });
            let Some(h) = h else { return Seen::Stale };
            let (mut live, mut torn) = (0u128, false);
            for i in 0..route.capacity {
                let at = g.slot_at(i);
                let place = Place { leaf: route.leaf, slot: i };
                match slot::check(g, place, &b[at..at + g.entry()]) {
                    None => torn = true,
                    Some(s) if s.ver != h.ver || s.state == State::Staged => return Seen::Stale,
                    Some(s) => live |= u128::from(s.state == State::Live) << i,
                }
            }
            if torn { Seen::Torn } else { Seen::Whole(live) }
        })
    }

    /// Says that these leaves are about to be changed, and WRITEs the image of a new one.
    pub(crate) async fn begin_change(
        &self,
        locks: &mut [&mut Locked],
        new: Option<(Grant, Buf)>,
    ) -> Result<()> {
        let mut batch = VerbVec::new();
        let mut tags = Vec::with_capacity(locks.len());
        for l in locks.iter() {
            let tag = self.changing_tag(l.route.leaf).await?;
            tags.push((batch.cas(l.at, l.tag.0, tag.0), tag));
        }
        if let Some((grant, image)) = new {
            self.add_new_leaf(&mut batch, grant, image);
        }
        for (l, (_, tag)) in locks.iter().zip(&tags) {
            self.tries.borrow_mut().push(HeldLock { tag: *tag, on: Lockable::Word(l.at) });
        }
        self.ep.step(Step::Structure);
        let done = self.ep.batch(batch).await;
        if done.as_ref().map_or_else(|e| e.effect() == Effect::None, |_| true) {
            tags.iter().for_each(|(_, tag)| self.forget_try(*tag));
        }
        let done = done?;
        for (l, (i, tag)) in locks.iter_mut().zip(&tags) {
            if done.word(*i) != l.tag.0 {
                return Err(
                    Error::corrupt(format!("the lock at {} was lost", l.at)).effect_unknown()
                );
            }
            self.let_go(l.tag);
            self.hold(*tag, Lockable::Word(l.at));
            l.tag = *tag;
        }
        Ok(())
    }

    /// The WRITE of a new leaf. Where another one was, its header goes first: a mix of the two must not pass for the old one.
    pub(crate) fn add_new_leaf(&self, batch: &mut VerbVec, grant: Grant, image: Buf) {
        if grant.generation > 1 {
            batch.write_word(grant.addr, 0);
            batch.then().write(grant.addr, image);
        } else {
            batch.write(grant.addr, image);
        }
    }

    /// Unlocks, or hands the lock over.
    pub(crate) async fn unlock_word(
        &self,
        at: GlobalAddr,
        tag: LockTag,
        turn: LocalTurn,
    ) -> Result<()> {
        let Some(turn) = self.hand_over(at, tag, turn) else { return Ok(()) };
        let hook = self.leaf_hook.watch(HeldLock { tag, on: Lockable::Word(at) }, None);
        let done = self.ep.release(cas(at, tag.0, 0), hook).await;
        turn.leave();
        self.released(tag, done)
    }

    /// Hands a lock over to the next client of this node, if there is one and it may be; else the turn comes back.
    pub(crate) fn hand_over(
        &self,
        at: GlobalAddr,
        tag: LockTag,
        turn: LocalTurn,
    ) -> Option<LocalTurn> {
        if tag.is_changing() || !turn.may_hand_over() {
            return Some(turn);
        }
        self.let_go(tag);
        let back = turn.hand_over()?;
        self.hold(tag, Lockable::Word(at));
        Some(back)
    }

    /// Unlocks a leaf that is dead, awaited. False when that is not certain: then it leaves an orphan that names the leaf, and whoever
    /// settles that retires it.
    pub(crate) async fn close_word(&self, at: GlobalAddr, tag: LockTag) -> Result<bool> {
        self.ep.step(Step::Structure);
        let done = self.ep.cas(at, tag.0, 0).await.map(|_| ());
        let certain = done.is_ok();
        self.unlocked(tag, done).map(|()| certain)
    }

    /// A cell that nobody can reach from now on, where leaves have any.
    pub(crate) fn retire_table(&self, table: TableId) {
        if self.node.has_tables() {
            self.node.pool.retire_table(self.node.root.index, table);
        }
    }
}
