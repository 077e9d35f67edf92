//! Scans of dense integer keys (`fine`, `greedy`), as published: keys are big-endian integers, and
//! a scan of `n` pairs asks for the next `n` integers.
//!
//! Order: the leaves of the range and their fence keys, by the cached nodes above. A leaf inside of
//! the range is READ whole. Of the first and of the last one, every integer of the range that they
//! cover is hashed, and the neighbourhoods of all are READ: each run of slots by itself (`fine`),
//! or neighbouring runs joined up to half a leaf (`greedy`). All READs share a doorbell. An integer
//! that was not found is looked up by itself (`get.rs`): a division has moved it, or it is absent.
//!
//! Invariants: a pair is current at the READ that has it; an absence is that of a point read. So
//! the bulk READs need no check but that of their bytes.
//!
//! Keys that are no dense integers would make a scan count through the key space. It refuses them
//! when it has found less than half of the integers in front of a key that is present.

use std::collections::BTreeMap;
use std::ops::Bound;

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{Error, GlobalAddr, Result, Role, Stage, Step};
use dmtree_parts::blink::Descent;
use dmtree_parts::{Page, Resume, ScanRequest};

use crate::format::{Leaf, Part, next};
use crate::get::Reads;
use crate::index::Chime;
use crate::options::Scan;
use crate::scan::Scans;

/// Most integers of a page.
const MOST: usize = 1000;

/// Range reads of integers, by the keys that may be there.
pub(crate) struct DenseScans<'c>(pub(crate) &'c Chime);

impl<'c> DenseScans<'c> {
    pub(crate) async fn scan_integers(
        &self,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        let mut keys = vec![self.0.bound_key(r.low)];
        if !r.contains(&keys[0]) {
            keys[0] = next(&keys[0]);
        }
        let is_last = |key: &[u8]| key.iter().all(|b| *b == 0xff);
        while keys.len() < r.limit.min(MOST) && !is_last(&keys[keys.len() - 1]) {
            keys.push(next(&keys[keys.len() - 1]));
        }
        keys.retain(|key| r.contains(key));
        let Some(last) = keys.last().cloned() else { return Ok(None) };
        let images = self.read_range(&keys).await?;
        self.0.ep.stage_cost(Stage::ScanCollect, keys.len() as u32);
        let (mut value, mut below) = (Vec::new(), 0);
        for (n, key) in keys.iter().enumerate() {
            value.clear();
            let image = images.iter().find_map(|leaf| leaf.find(key).map(|slot| leaf.value(slot)));
            let found = match image {
                Some(found) => {
                    value.extend_from_slice(found);
                    true
                }
                None => Reads(self.0).find(key, &mut value).await?,
            };
            if found {
                page.push(key, &value);
                below = n + 1;
            }
        }
        if 2 * page.len() < below {
            return Err(Error::invalid(format!(
                "scan is {:?}: {} of {below} integers are keys, from {:02x?} on; it needs dense \
                 integers, or coarse",
                self.0.node.o.scan,
                page.len(),
                keys[0],
            )));
        }
        if is_last(&last) || r.is_over(&next(&last)) {
            return Ok(None);
        }
        self.resume(last, page).await
    }

    /// Where the next page begins: behind these integers, or behind a gap.
    async fn resume(&self, last: Vec<u8>, page: &Page) -> Result<Option<Resume>> {
        if !page.is_empty() {
            return Ok(Some(Resume(Bound::Excluded(last))));
        }
        // Nothing in the whole range: the next key of all.
        let r = ScanRequest {
            low: Bound::Excluded(&last),
            high: Bound::Unbounded,
            reverse: false,
            limit: 1,
        };
        let mut first = Page::new();
        Scans(self.0).scan_leaves(&r, &mut first).await?;
        Ok(first.get(0).map(|(key, _)| Resume(Bound::Included(key.to_vec()))))
    }

    /// READs what integers that ascend need, in one doorbell.
    async fn read_range(&self, keys: &[Vec<u8>]) -> Result<Vec<Leaf<'c>>> {
        let g = &self.0.node.g;
        let last = &keys[keys.len() - 1];
        let mut leaves = self.0.cached_leaves(&keys[0], keys.len(), Some(last));
        if leaves.is_empty() {
            self.0.route(&keys[0]).await?;
            leaves = self.0.cached_leaves(&keys[0], keys.len(), Some(last));
        }
        let (mut verbs, mut slots) = (VerbVec::new(), 0);
        let mut parts: Vec<(GlobalAddr, Part)> = Vec::new();
        for leaf in leaves.iter().filter(|leaf| leaf.at.node().role() == Role::Memory) {
            let inside = keys[0] <= leaf.low && leaf.high.as_ref().is_some_and(|h| h <= last);
            let of_leaf = match inside {
                true => vec![g.whole()],
                false => self.runs(keys.iter().filter(|key| leaf.covers(key))),
            };
            parts.extend(of_leaf.into_iter().map(|part| (leaf.at, part)));
        }
        for (at, part) in &parts {
            let raw = g.leaf.raw(part.clone());
            slots += part.len().div_ceil(g.leaf.entry);
            verbs.read(at.plus(raw.start as u64), raw.len() as u32);
        }
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        self.0.ep.step(Step::Entry);
        let mut read = self.0.ep.batch(verbs).await?;
        self.0.ep.stage_cost(Stage::NodeImage, slots as u32);
        let mut images: BTreeMap<u64, Leaf<'_>> = BTreeMap::new();
        for (i, (at, part)) in parts.into_iter().enumerate() {
            let leaf = images.entry(at.bits()).or_insert_with(|| g.unread());
            let before = leaf.clone();
            if !read.take_sampled(i).extract(|raw| leaf.take(part, raw)) {
                // Being written: its keys are looked up by themselves.
                *leaf = before;
            }
        }
        Ok(images.into_values().collect())
    }

    /// The runs of slots in which keys of one leaf can be.
    fn runs<'k>(&self, keys: impl Iterator<Item = &'k Vec<u8>>) -> Vec<Part> {
        let g = &self.0.node.g;
        let mut wanted = vec![false; g.span];
        for key in keys {
            let home = g.home(key);
            (0..g.near).for_each(|d| wanted[g.slot(home, d)] = true);
        }
        let mut runs: Vec<Part> = Vec::new();
        for slot in (0..g.span).filter(|slot| wanted[*slot]) {
            let part = g.single(slot);
            match runs.last_mut() {
                Some(run) if run.end == part.start => run.end = part.end,
                Some(run)
                    if self.0.node.o.scan == Scan::Greedy
                        && part.end - run.start <= g.leaf.bytes() / 2 =>
                {
                    run.end = part.end;
                }
                _ => runs.push(part),
            }
        }
        runs
    }
}
