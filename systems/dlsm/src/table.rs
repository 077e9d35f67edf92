//! A table: what a compute node knows of a sorted run of versions on memory nodes.
//!
//! Its index and its filter are in the memory of the node as far as its budget has room for them
//! ([`crate::indexes`]), its data is not. What holds a table ([`Arc`]) may READ it. The last one
//! that gives it up makes it garbage.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{GlobalAddr, Result};
use serde::{Deserialize, Serialize};

use crate::bloom::Bloom;
use crate::fetch::Fetch;
use crate::format::{Format, Index};
use crate::garbage::Garbage;
use crate::indexes::Indexes;
use crate::key::{KeyRange, Seq, Tag};
use crate::opened::Opened;
use crate::pages::Top;

/// A piece of memory of a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extent {
    /// Its address, packed.
    at: u64,
    /// Bytes in use.
    pub(crate) bytes: u32,
}

impl Extent {
    pub(crate) fn new(at: GlobalAddr, bytes: u32) -> Self {
        Self { at: at.bits(), bytes }
    }

    pub(crate) fn at(&self) -> GlobalAddr {
        GlobalAddr::from_bits(self.at)
    }
}

/// What allocated the memory of a table, and takes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Maker {
    /// The owner, of its blocks.
    Owner,
    /// The memory node.
    Memory,
}

/// Where a table is, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub(crate) maker: Maker,
    pub(crate) format: Format,
    pub(crate) data: Vec<Extent>,
    pub(crate) index: Vec<Extent>,
    pub(crate) filter: Vec<Extent>,
    pub(crate) entries: u64,
    /// The lowest and the highest sequence number.
    pub(crate) numbers: (Seq, Seq),
}

impl Meta {
    pub(crate) fn data_bytes(&self) -> u64 {
        self.data.iter().map(|e| u64::from(e.bytes)).sum()
    }

    pub(crate) fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.data.iter().chain(&self.index).chain(&self.filter)
    }
}

/// A table of an open index.
pub(crate) struct Table {
    pub(crate) meta: Meta,
    /// Its number among the tables of its shard; of level 0 the order in which they were drawn.
    pub(crate) number: u64,
    smallest: Box<[u8]>,
    largest: Box<[u8]>,
    parts: Mutex<Parts>,
    /// In the place of the index; computed when that is given up first.
    top: OnceLock<Top>,
    /// Since the last look.
    was_used: AtomicBool,
    /// Bytes of pages that were READ since the index was given up.
    missed_bytes: AtomicU64,
    /// Where its parts count.
    indexes: OnceLock<Arc<Indexes>>,
    /// Where its memory goes when it is dropped.
    garbage: Mutex<Option<Arc<Garbage>>>,
}

/// What a node has of a table, and can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Index,
    Filter,
}

#[derive(Default)]
struct Parts {
    index: Option<Arc<Index>>,
    filter: Option<Bloom>,
    /// Bytes as they count.
    counted: u64,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({}, {} entries)", self.number, self.meta.entries)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if let Some(indexes) = self.indexes.get() {
            indexes.changed((locked(&self.parts).counted, 0));
        }
        if let Some(garbage) = &*locked(&self.garbage) {
            garbage.add(&self.meta);
        }
    }
}

impl Table {
    /// A table with its index and filter. Dropped, its memory becomes garbage, where there is any.
    pub(crate) fn new(
        meta: Meta,
        number: u64,
        (index, filter): (Index, Option<Bloom>),
        garbage: Option<Arc<Garbage>>,
    ) -> Arc<Self> {
        let (smallest, largest) = (index.smallest().into(), index.largest[..].into());
        let parts = Parts { index: Some(Arc::new(index)), filter, counted: 0 };
        Arc::new(Self {
            meta,
            number,
            smallest,
            largest,
            parts: Mutex::new(parts),
            top: OnceLock::new(),
            was_used: AtomicBool::new(true),
            missed_bytes: AtomicU64::new(0),
            indexes: OnceLock::new(),
            garbage: Mutex::new(garbage),
        })
    }

    pub(crate) fn smallest(&self) -> &[u8] {
        &self.smallest
    }

    pub(crate) fn largest(&self) -> &[u8] {
        &self.largest
    }

    // ---- what is in memory ------------------------------

    /// Its bytes count there from now on.
    pub(crate) fn count_in(&self, indexes: &Arc<Indexes>) {
        // Called once.
        let _ = self.indexes.set(indexes.clone());
        self.count(&mut locked(&self.parts));
    }

    fn count(&self, parts: &mut Parts) {
        let Some(indexes) = self.indexes.get() else { return };
        let filter = parts.filter.as_ref().map_or(0, |filter| filter.bytes());
        let now = self.bytes_beside(parts) + filter;
        indexes.changed((std::mem::replace(&mut parts.counted, now), now));
    }

    /// Bytes of its index, or of its top.
    fn bytes_beside(&self, parts: &Parts) -> u64 {
        let ends = self.smallest.len() + self.largest.len();
        let index = parts.index.as_ref().map_or(0, |index| index.bytes());
        ends as u64 + index + self.top.get().map_or(0, Top::bytes)
    }

    /// Bytes of its index, or of what is in its place, and of its filter.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let parts = locked(&self.parts);
        (self.bytes_beside(&parts), parts.filter.as_ref().map_or(0, |filter| filter.bytes()))
    }

    pub(crate) fn has(&self, part: Part) -> bool {
        let parts = locked(&self.parts);
        match part {
            Part::Index => parts.index.is_some(),
            Part::Filter => parts.filter.is_some(),
        }
    }

    /// Whether it was used since the last look, which this is.
    pub(crate) fn was_used(&self) -> bool {
        self.was_used.swap(false, Ordering::Relaxed)
    }

    /// Its index or its filter is on the memory node alone from now on.
    pub(crate) fn give_up(&self, part: Part) {
        let mut parts = locked(&self.parts);
        match part {
            Part::Index => {
                let Some(index) = parts.index.take() else { return };
                let exact = self.meta.format == Format::Dense(1);
                self.top.get_or_init(|| Top::of(&index, exact));
                self.missed_bytes.store(0, Ordering::Relaxed);
            }
            Part::Filter => parts.filter = None,
        }
        self.count(&mut parts);
    }

    /// Its index, if it is here.
    pub(crate) fn index(&self) -> Option<Arc<Index>> {
        self.was_used.store(true, Ordering::Relaxed);
        locked(&self.parts).index.clone()
    }

    /// Its index, from here or from the memory node; it stays where it is.
    ///
    /// # Errors
    /// `Corrupt`; those of the fabric.
    pub(crate) async fn whole(self: &Arc<Self>, fetch: &impl Fetch) -> Result<Opened> {
        let index = match self.index() {
            Some(index) => index,
            None => Arc::new(self.read_index(fetch).await?),
        };
        Ok(Opened { table: self.clone(), index })
    }

    async fn read_index(&self, fetch: &impl Fetch) -> Result<Index> {
        Index::decode(&section(fetch, &self.meta.index).await?, self.meta.data_bytes())
    }

    /// Its index and filter are here again.
    ///
    /// # Errors
    /// As [`Table::whole`].
    pub(crate) async fn bring_back(&self, fetch: &impl Fetch) -> Result<()> {
        let index = Arc::new(self.read_index(fetch).await?);
        let filter = Bloom::decode(section(fetch, &self.meta.filter).await?)?;
        self.was_used.store(true, Ordering::Relaxed);
        let mut parts = locked(&self.parts);
        (parts.index, parts.filter) = (Some(index), Some(filter));
        self.count(&mut parts);
        Ok(())
    }

    /// The records around a key, READ from the memory node; and whether pages have cost as much by
    /// now as the index.
    ///
    /// # Errors
    /// As [`Table::whole`].
    pub(crate) async fn page(
        self: &Arc<Self>,
        fetch: &impl Fetch,
        version: (&[u8], Tag),
    ) -> Result<(Arc<Index>, bool)> {
        let Some(top) = self.top.get() else {
            return Ok((self.whole(fetch).await?.index, false));
        };
        let pages = top.holding(version);
        let bytes = top.bytes_of(pages.clone());
        let before = self.missed_bytes.fetch_add(bytes, Ordering::Relaxed);
        let whole: u64 = self.meta.index.iter().map(|e| u64::from(e.bytes)).sum();
        let is_worth_it = before < whole && before + bytes >= whole;
        Ok((Arc::new(self.pages(fetch, (top, pages)).await?), is_worth_it))
    }

    async fn pages(
        &self,
        fetch: &impl Fetch,
        (top, pages): (&Top, std::ops::Range<usize>),
    ) -> Result<Index> {
        let read = fetch.fetch(&top.places(pages.clone(), &self.meta.index)).await?;
        top.decode(pages, &read.concat())
    }

    /// Its index, or the part for so many records at the begin of a range, which shrinks to that.
    ///
    /// # Errors
    /// As [`Table::whole`].
    pub(crate) async fn within(
        self: &Arc<Self>,
        fetch: &impl Fetch,
        range: &mut KeyRange,
        (reverse, records): (bool, usize),
    ) -> Result<Opened> {
        let index = match (self.index(), self.top.get()) {
            (Some(index), _) => index,
            (None, None) => return self.whole(fetch).await,
            (None, Some(top)) => {
                let pages = top.of_range(range, reverse, records);
                Arc::new(self.pages(fetch, (top, pages)).await?)
            }
        };
        Ok(Opened { table: self.clone(), index })
    }

    // ---- keys -------------------------------------------

    /// Where its memory goes when it is dropped, from now on.
    pub(crate) fn set_garbage(&self, garbage: Option<&Arc<Garbage>>) {
        *locked(&self.garbage) = garbage.cloned();
    }

    /// Reads index and filter of a table.
    ///
    /// # Errors
    /// `Corrupt`; those of the fabric.
    pub(crate) async fn open(
        fetch: &impl Fetch,
        meta: Meta,
        number: u64,
        garbage: Option<Arc<Garbage>>,
    ) -> Result<Arc<Self>> {
        let index = Index::decode(&section(fetch, &meta.index).await?, meta.data_bytes())?;
        let filter = Bloom::decode(section(fetch, &meta.filter).await?)?;
        Ok(Self::new(meta, number, (index, Some(filter)), garbage))
    }

    /// The same without its filter, for a merge.
    pub(crate) async fn open_unfiltered(fetch: &impl Fetch, meta: Meta) -> Result<Arc<Self>> {
        let index = Index::decode(&section(fetch, &meta.index).await?, meta.data_bytes())?;
        Ok(Self::new(meta, 0, (index, None), None))
    }

    /// Whether its keys and the range overlap.
    pub(crate) fn overlaps(&self, range: &KeyRange) -> bool {
        !range.is_under(&self.largest) && !range.is_over(&self.smallest)
    }

    /// The same for a range with both ends included.
    pub(crate) fn meets(&self, smallest: &[u8], largest: &[u8]) -> bool {
        &self.largest[..] >= smallest && &self.smallest[..] <= largest
    }

    /// Whether a key lies between its smallest and its largest key.
    pub(crate) fn covers(&self, user: &[u8]) -> bool {
        self.meets(user, user)
    }

    /// Whether the filter may have a key.
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        locked(&self.parts).filter.as_ref().is_none_or(|filter| filter.may_have(hash))
    }
}

/// Reads a section of a table.
async fn section(fetch: &impl Fetch, extents: &[Extent]) -> Result<Vec<u8>> {
    let mut whole = Vec::new();
    for extent in extents {
        let part = fetch.fetch(&[(extent.at(), extent.bytes)]).await?;
        part.iter().for_each(|bytes| whole.extend_from_slice(bytes));
    }
    Ok(whole)
}
