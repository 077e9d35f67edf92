//! Scans: all leaves of a range in one doorbell.
//!
//! Order of a page: READ the leaves from the window of the lower end to that of the upper end, with
//! their synonyms, at most [`MOST_LEAVES`] at a time. The upper end is that of the range, or the
//! trained key behind so many trained keys as the page wants pairs; where keys are absent the page
//! goes on with the leaves behind.
//!
//! Invariants: leaves are in the order of their keys, and a leaf with its synonym has all keys of
//! its part of the order. So what was READ up to a leaf is complete. As published the synonym is
//! READ beside its leaf, and a key that moves between the two READs can be missed
//! (`ordered_scans`). A scan is no snapshot. It changes nothing, so a crash leaves nothing behind.

use std::ops::Bound;

use dmtree_fabric::{Result, Stage};
use dmtree_parts::{PAGE_BYTES, Page, Resume, ScanRequest};

use crate::directory::Directory;
use crate::index::Rolex;
use crate::read::Group;
use crate::read::Reads;

/// Most leaves of one doorbell, as published.
const MOST_LEAVES: usize = 256;
/// Most bytes of one doorbell: what a client has for buffers.
const MOST_BYTES: usize = 96 << 10;

/// Range reads.
pub(crate) struct Scans<'c>(pub(crate) &'c Rolex);

impl Scans<'_> {
    pub(crate) async fn scan_leaves(
        &self,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        let mut d = Reads(self.0).directory().await?;
        let mut backoff = self.0.ep.backoff("leaves that move", d.at);
        let apart = self.0.node.o.ordered_scans;
        let most = MOST_LEAVES.min(MOST_BYTES / self.0.node.g.raw_bytes()).max(1) as u32;
        let mut next = None;
        loop {
            let first = next.unwrap_or_else(|| self.first_leaf(&d, r));
            let last = self.last_leaf(&d, r, (first, page.len()));
            let end = last.min(first + (most - 1));
            let Some(groups) = Reads(self.0).groups(&d, (first..=end, None), apart).await? else {
                d = Reads(self.0).next_directory(&d, &mut backoff).await?;
                // Nothing was found in the old directory: leaves that move were empty.
                next = None;
                continue;
            };
            let over = self.collect(&groups, r, page);
            if page.len() == r.limit || page.bytes() >= PAGE_BYTES {
                let last = page.get(page.len() - 1).map(|(key, _)| key.to_vec());
                return Ok(last.map(|key| Resume(Bound::Excluded(key))));
            }
            if over || end + 1 >= d.models.leaves() {
                return Ok(None);
            }
            next = Some(end + 1);
        }
    }

    fn first_leaf(&self, d: &Directory, r: &ScanRequest<'_>) -> u32 {
        self.0.ep.stage_cost(Stage::CacheLookup, 1);
        *d.models.window(d.number(&self.0.bound_key(r.low))).start()
    }

    /// The last leaf in which the rest of a page should be, which begins with a leaf.
    fn last_leaf(&self, d: &Directory, r: &ScanRequest<'_>, (first, found): (u32, usize)) -> u32 {
        self.0.ep.stage_cost(Stage::CacheLookup, 1);
        let rank = match found {
            0 => d.models.rank(d.number(&self.0.bound_key(r.low))),
            _ => d.models.first_rank(first),
        };
        let behind = d.models.keys().get(rank.saturating_add(r.limit - found));
        let end = match r.high {
            Bound::Unbounded => None,
            high => Some(d.number(&self.0.bound_key(high))),
        };
        let last = match (behind, end) {
            (None, None) => d.models.leaves() - 1,
            (Some(key), None) => *d.models.window(*key).end(),
            (behind, Some(end)) => *d.models.window(end.min(*behind.unwrap_or(&end))).end(),
        };
        last.max(first)
    }

    /// Adds the pairs that lie in the range, up to the limit. Whether keys behind it were met.
    fn collect(&self, groups: &[Group<'_>], r: &ScanRequest<'_>, page: &mut Page) -> bool {
        let before = page.len();
        let mut over = false;
        for (key, value) in groups.iter().flat_map(Group::pairs) {
            over |= r.is_over(key);
            let is_new = page.is_empty() || page.get(page.len() - 1).is_some_and(|(k, _)| k < key);
            if r.contains(key) && is_new && page.len() < r.limit {
                page.push(key, value);
            }
        }
        self.0.ep.stage_cost(Stage::ScanCollect, (page.len() - before) as u32);
        over
    }
}
