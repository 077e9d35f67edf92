//! Ascending scans: whole leaves along their siblings, as many at once as the range should need.
//!
//! Order: the leaves from the first key on, by the cached nodes above; READ of all of them in one
//! doorbell; a leaf that is being written is READ again. A leaf with another sibling than the
//! next one of the list has been divided meanwhile, and its sibling is READ by itself.
//!
//! Invariants: a route leads to the leaf of its key or to one left of it, and keys move right only,
//! so a walk along siblings misses no key that is present throughout. A leaf counts when all
//! bitmaps fit: no key of it moves. Each pair is current at the READ of its leaf; a
//! scan is no snapshot. (As published a scan checks no sibling, and looks each missing key up.)
//!
//! A scan changes nothing but the cache, so a crash leaves nothing behind.

use std::collections::VecDeque;

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{GlobalAddr, Result, Stage, Step};
use dmtree_parts::blink::Descent;
use dmtree_parts::{Page, Resume, ScanRequest};

use crate::format::Leaf;
use crate::index::Chime;
use crate::read::Leaves;

/// Most leaves of one doorbell.
const TOGETHER: usize = 32;

/// Range reads.
pub(crate) struct Scans<'c>(pub(crate) &'c Chime);

impl<'c> Scans<'c> {
    pub(crate) async fn scan_leaves(
        &self,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        let from = self.0.bound_key(r.low);
        let first = self.0.route(&from).await?.leaf;
        let mut ahead = self.leaves_ahead(&from, first, self.leaves_for(r.limit)).await?;
        let mut at = first;
        loop {
            let early = match ahead.pop_front() {
                Some((leaf, image)) if leaf == at => image,
                // Divided meanwhile: the leaves ahead come later.
                Some(other) => {
                    ahead.push_front(other);
                    None
                }
                None => None,
            };
            let leaf = self.whole_leaf(at, early).await?;
            self.collect(&leaf, r, page);
            let is_over = leaf.used().any(|i| r.is_over(leaf.key(i)));
            if page.len() == r.limit || is_over || leaf.sibling().is_null() {
                return Ok(match page.len() == r.limit {
                    true => r.ended_at(page, None).flatten(),
                    false => None,
                });
            }
            self.0.ep.check_deadline("the next leaf of a scan", at.bits())?;
            at = leaf.sibling();
        }
    }

    /// How many leaves have so many pairs, if each is two thirds full.
    fn leaves_for(&self, pairs: usize) -> usize {
        (3 * pairs).div_ceil(2 * self.0.node.g.span).min(TOGETHER)
    }

    /// READs so many leaves from the leaf of a key on; `None` for one that is being written.
    async fn leaves_ahead(
        &self,
        from: &[u8],
        first: GlobalAddr,
        count: usize,
    ) -> Result<VecDeque<(GlobalAddr, Option<Leaf<'_>>)>> {
        let g = &self.0.node.g;
        let mut leaves: Vec<_> =
            self.0.cached_leaves(from, count, None).iter().map(|leaf| leaf.at).collect();
        if leaves.first() != Some(&first) {
            leaves = vec![first];
        }
        let mut verbs = VerbVec::new();
        for leaf in &leaves {
            verbs.read(*leaf, g.leaf.raw_bytes() as u32);
        }
        self.0.ep.step(Step::Entry);
        let mut read = self.0.ep.batch(verbs).await?;
        self.0.ep.stage_cost(Stage::NodeImage, (leaves.len() * g.span) as u32);
        let take = |(i, at): (usize, GlobalAddr)| {
            let mut leaf = g.unread();
            let all = g.whole();
            let whole = read.take_sampled(i).extract(|raw| leaf.take(all, raw));
            (at, whole.then_some(leaf))
        };
        Ok(leaves.into_iter().enumerate().map(take).collect())
    }

    /// A leaf in which no key moves.
    async fn whole_leaf(&self, at: GlobalAddr, early: Option<Leaf<'c>>) -> Result<Leaf<'c>> {
        let g = &self.0.node.g;
        let (mut early, mut backoff) = (early, self.0.ep.backoff("leaf being written", at));
        loop {
            let leaf = match early.take() {
                Some(leaf) => leaf,
                None => Leaves(self.0).read_parts(at, &[g.whole()]).await?,
            };
            if (0..g.span).all(|home| leaf.agrees(home)) {
                return Ok(leaf);
            }
            self.0.retried.set(true);
            backoff.step().await?;
        }
    }

    /// Adds the pairs of a leaf that lie in the range, in key order, up to the limit.
    fn collect(&self, leaf: &Leaf<'_>, r: &ScanRequest<'_>, page: &mut Page) {
        let is_new =
            |key: &[u8]| page.is_empty() || page.get(page.len() - 1).is_some_and(|(k, _)| k < key);
        let mut found: Vec<_> = leaf
            .used()
            .map(|i| (leaf.key(i), leaf.value(i)))
            .filter(|(key, _)| r.contains(key) && is_new(key))
            .collect();
        found.sort_unstable();
        found.dedup_by(|a, b| a.0 == b.0);
        let room = r.limit - page.len();
        found.iter().take(room).for_each(|(key, value)| page.push(key, value));
        self.0.ep.stage_cost(Stage::ScanCollect, found.len() as u32);
    }
}
