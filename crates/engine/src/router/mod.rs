//! Finding the leaf of a key: the cache, and the descent that fills it.
//!
//! A route is (leaf, generation, table, slots, fence tag as the parent implies it). It comes from
//! one of:
//!
//! 0. *Models*, where an index has them: they lead to the leaf itself, and else to the tree
//!    (`learned/`).
//! 1. *Cache*: a lookup in the cached bottom nodes. No verb, no lock, no allocation.
//! 2. *Descent*: from the lowest cached ancestor, or from the root word, READ one inner node per
//!    level. Each is checked (S), cached under its own fences and address, and left by a right hop
//!    when the key lies behind its upper fence.
//! 3. *Refresh*: one READ of the bottom node, when the cached one has proved stale.
//! 4. *Walk*: right hops over leaf headers, when the parent has no record for the leaf (R allows
//!    that while memory was short for the parent).
//!
//! Nothing here has to be current. A route is a hint that its user checks: an entry carries the
//! generation, a table carries leaf, version and fence tag, a leaf carries its fences. L makes the
//! check sound, since an address never has a generation twice.
//!
//! Images of inner nodes are accepted only when header and records carry one range, no two records
//! claim one key, and some record stands at the lower fence. Around a relocation of a child an
//! image may show both records, or neither; it is read again.
//!
//! A tombstone leads to its successor, also one that a crash has torn: its version, level and
//! `forward` are words, and need no checksum. Until the successor's image is written the successor
//! may lead back, so such hops are paced. When that lasts, or an image stays torn, the writer may
//! be dead, and the reader repairs the node (`recovery/inner.rs`). Between two paced hops the
//! operation passes a quiescent point, because the repair may wait for tables to move.
//!
//! A descent writes nothing; a crash leaves nothing.

mod descent;

use std::sync::Arc;

use dmtree_fabric::{GlobalAddr, Result, Role, Stage};
use dmtree_parts::KeyPlace;
use dmtree_parts::cache::{CachedNode, Record};
use dmtree_parts::hash::{KeyHash, fence_tag};
use dmtree_parts::slots::Slots;
use dmtree_parts::sync::{Reading, reading};

use crate::client::{Client, Route};
use crate::leaf::{Blocks, LeafCopy, Leaves};
use crate::learned::{Found, ModelSearch};
use crate::maintenance::Uses;
use crate::marks::Mark;
use crate::recovery::LeafRecovery;

/// An inner node read from its memory node.
pub(crate) struct InnerCopy {
    pub node: Arc<CachedNode>,
    pub level: u8,
    pub next: GlobalAddr,
}

/// A walk over more leaves than this may go round in circles.
const PACED_WALK: u32 = 16;

/// Result of reading an inner node.
pub(crate) enum InnerRead {
    Whole(InnerCopy),
    /// Another generation: the pointer to this address was stale.
    OtherGeneration,
    /// The node is a tombstone; this one took over its range.
    Tombstone(GlobalAddr),
}

/// Slots with the fingerprint of a key are READ one by one up to this number.
pub(crate) const MAX_CANDIDATES: usize = 24;

/// The route to child `i` of a bottom node.
#[inline]
pub(crate) fn route_of(r: &Record) -> Route {
    Route {
        leaf: r.child,
        generation: r.generation,
        table: dmtree_pool::TableId::from_bits(r.table),
        capacity: usize::from(r.capacity),
        fence: r.fence,
    }
}

/// Finds the leaf of a key.
#[derive(Clone, Copy)]
pub(crate) struct Router<'c>(pub &'c Client);

impl<'c> Router<'c> {
    /// The route of a key from the cache alone, and the slots that its mirror names; `None` for the
    /// slots when there is no mirror. No verb, no lock, no allocation.
    #[inline]
    pub(crate) fn cached_route(self, key: &[u8], fp: u8) -> Option<(Route, Option<Slots>)> {
        let r = reading();
        let (node, i) = self.cached(key, &r)?;
        Some(self.route_with_slots(node, i, fp))
    }

    /// Looks the child of a key up in the cached bottom nodes.
    #[inline]
    pub(crate) fn cached<'r>(self, key: &[u8], r: &'r Reading) -> Option<(&'r CachedNode, usize)>
    where
        'c: 'r,
    {
        self.0.ep.stage_cost(Stage::CacheLookup, 1);
        let found = self.0.node.cache.find(1, key, r);
        self.0.ep.stage_cost(Stage::FingerprintScan, 1);
        if let Some(found) = found {
            Uses(self.0).looked_up(found);
        }
        found
    }

    /// The same for several keys, with their numbers.
    pub(crate) fn cached_routes(
        self,
        keys: &[&[u8]],
        hashes: &[KeyHash],
        mut f: impl FnMut(usize, (Route, Option<Slots>)),
    ) {
        self.0.ep.stage_cost(Stage::CacheLookup, keys.len() as u32);
        let r = reading();
        self.0.node.cache.lookup_many(1, keys, &r, |i, found| {
            if let Some((node, child)) = found {
                Uses(self.0).looked_up((node, child));
                f(i, self.route_with_slots(node, child, hashes[i].fingerprint()));
            }
        });
        self.0.ep.stage_cost(Stage::FingerprintScan, keys.len() as u32);
    }

    /// The route to a child, and the slots that its mirror names.
    #[inline(always)]
    pub(crate) fn route_with_slots(
        self,
        node: &CachedNode,
        i: usize,
        fp: u8,
    ) -> (Route, Option<Slots>) {
        let (record, slots) = node.record_with_slots(i, fp);
        (route_of(&record), slots.filter(|_| self.0.node.o.techniques.mirrors))
    }

    /// The place of a key, as far as the cache knows.
    pub(crate) fn known_place(self, key: &[u8]) -> Option<KeyPlace> {
        let record = self.0.node.cache.peek(1, key)?;
        let route = route_of(&record);
        let owner = match self.0.node.has_tables() {
            true => Some(self.0.node.pool.resolve_cached(route.table)?.node()),
            false => None,
        };
        let owner = owner.filter(|n| n.role() == Role::Compute);
        let words = self.0.node.lock_words.get();
        let word = words.and_then(|words| words.at.by_place(route.leaf).ok());
        Some(KeyPlace { leaf: route.leaf, owner, shared_lock: word.map(|word| word.at) })
    }

    /// The route of an operation on a key, and the leaf as far as it was READ on the way: models
    /// lead to leaves, whether they have records or not.
    pub(crate) async fn leaf_of(self, key: &[u8]) -> Result<Found> {
        let found = match &self.0.node.models {
            // Boxed: the way without models stays small.
            Some(models) => Box::pin(ModelSearch(self.0, models).find(key)).await?,
            None => None,
        };
        match found {
            Some(found) => Ok(found),
            None => Ok((self.route(key).await?, None)),
        }
    }

    /// The route of a key by its record.
    pub(crate) async fn route(self, key: &[u8]) -> Result<Route> {
        if let Some((node, i)) = self.cached(key, &reading()) {
            return Ok(route_of(&node.record(i)));
        }
        self.0.node.lookups.count_miss();
        let node = Box::pin(self.descend(key, 1)).await?;
        Ok(route_in(&node, key))
    }

    /// The route of a key from its bottom node as it is now: one READ when the node is cached.
    pub(crate) async fn fresh_route(self, key: &[u8]) -> Result<Route> {
        self.0.op.retried.set(true);
        Mark::RouteStale.hit();
        if let Some((old, _)) = self.0.node.cache.lookup(1, key) {
            self.0.ep.backoff("a route that has changed", old.addr).repeats();
            match self.read_inner(old.addr, Some(old.generation), Some(1)).await? {
                InnerRead::Whole(copy) => {
                    if let Some(node) = self.hop_right(copy, key).await? {
                        return Ok(route_in(&node, key));
                    }
                }
                InnerRead::OtherGeneration | InnerRead::Tombstone(_) => {}
            }
            self.0.node.cache.invalidate(1, &old);
        }
        let node = self.descend(key, 1).await?;
        Ok(route_in(&node, key))
    }

    /// The route of a key after one that has proved stale: as its bottom node has it now, or, when
    /// that is the same, found by walking.
    pub(crate) async fn other_route(
        self,
        key: &[u8],
        stale: &Route,
        backoff: &mut dmtree_fabric::Backoff<'_>,
    ) -> Result<Route> {
        let fresh = self.fresh_route(key).await?;
        if fresh != *stale {
            return Ok(fresh);
        }
        self.0.op.quiescent_point();
        backoff.step().await?;
        let walked = self.walk_route(key, &fresh).await?.unwrap_or(fresh);
        if walked == *stale {
            // The leaf itself confirms the route: its table's cell holds another table.
            Box::pin(LeafRecovery(self.0).rebuild_table(&walked)).await?;
        }
        Ok(walked)
    }

    /// Copies a table into the mirror of its leaf, when the leaf's record is cached.
    pub(crate) fn fill_mirror(self, key: &[u8], route: &Route, fps: &[u8]) {
        self.with_record(key, route, fps.len(), |node, i| {
            node.fill_mirror(i, fps);
        });
    }

    /// The same for a leaf and its left neighbour. The neighbour's record is the one in front, so
    /// one search finds both.
    pub(crate) fn fill_mirrors(
        self,
        key: &[u8],
        (route, fps): (&Route, &[u8]),
        (left, left_fps): (&Route, &[u8]),
    ) {
        self.with_record(key, route, fps.len(), |node, i| {
            node.fill_mirror(i, fps);
            if let Some(before) = i.checked_sub(1)
                && is_record_of(node, before, left, left_fps.len())
            {
                node.fill_mirror(before, left_fps);
            }
        });
    }

    /// Calls `f` with the cached record of a leaf that has `slots` slots at least, if there are
    /// mirrors.
    fn with_record(
        self,
        key: &[u8],
        route: &Route,
        slots: usize,
        f: impl FnOnce(&CachedNode, usize),
    ) {
        let r = reading();
        let mirrors = self.0.node.o.techniques.mirrors;
        let found = mirrors.then(|| self.0.node.cache.find(1, key, &r)).flatten();
        let Some((node, i)) = found else { return };
        if is_record_of(node, i, route, slots) {
            f(node, i);
        }
    }

    /// Records one fingerprint in the mirror of a leaf.
    pub(crate) fn note_mirror(self, key: &[u8], route: &Route, slot: usize, fp: u8) {
        self.with_record(key, route, slot + 1, |node, i| {
            node.note_fingerprint(i, slot, fp);
        });
    }

    /// The same where the record of the leaf is known.
    #[inline]
    pub(crate) fn note_mirror_at(
        self,
        (node, i): (&CachedNode, usize),
        key: &[u8],
        route: &Route,
        (slot, fp): (usize, u8),
    ) {
        if !node.is_cached() {
            self.note_mirror(key, route, slot, fp);
        } else if self.0.node.o.techniques.mirrors {
            node.note_fingerprint(i, slot, fp);
        }
    }

    /// The route of a key by walking right from a leaf without a parent record (the split found no
    /// memory for the parent): headers tell everything. `None` when the walk shows that the route
    /// is stale in another way.
    pub(crate) async fn walk_route(self, key: &[u8], from: &Route) -> Result<Option<Route>> {
        let mut leaf = Leaves(self.0).current(from).await?;
        if leaf.header(self.0).ver.generation != from.generation {
            return Ok(None);
        }
        Mark::RouteWalk.hit();
        let mut backoff = self.0.ep.backoff("the end of a walk", leaf.addr);
        loop {
            let h = leaf.header(self.0);
            let (generation, table, next) = (h.ver.generation, h.table, h.next);
            let forward = h.forward;
            // The fences of a tombstone are its successor's, which may have been merged away with
            // their blocks.
            if forward.is_null() {
                let hi = Blocks(self.0).fence(h.hi).await?;
                if hi.as_deref().is_none_or(|hi| key < hi) {
                    let fence = fence_tag(hi.as_deref());
                    let capacity = leaf.capacity;
                    return Ok(Some(Route { leaf: leaf.addr, generation, table, capacity, fence }));
                }
            }
            let on = if forward.is_null() { next } else { forward };
            if on.is_null() {
                return Ok(None);
            }
            if !forward.is_null() {
                Mark::RouteWalkTombstone.hit();
            }
            self.paced_walk(&mut backoff, &leaf).await?;
            leaf = Leaves(self.0).current_at(on, leaf.capacity).await?;
        }
    }

    /// Pauses between two leaves of a walk. A merge that has committed and not ended sends a walker
    /// back and forth between the two leaves. When that goes on for long the merging client may be
    /// dead, and the walker repairs what it meets.
    pub(crate) async fn paced_walk(
        self,
        backoff: &mut dmtree_fabric::Backoff<'_>,
        leaf: &LeafCopy,
    ) -> Result<()> {
        Leaves(self.0).wait_for(backoff, leaf.addr, PACED_WALK).await
    }
}

/// Whether a cached record is that of a leaf, of `slots` slots at least.
fn is_record_of(node: &CachedNode, i: usize, route: &Route, slots: usize) -> bool {
    let record = node.record(i);
    let is_same = (record.child, record.generation) == (route.leaf, route.generation);
    is_same && slots <= usize::from(record.capacity)
}

/// The route of a key that a bottom node covers.
pub(crate) fn route_in(node: &CachedNode, key: &[u8]) -> Route {
    let i = node.keys().floor(key).expect("the first record begins where the node does");
    route_of(&node.record(i))
}
