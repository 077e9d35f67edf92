//! Ascending scans: leaf after leaf along the right links, one READ each, as the port in the DMTree
//! artifact does it.
//!
//! Each leaf is validated as for a point read, and the next leaf must begin where the last one
//! ended. If it does not, a split was in progress, and the scan finds the leaf by a new descent.
//! Each pair is current at the READ of its leaf; a scan is no snapshot. As published, an entry with
//! two different versions is skipped, so a scan can miss a key that is being updated.
//!
//! A scan changes nothing but the cache, so a crash leaves nothing behind.

use dmtree_fabric::{Error, Result, Stage, Verified};
use dmtree_parts::blink::upper;
use dmtree_parts::{Page, Resume, ScanRequest};

use crate::format::leaf;
use crate::index::Sherman;
use crate::leaf::Leaves;

/// Range reads.
pub(crate) struct Scans<'c>(pub(crate) &'c Sherman);

impl Scans<'_> {
    pub(crate) async fn scan_leaves(
        &self,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        let from = self.0.bound_key(r.low);
        let (_, mut image) = Leaves(self.0).leaf_of(&from).await?;
        loop {
            self.collect(&image, r, page);
            let h = Leaves(self.0).header_of(&image)?;
            if let Some(ended) = r.ended_at(page, upper(h.high)) {
                return Ok(ended);
            }
            if h.sibling.is_null() {
                return Err(Error::corrupt("a leaf ends early and has no sibling"));
            }
            let next = Leaves(self.0).see_leaf(h.sibling).await?;
            // A header that does not fit was READ in the middle of a split.
            image = match Leaves(self.0).header_of(&next)?.low == h.high {
                true => next,
                false => {
                    self.0.retried.set(true);
                    self.0.ep.check_deadline("the next leaf of a scan", h.sibling.bits())?;
                    Leaves(self.0).leaf_of(h.high).await?.1
                }
            };
        }
    }

    /// Adds the pairs of a leaf that lie in the range, in key order, up to the limit.
    fn collect(&self, image: &Verified, r: &ScanRequest<'_>, page: &mut Page) {
        let g = &self.0.node.g;
        let mut found: Vec<_> = leaf::used(g, image)
            .filter(|(_, e)| e.whole && r.contains(e.key))
            .filter(|(_, e)| {
                page.is_empty() || page.get(page.len() - 1).is_some_and(|(k, _)| k < e.key)
            })
            .collect();
        found.sort_unstable_by(|(_, a), (_, b)| a.key.cmp(b.key));
        found.dedup_by(|(_, a), (_, b)| a.key == b.key);
        let room = r.limit - page.len();
        found.iter().take(room).for_each(|(_, e)| page.push(e.key, e.value));
        self.0.ep.stage_cost(Stage::ScanCollect, found.len() as u32);
    }
}
