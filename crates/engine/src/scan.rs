//! Range reads.
//!
//! For the leaves of one bottom node together:
//!
//! 1. `[CAS lock 0->0, READ table] | ...` at the tables' owners tells how many slots of each leaf
//!    are in use. A held lock, an odd table or an owner that is away means that the whole leaf is
//!    READ.
//! 2. `READ | ...`: the used part of each leaf. An image is accepted when header and slots carry
//!    one version (S), the leaf is no tombstone, and, when only a part was read, the version is the
//!    table's: the table vouches for the part that was not read.
//! 3. `READ | ...`: the blocks of long keys and values.
//!
//! The next leaf has to begin where the accepted one ended, so the scan neither skips nor repeats a
//! range: splits, merges and relocations show as a leaf with other fences, and the scan goes on
//! from its cursor with a fresh route. A leaf that took over its left neighbour's range holds keys
//! from before the cursor; they are cut off.
//!
//! Each pair is current at its sample (P). A key that is present throughout keeps its slot, or
//! changes the leaf's version when it moves, so an accepted image cannot miss it. A key that was
//! deleted from one slot and inserted into another during the sample shows twice, and is returned
//! once. A scan is not a snapshot.
//!
//! A downward scan works leaf by leaf from the right end of its range, over the same images; a leaf
//! to the left is found through the parent, as leaves link to the right only.
//!
//! The scan renews its epoch at each group of leaves, so that a long scan does not hold up
//! reclamation. It takes no lock; a leaf that stays torn is repaired as in a point read, and a
//! missing record is bypassed by walking.

use std::ops::{Bound, Range};
use std::sync::Arc;

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{GlobalAddr, OpKind, OpOutcome, Result, Sampled, Stage, Step, Verified};
use dmtree_parts::cache::CachedNode;
use dmtree_parts::{PAGE_BYTES, Page, Resume, ScanRequest};
use dmtree_pool::BlockPtr;

use crate::client::{DmTree, LeafCopy, Route, is_away};
use crate::format::leaf::{check_header, unchecked_header};
use crate::format::table::{BODY_AT, Table, View};
use crate::marks::Mark;
use crate::mutants::Mutant;
use crate::probe::block_pair;
use crate::route::route_of;
use crate::scan_leaf::{Collected, ItemValue, ScanLeaf};

/// Leaves fetched together.
const MAX_GROUP: usize = 16;
/// Bytes of blocks fetched together.
const BLOCK_BATCH_BYTES: u64 = 4 << 20;
/// Reads of the parent in vain, after which a scan finds the leaf by walking.
const WALK_AFTER: u32 = 3;

/// Why an image is not a leaf of the scan.
enum Refused {
    /// Torn, or more slots are in use than were read: the whole leaf is read again.
    Torn,
    /// Another leaf than the route meant, or a tombstone.
    Stale,
}

/// An accepted leaf, or why there is none.
type Seen = Result<ScanLeaf, Refused>;

impl DmTree {
    pub(crate) async fn scan_op(
        &self,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        page.clear();
        r.check()?;
        let scope = self.ep.begin(OpKind::Scan);
        let resume =
            if r.reverse { self.scan_down(r, page).await? } else { self.scan_up(r, page).await? };
        scope.end(OpOutcome::Other);
        Ok(resume)
    }

    async fn scan_up(&self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        let mut cursor = r.ends().0.map_or(Vec::new(), <[u8]>::to_vec);
        let mut backoff = self.ep.backoff("a consistent view of a leaf", self.node.root.word);
        let mut pin = self.pin();
        // A leaf found by walking, because no record names it.
        let mut walked: Option<Route> = None;
        loop {
            let leaves = match walked.take() {
                Some(route) => vec![self.read_one(&route).await?],
                None => {
                    let node = self.bottom(&cursor).await?;
                    let first = node.keys().floor(&cursor).unwrap_or(0);
                    let group = self.group(&node, first, r.limit - page.len(), r);
                    self.read_group(&node, first, group).await?
                }
            };
            let mut stale = false;
            for seen in leaves {
                let Some(leaf) = seen.filter(|l| l.covers(&cursor)) else {
                    stale = true;
                    break;
                };
                let pairs = leaf.pairs_above(&cursor, r);
                if let Some(last) = self.emit(&leaf, pairs, r, page).await? {
                    return Ok(Some(Resume(Bound::Excluded(last))));
                }
                match leaf.hi {
                    None => return Ok(None),
                    Some(hi) if r.is_over(&hi) => return Ok(None),
                    Some(hi) => cursor = hi,
                }
            }
            if stale {
                Mark::ScanStale.hit();
                let fresh = self.fresh_route(&cursor).await?;
                self.op.quiescent_point();
                backoff.step().await?;
                if backoff.steps() > WALK_AFTER {
                    // The record is missing, or names a tombstone, and the client that should
                    // repair it may be dead.
                    Mark::ScanWalk.hit();
                    walked = self.walk_route(&cursor, &fresh).await?;
                }
            }
            if page.bytes() >= PAGE_BYTES {
                return Ok(Some(Resume(Bound::Included(cursor))));
            }
            // Renewed group by group, so that a long scan does not hold up reclamation.
            drop(pin);
            pin = self.pin();
        }
    }

    async fn scan_down(&self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        let mut cursor = match r.high {
            Bound::Included(key) => {
                let mut above = key.to_vec();
                above.push(0);
                Some(above)
            }
            Bound::Excluded(key) => Some(key.to_vec()),
            Bound::Unbounded => None,
        };
        let below = |key: &[u8]| match r.low {
            Bound::Included(low) | Bound::Excluded(low) => key < low,
            Bound::Unbounded => false,
        };
        let mut backoff = self.ep.backoff("a consistent view of a leaf", self.node.root.word);
        loop {
            if cursor.as_ref().is_some_and(|c| c.is_empty()) {
                return Ok(None);
            }
            let _pin = self.pin();
            let node = self.descend_below(cursor.as_deref()).await?;
            let found = match node.keys().below(cursor.as_deref()) {
                Some(i) => {
                    let (key, route) = (node.keys().get(i), route_of(&node.records()[i]));
                    self.read_below(key, &route, cursor.as_deref()).await?
                }
                None => None,
            };
            let Some(leaf) = found else {
                Mark::ScanDownAgain.hit();
                self.node.cache.invalidate(1, &node);
                backoff.step().await?;
                continue;
            };
            let from = leaf.count_before(|key| r.is_under(key));
            let to = leaf
                .count_before(|key| cursor.as_deref().is_none_or(|c| key < c) && !r.is_over(key));
            if let Some(last) = self.emit(&leaf, from..to, r, page).await? {
                return Ok(Some(Resume(Bound::Excluded(last))));
            }
            if leaf.lo.is_empty() || below(&leaf.lo) {
                return Ok(None);
            }
            if page.bytes() >= PAGE_BYTES {
                return Ok(Some(Resume(Bound::Excluded(leaf.lo))));
            }
            cursor = Some(leaf.lo);
        }
    }

    /// The leaf that holds the keys just below `cursor`: the route's, or one to its right without a
    /// record yet.
    async fn read_below(
        &self,
        key: &[u8],
        route: &Route,
        cursor: Option<&[u8]>,
    ) -> Result<Option<ScanLeaf>> {
        let mut leaf = match self.read_one(route).await? {
            Some(leaf) => leaf,
            // A record that is older than this operation may name a tombstone with a successor that
            // is reclaimed already: `forward` carries no generation.
            None if self.fresh_route(key).await?.leaf != route.leaf => return Ok(None),
            None => match self.read_successor(route).await? {
                Some(leaf) => leaf,
                None => return Ok(None),
            },
        };
        loop {
            let reaches = match (&leaf.hi, cursor) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(hi), Some(cursor)) => &hi[..] >= cursor,
            };
            if reaches {
                let begins = cursor.is_none_or(|c| leaf.lo.as_slice() < c);
                return Ok(begins.then_some(leaf));
            }
            if leaf.next.is_null() {
                return Ok(None);
            }
            self.ep.check_deadline("the end of a walk", leaf.next.bits())?;
            Mark::ScanDownWalk.hit();
            let copy = self.read_leaf(leaf.next, route.capacity).await?;
            let Ok(next) = self.see_copy(copy).await? else { return Ok(None) };
            leaf = next;
        }
    }

    /// The successor of a tombstone, as long as the record names the tombstone.
    async fn read_successor(&self, route: &Route) -> Result<Option<ScanLeaf>> {
        let mut copy = self.read_leaf(route.leaf, route.capacity).await?;
        if copy.header(self).ver.generation != route.generation {
            return Ok(None);
        }
        loop {
            let forward = copy.header(self).forward;
            if forward.is_null() {
                break;
            }
            self.ep.check_deadline("the end of a chain of tombstones", forward.bits())?;
            copy = self.read_leaf(forward, copy.capacity).await?;
        }
        match self.see_copy(copy).await? {
            Ok(leaf) => Ok(Some(leaf)),
            Err(_) => Ok(None),
        }
    }

    /// The bottom node of a key.
    async fn bottom(&self, key: &[u8]) -> Result<Arc<CachedNode>> {
        self.ep.stage_cost(Stage::CacheLookup, 1);
        match self.node.cache.lookup(1, key, |n, _| n.clone()) {
            Some(node) => Ok(node),
            None => self.descend(key, 1).await,
        }
    }

    /// How many leaves from `first` on are worth fetching together for `want` pairs.
    fn group(&self, node: &CachedNode, first: usize, want: usize, r: &ScanRequest<'_>) -> usize {
        let mut expected = 0;
        let mut n = 0;
        for i in first..node.records().len().min(first + MAX_GROUP) {
            if n > 0 && (r.is_over(node.keys().get(i)) || expected >= want) {
                break;
            }
            let live = node.mirror_live(i).unwrap_or(u32::from(node.records()[i].capacity) * 2 / 3);
            // Of the first leaf, half lies behind the cursor on average.
            expected += if i == first { live as usize / 2 } else { live as usize };
            n += 1;
        }
        n
    }

    /// Reads leaves together. `None` for one that the route no longer names.
    async fn read_group(
        &self,
        node: &CachedNode,
        first: usize,
        n: usize,
    ) -> Result<Vec<Option<ScanLeaf>>> {
        let g = &self.node.g;
        let routes: Vec<Route> = node.records()[first..first + n].iter().map(route_of).collect();
        let mut batch = VerbVec::new();
        let mut asked = vec![None; n];
        for (i, route) in routes.iter().enumerate().filter(|_| self.node.has_tables()) {
            // An owner that is dead or cut off is not asked: its leaf is read whole.
            match self.node.pool.resolve(&self.ep, route.table).await {
                Ok(at) => {
                    asked[i] = Some(batch.cas(at, 0, 0));
                    let len = Table::body_len(route.capacity) as u32;
                    batch.then().read(at.plus(BODY_AT as u64), len);
                }
                Err(e) if is_away(&e) => Mark::OwnerAway.hit(),
                Err(e) => return Err(e),
            }
        }
        self.ep.step(Step::Table);
        let mut tables = match batch.is_empty() {
            true => batch,
            false => match self.ep.batch(batch).await {
                Ok(tables) => tables,
                Err(e) if is_away(&e) => {
                    Mark::OwnerAway.hit();
                    asked.fill(None);
                    VerbVec::new()
                }
                Err(e) => return Err(e),
            },
        };
        let mut batch = VerbVec::new();
        let mut read = Vec::with_capacity(n);
        for (i, route) in routes.iter().enumerate() {
            let view = asked[i].map(|at| {
                let bytes = tables.take_sampled(at + 1);
                (tables.word(at), bytes.extract(|b| Table::view(route.table, route.capacity, b)))
            });
            let known = match view {
                Some((0, View::Whole(t))) if route.matches(&t) => {
                    if self.node.o.techniques.mirrors && t.fps().len() == route.capacity {
                        self.node.cache.fill_mirror(node, first + i, t.fps());
                    }
                    Some((t.used(), t.ver))
                }
                odd => {
                    if self.node.has_tables() {
                        Mark::ScanOddTable.hit();
                    }
                    if matches!(odd, Some((0, View::Unbuilt))) {
                        self.node.push_build(*route);
                    }
                    None
                }
            };
            let slots = known.map_or(route.capacity, |(used, _)| used);
            batch.read(route.leaf, g.leaf_part(slots) as u32);
            read.push((slots, known.map(|(_, ver)| ver)));
        }
        self.ep.step(Step::Entry);
        let mut images = self.ep.batch(batch).await?;
        let mut leaves = Vec::with_capacity(n);
        for (i, route) in routes.iter().enumerate() {
            let (slots, ver) = read[i];
            let bytes = images.take_sampled(i);
            let seen = self.see_sampled(route, slots, ver, bytes).await?;
            leaves.push(match seen {
                Ok(leaf) => Some(leaf),
                Err(Refused::Stale) => None,
                Err(Refused::Torn) => {
                    Mark::ScanTorn.hit();
                    self.op.retried.set(true);
                    self.read_one(route).await?
                }
            });
        }
        Ok(leaves)
    }

    /// Reads one leaf whole, until its image is accepted; `None` when the route no longer names it.
    async fn read_one(&self, route: &Route) -> Result<Option<ScanLeaf>> {
        let mut backoff = self.ep.backoff("leaf being written", route.leaf);
        loop {
            let copy = self.read_leaf(route.leaf, route.capacity).await?;
            if copy.header(self).ver.generation != route.generation {
                return Ok(None);
            }
            match self.see_copy(copy).await? {
                Ok(leaf) => return Ok(Some(leaf)),
                Err(Refused::Stale) => return Ok(None),
                Err(Refused::Torn) => {
                    self.op.quiescent_point();
                    backoff.step().await?;
                }
            }
        }
    }

    async fn see_sampled(
        &self,
        route: &Route,
        slots: usize,
        ver: Option<crate::format::Ver>,
        bytes: Sampled,
    ) -> Result<Seen> {
        let g = &self.node.g;
        self.ep.stage_cost(Stage::NodeImage, slots as u32);
        let checked = bytes.check(|b| {
            let h = check_header(g, route.leaf, b).ok_or(Refused::Torn)?;
            if h.ver.generation != route.generation
                || h.slots != route.capacity
                || !h.forward.is_null()
            {
                return Err(Refused::Stale);
            }
            // A part counts only for the version that the table confirms.
            let any = self.node.has(Mutant::ScanOtherVersion);
            if ver.is_some_and(|v| v != h.ver) && slots < route.capacity && !any {
                return Err(Refused::Torn);
            }
            let mixed = self.node.has(Mutant::LeafMixed);
            Collected::of(g, (route.leaf, &h), b, (slots, mixed)).ok_or(Refused::Torn)
        });
        match checked {
            Ok((found, image)) => self.see_accepted(route.leaf, image, found).await,
            Err(refused) => Ok(Err(refused)),
        }
    }

    async fn see_copy(&self, copy: LeafCopy) -> Result<Seen> {
        let header = copy.header(self);
        if !header.forward.is_null() {
            return Ok(Err(Refused::Stale));
        }
        let mixed = self.node.has(Mutant::LeafMixed);
        let slots = (copy.capacity, mixed);
        let found = Collected::of(&self.node.g, (copy.addr, &header), &copy.bytes, slots);
        self.see_accepted(copy.addr, copy.bytes, found.expect("accepted")).await
    }

    /// The pairs of an accepted image.
    async fn see_accepted(
        &self,
        leaf: GlobalAddr,
        image: Verified,
        found: Collected,
    ) -> Result<Seen> {
        let mut long = Vec::new();
        let whole =
            self.fetch_blocks(&found.blocks, |_, k, v| long.push((k.to_vec(), v.to_vec()))).await?;
        if !whole {
            return Ok(Err(Refused::Torn));
        }
        debug_assert!(check_header(&self.node.g, leaf, &image).is_some());
        let header = unchecked_header(&self.node.g, &image).expect("accepted");
        let lo = self.fence_bytes(header.lo).await?.unwrap_or_default();
        let hi = self.fence_bytes(header.hi).await?;
        let next = header.next;
        let leaf = ScanLeaf::new(&self.node.g, (lo, hi, next), image, found, long);
        self.ep.stage_cost(Stage::ScanCollect, leaf.len() as u32);
        Ok(Ok(leaf))
    }

    /// READs blocks, several together; false when one was not whole (its entry has changed
    /// meanwhile).
    pub(crate) async fn fetch_blocks(
        &self,
        blocks: &[BlockPtr],
        mut f: impl FnMut(usize, &[u8], &[u8]),
    ) -> Result<bool> {
        let mut from = 0;
        while from < blocks.len() {
            let mut batch = VerbVec::new();
            let mut bytes = 0;
            let mut to = from;
            while to < blocks.len() && (to == from || bytes < BLOCK_BATCH_BYTES) && to - from < 64 {
                let at = blocks[to];
                if at.is_null() {
                    return Ok(false);
                }
                bytes += u64::from(at.capacity());
                batch.read(at.addr(), at.capacity());
                to += 1;
            }
            self.ep.step(Step::Entry);
            let mut results = self.ep.batch(batch).await?;
            for (i, at) in blocks[from..to].iter().enumerate() {
                let bytes = results.take_sampled(i);
                let whole = bytes.extract(|b| block_pair(*at, b).map(|(k, v)| f(from + i, k, v)));
                if whole.is_none() {
                    return Ok(false);
                }
            }
            from = to;
        }
        Ok(true)
    }

    /// Copies pairs of a leaf into the page, in the direction of the scan; the last key when the
    /// page is full before they end.
    async fn emit(
        &self,
        leaf: &ScanLeaf,
        pairs: Range<usize>,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Vec<u8>>> {
        let room = r.limit - page.len();
        let count = pairs.len().min(room);
        page.reserve(count, count * (self.node.g.k + self.node.g.v));
        for n in 0..count {
            let i = if r.reverse { pairs.end - 1 - n } else { pairs.start + n };
            if let Some((pair, key)) = leaf.joined(i)
                && page.bytes() + pair.len() < PAGE_BYTES
            {
                page.push_joined(pair, key);
                continue;
            }
            let (key, value) = leaf.get(i);
            let mut fetched = Vec::new();
            let value = match value {
                ItemValue::Here(value) => value,
                ItemValue::In(at) => {
                    let whole = self.read_block(at, |_, v| fetched.extend_from_slice(v)).await?;
                    if !whole && !self.get_alone_unpinned(key, &mut fetched).await? {
                        // Deleted since the leaf was read; the page continues behind it.
                        continue;
                    }
                    &fetched
                }
            };
            page.push(key, value);
            if page.bytes() >= PAGE_BYTES {
                return Ok(Some(key.to_vec()));
            }
        }
        if count < room {
            return Ok(None);
        }
        let last = if r.reverse { pairs.end - count } else { pairs.start + count - 1 };
        Ok(Some(leaf.get(last).0.to_vec()))
    }

    /// A point read inside a scan; the scan's pin covers it.
    async fn get_alone_unpinned(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let hash = dmtree_parts::hash::KeyHash::of(key);
        Box::pin(self.get_pinned(key, hash, out)).await
    }
}
