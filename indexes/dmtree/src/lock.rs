//! Leaf locks: a word at the table's home, touched by atomics only.
//!
//! A try whose outcome is unknown is decided by the tag: whoever reads his own tag back holds the lock. A lock whose holder is dead
//! (its node is fenced everywhere), or has failed, is taken over by whoever meets it (`mend.rs`). While a table has no home its
//! writers wait.

use dmtree_fabric::verb::{cas, write};
use dmtree_fabric::{Effect, GlobalAddr, Result, Role, Stage, Step};
use dmtree_parts::fifo_mutex::FifoGuard;
use dmtree_parts::handover::LocalTurn;

use crate::client::{DmTree, HeldLock, LeafCopy, Lockable, Route, is_away};
use crate::format::table::{BODY_AT, LockTag, Table, View};
use crate::marks::Mark;
use crate::mutants::Mutant;

/// Longest pause between two tries for a leaf's lock. It is held for two or three round trips, and one client of each compute
/// node tries: longer pauses leave it idle between two holders.
pub(crate) const LOCK_PAUSE_NS: u64 = 4_000;
/// After so many tries, and every so many further ones, a waiter looks whether the leaf's memory node answers at all, and pauses
/// longer.
pub(crate) const LONG_WAIT: u32 = 64;
/// Pause of a waiter for whom nothing changes soon, ns.
const LONG_PAUSE_NS: u64 = 200_000;

/// A locked leaf, with its table as it was under the lock.
pub(crate) struct Locked {
    pub route: Route,
    /// The table's cell.
    pub at: GlobalAddr,
    pub tag: LockTag,
    pub table: Table,
    pub turn: LeafTurn,
    /// Without tables: the leaf as READ under the lock.
    pub image: Option<LeafCopy>,
}

/// Whose turn it is at a leaf's lock, among the clients of a node.
pub(crate) enum LeafTurn {
    /// The lock is a table's.
    Table(FifoGuard),
    /// The lock is a word of a memory node.
    Word(LocalTurn),
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

    /// Locks the leaf that a route names; `None` when the route is stale. The caller holds no other leaf's lock.
    pub(crate) async fn lock_route(&self, route: &Route) -> Result<Option<Locked>> {
        if !self.node.has_tables() {
            return self.lock_by_word(route).await;
        }
        self.ep.stage_cost(Stage::LocalQueue, 1);
        let resting = self.rest();
        let turn = self.node.leaf_turns.turn(&self.ep, route.table.bits()).await?;
        drop(resting);
        self.ep.point().await;
        self.let_others_in(route).await?;
        let mut backoff = self.ep.backoff_within("leaf lock", route.leaf, LOCK_PAUSE_NS);
        let mut tag = self.next_tag();
        // Where an earlier try with this tag may have succeeded.
        let mut doubt = None;
        loop {
            let tried = match self.node.pool.resolve(&self.ep, route.table).await {
                Ok(at) => (at, self.try_lock((route, &turn), at, tag, doubt == Some(at)).await),
                Err(e) if is_away(&e) => {
                    Mark::Unowned.hit();
                    (GlobalAddr::NULL, Err(e))
                }
                Err(e) => return Err(e),
            };
            match tried {
                (at, Ok(Tried::Got(table))) => {
                    self.hold(tag, Lockable::Leaf(*route));
                    self.say_taken(route, at, &turn);
                    let turn = LeafTurn::Table(turn);
                    return Ok(Some(Locked { route: *route, at, tag, table, turn, image: None }));
                }
                (at, Ok(Tried::Stale)) => {
                    self.say_taken(route, at, &turn);
                    return Ok(None);
                }
                (at, Ok(Tried::Unbuilt)) => {
                    doubt = None;
                    if !Box::pin(self.recover_leaf(route, at, 0)).await? {
                        return Ok(None);
                    }
                }
                (at, Ok(Tried::Busy(was))) => {
                    doubt = None;
                    self.meet(route, at, was, backoff.steps()).await?;
                    if self.node.is_abandoned(was)
                        && !Box::pin(self.recover_leaf(route, at, was)).await?
                    {
                        return Ok(None);
                    }
                }
                // Tables of a memory node get no other home: its loss is the operation's.
                (at, Err(e)) if is_away(&e) && (at.is_null() || !is_memory(at)) => {
                    Mark::LockInDoubt.hit();
                    doubt = (!at.is_null()).then_some(at);
                }
                (_, Err(e)) => return Err(e),
            }
            self.retried.set(true);
            self.recover_locks_while_waiting().await;
            self.pass();
            self.pause(&mut backoff, route, doubt.is_some()).await?;
            if doubt.is_none() {
                // The last one may have been given back in vain, and be an orphan's.
                self.forget_try(tag);
                tag = self.next_tag();
            }
        }
    }

    /// Waits for somebody else's lock, or for a home. A memory node that does not answer, and keeps the lock from being given back,
    /// is named before long.
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

    /// As [`DmTree::lock_route`], but gives up at once when anybody else has the lock, or wants it on this node.
    pub(crate) async fn try_lock_route(&self, route: &Route) -> Result<Option<Locked>> {
        if !self.node.has_tables() {
            return self.try_lock_by_word(route).await;
        }
        let Some(turn) = self.node.leaf_turns.try_turn(route.table.bits()) else { return Ok(None) };
        let at = match self.node.pool.resolve(&self.ep, route.table).await {
            Ok(at) => at,
            Err(e) if is_away(&e) => return Ok(None),
            Err(e) => return Err(e),
        };
        let tag = self.next_tag();
        match self.try_lock((route, &turn), at, tag, false).await {
            Ok(Tried::Got(table)) => {
                self.hold(tag, Lockable::Leaf(*route));
                let turn = LeafTurn::Table(turn);
                Ok(Some(Locked { route: *route, at, tag, table, turn, image: None }))
            }
            Ok(_) => Ok(None),
            Err(e) => {
                if e.effect() == Effect::Unknown {
                    self.leave_try(HeldLock { tag, on: Lockable::Leaf(*route) });
                }
                if is_away(&e) { Ok(None) } else { Err(e) }
            }
        }
    }

    /// `doubt`: an earlier try with this tag may have succeeded.
    async fn try_lock(
        &self,
        (route, turn): (&Route, &FifoGuard),
        at: GlobalAddr,
        tag: LockTag,
        doubt: bool,
    ) -> Result<Tried> {
        let len = Table::body_len(route.capacity);
        self.ep.step(Step::Lock);
        let lock = HeldLock { tag, on: Lockable::Leaf(*route) };
        let body = at.plus(BODY_AT as u64);
        let (was, body, said) = match self.looks_at(route, at, turn) {
            None => {
                let (was, body) = self.try_for(lock, (at, 0), body, len).await?;
                (was, body, None)
            }
            Some(words) => {
                let (was, body, said) = self.try_and_look(lock, at, (body, len), words).await?;
                (was, body, Some(said))
            }
        };
        if was != 0 && !(doubt && was == tag.0) {
            Mark::LockHeld.hit();
            return Ok(Tried::Busy(was));
        }
        self.took(route, said.as_ref());
        // The lock is ours: nobody writes this table now, so a torn one is not a table of this leaf.
        let view = body.extract(|b| Table::view(route.table, route.capacity, b));
        let other = match view {
            View::Whole(table) if route.matches(&table) => return Ok(Tried::Got(table)),
            View::Whole(table) if self.node.has(Mutant::LockAnyTable) => {
                return Ok(Tried::Got(table));
            }
            View::Unbuilt => Tried::Unbuilt,
            _ => {
                Mark::LockStale.hit();
                Tried::Stale
            }
        };
        self.give_back_leaf(route, at, tag).await?;
        Ok(other)
    }

    /// Unlocks a leaf whose table has not changed.
    pub(crate) async fn unlock(&self, l: Locked) -> Result<()> {
        let turn = match l.turn {
            LeafTurn::Word(turn) => return self.unlock_word(l.at, l.tag, turn).await,
            LeafTurn::Table(turn) => turn,
        };
        let lock = HeldLock { tag: l.tag, on: Lockable::Leaf(l.route) };
        let hook = self.leaf_hook.watch(lock, Some(turn));
        let done = self.ep.release(cas(l.at, l.tag.0, 0), hook).await;
        self.released(l.tag, done)
    }

    /// Gives a lock back under which nothing was done.
    pub(crate) async fn give_back_leaf(
        &self,
        route: &Route,
        at: GlobalAddr,
        tag: LockTag,
    ) -> Result<()> {
        let lock = HeldLock { tag, on: Lockable::Leaf(*route) };
        let hook = self.leaf_hook.watch(lock, None);
        let done = self.ep.release(cas(at, tag.0, 0), hook).await;
        self.released(tag, done)
    }

    /// Writes the table and unlocks behind it: WRITE->atomic is ordered.
    pub(crate) async fn unlock_with_table(&self, mut l: Locked) -> Result<()> {
        let turn = match l.turn {
            LeafTurn::Word(turn) => return self.unlock_word(l.at, l.tag, turn).await,
            LeafTurn::Table(turn) => turn,
        };
        let mut body = self.ep.buf(Table::body_len(l.route.capacity) as u32).await?;
        l.table.body(l.route.table, &mut body);
        let lock = HeldLock { tag: l.tag, on: Lockable::Leaf(l.route) };
        let hook = self.leaf_hook.watch(lock, Some(turn));
        if self.node.has(Mutant::UnlockBesideTable) {
            self.ep.detach(write(l.at.plus(BODY_AT as u64), body), None);
            self.ep.detach(cas(l.at, l.tag.0, 0), hook);
            self.let_go(l.tag);
            return Ok(());
        }
        let list = (write(l.at.plus(BODY_AT as u64), body), cas(l.at, l.tag.0, 0));
        let done = self.ep.release(list, hook).await;
        self.released(l.tag, done)
    }

    /// An unlock is under way, or has ended: its hook leaves the orphan, if any.
    pub(crate) fn released(&self, tag: LockTag, done: Result<()>) -> Result<()> {
        self.let_go(tag);
        match done {
            Err(e) if is_away(&e) => Ok(()),
            done => done,
        }
    }

    /// An awaited unlock that has failed leaves an orphan behind, and does not undo what the operation has achieved: the home is dead
    /// (then its lock is moot), or somebody will find the lock and repair the table. The operation does not hold it any more: when it
    /// goes on and waits, tables may move.
    pub(crate) fn unlocked(&self, tag: LockTag, done: Result<()>) -> Result<()> {
        match done {
            Err(e) if is_away(&e) => {
                self.leave_abandoned_lock(tag);
                Ok(())
            }
            Err(e) => Err(e),
            Ok(()) => {
                self.let_go(tag);
                Ok(())
            }
        }
    }
}

pub(crate) fn is_memory(at: GlobalAddr) -> bool {
    at.node().role() == Role::Memory
}

enum Tried {
    Got(Table),
    Stale,
    /// The cell was never written since it was zeroed: its home is new.
    Unbuilt,
    Busy(u64),
}
