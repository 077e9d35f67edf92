//! Leaf locks: a word at the table's owner, touched by atomics only.
//!
//! Taking a lock:
//!
//! 1. A FIFO guard admits one client of this node at a time. It is taken in a quiescent section, so
//!    that tables may move while the client queues.
//! 2. A lock that other nodes wait for is left to them (`lock/fair.rs`).
//! 3. `[CAS lock 0->tag, READ table]`, one chain. The READ executes behind the CAS, so under the
//!    lock the table is exact (F).
//! 4. A table that is not the route's (leaf, generation, version, fence tag) means a stale route:
//!    the lock is given back and the caller reads the route again. An unbuilt table is built by
//!    `recovery/leaf.rs`.
//!
//! Releasing it: `[WRITE table, CAS tag->0]` when fingerprints have changed, else the CAS alone. A
//! WRITE is ordered before an atomic of the same chain, so the lock is never free while the table
//! is old. Releases are detached. The lock word is never written, so no WRITE can overwrite another
//! client's tag.
//!
//! *Unknown outcomes.* Each tag is used once. After a try with an unknown outcome the client tries
//! again with the same tag: a lock word that holds the client's own tag is the client's lock. Until
//! the outcome is known the lock counts as tried for (`parts::held`), also when the caller drops
//! the future.
//!
//! *Abandoned locks.* A lock of a dead holder (its node is revoked everywhere) or of a failed one
//! is taken over by the next client that meets it, through `recovery/leaf.rs`. While a table has no
//! owner its writers wait, and let tables move meanwhile.
//!
//! A client waits for a leaf's lock only while it holds no other leaf's lock; a second one is taken
//! by try. So leaf locks form no cycle. A waiter that waits for long reads what a repair would read
//! (`recovery/stall.rs`), and fails with the name of a lost node instead of at its deadline.
//!
//! A crash of the holder leaves its tag in the word. The tag names node and incarnation, which is
//! all that a survivor needs to tell whether the lock is abandoned.

mod fair;
mod table;
mod unlock;
mod word;

pub(crate) use fair::{Contenders, STAMP_BYTES};
pub(crate) use table::{Confirmed, TableLocks, Tried, is_memory};
pub(crate) use unlock::UnlockHook;
pub(crate) use word::{LeafLockWords, WordLocks};

use dmtree_fabric::verb::{cas, write, write as write_verb};
use dmtree_fabric::{Effect, GlobalAddr, Result, Stage, Step};
use dmtree_parts::fifo_mutex::FifoGuard;
use dmtree_parts::handover::LocalGuard;
use dmtree_parts::held::{RemoteLock, Unlock};

use crate::client::{Client, Route, is_away};
use crate::format::table::{BODY_AT, LockTag, Table, View};
use crate::inner::{InnerLocks, LockedInner};
use crate::leaf::LeafCopy;
use crate::marks::Mark;
use crate::mutants::Mutant;
use crate::recovery::{LeafRecovery, LockRecovery, StallDiagnosis};

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

/// A locked leaf, with its table as it was under the lock.
pub(crate) struct Locked {
    pub route: Route,
    /// The table's cell.
    pub at: GlobalAddr,
    pub tag: LockTag,
    /// Boxed: a locked leaf moves through a dozen futures.
    pub table: Box<Table>,
    pub fifo_guard: LeafFifoGuard,
    /// Without tables: the leaf as READ under the lock.
    pub image: Option<LeafCopy>,
}

/// The FIFO guard of a leaf's lock, among the clients of a node.
pub(crate) enum LeafFifoGuard {
    /// The lock is a table's. A client that took it without a wait has none.
    Table(Option<FifoGuard>),
    /// The lock is a word of a memory node.
    Word(LocalGuard),
}

/// The locks of leaves.
#[derive(Clone, Copy)]
pub(crate) struct LeafLocks<'c>(pub &'c Client);

impl LeafLocks<'_> {
    /// Locks the leaf of a key: one round trip when the route is right and the lock is free.
    pub(crate) async fn of_key(self, key: &[u8]) -> Result<Locked> {
        let c = self.0;
        let mut route = c.route(key).await?;
        let mut backoff = c.ep.backoff("a consistent view of a leaf", route.leaf);
        loop {
            if let Some(locked) = self.lock(&route).await? {
                return Ok(locked);
            }
            route = c.other_route(key, &route, &mut backoff).await?;
        }
    }

    /// Locks the leaf that a route names; `None` when the route is stale. The caller holds no other
    /// leaf's lock.
    pub(crate) async fn lock(self, route: &Route) -> Result<Option<Locked>> {
        let c = self.0;
        if !c.node.has_tables() {
            return WordLocks(c).lock(route).await;
        }
        c.ep.stage_cost(Stage::LocalQueue, 1);
        let quiescent = c.op.quiescent_section();
        let fifo_guard = c.node.leaf_fifo.lock(&c.ep, route.table.bits()).await?;
        drop(quiescent);
        c.ep.point().await;
        Contenders(c).yield_lock(route).await?;
        let mut backoff = c.ep.backoff_within("leaf lock", route.leaf, LOCK_PAUSE_NS);
        let mut tag = c.next_tag();
        // The cell at which an earlier try with this tag may have succeeded.
        let mut doubt = None;
        loop {
            let (at, tried) = match c.node.pool.resolve(&c.ep, route.table).await {
                Ok(at) => (
                    at,
                    TableLocks(c).try_cell((route, &fifo_guard), at, tag, doubt == Some(at)).await,
                ),
                Err(e) if is_away(&e) => {
                    Mark::Unowned.hit();
                    (GlobalAddr::NULL, Err(e))
                }
                Err(e) => return Err(e),
            };
            match tried {
                Ok(Tried::Got(table)) => {
                    c.hold(tag, Lockable::Leaf(*route));
                    Contenders(c).announce_taken(route, at, &fifo_guard);
                    let fifo_guard = LeafFifoGuard::Table(Some(fifo_guard));
                    return Ok(Some(Locked {
                        route: *route,
                        at,
                        tag,
                        table,
                        fifo_guard,
                        image: None,
                    }));
                }
                Ok(Tried::Stale) => {
                    Contenders(c).announce_taken(route, at, &fifo_guard);
                    return Ok(None);
                }
                Ok(Tried::Unbuilt) => {
                    doubt = None;
                    if !Box::pin(LeafRecovery(c).recover(route, at, 0)).await? {
                        return Ok(None);
                    }
                }
                Ok(Tried::Busy(was)) => {
                    doubt = None;
                    Contenders(c).meet(route, at, was, backoff.steps()).await?;
                    if c.node.is_abandoned(was)
                        && !Box::pin(LeafRecovery(c).recover(route, at, was)).await?
                    {
                        return Ok(None);
                    }
                }
                // Tables of a memory node are not reassigned: its loss is the operation's error.
                Err(e) if is_away(&e) && (at.is_null() || !is_memory(at)) => {
                    Mark::LockInDoubt.hit();
                    doubt = (!at.is_null()).then_some(at);
                }
                Err(e) => return Err(e),
            }
            c.op.retried.set(true);
            LockRecovery(c).while_waiting().await;
            c.op.quiescent_point();
            self.pause(&mut backoff, route, doubt.is_some()).await?;
            if doubt.is_none() {
                // The last try may have been given back in vain, and its lock be abandoned.
                c.op.forget_try(tag);
                tag = c.next_tag();
            }
        }
    }

    /// Waits for another client's lock, or for a table's owner. A memory node that does not answer,
    /// and keeps the lock from being given back, is named in an error before the deadline.
    pub(crate) async fn pause(
        self,
        backoff: &mut dmtree_fabric::Backoff<'_>,
        route: &Route,
        away: bool,
    ) -> Result<()> {
        let steps = backoff.steps();
        if steps > 0 && steps.is_multiple_of(LONG_WAIT) {
            Box::pin(StallDiagnosis(self.0).leaf(route.leaf)).await?;
        }
        if away || steps > LONG_WAIT {
            self.0.ep.sleep(LONG_PAUSE_NS).await;
        }
        backoff.step().await
    }

    /// As [`LeafLocks::lock`], but gives up at once when another client has the lock, or waits
    /// for it on this node.
    pub(crate) async fn try_lock(self, route: &Route) -> Result<Option<Locked>> {
        let c = self.0;
        if !c.node.has_tables() {
            return WordLocks(c).try_lock(route).await;
        }
        let Some(fifo_guard) = c.node.leaf_fifo.try_lock(route.table.bits()) else {
            return Ok(None);
        };
        let at = match c.node.pool.resolve(&c.ep, route.table).await {
            Ok(at) => at,
            Err(e) if is_away(&e) => return Ok(None),
            Err(e) => return Err(e),
        };
        let tag = c.next_tag();
        match TableLocks(c).try_cell((route, &fifo_guard), at, tag, false).await {
            Ok(Tried::Got(table)) => {
                c.hold(tag, Lockable::Leaf(*route));
                let fifo_guard = LeafFifoGuard::Table(Some(fifo_guard));
                Ok(Some(Locked { route: *route, at, tag, table, fifo_guard, image: None }))
            }
            Ok(_) => Ok(None),
            Err(e) => {
                if e.effect() == Effect::Unknown {
                    c.op.leave_try(HeldLock { tag, on: Lockable::Leaf(*route) });
                }
                if is_away(&e) { Ok(None) } else { Err(e) }
            }
        }
    }

    /// Writes the table and unlocks behind it: WRITE->atomic is ordered.
    pub(crate) async fn unlock_with_table(self, mut l: Locked) -> Result<()> {
        let c = self.0;
        let fifo_guard = match l.fifo_guard {
            LeafFifoGuard::Word(fifo_guard) => {
                return WordLocks(c).unlock(l.at, l.tag, fifo_guard).await;
            }
            LeafFifoGuard::Table(fifo_guard) => fifo_guard,
        };
        debug_assert!(c.op.holds(l.tag), "a table of {} is written without its lock", l.route.leaf);
        debug_assert_eq!(l.table.leaf, l.route.leaf, "F: the table is the leaf's");
        let mut body = c.ep.buf(Table::body_len(l.route.capacity) as u32).await?;
        l.table.body(l.route.table, &mut body);
        c.keep_table(l.table);
        let lock = HeldLock { tag: l.tag, on: Lockable::Leaf(l.route) };
        let hook = c.leaf_hook.watch(lock, fifo_guard);
        if c.node.has(Mutant::UnlockBesideTable) {
            c.ep.detach(write(l.at.plus(BODY_AT as u64), body), None);
            c.ep.detach(cas(l.at, l.tag.0, 0), hook);
            c.op.let_go(l.tag);
            return Ok(());
        }
        let list = (write(l.at.plus(BODY_AT as u64), body), cas(l.at, l.tag.0, 0));
        let done = c.ep.release(list, hook).await;
        c.released(l.tag, done)
    }

    /// Takes over an abandoned lock by compare-and-swap; `None` if the lock word has changed.
    pub(crate) async fn take_over(
        self,
        route: &Route,
        at: GlobalAddr,
        was: u64,
        tag: LockTag,
    ) -> Result<Option<(LockTag, View)>> {
        let c = self.0;
        if !c.node.has_tables() {
            let taken = WordLocks(c).take_over(route, at, was).await?;
            return Ok(taken.map(|tag| (tag, View::Unbuilt)));
        }
        let len = Table::body_len(route.capacity);
        c.ep.step(Step::Lock);
        let lock = HeldLock { tag, on: Lockable::Leaf(*route) };
        let taken = c.try_for(lock, (at, was), at.plus(BODY_AT as u64), len).await;
        let (now, body) = match taken {
            Ok(taken) => taken,
            Err(e) => {
                c.op.leave_try(lock);
                return if is_away(&e) { Ok(None) } else { Err(e) };
            }
        };
        if now != was {
            return Ok(None);
        }
        c.node.adopted(LockTag(was));
        c.hold(tag, Lockable::Leaf(*route));
        Ok(Some((tag, body.extract(|b| Table::view(route.table, route.capacity, b)))))
    }

    /// Unlocks, awaited. An owner that is away leaves an abandoned lock.
    pub(crate) async fn give_back(self, at: GlobalAddr, tag: LockTag) -> Result<()> {
        let done = self.0.ep.cas(at, tag.0, 0).await.map(|_| ());
        self.0.unlocked(tag, done)
    }

    /// Closes the table of a tombstone and unlocks it. Awaited: its cell is retired next, and a
    /// WRITE still in flight then could land in the next leaf's table. False when another client
    /// will retire the leaf.
    pub(crate) async fn close(self, l: Locked) -> Result<bool> {
        let c = self.0;
        if !c.node.has_tables() {
            return WordLocks(c).close(l.at, l.tag).await;
        }
        let mut table = l.table.clone();
        table.closed = true;
        (0..l.route.capacity).for_each(|i| table.set(i, 0));
        let body = TableLocks(c).body(&mut table, l.route.table).await?;
        let list = (write_verb(l.at.plus(BODY_AT as u64), body), cas(l.at, l.tag.0, 0));
        c.ep.step(Step::Structure);
        if c.node.has(Mutant::CloseDetached) {
            c.ep.detach(list, None);
            c.op.let_go(l.tag);
            return Ok(true);
        }
        let closed = c.ep.chain(list).await.map(|_| ());
        drop(l.fifo_guard);
        if closed.as_ref().is_err_and(is_away) {
            TableLocks(c).close_again(l.tag, &l.route, l.at).await?;
        } else {
            closed?;
        }
        c.op.let_go(l.tag);
        Ok(true)
    }
}

impl Unlock<Locked> for Client {
    async fn unlock(&self, l: Locked) -> Result<()> {
        match l.fifo_guard {
            LeafFifoGuard::Word(fifo_guard) => {
                WordLocks(self).unlock(l.at, l.tag, fifo_guard).await
            }
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
