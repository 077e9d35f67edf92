//! Locks of leaves: words that atomics alone touch, at the owner of the leaf's table
//! ([`TableLocks`]) or, without tables, on the leaf's memory node ([`WordLocks`]).
//!
//! Both kinds have the same rules:
//!
//! - One client of a compute node at a time competes for a lock: a queue of the node admits it, in
//!   a quiescent section, so that tables may move while it waits.
//! - Under the lock the leaf is known: by its table, READ behind the compare-and-swap, or by its
//!   image. A leaf that is not the route's is given back, and the caller reads the route again.
//! - Releases are detached, and ordered behind the WRITEs that they cover. The lock word is never
//!   written, so no WRITE can overwrite another client's tag.
//!
//! *Unknown outcomes.* Each tag is used once. After a try with an unknown outcome the client tries
//! again with the same tag: a lock word that holds the client's own tag is the client's lock. Until
//! the outcome is known the lock counts as tried for (`parts::held`), also when the caller drops
//! the future.
//!
//! *Abandoned locks.* A lock of a dead holder (its node is revoked everywhere) or of a failed one
//! is taken over ([`TakenLock`]) by the next client that meets it, through `recovery/leaf.rs`.
//! While a table has no owner its writers wait, and let tables move meanwhile.
//!
//! A client waits for a leaf's lock only while it holds no other leaf's lock; a second one is taken
//! by try. So leaf locks form no cycle. A waiter that waits for long reads what a repair would read
//! (`recovery/stall.rs`), and fails with the name of a lost node instead of at its deadline.
//!
//! A crash of the holder leaves its tag in the word. The tag names node and incarnation, which is
//! all that a survivor needs to tell whether the lock is abandoned.

mod fair;
mod table;
mod tag;
mod unlock;
mod word;

pub(crate) use fair::{BehindLock, Contenders, STAMP_BYTES, TriedFor};
pub(crate) use table::{Confirmed, TableLocks, is_memory};
pub(crate) use tag::{Tags, TakenLock, is_closed};
pub(crate) use unlock::UnlockHook;
pub(crate) use word::{Change, LeafLockWords, WordLocks};

use std::ops::Range;

use dmtree_fabric::{Backoff, GlobalAddr, Result};
use dmtree_parts::Write;
use dmtree_parts::fifo_mutex::FifoGuard;
use dmtree_parts::handover::LocalGuard;
use dmtree_parts::held::RemoteLock;

use crate::format::{LockTag, Table};
use crate::inner::{InnerLocks, LockedInner};
use crate::leaf::{LeafCopy, Looked};
use crate::log::Appends;
use crate::recovery::diagnose_leaf;
use crate::router::Router;
use crate::{Client, HashedKey, Route, Unlock, reached};

/// A lock that an operation holds: its tag, and what it locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    pub tag: LockTag,
    pub on: Lockable,
}

/// Objects that a lock protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockable {
    Leaf(Route),
    Inner(GlobalAddr),
    /// A lock word of a memory node: its tag says more.
    Word(GlobalAddr),
}

impl RemoteLock for HeldLock {
    type Tag = LockTag;
    type Key = (u64, u64);

    fn tag(&self) -> LockTag {
        self.tag
    }

    /// The tag, and the word where one tag may be that of many words.
    fn key(&self) -> (u64, u64) {
        match self.on {
            Lockable::Word(at) => (self.tag.0, at.bits()),
            Lockable::Leaf(_) | Lockable::Inner(_) => (self.tag.0, 0),
        }
    }
}

/// Longest pause between two tries for a leaf's lock. The lock is held for two or three round
/// trips, and one client of each compute node tries: longer pauses leave it idle between two
/// holders.
pub(crate) const LOCK_PAUSE_NS: u64 = 4_000;
/// After this many tries, and every so many further ones, a waiter checks whether the leaf's memory
/// node answers at all, and pauses longer.
pub(crate) const LONG_WAIT: u32 = 64;
/// Pause of a waiter for which nothing changes soon, ns.
const LONG_PAUSE_NS: u64 = 200_000;

/// What a try for a lock READs behind it.
#[derive(Clone, Copy)]
pub(crate) enum Wanted<'k> {
    /// The table.
    Table,
    /// The table, and a slot of the image that may have this key.
    TableAndSlot(usize, HashedKey<'k>),
    /// The slot alone: an entry that has the key can be replaced without the table.
    Slot(usize, HashedKey<'k>),
}

/// A slot of an image that was READ under the lock, against a key. A value that was found is in
/// `Client::found`.
pub(crate) struct NearSlot {
    pub slot: usize,
    pub looked: Looked,
    /// A record of a log may say what it is.
    pub is_logged: bool,
}

/// A locked leaf. Boxed: it moves through a dozen futures.
pub(crate) type Locked = Box<LockedLeaf>;

/// A locked leaf, with its table as it was under the lock.
pub(crate) struct LockedLeaf {
    pub route: Route,
    /// The table's cell.
    pub at: GlobalAddr,
    pub tag: LockTag,
    /// Boxed by itself: its memory is used again (`Client::spare_table`).
    pub table: Box<Table>,
    pub fifo_guard: LeafFifoGuard,
    /// Without tables: the leaf as READ under the lock.
    pub image: Option<LeafCopy>,
    /// A slot of the leaf's image, as READ under the lock.
    pub near: Option<NearSlot>,
    /// The first word of the leaf's image, with its bound; 0 without an image, or when the slot
    /// alone was READ.
    pub image_word: u64,
}

impl LockedLeaf {
    /// Whether the lock is a word of the leaf's memory node; otherwise it is in the leaf's table.
    pub fn is_word(&self) -> bool {
        matches!(self.fifo_guard, LeafFifoGuard::Word(_))
    }

    /// A leaf that is locked by a tag.
    pub fn new(
        route: &Route,
        (at, tag): (GlobalAddr, LockTag),
        table: Box<Table>,
        fifo_guard: LeafFifoGuard,
    ) -> Locked {
        let route = *route;
        let (image, near, image_word) = (None, None, 0);
        Box::new(Self { route, at, tag, table, fifo_guard, image, near, image_word })
    }
}

/// The FIFO guard of a leaf's lock, among the clients of a node.
pub(crate) enum LeafFifoGuard {
    /// The lock is a table's. A client that took it without a wait has none.
    Table(Option<FifoGuard>),
    /// The lock is a word of a memory node.
    Word(LocalGuard),
}

/// The locks of leaves, of the kind that the index has.
#[derive(Clone, Copy)]
pub(crate) struct LeafLocks<'c>(pub &'c Client);

impl LeafLocks<'_> {
    /// Locks the leaf of a key: one round trip when the route is right and the lock is free.
    pub(crate) async fn of_key(self, key: &[u8]) -> Result<Locked> {
        self.of_part(key, None).await
    }

    /// The same for a write of this key alone: its neighbourhood is enough to know.
    pub(crate) async fn of_pair(self, (key, hash): HashedKey<'_>, w: &Write<'_>) -> Result<Locked> {
        if self.0.node.has_images()
            && let Some((route, slots)) = Router(self.0).cached_route(key, hash.fingerprint())
        {
            let named = slots.filter(|_| route.is_imaged());
            // Where the mirror names several slots, the first one has another key as often as not.
            // For a record it takes the table, which has the count.
            let alone = replaces(w)
                && Appends(self.0).is_past(&route)
                && named.as_ref().is_some_and(|slots| slots.are_at_most(1));
            let wanted = match named.and_then(|mut slots| slots.next()) {
                None => Wanted::Table,
                Some(slot) if alone => Wanted::Slot(slot, (key, hash)),
                Some(slot) => Wanted::TableAndSlot(slot, (key, hash)),
            };
            if let Some(locked) = TableLocks(self.0).lock(&route, wanted).await? {
                return Ok(locked);
            }
            Box::pin(Router(self.0).fresh_route(key)).await?;
        }
        self.of_part(key, self.0.node.places.reach(hash)).await
    }

    async fn of_part(self, key: &[u8], part: Option<Range<usize>>) -> Result<Locked> {
        let mut route = Router(self.0).leaf_of(key).await?.0;
        let mut backoff = self.0.ep.backoff("a consistent view of a leaf", route.leaf);
        loop {
            let locked = match &part {
                None => self.lock(&route).await?,
                Some(part) => WordLocks(self.0).lock(&route, Some(part.clone())).await?,
            };
            if let Some(locked) = locked {
                return Ok(locked);
            }
            route = Box::pin(Router(self.0).other_route(key, &route, &mut backoff)).await?;
        }
    }

    /// Locks the leaf that a route names; `None` when the route is stale. The caller holds no other
    /// leaf's lock.
    pub(crate) async fn lock(self, route: &Route) -> Result<Option<Locked>> {
        match self.0.node.has_tables() {
            true => TableLocks(self.0).lock(route, Wanted::Table).await,
            false => WordLocks(self.0).lock(route, None).await,
        }
    }

    /// As [`LeafLocks::lock`], but gives up at once when another client has the lock, or waits for
    /// it on this node.
    pub(crate) async fn try_lock(self, route: &Route) -> Result<Option<Locked>> {
        match self.0.node.has_tables() {
            true => TableLocks(self.0).try_lock(route).await,
            false => WordLocks(self.0).try_lock(route).await,
        }
    }

    /// Waits for another client's lock, or for a table's owner. A memory node that does not answer,
    /// and keeps the lock from being given back, is named in an error before the deadline.
    pub(crate) async fn pause(
        self,
        backoff: &mut Backoff<'_>,
        route: &Route,
        away: bool,
    ) -> Result<()> {
        let steps = backoff.steps();
        if steps > 0 && steps.is_multiple_of(LONG_WAIT) {
            Box::pin(diagnose_leaf(self.0, route.leaf)).await?;
        }
        if away || steps > LONG_WAIT {
            self.0.ep.sleep(LONG_PAUSE_NS).await;
        }
        backoff.step().await
    }

    /// Announces a change of whole leaves. The lock in a table covers any change.
    pub(crate) async fn begin_change(self, locks: &mut [&mut Locked]) -> Result<()> {
        if locks.iter().all(|l| l.is_word()) {
            self.0.check_lease()?;
            WordLocks(self.0).begin_change(locks, None).await?;
        }
        Ok(())
    }

    /// Unlocks, behind the WRITE of the table if there is one.
    pub(crate) async fn unlock_with_table(self, l: Locked) -> Result<()> {
        let LockedLeaf { route, at, tag, table, fifo_guard, .. } = *l;
        match fifo_guard {
            LeafFifoGuard::Word(guard) => WordLocks(self.0).unlock(at, tag, guard).await,
            LeafFifoGuard::Table(guard) => {
                TableLocks(self.0).unlock_with(route, (at, tag), table, guard).await
            }
        }
    }

    /// Unlocks a tombstone for good, awaited. False when another client will retire the leaf.
    pub(crate) async fn close(self, l: Locked) -> Result<bool> {
        match l.is_word() {
            true => WordLocks(self.0).close(l.at, l.tag).await,
            false => TableLocks(self.0).close(l).await.map(|()| true),
        }
    }

    /// The lock word of a leaf with its content, if its lock is abandoned and can be reached.
    pub(crate) async fn abandoned(self, route: &Route) -> Result<Option<(GlobalAddr, u64)>> {
        let c = self.0;
        if !c.node.has_tables() {
            return WordLocks(c).abandoned(route).await;
        }
        let Some(at) = c.cell(route.table).await? else { return Ok(None) };
        let was = reached(c.ep.cas(at, 0, 0).await)?.filter(|was| c.node.is_abandoned(*was));
        Ok(was.map(|was| (at, was)))
    }

    /// Takes over an abandoned lock, or one of an unbuilt table, by compare-and-swap; `None` if the
    /// lock word has changed.
    pub(crate) async fn take_over(
        self,
        route: &Route,
        at: GlobalAddr,
        was: u64,
    ) -> Result<Option<TakenLock>> {
        let tag = self.0.tags.next();
        match self.0.node.has_tables() {
            true => TableLocks(self.0).take_over(route, at, was, tag).await,
            false => WordLocks(self.0).take_over(route, at, was).await,
        }
    }
}

/// Whether a write replaces the entry of its key, if it finds one.
fn replaces(w: &Write<'_>) -> bool {
    !matches!(w, Write::Insert(_)) && w.value().is_some()
}

impl Unlock<Locked> for Client {
    async fn unlock(&self, l: Locked) -> Result<()> {
        match l.fifo_guard {
            LeafFifoGuard::Word(guard) => WordLocks(self).unlock(l.at, l.tag, guard).await,
            LeafFifoGuard::Table(guard) => {
                self.keep_table(l.table);
                TableLocks(self).free(&l.route, l.at, l.tag, guard).await
            }
        }
    }
}

impl Unlock<LockedInner> for Client {
    async fn unlock(&self, n: LockedInner) -> Result<()> {
        InnerLocks(self).release(n.addr, n.tag, n.fifo_guard).await
    }
}
