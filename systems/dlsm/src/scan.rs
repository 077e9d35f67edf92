//! Scans: pages of a merge of MemTables and tables, as of a number.
//!
//! A page takes a view first and its number after it: the view has every version up to the number,
//! and what is flushed or merged later changes nothing in it. All numbers up to it are complete, so
//! what a page shows is one instant's.

use std::ops::Bound;
use std::sync::Arc;

use dmtree_fabric::GlobalAddr;
use dmtree_fabric::{OpKind, OpOutcome, Result, Stage};
use dmtree_parts::published::must;
use dmtree_parts::{PAGE_BYTES, Page, Resume, ScanRequest, Shape, SnapshotId};

use crate::calls::{Answer, Asked, Calls, What, unexpected};
use crate::client::Client;
use crate::cursor::Cursor;
use crate::fetch::InUse;
use crate::key::{KeyRange, Seq, above};
use crate::opened::Opened;
use crate::read::Reads;
use crate::router::Router;
use crate::shard::{Shard, View};
use crate::table::{Part, Table};

/// The keys of a request, and of a shard.
fn range_of(r: &ScanRequest<'_>, (low, high): (Option<&[u8]>, Option<&[u8]>)) -> KeyRange {
    let from = match r.low {
        Bound::Included(key) => Some(key.to_vec()),
        Bound::Excluded(key) => Some(above(key)),
        Bound::Unbounded => None,
    };
    let to = match r.high {
        Bound::Included(key) => Some(above(key)),
        Bound::Excluded(key) => Some(key.to_vec()),
        Bound::Unbounded => None,
    };
    let low = from.into_iter().chain(low.map(<[u8]>::to_vec)).max();
    let high = to.into_iter().chain(high.map(<[u8]>::to_vec)).min();
    KeyRange { low, high }
}

/// The last key of a page.
fn last_of(page: &Page) -> Option<Vec<u8>> {
    page.len().checked_sub(1).and_then(|last| page.get(last)).map(|(key, _)| key.to_vec())
}

/// Range reads.
pub(crate) struct Scans<'c>(pub(crate) &'c Client);

impl Scans<'_> {
    /// Fills a page as of now, or as of a snapshot.
    pub(crate) async fn scan_page(
        &self,
        r: &ScanRequest<'_>,
        at: Option<SnapshotId>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        page.clear();
        r.check()?;
        let at = at.map(|s| self.0.node.snapshots.note(s)).transpose()?;
        let scope = self.0.ep.begin(OpKind::Scan);
        self.0.ep.stage_cost(Stage::Operation, 1);
        let resume = self.scan_shards(r, at, page).await?;
        self.0.ep.stage_cost(Stage::ScanCollect, page.len() as u32);
        scope.end(OpOutcome::Other);
        Ok(resume)
    }

    /// The shards of this node, one after the other: the slice of the node ends the scan.
    async fn scan_shards(
        &self,
        r: &ScanRequest<'_>,
        at: Option<Seq>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        let node = &self.0.node;
        let Some(router) = node.opened(&self.0.ep).await? else { return Ok(None) };
        let n = router.shards.len();
        for i in 0..n {
            let own = if r.reverse { n - 1 - i } else { i };
            let range = range_of(r, router.ends(own));
            if range.is_empty() {
                continue;
            }
            let is_full = match node.o.any_node {
                true => self.scan_range(router, own, r, page).await?,
                false => match router.shards[own].get() {
                    Some(shard) => {
                        let view = shard.view();
                        let number = at.unwrap_or_else(|| view.snapshot(&node.o));
                        self.fill(&view, number, (r, range), (page, PAGE_BYTES)).await?
                    }
                    None => false,
                },
            };
            if is_full {
                return Ok(last_of(page).map(|key| Resume(Bound::Excluded(key))));
            }
        }
        Ok(None)
    }

    /// Adds the pairs of a range, from its owner; whether the page is full.
    async fn scan_range(
        &self,
        router: &Router,
        range: usize,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<bool> {
        loop {
            let from = last_of(page).map(|key| Resume(Bound::Excluded(key)));
            let rest = ScanRequest { limit: r.limit - page.len(), ..*r }.after(from.as_ref());
            match Calls(self.0).ask_owner(router, range, &What::Page(rest)).await? {
                Asked::Here(shard, _) => {
                    let rest = ScanRequest { limit: r.limit, ..rest };
                    return self.page_in((router, range), &shard, &rest, PAGE_BYTES, page).await;
                }
                Asked::There(Answer::Page(pairs, more)) => {
                    pairs.iter().for_each(|(key, value)| page.push(key, value));
                    if page.len() >= r.limit || page.bytes() >= PAGE_BYTES {
                        return Ok(true);
                    }
                    if !more || pairs.is_empty() {
                        return Ok(false);
                    }
                }
                Asked::There(_) => return Err(unexpected()),
            }
        }
    }

    /// Adds the pairs of a range of this node to a page, until it has so many bytes; whether it is
    /// full.
    pub(crate) async fn page_in(
        &self,
        (router, range): (&Router, usize),
        shard: &Shard,
        r: &ScanRequest<'_>,
        most: usize,
        page: &mut Page,
    ) -> Result<bool> {
        let keys = range_of(r, router.ends(range));
        if keys.is_empty() {
            return Ok(false);
        }
        let view = shard.view();
        let number = view.visible(&self.0.node.o);
        let is_full = self.fill(&view, number, (r, keys), (page, most)).await?;
        Reads(self.0).may_answer(shard)?;
        Ok(is_full)
    }

    /// Takes a snapshot: the number up to which all are complete.
    pub(crate) async fn snapshot(&self) -> Result<SnapshotId> {
        let router = self.0.node.opened(&self.0.ep).await?;
        let shard = router.and_then(|router| router.own().next());
        let number = || shard.map_or(0, |shard| shard.view().snapshot(&self.0.node.o));
        self.0.node.snapshots.take(number)
    }

    /// Adds the pairs of a view, as of a number, to a page; whether it is full.
    async fn fill(
        &self,
        view: &View,
        number: Seq,
        (r, range): (&ScanRequest<'_>, KeyRange),
        (page, most): (&mut Page, usize),
    ) -> Result<bool> {
        let _in_use = InUse(&self.0.ep, &view.version);
        let fetch = self.0.node.remote(&self.0.ep);
        let mut left = Some(range);
        while let Some(range) = left.take() {
            let wanted = r.limit - page.len();
            let mut cursor = self.cursor(view, (range, &mut left), r.reverse, wanted).await?;
            while let Some(versions) = cursor.next(&fetch).await? {
                self.0.ep.stage_cost(Stage::IterEntry, versions.len() as u32);
                let Some(newest) = versions.iter().find(|pair| pair.tag.seq() <= number) else {
                    continue;
                };
                if newest.tag.is_value() {
                    page.push(&newest.user, &newest.value);
                }
                if page.len() == r.limit || page.bytes() >= most {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// A merge of all that a view has in a range, of which so many pairs are wanted. Where indexes
    /// are READ by the page the range ends early: the rest of it is left.
    async fn cursor(
        &self,
        view: &View,
        (mut range, left): (KeyRange, &mut Option<KeyRange>),
        reverse: bool,
        wanted: usize,
    ) -> Result<Cursor> {
        let (o, whole) = (&self.0.node.o, range.clone());
        let (flushed, deeper) = view.version.levels.split_at(1);
        let runs = flushed[0].chunks(1).chain(deeper.iter().map(Vec::as_slice));
        let mut opened = Vec::new();
        for run in runs {
            opened.push(self.open_run(run, &mut range, (reverse, wanted)).await?);
        }
        if range != whole {
            *left = Some(match reverse {
                true => KeyRange { low: whole.low, high: range.low.clone() },
                false => KeyRange { low: range.high.clone(), high: whole.high },
            });
        }
        let mut cursor = Cursor::new(range, reverse, o.read_ahead.into());
        cursor.share_buffer(o.defects.shared_buffer);
        for table in [&view.active].into_iter().chain(&view.immutables) {
            cursor.add_memory(table.clone(), wanted);
        }
        let mean = |table: &Table| table.meta.data_bytes() / table.meta.entries.max(1);
        let first = |table: &Table| mean(table).saturating_mul(wanted as u64);
        for run in &opened {
            cursor.add_tables(run, run.first().map_or(0, |opened| first(&opened.table)));
        }
        Ok(cursor)
    }

    /// The tables of a run in a range, in one direction, with their indexes; the range shrinks to
    /// what their first one has READ of its index, or ends before another one that is elsewhere.
    async fn open_run(
        &self,
        run: &[Arc<Table>],
        range: &mut KeyRange,
        (reverse, wanted): (bool, usize),
    ) -> Result<Vec<Opened>> {
        let mut opened = Vec::new();
        let fetch = self.0.node.remote(&self.0.ep);
        for n in 0..run.len() {
            let table = if reverse { &run[run.len() - 1 - n] } else { &run[n] };
            if !table.overlaps(range) {
                continue;
            }
            match (opened.is_empty() || table.has(Part::Index), reverse) {
                (true, _) => {
                    opened.push(table.within(&fetch, range, (reverse, wanted)).await?);
                }
                (false, true) => range.raise_low(above(table.largest())),
                (false, false) => range.lower_high(table.smallest().to_vec()),
            }
        }
        if reverse {
            opened.reverse();
        }
        Ok(opened)
    }

    /// Checks the shards of this node, and counts what they have.
    pub(crate) async fn walk_shards(&self) -> Result<Shape> {
        let mut shape = Shape::default();
        let Some(router) = self.0.node.opened(&self.0.ep).await? else { return Ok(shape) };
        for range in 0..router.shards.len() {
            let part = match (self.0.node.o.any_node, router.shards[range].get()) {
                (_, Some(shard)) => self.walk_in(&shard).await?,
                (false, None) => continue,
                (true, None) => match Calls(self.0).ask_owner(router, range, &What::Walk).await? {
                    Asked::Here(shard, _) => self.walk_in(&shard).await?,
                    Asked::There(Answer::Walked(part)) => part,
                    Asked::There(_) => return Err(unexpected()),
                },
            };
            shape.keys += part.keys;
            shape.structure_bytes += part.structure_bytes;
            shape.leaf_bytes += part.leaf_bytes;
            shape.block_bytes += part.block_bytes;
            shape.levels = shape.levels.max(part.levels);
        }
        Ok(shape)
    }

    /// The same of a shard of this node.
    pub(crate) async fn walk_in(&self, shard: &Shard) -> Result<Shape> {
        let (mut shape, view) = (Shape::default(), shard.view());
        let number = view.visible(&self.0.node.o);
        check(&view)?;
        let _in_use = InUse(&self.0.ep, &view.version);
        let fetch = self.0.node.remote(&self.0.ep);
        let mut left = Some(KeyRange::default());
        while let Some(range) = left.take() {
            let mut cursor = self.cursor(&view, (range, &mut left), false, 1 << 16).await?;
            while let Some(versions) = cursor.next(&fetch).await? {
                let newest = versions.iter().find(|pair| pair.tag.seq() <= number);
                shape.keys += u64::from(newest.is_some_and(|pair| pair.tag.is_value()));
                if shape.keys.is_multiple_of(1024) {
                    self.0.ep.renew_deadline();
                }
            }
            self.0.ep.renew_deadline();
        }
        for table in view.version.tables() {
            shape.structure_bytes += table.meta.extents().map(|e| u64::from(e.bytes)).sum::<u64>();
            shape.leaf_bytes += table.meta.data_bytes();
        }
        let kept = shard.recorder.iter().flat_map(|recorder| recorder.blocks());
        shape.block_bytes = kept.map(|block| u64::from(block.capacity())).sum();
        let deepest = view.version.level_bytes().iter().rposition(|bytes| *bytes > 0);
        shape.levels = deepest.map_or(0, |level| level as u32 + 1);
        Ok(shape)
    }
}

/// The invariants of levels.
fn check(view: &View) -> Result<()> {
    let at = |table: &Table| table.meta.data.first().map_or(GlobalAddr::NULL, |e| e.at());
    let levels = &view.version.levels;
    for pair in levels[0].windows(2) {
        let newer = pair[0].meta.numbers.0 > pair[1].meta.numbers.1;
        must(newer, "a table of level 0 is not newer than the one behind", at(&pair[0]))?;
    }
    for tables in &levels[1..] {
        for pair in tables.windows(2) {
            let apart = pair[0].largest() < pair[1].smallest();
            must(apart, "tables of a level overlap", at(&pair[1]))?;
        }
    }
    Ok(())
}
