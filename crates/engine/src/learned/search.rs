//! The way from a key to its leaf by a model.
//!
//! 1. The page of the key; one READ when it is not here. (The first search of a node READs the
//!    directory, too.)
//! 2. `READ | READ ...`: the leaves of the window together. A leaf counts when its header is
//!    whole and alive, in the generation that the table names.
//! 3. The rightmost of them that begins at or below the key. It holds the key, or the key lies
//!    behind it: then along `next`, leaf by leaf. When all begin above the key, the leaf left of
//!    the window is READ.
//! 4. Whatever does not end so: down the tree.
//!
//! An image that is torn does not count as an answer; its reader waits for it as for any leaf
//! (`leaf/mod.rs`). Leaves that a search meets behind the last leaf of all are remembered, with
//! their fences, as the end of the table. So ascending keys cost no longer ways between two
//! trainings, or [`MAX_TAIL`] splits.
//!
//! A search writes nothing.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{GlobalAddr, Result, Sampled, Stage, Step};
use dmtree_pool::TableId;

use crate::format::{Header, block, check_header, check_whole};
use crate::leaf::{Blocks, LeafCopy, Leaves, NodeHeader};
use crate::learned::directory::{Directory, Head, PageRef};
use crate::learned::page::{LeafEntry, ModelPage};
use crate::learned::{MAX_HOPS, MAX_LEFT, MAX_TAIL, NodeModels, Trainer};
use crate::{Chore, Client, Mark, Mutant, Route, fence_tag, reached};

/// Leaves that a scan READs together, beside those of a window.
const MOST_SCANNED: usize = 62;

/// A leaf that holds a key, and its image, if that is whole.
pub(crate) type Found = (Route, Option<LeafCopy>);

/// A leaf of a window, as it was READ.
struct Seen {
    entry: LeafEntry,
    header: NodeHeader,
    bytes: Sampled,
}

/// What a window says of a key.
enum Judged {
    /// This leaf holds it, or the key lies to its right.
    From(Seen),
    /// All leaves are to the right of it.
    Left,
    /// No leaf counts.
    Nothing,
}

/// Searches by models.
#[derive(Clone, Copy)]
pub(crate) struct ModelSearch<'c>(pub &'c Client, pub &'c NodeModels);

impl<'c> ModelSearch<'c> {
    /// The leaf of a key; `None` when the models do not lead there.
    pub(crate) async fn find(self, key: &[u8]) -> Result<Option<Found>> {
        let Self(c, models) = self;
        if !models.has_looked.swap(true, Ordering::Relaxed) {
            // A directory that cannot be had now is a longer way.
            let _ = Box::pin(Trainer(c, models).refresh()).await;
        }
        c.ep.stage_cost(Stage::CacheLookup, 1);
        let directory = models.directory();
        let number = directory.number(key);
        let page = &*directory.pages[number];
        page.used.store(true, Ordering::Relaxed);
        let found = match self.models_of(&directory, page).await? {
            None => None,
            Some(here) => {
                let is_last = directory.end(number).is_none();
                match in_tail(page, key).filter(|_| is_last) {
                    Some(entry) => self.from(&[entry], 0..1, key, Some(page)).await?,
                    None => self.by_window(&here, key, Some(page).filter(|_| is_last)).await?,
                }
            }
        };
        match &found {
            Some((_, is_direct)) if *is_direct => _ = c.hits.count(),
            Some(_) => self.took_longer(&directory, number, key),
            None => {
                Mark::ModelDescent.hit();
                self.took_longer(&directory, number, key);
            }
        }
        Ok(found.map(|(found, _)| found))
    }

    /// The leaves with so many pairs from a key on, and up to another one: some may lie left of it.
    /// `None` without models.
    pub(crate) async fn leaves_from(
        self,
        key: &[u8],
        end: Option<&[u8]>,
        pairs: usize,
    ) -> Result<Option<Vec<Route>>> {
        let Self(c, models) = self;
        let directory = models.directory();
        let number = directory.number(key);
        let page = &directory.pages[number];
        let Some(here) = self.models_of(&directory, page).await? else { return Ok(None) };
        if in_tail(page, key).is_some() {
            return Ok(None);
        }
        c.ep.stage_cost(Stage::CacheLookup, 1);
        let window = models.window(&c.node, &here, key);
        // Leaves are two thirds full.
        let wanted = (3 * pairs / (2 * c.node.capacity())).min(MOST_SCANNED);
        let most = window.len() + wanted;
        let within = |n: usize| end.filter(|end| directory.number(end) == n);
        let last = |n: usize, page: &ModelPage| {
            within(n).map_or(usize::MAX, |end| models.window(&c.node, page, end).end)
        };
        let mut routes = Vec::with_capacity(most);
        let mut take = |leaves: &[LeafEntry], to: usize| {
            let count = leaves.len().min(most - routes.len()).min(to);
            routes.extend(leaves[..count].iter().map(|entry| self.route(entry)));
            routes.len() < most
        };
        let to = last(number, &here).saturating_sub(window.start).max(1);
        let mut goes_on = take(&here.leaves()[window.start..], to);
        // Pages behind it, as far as they are here.
        for (n, page) in directory.pages.iter().enumerate().skip(number + 1) {
            let is_over = !goes_on || end.is_some_and(|end| *end <= page.name.lo[..]);
            let Some(next) = page.loaded().clone().filter(|_| !is_over) else { break };
            goes_on = take(next.leaves(), last(n, &next));
        }
        Ok(Some(routes))
    }

    /// The models have led a scan astray at this key.
    pub(crate) fn missed(self, key: &[u8]) {
        Mark::ModelScanStale.hit();
        let directory = self.1.directory();
        self.took_longer(&directory, directory.number(key), key);
    }

    fn route(self, entry: &LeafEntry) -> Route {
        Route {
            leaf: entry.leaf(),
            generation: entry.generation,
            table: TableId::from_bits(0),
            capacity: self.0.node.capacity(),
            fence: entry.fence,
        }
    }

    /// A way was longer than a window: at every so many of them the models are looked after.
    fn took_longer(self, directory: &Directory, number: usize, key: &[u8]) {
        let page = &directory.pages[number];
        if !directory.is_kept {
            return;
        }
        let bound = match (self.1.retrain_after, page.name.block()) {
            (0, Some(_)) => return,
            (bound, _) => bound.max(1),
        };
        if (page.longer.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(bound) {
            self.0.node.push_chore(Chore::Train(key.to_vec()));
        }
    }

    /// The models of a page, READ when they are not here; `None` where there are none, or others by
    /// now.
    async fn models_of(
        self,
        directory: &Directory,
        page: &PageRef,
    ) -> Result<Option<Arc<ModelPage>>> {
        if let Some(here) = &*page.loaded() {
            return Ok(Some(here.clone()));
        }
        let Some(at) = page.name.block() else { return Ok(None) };
        let Self(c, models) = self;
        c.ep.step(Step::Route);
        // A newer directory may have retired the block, and anything may be there.
        let Some(bytes) = reached(c.ep.read_unvalidated(at.addr(), at.capacity()).await)? else {
            return Ok(None);
        };
        let stamp = page.name.stamp;
        let head = Head::of(c.node.root.index, stamp);
        let read = bytes.extract(|b| {
            let (_, image) = block::check(at, b)?;
            ModelPage::decoded(head, image)
        });
        let Some(read) = read else {
            Mark::ModelPageGone.hit();
            return Ok(None);
        };
        Mark::ModelPageRead.hit();
        let read = Arc::new(read);
        models.keep(directory, page, &read);
        Ok(Some(read))
    }

    /// The leaf of a key by its window; whether it took one round trip.
    async fn by_window(
        self,
        here: &ModelPage,
        key: &[u8],
        last: Option<&PageRef>,
    ) -> Result<Option<(Found, bool)>> {
        let window = self.1.window(&self.0.node, here, key);
        self.from(here.leaves(), window, key, last).await
    }

    async fn from(
        self,
        leaves: &[LeafEntry],
        mut window: Range<usize>,
        key: &[u8],
        last: Option<&PageRef>,
    ) -> Result<Option<(Found, bool)>> {
        for left in 0..=MAX_LEFT {
            let Some(seen) = self.read(&leaves[window.clone()]).await? else { return Ok(None) };
            match self.judge(seen, key).await? {
                Judged::From(seen) => {
                    let last = last.filter(|_| leaves.last() == Some(&seen.entry));
                    let found = self.onwards(seen, key, last).await?;
                    return Ok(found.map(|(found, hops)| (found, hops == 0 && left == 0)));
                }
                Judged::Left if window.start > 0 => {
                    Mark::ModelLeft.hit();
                    window = window.start - 1..window.start;
                }
                Judged::Left | Judged::Nothing => return Ok(None),
            }
        }
        Ok(None)
    }

    /// READs leaves together; `None` when one of their memory nodes is away.
    async fn read(self, leaves: &[LeafEntry]) -> Result<Option<Vec<Seen>>> {
        let c = self.0;
        let (g, slots) = (c.node.g, c.node.capacity());
        let mut batch = VerbVec::new();
        for entry in leaves {
            batch.read(entry.leaf(), g.leaf_image(slots) as u32);
        }
        c.ep.step(Step::Entry);
        let Some(mut images) = reached(c.ep.batch(batch).await)? else {
            Mark::ModelAway.hit();
            return Ok(None);
        };
        c.ep.stage_cost(Stage::NodeImage, (leaves.len() * slots) as u32);
        let mut seen = Vec::with_capacity(leaves.len());
        for (i, entry) in leaves.iter().enumerate() {
            let bytes = images.take_sampled(i);
            // Of a tombstone that is being reused, `forward` may be gone before the rest is.
            let is_alive = |h: &Header<'_>| h.forward.is_null() && !h.tombstone;
            let header = bytes.extract(|b| {
                check_header(&g, entry.leaf(), b).filter(is_alive)?;
                Some(NodeHeader::of(&g, entry.leaf(), b))
            });
            let is_of = |h: &NodeHeader| {
                let any = c.node.has(Mutant::LearnAnyGeneration);
                h.is_leaf(&c.node) && (h.ver.generation == entry.generation || any)
            };
            if let Some(header) = header.filter(is_of) {
                seen.push(Seen { entry: *entry, header, bytes });
            }
        }
        Ok(Some(seen))
    }

    async fn judge(self, seen: Vec<Seen>, key: &[u8]) -> Result<Judged> {
        let unchecked = self.0.node.has(Mutant::LearnFencesUnchecked);
        let is_any = !seen.is_empty();
        for leaf in seen.into_iter().rev() {
            let lo = Blocks(self.0).fence_key(&leaf.header.lo).await?;
            if lo.is_none_or(|lo| lo[..] <= *key) || unchecked {
                return Ok(Judged::From(leaf));
            }
        }
        Ok(if is_any { Judged::Left } else { Judged::Nothing })
    }

    /// The leaf of a key that lies in this one or to its right, and how many leaves further.
    async fn onwards(
        self,
        seen: Seen,
        key: &[u8],
        last: Option<&PageRef>,
    ) -> Result<Option<(Found, u32)>> {
        let c = self.0;
        let (g, slots) = (&c.node.g, c.node.capacity());
        let Seen { entry, mut header, bytes } = seen;
        let addr = entry.leaf();
        let whole = bytes.check(|b| {
            let header = check_whole(g, addr, b, (slots, false));
            header.map(|_| ()).ok_or(())
        });
        let copy = whole.ok().map(|((), bytes)| LeafCopy::whole(g, addr, slots, bytes));
        let (mut at, mut copy) = (addr, copy);
        for hops in 0..=MAX_HOPS {
            let hi = Blocks(c).fence_key(&header.hi).await?;
            let is_right = hi.as_deref().is_some_and(|hi| key >= hi);
            if !is_right || c.node.has(Mutant::LearnFencesUnchecked) {
                let route = Route { fence: fence_tag(hi.as_deref()), ..header.route(at) };
                return Ok(Some(((route, copy), hops)));
            }
            let Some(next) = self.right_of(&header).await? else { return Ok(None) };
            let lo = Blocks(c).fence_key(&next.1.lo).await?.unwrap_or_default();
            if !next.1.forward.is_null() || lo[..] > *key {
                return Ok(None);
            }
            Mark::ModelRight.hit();
            at = next.0.addr;
            if let Some(page) = last {
                extend(page, lo, LeafEntry::of(&next.1.route(at)));
            }
            (copy, header) = (Some(next.0), next.1);
        }
        Ok(None)
    }

    async fn right_of(self, header: &NodeHeader) -> Result<Option<(LeafCopy, NodeHeader)>> {
        let c = self.0;
        if header.next == GlobalAddr::NULL {
            return Ok(None);
        }
        let copy = Leaves(c).read(header.next, c.node.capacity()).await?;
        let header = NodeHeader::of(&c.node.g, copy.addr, &copy.bytes);
        Ok(Some((copy, header)))
    }
}

/// The leaf of a key behind the last leaf of the last page.
fn in_tail(page: &PageRef, key: &[u8]) -> Option<LeafEntry> {
    let tail = page.tail();
    let i = tail.partition_point(|(lo, _)| lo[..] <= *key).checked_sub(1)?;
    Some(tail[i].1)
}

/// A leaf has split off at the right end.
fn extend(page: &PageRef, lo: Vec<u8>, entry: LeafEntry) {
    let mut tail = page.tail();
    if tail.len() < MAX_TAIL && tail.last().is_none_or(|(last, _)| *last < lo) {
        Mark::ModelTail.hit();
        tail.push((lo, entry));
    }
}
