//! Leaf locks: a word at the table's home, touched by atomics only.

use dmtree_fabric::verb::{cas, write};
use dmtree_fabric::{GlobalAddr, Result, Stage, Step};
use dmtree_parts::turns::Turn;

use crate::client::{DmTree, Route};
use crate::format::table::{BODY_AT, LockTag, Table, View};
use crate::marks::Mark;

/// Longest pause between two tries for a leaf's lock. It is held for two or three round trips, and one client of each compute
/// node tries: longer pauses leave it idle between two holders.
const LOCK_PAUSE_NS: u64 = 4_000;

/// A locked leaf, with its table as it was under the lock.
pub(crate) struct Locked {
    pub route: Route,
    /// The table's cell.
    pub at: GlobalAddr,
    pub tag: LockTag,
    pub table: Table,
    pub turn: Turn,
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
            let fresh = self.fresh_route(key).await?;
            route = if fresh == route {
                backoff.step().await?;
                self.walk_route(key, &fresh).await?.unwrap_or(fresh)
            } else {
                fresh
            };
        }
    }

    /// Locks the leaf that a route names; `None` when the route is stale.
    pub(crate) async fn lock_route(&self, route: &Route) -> Result<Option<Locked>> {
        self.ep.stage_cost(Stage::LocalQueue, 1);
        let turn = self.node.leaf_turns.turn(&self.ep, route.table.bits()).await?;
        self.ep.point().await;
        let at = self.node.pool.resolve(&self.ep, route.table).await?;
        let mut backoff = self.ep.backoff_within("leaf lock", at, LOCK_PAUSE_NS);
        loop {
            if let Some(locked) = self.try_lock(route, at).await? {
                return Ok(match locked {
                    Tried::Got(tag, table) => Some(Locked { route: *route, at, tag, table, turn }),
                    Tried::Stale => None,
                });
            }
            self.retried.set(true);
            backoff.step().await?;
        }
    }

    /// As [`DmTree::lock_route`], but gives up at once when anybody else has the lock, or wants it on this node.
    pub(crate) async fn try_lock_route(&self, route: &Route) -> Result<Option<Locked>> {
        let Some(turn) = self.node.leaf_turns.try_turn(route.table.bits()) else { return Ok(None) };
        let at = self.node.pool.resolve(&self.ep, route.table).await?;
        Ok(match self.try_lock(route, at).await? {
            Some(Tried::Got(tag, table)) => Some(Locked { route: *route, at, tag, table, turn }),
            Some(Tried::Stale) | None => None,
        })
    }

    async fn try_lock(&self, route: &Route, at: GlobalAddr) -> Result<Option<Tried>> {
        let tag = self.next_tag();
        let len = Table::body_len(route.capacity);
        self.ep.step(Step::Lock);
        let (was, body) = self.cas_and_read(at, (0, tag.0), at.plus(BODY_AT as u64), len).await?;
        if was != 0 {
            Mark::LockHeld.hit();
            return Ok(None);
        }
        // The lock is ours: nobody writes this table now, so a torn one is not a table of this leaf.
        let view = body.extract(|b| Table::view(route.table, route.capacity, b));
        match view {
            View::Whole(table) if route.matches(&table) => Ok(Some(Tried::Got(tag, table))),
            _ => {
                Mark::LockStale.hit();
                self.ep.release(cas(at, tag.0, 0), None).await?;
                Ok(Some(Tried::Stale))
            }
        }
    }

    /// Unlocks a leaf whose table has not changed.
    pub(crate) async fn unlock(&self, l: Locked) -> Result<()> {
        let hook = Some((self.leaf_hook.clone(), l.turn.hand_over()));
        self.ep.release(cas(l.at, l.tag.0, 0), hook).await
    }

    /// Writes the table and unlocks behind it: WRITE->atomic is ordered.
    pub(crate) async fn unlock_with_table(&self, mut l: Locked) -> Result<()> {
        let mut body = self.ep.buf(Table::body_len(l.route.capacity) as u32).await?;
        l.table.body(l.route.table, &mut body);
        let hook = Some((self.leaf_hook.clone(), l.turn.hand_over()));
        let list = (write(l.at.plus(BODY_AT as u64), body), cas(l.at, l.tag.0, 0));
        self.ep.release(list, hook).await
    }
}

enum Tried {
    Got(LockTag, Table),
    Stale,
}
