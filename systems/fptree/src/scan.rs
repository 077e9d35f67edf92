//! Ascending scans, leaf after leaf along the right links.
//!
//! Verbs per leaf, with its table on a compute node: READ table, which shows how many slots are in
//! use; READ header and one entry more than that. With its table on a memory node: READ whole leaf.
//!
//! A view is accepted when the header and the entries have one version. That must be the table's
//! version, if there is a table, and on the first leaf the record's. The next leaf must begin where
//! the last one ended. A pair counts when the table names its slot; without a table, when its entry
//! is valid, which can be before the insert is complete (DESIGN.md, section 7). Each pair is
//! current at the READ of its leaf; a scan is no snapshot.
//!
//! A scan changes nothing but the cache, so a crash leaves nothing behind.

use std::ops::Bound;

use dmtree_fabric::{Error, Result, Role, Stage, Step, Verified};
use dmtree_parts::blink::{lowest, upper};
use dmtree_parts::{Page, Resume, ScanRequest};

use crate::client::{FpTree, Route};
use crate::format::MAX_CAPACITY;
use crate::format::leaf::{self, Header, Sibling};
use crate::format::table::Table;
use crate::lock::LeafLocks;
use crate::route::Routes;

/// An accepted leaf, and how many of its entries count.
struct View {
    image: Verified,
    slots: usize,
}

/// Range reads.
pub(crate) struct Scans<'c>(pub(crate) &'c FpTree);

impl Scans<'_> {
    pub(crate) async fn scan_leaves(
        &self,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        let lowest = lowest(self.0.node.g.key);
        let from = match r.low {
            Bound::Included(key) | Bound::Excluded(key) => key.max(&lowest),
            Bound::Unbounded => &lowest,
        };
        let (mut at, mut view) = self.first_leaf(from).await?;
        loop {
            let h = self.header_of(&view.image)?;
            self.collect(&view, &h, r, page);
            if let Some(ended) = r.ended_at(page, upper(h.max)) {
                return Ok(ended);
            }
            if h.right.leaf.is_null() {
                return Err(Error::corrupt(format!("leaf {} ends early, alone", at.leaf)));
            }
            let next = h.right;
            let after = self.next_leaf(&next).await?;
            if self.header_of(&after.image)?.min != h.max {
                return Err(Error::corrupt(format!(
                    "leaf {} does not begin where {} ends",
                    next.leaf, at.leaf
                )));
            }
            (at, view) = (next, after);
        }
    }

    fn header_of<'a>(&self, image: &'a [u8]) -> Result<Header<'a>> {
        leaf::header(&self.0.node.g, image).ok_or_else(|| Error::corrupt("a leaf without a header"))
    }

    /// The leaf that covers a key, in the version of its record.
    async fn first_leaf(&self, key: &[u8]) -> Result<(Sibling, View)> {
        let mut route = Routes(self.0).route(key).await?;
        let mut stale = Routes(self.0).staleness();
        loop {
            let Route { leaf, table, capacity, version, .. } = route;
            let at = Sibling { leaf, table, capacity };
            if let Some(view) = self.view(&at, Some(version)).await? {
                return Ok((at, view));
            }
            route = Routes(self.0).fresh_route(key, &route, &mut stale).await?;
        }
    }

    async fn next_leaf(&self, at: &Sibling) -> Result<View> {
        let mut backoff = self.0.ep.backoff("leaf being written", at.leaf);
        loop {
            if let Some(view) = self.view(at, None).await? {
                return Ok(view);
            }
            self.0.retried.set(true);
            backoff.step().await?;
        }
    }

    /// READs a leaf once; `None` when it has another version than wanted, or two versions.
    async fn view(&self, at: &Sibling, version: Option<u32>) -> Result<Option<View>> {
        let g = &self.0.node.g;
        let table = match at.table.node().role() {
            Role::Compute => Some(self.table_of(at).await?),
            Role::Memory | Role::Journal => None,
        };
        let used = table.as_ref().map_or(at.capacity, Table::used);
        if table.as_ref().is_some_and(|t| t.free_slot().unwrap_or(at.capacity) != used) {
            return Err(Error::corrupt(format!("the table of leaf {} has gaps", at.leaf)));
        }
        let read = (used + 1).min(at.capacity);
        self.0.ep.step(Step::Entry);
        let bytes = self.0.ep.read(at.leaf, g.entry_at(read) as u32).await?;
        self.0.ep.stage_cost(Stage::NodeImage, read as u32);
        let seen = bytes.check(|b| {
            let h = leaf::check(g, b, at.capacity, read).ok_or(())?;
            let wanted = version.is_none_or(|v| v == h.version)
                && table.as_ref().is_none_or(|t| t.version == u64::from(h.version));
            if wanted { Ok(()) } else { Err(()) }
        });
        Ok(seen.ok().map(|((), image)| View { image, slots: used }))
    }

    async fn table_of(&self, at: &Sibling) -> Result<Table> {
        let Sibling { leaf, table, capacity } = *at;
        let r = Route { leaf, table, capacity, version: 0, bottom: leaf, cached: false };
        LeafLocks(self.0).read_table(&r).await
    }

    /// Adds the pairs of a leaf that lie in the range, in key order, up to the limit.
    fn collect(&self, view: &View, h: &Header<'_>, r: &ScanRequest<'_>, page: &mut Page) {
        let g = &self.0.node.g;
        let mut order = [0u8; MAX_CAPACITY];
        let mut count = 0;
        for i in 0..view.slots {
            let e = leaf::entry_of(g, &view.image, i);
            // An entry outside of the leaf's range is half written.
            let inside = e.key >= h.min && upper(h.max).is_none_or(|max| e.key < max);
            if e.valid && inside && r.contains(e.key) {
                order[count] = i as u8;
                count += 1;
            }
        }
        let key = |i: &u8| leaf::entry_of(g, &view.image, usize::from(*i)).key;
        order[..count].sort_unstable_by(|a, b| key(a).cmp(key(b)));
        let room = r.limit - page.len();
        for i in &order[..count.min(room)] {
            let e = leaf::entry_of(g, &view.image, usize::from(*i));
            page.push(e.key, e.value);
        }
        self.0.ep.stage_cost(Stage::ScanCollect, count as u32);
    }
}
