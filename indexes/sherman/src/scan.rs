//! Ascending scans: leaf after leaf along the right links, one READ each, as the port in the DMTree
//! artifact does it.
//!
//! Each leaf is validated as for a point read, and the next leaf must begin where the last one
//! ended. If it does not, a split was in progress, and the scan finds the leaf by a new descent.
//! Each pair is current at the READ of its leaf; a scan is no snapshot. As published, an entry with
//! two different versions is skipped, so a scan can miss a key that is being updated.
//!
//! A scan changes nothing but the cache, so a crash leaves nothing behind.

use std::ops::Bound;

use dmtree_fabric::{Error, OpKind, OpOutcome, Result, Stage, Verified};
use dmtree_parts::{PAGE_BYTES, Page, Resume, ScanRequest};

use crate::client::{Sherman, no_reverse};
use crate::format::{leaf, upper};

impl Sherman {
    pub(crate) async fn scan_op(
        &self,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        page.clear();
        if r.reverse {
            return Err(no_reverse());
        }
        if r.limit == 0 {
            return Err(Error::invalid("a scan needs a limit of at least one pair"));
        }
        let scope = self.ep.begin(OpKind::Scan);
        self.retried.set(false);
        let resume = self.scan_page(r, page).await?;
        scope.end(OpOutcome::Other);
        Ok(resume)
    }

    async fn scan_page(&self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        let lowest = self.node.g.lowest();
        let from = match r.low {
            Bound::Included(key) | Bound::Excluded(key) => self.bound(key),
            Bound::Unbounded => lowest,
        };
        let (_, mut image) = self.leaf_of(&from).await?;
        loop {
            self.collect(&image, r, page);
            if page.len() == r.limit {
                let last = page.get(page.len() - 1).map(|(key, _)| key.to_vec());
                return Ok(last.map(|key| Resume(Bound::Excluded(key))));
            }
            let h = self.header_of(&image)?;
            let Some(high) = upper(h.high) else { return Ok(None) };
            let past = match r.high {
                Bound::Included(end) => high > end,
                Bound::Excluded(end) => high >= end,
                Bound::Unbounded => false,
            };
            if past {
                return Ok(None);
            }
            if page.bytes() >= PAGE_BYTES {
                return Ok(Some(Resume(Bound::Included(high.to_vec()))));
            }
            if h.sibling.is_null() {
                return Err(Error::corrupt("a leaf ends early and has no sibling"));
            }
            let next = self.see_leaf(h.sibling).await?;
            // A header that does not fit was READ in the middle of a split.
            image = match self.header_of(&next)?.low == high {
                true => next,
                false => {
                    self.retried.set(true);
                    self.ep.check_deadline("the next leaf of a scan", h.sibling.bits())?;
                    self.leaf_of(high).await?.1
                }
            };
        }
    }

    /// A bound of any length as a key: filled with zeros, or cut.
    fn bound(&self, key: &[u8]) -> Vec<u8> {
        let mut out = key.to_vec();
        out.resize(self.node.g.key, 0);
        out
    }

    /// Adds the pairs of a leaf that lie in the range, in key order, up to the limit.
    fn collect(&self, image: &Verified, r: &ScanRequest<'_>, page: &mut Page) {
        let g = &self.node.g;
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
        self.ep.stage_cost(Stage::ScanCollect, found.len() as u32);
    }
}
