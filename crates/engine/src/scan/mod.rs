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

mod leaf;
mod read;

pub(crate) use leaf::{Collected, Fence, ItemValue, LeafView, ScanLeaf};
pub(crate) use read::{LeafGroup, LeafReader};

use std::ops::{Bound, Range};
use std::sync::Arc;

use dmtree_fabric::{Backoff, OpKind, OpOutcome, Result, Stage};
use dmtree_parts::cache::CachedNode;
use dmtree_parts::{PAGE_BYTES, Page, Resume, ScanRequest};
use dmtree_pool::BlockPtr;

use crate::leaf::{Blocks, Leaves};
use crate::learned::{ModelSearch, NodeModels};
use crate::maintenance::Uses;
use crate::point::Reads;
use crate::router::{Router, route_of};
use crate::{Client, KeyHash, Mark, Route, reached};

/// Reads of the parent in vain, after which a scan finds the leaf by walking.
const WALK_AFTER: u32 = 3;

/// How far pairs of a leaf are in the page.
enum Copied {
    All,
    /// The page is full with this one.
    Until(usize),
    /// The value of this one has to be READ.
    Before(usize, BlockPtr),
}

/// A scan in progress: it fills a page.
pub(crate) struct Scan<'a> {
    c: &'a Client,
    r: &'a ScanRequest<'a>,
    page: &'a mut Page,
}

impl<'a> Scan<'a> {
    pub(crate) async fn run(
        c: &'a Client,
        r: &'a ScanRequest<'a>,
        page: &'a mut Page,
    ) -> Result<Option<Resume>> {
        page.clear();
        r.check()?;
        let scope = c.ep.begin(OpKind::Scan);
        let mut scan = Self { c, r, page };
        let resume = if r.reverse { scan.down().await? } else { scan.up().await? };
        scope.end(OpOutcome::Other);
        Ok(resume)
    }

    async fn up(&mut self) -> Result<Option<Resume>> {
        let (c, r) = (self.c, self.r);
        let mut cursor = r.ends().0.map_or(Vec::new(), <[u8]>::to_vec);
        let mut backoff = c.ep.backoff("a consistent view of a leaf", c.node.root.word);
        let mut pin = c.pin()?;
        // A leaf found by walking, because no record names it.
        let mut walked: Option<Route> = None;
        let mut models = c.node.models.as_ref();
        loop {
            let mut group = self.group_at(&cursor, walked.take(), models).await?;
            let room = group.most_pairs().min(r.limit - self.page.len());
            self.page.reserve(room * (c.node.g.k + c.node.g.v));
            let mut skips = group.is_predicted;
            let mut stale = false;
            for i in 0..group.len() {
                let seen = match LeafReader(c).sampled(&mut group, i) {
                    Ok(leaf) => Some(leaf),
                    Err(refused) => LeafReader(c).reread(&group, i, refused).await?,
                };
                let view = seen.as_ref().map(|leaf| leaf.view(&c.node.g));
                let Some(leaf) = view.filter(|leaf| leaf.covers(&cursor)) else {
                    // The first leaves of a window may lie left of the cursor.
                    if skips && view.is_some_and(|leaf| leaf.is_left_of(&cursor)) {
                        continue;
                    }
                    stale = true;
                    break;
                };
                skips = false;
                let pairs = leaf.pairs_above(&cursor, r);
                let ended = match (self.emit(leaf, pairs).await?, leaf.hi()) {
                    (Some(last), _) => Some(Some(Resume(Bound::Excluded(last)))),
                    (None, Some(hi)) if !r.is_over(hi) => {
                        cursor.clear();
                        cursor.extend_from_slice(hi);
                        None
                    }
                    (None, _) => Some(None),
                };
                seen.into_iter().for_each(|leaf| c.keep_collected(leaf.found));
                if let Some(resume) = ended {
                    return Ok(resume);
                }
            }
            if stale || skips {
                if let Some(models) = models.take() {
                    ModelSearch(c, models).missed(&cursor);
                }
                walked = self.after_stale(&cursor, &mut backoff).await?;
            }
            if self.page.bytes() >= PAGE_BYTES {
                return Ok(Some(Resume(Bound::Included(cursor))));
            }
            // Renewed group by group, so that a long scan does not hold up reclamation.
            drop(pin);
            pin = c.pin()?;
        }
    }

    /// The route of a leaf that was stale is read again; after some tries the route to walk to.
    async fn after_stale(&self, cursor: &[u8], backoff: &mut Backoff<'_>) -> Result<Option<Route>> {
        Mark::ScanStale.hit();
        let fresh = Router(self.c).fresh_route(cursor).await?;
        self.c.op.quiescent_point();
        backoff.step().await?;
        if backoff.steps() <= WALK_AFTER {
            return Ok(None);
        }
        // The record is missing, or names a tombstone, and the client that should repair it may be
        // dead.
        Mark::ScanWalk.hit();
        Router(self.c).walk_route(cursor, &fresh).await
    }

    /// Leaves from a key on, READ together: the one of a route that was walked to, those that
    /// models predict, or those that the bottom node has.
    async fn group_at(
        &self,
        cursor: &[u8],
        walked: Option<Route>,
        models: Option<&NodeModels>,
    ) -> Result<LeafGroup> {
        let (c, r) = (self.c, self.r);
        if walked.is_some() {
            // It is READ until its image is accepted.
            return Ok(LeafGroup::with_routes(walked));
        }
        if let Some(models) = models
            && let Some(group) = self.predicted(models, cursor).await?
        {
            return Ok(group);
        }
        let node = self.bottom(cursor).await?;
        let first = node.keys().floor(cursor).unwrap_or(0);
        let mut group = LeafGroup::of(node, first, (r.limit - self.page.len(), c.node.places), r);
        group.count_uses(Uses(c));
        LeafReader(c).sample(&mut group).await?;
        Ok(group)
    }

    /// The leaves that models predict from a key on.
    async fn predicted(&self, models: &NodeModels, cursor: &[u8]) -> Result<Option<LeafGroup>> {
        let (c, r) = (self.c, self.r);
        let (end, pairs) = (r.ends().1, r.limit - self.page.len());
        match Box::pin(ModelSearch(c, models).leaves_from(cursor, end, pairs)).await? {
            None => Ok(None),
            Some(routes) => {
                let mut group = LeafGroup::with_routes(routes);
                group.is_predicted = true;
                let sampled = LeafReader(c).sample(&mut group).await;
                Ok(reached(sampled)?.map(|()| group))
            }
        }
    }

    async fn down(&mut self) -> Result<Option<Resume>> {
        let (c, r) = (self.c, self.r);
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
        let mut backoff = c.ep.backoff("a consistent view of a leaf", c.node.root.word);
        loop {
            if cursor.as_ref().is_some_and(Vec::is_empty) {
                return Ok(None);
            }
            let _pin = c.pin()?;
            let node = Router(c).descend_below(cursor.as_deref()).await?;
            let found = match node.keys().below(cursor.as_deref()) {
                Some(i) => {
                    let (key, route) = (node.keys().get(i), route_of(&node.record(i)));
                    Uses(c).scanned(&node, i..i + 1);
                    self.read_below(key, &route, cursor.as_deref()).await?
                }
                None => None,
            };
            let view = found.as_ref().map(|leaf| leaf.view(&c.node.g));
            let Some(leaf) = view else {
                Mark::ScanDownAgain.hit();
                c.node.cache.invalidate(1, &node);
                backoff.step().await?;
                continue;
            };
            let from = leaf.count_before(|key| r.is_under(key));
            let to = leaf.count_before(|key| {
                cursor.as_deref().is_none_or(|end| key < end) && !r.is_over(key)
            });
            if let Some(last) = self.emit(leaf, from..to).await? {
                return Ok(Some(Resume(Bound::Excluded(last))));
            }
            if leaf.lo().is_empty() || below(leaf.lo()) {
                return Ok(None);
            }
            let lo = leaf.lo().to_vec();
            if self.page.bytes() >= PAGE_BYTES {
                return Ok(Some(Resume(Bound::Excluded(lo))));
            }
            cursor = Some(lo);
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
        let mut leaf = match LeafReader(self.c).read_one(route).await? {
            Some(leaf) => leaf,
            // A record that is older than this operation may name a tombstone with a successor that
            // is reclaimed already: `forward` carries no generation.
            None if Router(self.c).fresh_route(key).await?.leaf != route.leaf => return Ok(None),
            None => match self.read_successor(route).await? {
                Some(leaf) => leaf,
                None => return Ok(None),
            },
        };
        loop {
            let view = leaf.view(&self.c.node.g);
            let reaches = match (view.hi(), cursor) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(hi), Some(cursor)) => hi >= cursor,
            };
            if reaches {
                let begins = cursor.is_none_or(|c| view.lo() < c);
                return Ok(begins.then_some(leaf));
            }
            let next = view.next();
            if next.is_null() {
                return Ok(None);
            }
            self.c.ep.check_deadline("the end of a walk", next.bits())?;
            Mark::ScanDownWalk.hit();
            let copy = Leaves(self.c).current_at(next, route.capacity).await?;
            let Ok(next) = LeafReader(self.c).see_copy(copy).await? else { return Ok(None) };
            leaf = next;
        }
    }

    /// The successor of a tombstone, as long as the record names the tombstone.
    async fn read_successor(&self, route: &Route) -> Result<Option<ScanLeaf>> {
        let c = self.c;
        let mut copy = Leaves(c).current(route).await?;
        if copy.header(c).ver.generation != route.generation {
            return Ok(None);
        }
        loop {
            let forward = copy.header(c).forward;
            if forward.is_null() {
                break;
            }
            c.ep.check_deadline("the end of a chain of tombstones", forward.bits())?;
            copy = Leaves(c).current_at(forward, copy.capacity).await?;
        }
        match LeafReader(c).see_copy(copy).await? {
            Ok(leaf) => Ok(Some(leaf)),
            Err(_) => Ok(None),
        }
    }

    /// The bottom node of a key.
    async fn bottom(&self, key: &[u8]) -> Result<Arc<CachedNode>> {
        let c = self.c;
        c.ep.stage_cost(Stage::CacheLookup, 1);
        match c.node.cache.lookup(1, key) {
            Some((node, _)) => Ok(node),
            None => Router(c).descend(key, 1).await,
        }
    }

    /// Copies pairs of a leaf into the page, in the direction of the scan; the last key when the
    /// page is full before they end.
    #[inline]
    async fn emit(&mut self, leaf: LeafView<'_>, pairs: Range<usize>) -> Result<Option<Vec<u8>>> {
        match self.copy(leaf, pairs.clone()) {
            Copied::All => Ok(None),
            Copied::Until(last) => Ok(Some(leaf.get(last).0.to_vec())),
            // Boxed: the way of values in slots stays small.
            Copied::Before(i, at) => Box::pin(self.emit_from(leaf, pairs, (i, at))).await,
        }
    }

    /// [`Scan::emit`] from the first pair with a value that has to be READ.
    async fn emit_from(
        &mut self,
        leaf: LeafView<'_>,
        mut pairs: Range<usize>,
        (mut i, mut at): (usize, BlockPtr),
    ) -> Result<Option<Vec<u8>>> {
        loop {
            let (key, mut value) = (leaf.get(i).0, Vec::new());
            // A pair that was deleted since the leaf was read is left out.
            let whole = Blocks(self.c).value(at, &mut value).await?;
            if whole || self.get(key, &mut value).await? {
                self.page.push(key, &value);
                if self.page.bytes() >= PAGE_BYTES || self.page.len() == self.r.limit {
                    return Ok(Some(key.to_vec()));
                }
            }
            pairs = if self.r.reverse { pairs.start..i } else { i + 1..pairs.end };
            match self.copy(leaf, pairs.clone()) {
                Copied::All => return Ok(None),
                Copied::Until(last) => return Ok(Some(leaf.get(last).0.to_vec())),
                Copied::Before(next, block) => (i, at) = (next, block),
            }
        }
    }

    /// Copies pairs with values in the leaf, up to the first other one, or until the page is full.
    fn copy(&mut self, leaf: LeafView<'_>, pairs: Range<usize>) -> Copied {
        let (r, page) = (self.r, &mut *self.page);
        let room = r.limit - page.len();
        let count = pairs.len().min(room);
        let chosen = match r.reverse {
            true => pairs.end - count..pairs.end,
            false => pairs.start..pairs.start + count,
        };
        let (k, v) = (self.c.node.g.k, self.c.node.g.v);
        let fits = page.bytes() + count * (k + v) < PAGE_BYTES;
        if !(fits && leaf.copy_to(page, chosen.clone(), r.reverse)) {
            for n in 0..count {
                let i = if r.reverse { chosen.end - 1 - n } else { chosen.start + n };
                match leaf.get(i) {
                    (key, ItemValue::Here(value)) => page.push(key, value),
                    (_, ItemValue::In(at)) => return Copied::Before(i, at),
                }
                if page.bytes() >= PAGE_BYTES {
                    return Copied::Until(i);
                }
            }
        }
        match count < room {
            true => Copied::All,
            false if r.reverse => Copied::Until(chosen.start),
            false => Copied::Until(chosen.end - 1),
        }
    }

    /// A point read inside a scan; the scan's pin covers it.
    async fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let hash = KeyHash::of(key);
        Box::pin(Reads(self.c).pinned((key, hash), out)).await
    }
}
