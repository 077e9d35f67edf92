//! Leaf locks: a word at the table's owner, touched by atomics only.
//!
//! Taking a lock:
//!
//! 1. A FIFO guard admits one client of this node at a time. It is taken in a quiescent section, so
//!    that tables may move while the client queues.
//! 2. A lock that other nodes wait for is left to them (`fair.rs`).
//! 3. `[CAS lock 0->tag, READ table]`, one chain. The READ executes behind the CAS, so under the
//!    lock the table is exact (F).
//! 4. A table that is not the route's (leaf, generation, version, fence tag) means a stale route:
//!    the lock is given back and the caller reads the route again. An unbuilt table is built by
//!    `recover_leaf.rs`.
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
//! is taken over by the next client that meets it, through `recover_leaf.rs`. While a table has no
//! owner its writers wait, and let tables move meanwhile.
//!
//! A client waits for a leaf's lock only while it holds no other leaf's lock; a second one is taken
//! by try. So leaf locks form no cycle. A waiter that waits for long reads what a repair would read
//! (`stall_diagnosis.rs`), and fails with the name of a lost node instead of at its deadline.
//!
//! A crash of the holder leaves its tag in the word. The tag names node and incarnation, which is
//! all that a survivor needs to tell whether the lock is abandoned.

use dmtree_fabric::verb::{cas, write};
use dmtree_fabric::{Effect, GlobalAddr, Result, Role, Stage, Step};
use dmtree_parts::fifo_mutex::FifoGuard;
use dmtree_parts::handover::LocalGuard;
use dmtree_parts::held::Unlock;

use crate::client::{DmTree, HeldLock, LeafCopy, Lockable, Route, is_away};
use crate::format::table::{BODY_AT, LockTag, Table, View};
use crate::marks::Mark;
use crate::mutants::Mutant;

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

impl DmTree {
    /// Locks the leaf of a key: one round trip when the route is right and the lock is free.
    pub(crate) async fn lock_leaf(&self, key: &[u8]) -> Result<Locked> {
        let mut route = self.route(key).await?;
        let mut backoff = self.ep.backoff("a consistent view of a leaf", route.leaf);
        loop {
            if let Some(locked) = self.lock_route(&route).await? {
                return Ok(locked);
            }
            route = self.other_route(key, &route, &mut backoff).await?;
        }
    }

    /// Locks the leaf that a route names; `None` when the route is stale. The caller holds no other
    /// leaf's lock.
    pub(crate) async fn lock_route(&self, route: &Route) -> Result<Option<Locked>> {
        if !self.node.has_tables() {
            return self.lock_by_lock_word(route).await;
        }
        self.ep.stage_cost(Stage::LocalQueue, 1);
        let quiescent = self.op.quiescent_section();
        let fifo_guard = self.node.leaf_fifo.lock(&self.ep, route.table.bits()).await?;
        drop(quiescent);
        self.ep.point().await;
        self.yield_to_contenders(route).await?;
        let mut backoff = self.ep.backoff_within("leaf lock", route.leaf, LOCK_PAUSE_NS);
        let mut tag = self.next_tag();
        // The cell at which an earlier try with this tag may have succeeded.
        let mut doubt = None;
        loop {
            let (at, tried) = match self.node.pool.resolve(&self.ep, route.table).await {
                Ok(at) => {
                    (at, self.try_lock((route, &fifo_guard), at, tag, doubt == Some(at)).await)
                }
                Err(e) if is_away(&e) => {
                    Mark::Unowned.hit();
                    (GlobalAddr::NULL, Err(e))
                }
                Err(e) => return Err(e),
            };
            match tried {
                Ok(Tried::Got(table)) => {
                    self.hold(tag, Lockable::Leaf(*route));
                    self.announce_taken(route, at, &fifo_guard);
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
                    self.announce_taken(route, at, &fifo_guard);
                    return Ok(None);
                }
                Ok(Tried::Unbuilt) => {
                    doubt = None;
                    if !Box::pin(self.recover_leaf(route, at, 0)).await? {
                        return Ok(None);
                    }
                }
                Ok(Tried::Busy(was)) => {
                    doubt = None;
                    self.meet(route, at, was, backoff.steps()).await?;
                    if self.node.is_abandoned(was)
                        && !Box::pin(self.recover_leaf(route, at, was)).await?
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
            self.op.retried.set(true);
            self.recover_locks_while_waiting().await;
            self.op.quiescent_point();
            self.pause(&mut backoff, route, doubt.is_some()).await?;
            if doubt.is_none() {
                // The last try may have been given back in vain, and its lock be abandoned.
                self.op.forget_try(tag);
                tag = self.next_tag();
            }
        }
    }

    /// Waits for another client's lock, or for a table's owner. A memory node that does not answer,
    /// and keeps the lock from being given back, is named in an error before the deadline.
    pub(crate) async fn pause(
        &self,
        backoff: &mut dmtree_fabric::Backoff<'_>,
        route: &Route,
        away: bool,
    ) -> Result<()> {
        let steps = backoff.steps();
        if steps > 0 && steps.is_multiple_of(LONG_WAIT) {
            Box::pin(self.diagnose_stall(route.leaf)).await?;
        }
        if away || steps > LONG_WAIT {
            self.ep.sleep(LONG_PAUSE_NS).await;
        }
        backoff.step().await
    }

    /// As [`DmTree::lock_route`], but gives up at once when another client has the lock, or waits
    /// for it on this node.
    pub(crate) async fn try_lock_route(&self, route: &Route) -> Result<Option<Locked>> {
        if !self.node.has_tables() {
            return self.try_lock_by_lock_word(route).await;
        }
        let Some(fifo_guard) = self.node.leaf_fifo.try_lock(route.table.bits()) else {
            return Ok(None);
        };
        let at = match self.node.pool.resolve(&self.ep, route.table).await {
            Ok(at) => at,
            Err(e) if is_away(&e) => return Ok(None),
            Err(e) => return Err(e),
        };
        let tag = self.next_tag();
        match self.try_lock((route, &fifo_guard), at, tag, false).await {
            Ok(Tried::Got(table)) => {
                self.hold(tag, Lockable::Leaf(*route));
                let fifo_guard = LeafFifoGuard::Table(Some(fifo_guard));
                Ok(Some(Locked { route: *route, at, tag, table, fifo_guard, image: None }))
            }
            Ok(_) => Ok(None),
            Err(e) => {
                if e.effect() == Effect::Unknown {
                    self.op.leave_try(HeldLock { tag, on: Lockable::Leaf(*route) });
                }
                if is_away(&e) { Ok(None) } else { Err(e) }
            }
        }
    }

    /// `doubt`: an earlier try with this tag may have succeeded.
    async fn try_lock(
        &self,
        (route, fifo_guard): (&Route, &FifoGuard),
        at: GlobalAddr,
        tag: LockTag,
        doubt: bool,
    ) -> Result<Tried> {
        let len = Table::body_len(route.capacity);
        self.ep.step(Step::Lock);
        let lock = HeldLock { tag, on: Lockable::Leaf(*route) };
        let body = at.plus(BODY_AT as u64);
        let (was, body, said) = match self.stamps_at(route, at, fifo_guard) {
            None => {
                let (was, body) = self.try_for(lock, (at, 0), body, len).await?;
                (was, body, None)
            }
            Some(words) => {
                let (was, body, said) =
                    self.try_and_read_stamps(lock, at, (body, len), words).await?;
                (was, body, Some(said))
            }
        };
        if was != 0 && !(doubt && was == tag.0) {
            Mark::LockHeld.hit();
            return Ok(Tried::Busy(was));
        }
        self.took(route, said.as_ref());
        // This operation holds the lock: no other client writes this table now, so a torn one is
        // not a table of this leaf.
        let mut table = self.spare_table();
        let is_whole = body.extract(|b| table.load(route.table, route.capacity, b));
        if is_whole && (route.matches(&table) || self.node.has(Mutant::LockAnyTable)) {
            return Ok(Tried::Got(table));
        }
        self.keep_table(table);
        let other = match body.extract(|b| Table::view(route.table, route.capacity, b)) {
            View::Unbuilt => Tried::Unbuilt,
            _ => {
                Mark::LockStale.hit();
                Tried::Stale
            }
        };
        self.free_leaf(route, at, tag, None).await?;
        Ok(other)
    }

    /// Unlocks a leaf with an unchanged table.
    pub(crate) async fn free_leaf(
        &self,
        route: &Route,
        at: GlobalAddr,
        tag: LockTag,
        fifo_guard: Option<FifoGuard>,
    ) -> Result<()> {
        let lock = HeldLock { tag, on: Lockable::Leaf(*route) };
        let hook = self.leaf_hook.watch(lock, fifo_guard);
        let done = self.ep.release(cas(at, tag.0, 0), hook).await;
        self.released(tag, done)
    }

    /// Writes the table and unlocks behind it: WRITE->atomic is ordered.
    pub(crate) async fn unlock_with_table(&self, mut l: Locked) -> Result<()> {
        let fifo_guard = match l.fifo_guard {
            LeafFifoGuard::Word(fifo_guard) => {
                return self.unlock_lock_word(l.at, l.tag, fifo_guard).await;
            }
            LeafFifoGuard::Table(fifo_guard) => fifo_guard,
        };
        debug_assert!(
            self.op.holds(l.tag),
            "a table of {} is written without its lock",
            l.route.leaf
        );
        debug_assert_eq!(l.table.leaf, l.route.leaf, "F: the table is the leaf's");
        let mut body = self.ep.buf(Table::body_len(l.route.capacity) as u32).await?;
        l.table.body(l.route.table, &mut body);
        self.keep_table(l.table);
        let lock = HeldLock { tag: l.tag, on: Lockable::Leaf(l.route) };
        let hook = self.leaf_hook.watch(lock, fifo_guard);
        if self.node.has(Mutant::UnlockBesideTable) {
            self.ep.detach(write(l.at.plus(BODY_AT as u64), body), None);
            self.ep.detach(cas(l.at, l.tag.0, 0), hook);
            self.op.let_go(l.tag);
            return Ok(());
        }
        let list = (write(l.at.plus(BODY_AT as u64), body), cas(l.at, l.tag.0, 0));
        let done = self.ep.release(list, hook).await;
        self.released(l.tag, done)
    }

    /// An unlock is in flight, or has ended: its hook records the abandoned lock, if any.
    pub(crate) fn released(&self, tag: LockTag, done: Result<()>) -> Result<()> {
        self.op.let_go(tag);
        match done {
            Err(e) if is_away(&e) => Ok(()),
            done => done,
        }
    }

    /// An awaited unlock that has failed leaves an abandoned lock, and does not undo what the
    /// operation has achieved. Either the owner is dead (then its lock is moot), or another client
    /// finds the lock and repairs the table. The operation does not hold the lock any more: when it
    /// continues and waits, tables may move.
    pub(crate) fn unlocked(&self, tag: LockTag, done: Result<()>) -> Result<()> {
        match done {
            Err(e) if is_away(&e) => {
                self.op.give_up(tag);
                Ok(())
            }
            Err(e) => Err(e),
            Ok(()) => {
                self.op.let_go(tag);
                Ok(())
            }
        }
    }
}

impl Unlock<Locked> for DmTree {
    async fn unlock(&self, l: Locked) -> Result<()> {
        match l.fifo_guard {
            LeafFifoGuard::Word(fifo_guard) => self.unlock_lock_word(l.at, l.tag, fifo_guard).await,
            LeafFifoGuard::Table(guard) => {
                self.keep_table(l.table);
                self.free_leaf(&l.route, l.at, l.tag, guard).await
            }
        }
    }
}

pub(crate) fn is_memory(at: GlobalAddr) -> bool {
    at.node().role() == Role::Memory
}

enum Tried {
    Got(Box<Table>),
    Stale,
    /// The cell was never written since it was zeroed: its owner is new.
    Unbuilt,
    Busy(u64),
}
