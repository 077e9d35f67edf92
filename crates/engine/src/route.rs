//! Finding the leaf of a key: the cache, and the descent that fills it.
//!
//! A route is (leaf, generation, table, slots, fence tag as the parent implies it). It comes from
//! one of:
//!
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
//! A tombstone leads to its successor. Until the successor's image is written the successor may
//! lead back, so such hops are paced. When that lasts, or an image stays torn, the writer may be
//! dead, and the reader repairs the node (`recovery/inner.rs`). Between two paced hops the
//! operation passes a quiescent point, because the repair may wait for tables to move.
//!
//! A descent writes nothing; a crash leaves nothing.

use std::ops::Deref;
use std::sync::Arc;

use dmtree_fabric::{Error, GlobalAddr, Result, Role, Stage, Step};
use dmtree_parts::KeyPlace;
use dmtree_parts::cache::{CachedNode, MAX_LEVELS, NodeParts, Record};
use dmtree_parts::hash::{KeyHash, fence_tag};
use dmtree_parts::slots::Slots;
use dmtree_parts::sync::{Reading, reading};

use crate::client::{Client, Route};
use crate::format::inner;
use crate::format::leaf::unchecked_header;
use crate::inner::InnerNode;
use crate::leaf::{Blocks, HELP_AFTER, LeafCopy, Leaves};
use crate::lock::LONG_WAIT;
use crate::marks::Mark;
use crate::recovery::{InnerRecovery, LeafRecovery, diagnose_inner};

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
pub(crate) fn route_of(r: &Record) -> Route {
    Route {
        leaf: r.child,
        generation: r.generation,
        table: dmtree_pool::TableId::from_bits(r.table),
        capacity: usize::from(r.capacity),
        fence: r.fence,
    }
}

impl Client {
    /// The route of a key from the cache alone, and the slots that its mirror names; `None` for the
    /// slots when there is no mirror. No verb, no lock, no allocation.
    #[inline]
    pub(crate) fn cached_route(&self, key: &[u8], fp: u8) -> Option<(Route, Option<Slots>)> {
        let r = reading();
        let (node, i) = self.cached(key, &r)?;
        Some((route_of(&node.record(i)), self.mirrored(node, i, fp)))
    }

    /// Looks the child of a key up in the cached bottom nodes.
    #[inline]
    pub(crate) fn cached<'r>(
        &'r self,
        key: &[u8],
        r: &'r Reading,
    ) -> Option<(&'r CachedNode, usize)> {
        self.ep.stage_cost(Stage::CacheLookup, 1);
        let found = self.node.cache.find(1, key, r);
        self.ep.stage_cost(Stage::FingerprintScan, 1);
        if found.is_some() {
            self.hits.count();
        }
        found
    }

    /// The same for several keys, with their numbers.
    pub(crate) fn cached_routes(
        &self,
        keys: &[&[u8]],
        hashes: &[KeyHash],
        mut f: impl FnMut(usize, (Route, Option<Slots>)),
    ) {
        self.ep.stage_cost(Stage::CacheLookup, keys.len() as u32);
        let r = reading();
        self.node.cache.lookup_many(1, keys, &r, |i, found| {
            if let Some((node, child)) = found {
                self.hits.count();
                let slots = self.mirrored(node, child, hashes[i].fingerprint());
                f(i, (route_of(&node.record(child)), slots));
            }
        });
        self.ep.stage_cost(Stage::FingerprintScan, keys.len() as u32);
    }

    /// The slots that the mirror of a child names.
    #[inline]
    pub(crate) fn mirrored(&self, node: &CachedNode, i: usize, fp: u8) -> Option<Slots> {
        let mirrors = self.node.o.techniques.mirrors;
        mirrors.then(|| node.mirror_slots(i, fp)).flatten()
    }

    /// The place of a key, as far as the cache knows.
    pub(crate) fn known_place(&self, key: &[u8]) -> Option<KeyPlace> {
        let record = self.node.cache.peek(1, key)?;
        let route = route_of(&record);
        let owner = match self.node.has_tables() {
            true => Some(self.node.pool.resolve_cached(route.table)?.node()),
            false => None,
        };
        let owner = owner.filter(|n| n.role() == Role::Compute);
        Some(KeyPlace { leaf: route.leaf, owner })
    }

    /// The route of a key.
    pub(crate) async fn route(&self, key: &[u8]) -> Result<Route> {
        if let Some((node, i)) = self.cached(key, &reading()) {
            return Ok(route_of(&node.record(i)));
        }
        self.node.lookups.count_miss();
        let node = self.descend(key, 1).await?;
        Ok(route_in(&node, key))
    }

    /// The route of a key from its bottom node as it is now: one READ when the node is cached.
    pub(crate) async fn fresh_route(&self, key: &[u8]) -> Result<Route> {
        self.op.retried.set(true);
        Mark::RouteStale.hit();
        if let Some((old, _)) = self.node.cache.lookup(1, key) {
            match self.read_inner(old.addr, Some(old.generation), Some(1)).await? {
                InnerRead::Whole(copy) => {
                    if let Some(node) = self.hop_right(copy, key).await? {
                        return Ok(route_in(&node, key));
                    }
                }
                InnerRead::OtherGeneration | InnerRead::Tombstone(_) => {}
            }
            self.node.cache.invalidate(1, &old);
        }
        let node = self.descend(key, 1).await?;
        Ok(route_in(&node, key))
    }

    /// The route of a key after one that has proved stale: as its bottom node has it now, or, when
    /// that is the same, found by walking.
    pub(crate) async fn other_route(
        &self,
        key: &[u8],
        stale: &Route,
        backoff: &mut dmtree_fabric::Backoff<'_>,
    ) -> Result<Route> {
        let fresh = self.fresh_route(key).await?;
        if fresh != *stale {
            return Ok(fresh);
        }
        self.op.quiescent_point();
        backoff.step().await?;
        let walked = self.walk_route(key, &fresh).await?.unwrap_or(fresh);
        if walked == *stale {
            // The leaf itself confirms the route: its table's cell holds another table.
            Box::pin(LeafRecovery(self).rebuild_table(&walked)).await?;
        }
        Ok(walked)
    }

    /// From a node of the right level to the one that covers `key`; `None` when the key lies to the
    /// left.
    pub(crate) async fn hop_right(
        &self,
        copy: InnerCopy,
        key: &[u8],
    ) -> Result<Option<Arc<CachedNode>>> {
        let mut copy = copy;
        let mut backoff = self.ep.backoff("right sibling", copy.node.addr);
        loop {
            if key < copy.node.lo() {
                return Ok(None);
            }
            if copy.node.covers(key) {
                return Ok(Some(copy.node));
            }
            if copy.next.is_null() {
                return Ok(None);
            }
            Mark::InnerRight.hit();
            let mut at = copy.next;
            copy = loop {
                match self.read_inner(at, None, Some(copy.level)).await? {
                    InnerRead::Whole(next) => break next,
                    InnerRead::Tombstone(forward) => {
                        Mark::InnerTombstone.hit();
                        at = forward;
                    }
                    InnerRead::OtherGeneration => return Ok(None),
                }
                self.wait_for_successor(&mut backoff, at).await?;
            };
        }
    }

    /// Called before reading the successor of an inner tombstone. Until the successor's image is
    /// written it leads back to the tombstone. When that lasts, the writer may be dead, and the
    /// reader repairs the successor. Meanwhile tables may move: the repair may have to wait for
    /// that.
    async fn wait_for_successor(
        &self,
        backoff: &mut dmtree_fabric::Backoff<'_>,
        successor: GlobalAddr,
    ) -> Result<()> {
        if backoff.steps() >= HELP_AFTER {
            Box::pin(InnerRecovery(self).help(successor)).await?;
        }
        if backoff.steps() > 0 && backoff.steps().is_multiple_of(LONG_WAIT) {
            Box::pin(diagnose_inner(self, successor)).await?;
        }
        self.op.quiescent_point();
        backoff.step().await
    }

    /// The node of `level` that covers `key`, read along the way and cached.
    pub(crate) async fn descend(&self, key: &[u8], level: u8) -> Result<Arc<CachedNode>> {
        match self.descend_to(key, level).await? {
            Some(node) => Ok(node),
            None => Err(Error::corrupt(format!("the tree has no level {level}"))),
        }
    }

    /// As [`Client::descend`]; `None` when the tree does not reach up to `level`.
    pub(crate) async fn descend_to(
        &self,
        key: &[u8],
        level: u8,
    ) -> Result<Option<Arc<CachedNode>>> {
        let mut backoff = self.ep.backoff("a path to the key", self.node.root.word);
        'restart: loop {
            let mut parent = None;
            for above in level + 1..MAX_LEVELS as u8 {
                parent = self.node.cache.lookup(above, key).map(|(n, i)| (n, i, above));
                if parent.is_some() {
                    break;
                }
            }
            let (mut at, mut generation, mut expect) = match &parent {
                Some((n, i, above)) => {
                    let r = n.record(*i);
                    (r.child, Some(r.generation), Some(above - 1))
                }
                None => (self.read_root().await?, None, None),
            };
            loop {
                let copy = match self.read_inner(at, generation, expect).await? {
                    InnerRead::Whole(copy) => copy,
                    InnerRead::Tombstone(forward) => {
                        Mark::InnerTombstone.hit();
                        (at, generation) = (forward, None);
                        self.drop_parent(&parent);
                        self.wait_for_successor(&mut backoff, forward).await?;
                        continue;
                    }
                    InnerRead::OtherGeneration => {
                        Mark::InnerOtherGeneration.hit();
                        self.drop_parent(&parent);
                        self.op.retried.set(true);
                        self.op.quiescent_point();
                        backoff.step().await?;
                        continue 'restart;
                    }
                };
                if copy.level < level {
                    return Ok(None);
                }
                let at_level = copy.level;
                let Some(node) = self.hop_right(copy, key).await? else {
                    self.drop_parent(&parent);
                    self.op.quiescent_point();
                    backoff.step().await?;
                    continue 'restart;
                };
                if at_level == level {
                    return Ok(Some(node));
                }
                let i = node.keys().floor(key).ok_or_else(|| {
                    Error::corrupt(format!(
                        "inner node {} has no record for a key it covers",
                        node.addr
                    ))
                })?;
                let r = node.record(i);
                (at, generation, expect) = (r.child, Some(r.generation), Some(at_level - 1));
                parent = Some((node, i, at_level));
            }
        }
    }

    fn drop_parent(&self, parent: &Option<(Arc<CachedNode>, usize, u8)>) {
        if let Some((node, _, level)) = parent {
            self.node.cache.invalidate(*level, node);
        }
    }

    /// The root's address.
    pub(crate) async fn read_root(&self) -> Result<GlobalAddr> {
        self.ep.step(Step::Route);
        let word = self.ep.read(self.node.root.word, 8).await?.word(0);
        let root = GlobalAddr::from_bits(word);
        if root.is_null() {
            return Err(Error::corrupt(
                "the index has no root: it was never formatted, or was dropped",
            ));
        }
        Ok(root)
    }

    /// READs an inner node until its image is whole, and caches it. Another generation or level
    /// than the wanted one means that the pointer to the address was stale.
    pub(crate) async fn read_inner(
        &self,
        addr: GlobalAddr,
        generation: Option<u16>,
        level: Option<u8>,
    ) -> Result<InnerRead> {
        let g = &self.node.g;
        let mut backoff = self.ep.backoff("inner node being written", addr);
        loop {
            self.ep.step(Step::Route);
            let bytes = self.ep.read(addr, g.inner_image() as u32).await?;
            self.ep.stage_cost(Stage::NodeImage, g.fanout as u32);
            let early = bytes.extract(|b| {
                let h = crate::format::leaf::check_header(g, addr, b)?;
                let other = generation.is_some_and(|l| l != h.ver.generation)
                    || level.is_some_and(|l| l != h.level);
                Some(if other { Some(InnerRead::OtherGeneration) } else { None })
            });
            if let Some(Some(other)) = early {
                return Ok(other);
            }
            if let Ok((_, bytes)) = bytes.check(|b| inner::check(g, addr, b).map(|_| ()).ok_or(()))
                && let Some(read) = self.cache_inner(addr, &bytes).await?
            {
                return Ok(read);
            }
            Mark::InnerTorn.hit();
            self.op.retried.set(true);
            self.wait_for_successor(&mut backoff, addr).await?;
        }
    }

    /// Caches an accepted image. `None` when two records claim the same key, or none the first: a
    /// relocation is half done, or the image was sampled around it, and has to be read again.
    pub(crate) async fn cache_inner(
        &self,
        addr: GlobalAddr,
        bytes: &[u8],
    ) -> Result<Option<InnerRead>> {
        let header = unchecked_header(&self.node.g, bytes).expect("accepted");
        if !header.forward.is_null() {
            return Ok(Some(InnerRead::Tombstone(header.forward)));
        }
        let node = InnerNode::of(self, bytes).await?;
        self.cache_node(addr, &node).await
    }

    /// [`Client::cache_inner`] of a node with sorted records, which is no tombstone.
    pub(crate) async fn cache_node<B: Deref<Target = [u8]>>(
        &self,
        addr: GlobalAddr,
        sorted: &InnerNode<B>,
    ) -> Result<Option<InnerRead>> {
        let bytes = &*sorted.bytes;
        debug_assert!(inner::check(&self.node.g, addr, bytes).is_some(), "accepted");
        let header = unchecked_header(&self.node.g, bytes).expect("accepted");
        debug_assert!(header.forward.is_null(), "no tombstone");
        let lo = Blocks(self).fence(header.lo).await?.unwrap_or_default();
        let hi = Blocks(self).fence(header.hi).await?;
        if sorted.keys().zip(sorted.keys().skip(1)).any(|(a, b)| a == b) {
            Mark::InnerDouble.hit();
            return Ok(None);
        }
        if sorted.keys().next().is_none_or(|first| *first > *lo) {
            // Sampled around a replacement of the first record: its new place before, its old place
            // after.
            Mark::InnerHeadless.hit();
            return Ok(None);
        }
        if let Some(hi) = hi.as_deref()
            && sorted.key(sorted.len() - 1) >= hi
        {
            return Err(Error::corrupt(format!("inner node {addr} has a record above its range")));
        }
        let ends = sorted.keys().skip(1).map(Some).chain([hi.as_deref()]);
        let records = sorted
            .records()
            .zip(ends)
            .map(|(r, end)| {
                let c = &r.child;
                let slots = c.slots as u16;
                Record::new(c.addr, c.generation, c.table.bits(), slots, fence_tag(end))
            })
            .collect();
        self.ep.stage_cost(Stage::CacheFill, 1);
        self.ep.point().await;
        let parts = NodeParts {
            addr,
            generation: header.ver.generation,
            lo: &lo,
            hi: hi.as_deref(),
            keys: sorted.keys(),
            records,
        };
        let node = self.node.cache.insert(header.level, parts);
        Ok(Some(InnerRead::Whole(InnerCopy { node, level: header.level, next: header.next })))
    }

    /// Copies a table into the mirror of its leaf, when the leaf's record is cached.
    pub(crate) fn fill_mirror(&self, key: &[u8], route: &Route, fps: &[u8]) {
        self.with_record(key, route, fps.len(), |node, i| {
            node.fill_mirror(i, fps);
        });
    }

    /// Calls `f` with the cached record of a leaf that has `slots` slots at least, if there are
    /// mirrors.
    fn with_record(
        &self,
        key: &[u8],
        route: &Route,
        slots: usize,
        f: impl FnOnce(&CachedNode, usize),
    ) {
        let r = reading();
        let mirrors = self.node.o.techniques.mirrors;
        let found = mirrors.then(|| self.node.cache.find(1, key, &r)).flatten();
        let Some((node, i)) = found else { return };
        let record = node.record(i);
        let is_same = (record.child, record.generation) == (route.leaf, route.generation);
        if is_same && slots <= usize::from(record.capacity) {
            f(node, i);
        }
    }

    /// Records one fingerprint in the mirror of a leaf.
    pub(crate) fn note_mirror(&self, key: &[u8], route: &Route, slot: usize, fp: u8) {
        self.with_record(key, route, slot + 1, |node, i| {
            node.note_fingerprint(i, slot, fp);
        });
    }

    /// The same where the record of the leaf is known.
    #[inline]
    pub(crate) fn note_mirror_at(
        &self,
        (node, i): (&CachedNode, usize),
        key: &[u8],
        route: &Route,
        (slot, fp): (usize, u8),
    ) {
        if !node.is_cached() {
            self.note_mirror(key, route, slot, fp);
        } else if self.node.o.techniques.mirrors {
            node.note_fingerprint(i, slot, fp);
        }
    }

    /// The route of a key by walking right from a leaf without a parent record (the split found no
    /// memory for the parent): headers tell everything. `None` when the walk shows that the route
    /// is stale in another way.
    pub(crate) async fn walk_route(&self, key: &[u8], from: &Route) -> Result<Option<Route>> {
        let mut leaf = Leaves(self).read(from.leaf, from.capacity).await?;
        if leaf.header(self).ver.generation != from.generation {
            return Ok(None);
        }
        Mark::RouteWalk.hit();
        let mut backoff = self.ep.backoff("the end of a walk", leaf.addr);
        loop {
            let h = leaf.header(self);
            let (generation, table, next) = (h.ver.generation, h.table, h.next);
            let forward = h.forward;
            // The fences of a tombstone are its successor's, which may have been merged away with
            // their blocks.
            if forward.is_null() {
                let hi = Blocks(self).fence(h.hi).await?;
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
            leaf = Leaves(self).read(on, leaf.capacity).await?;
        }
    }

    /// Pauses between two leaves of a walk. A merge that has committed and not ended sends a walker
    /// back and forth between the two leaves. When that goes on for long the merging client may be
    /// dead, and the walker repairs what it meets.
    pub(crate) async fn paced_walk(
        &self,
        backoff: &mut dmtree_fabric::Backoff<'_>,
        leaf: &LeafCopy,
    ) -> Result<()> {
        Leaves(self).wait_for(backoff, leaf.addr, PACED_WALK).await
    }

    /// The bottom node that covers the largest keys below `key` (below the right end when `None`):
    /// it begins below `key` and reaches it.
    pub(crate) async fn descend_below(&self, key: Option<&[u8]>) -> Result<Arc<CachedNode>> {
        if let Some(node) = self.node.cache.lookup_below(1, key) {
            return Ok(node);
        }
        let mut backoff = self.ep.backoff("a path to the key", self.node.root.word);
        'restart: loop {
            let (mut at, mut generation, mut expect) = (self.read_root().await?, None, None);
            loop {
                match self.read_inner(at, generation, expect).await? {
                    InnerRead::Tombstone(forward) => {
                        (at, generation) = (forward, None);
                        self.wait_for_successor(&mut backoff, forward).await?;
                    }
                    InnerRead::OtherGeneration => {
                        self.op.quiescent_point();
                        backoff.step().await?;
                        continue 'restart;
                    }
                    InnerRead::Whole(copy) => {
                        let node = &copy.node;
                        let reaches = match (node.hi(), key) {
                            (None, _) => true,
                            (Some(_), None) => false,
                            (Some(hi), Some(key)) => key <= hi,
                        };
                        if !reaches && !copy.next.is_null() {
                            (at, generation, expect) = (copy.next, None, Some(copy.level));
                            continue;
                        }
                        if copy.level == 1 {
                            return Ok(copy.node);
                        }
                        let Some(i) = node.keys().below(key) else {
                            backoff.step().await?;
                            continue 'restart;
                        };
                        let r = node.record(i);
                        (at, generation, expect) =
                            (r.child, Some(r.generation), Some(copy.level - 1));
                    }
                }
                self.ep.check_deadline("a path to the key", at.bits())?;
            }
        }
    }
}

/// The route of a key that a bottom node covers.
pub(crate) fn route_in(node: &CachedNode, key: &[u8]) -> Route {
    let i = node.keys().floor(key).expect("the first record begins where the node does");
    route_of(&node.record(i))
}
