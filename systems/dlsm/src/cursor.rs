//! Cursors: sorted runs of versions, read piece by piece in either direction, and merged key by
//! key.
//!
//! Every child of a merge has a buffer of its own. Those that are empty are filled together, so
//! that the READs of all children take one round trip.

use std::collections::VecDeque;
use std::ops::{Bound, Range};
use std::sync::Arc;

use dmtree_fabric::{GlobalAddr, Result};

use crate::fetch::Fetch;
use crate::format::Format;
use crate::key::{KeyRange, Pair, Tag};
use crate::memtable::MemTable;
use crate::opened::Opened;

/// Versions that are copied from a MemTable at once, at most.
const COPIED: usize = 512;

/// A sorted run: where the next versions come from.
enum Source {
    Memory { table: Arc<MemTable>, from: Bound<(Vec<u8>, Tag)>, ahead: usize },
    Tables { waiting: VecDeque<(Opened, Range<usize>)> },
}

/// A child of a merge.
struct Child {
    source: Source,
    buffer: VecDeque<Pair>,
    /// Nothing comes behind the buffer.
    ended: bool,
    /// Bytes to read next, of tables.
    ahead: u64,
}

/// A merge of runs within a range, in one direction.
pub(crate) struct Cursor {
    range: KeyRange,
    reverse: bool,
    children: Vec<Child>,
    most_ahead: u64,
    /// [`crate::options::Defects::shared_buffer`].
    shared_buffer: bool,
}

/// The units of a table that may have keys of a range.
fn units_of(opened: &Opened, range: &KeyRange) -> Range<usize> {
    let index = &opened.index;
    let exact = opened.table.meta.format == Format::Dense(1);
    let low = range.low.as_ref().map_or(0, |low| {
        index.partition(|user, _| user < &low[..]).saturating_sub(usize::from(!exact))
    });
    let high = range.high.as_ref();
    let high = high.map_or(index.len(), |high| index.partition(|user, _| user < &high[..]));
    low..high.max(low)
}

impl Cursor {
    /// Of no runs yet. `first` bytes are read of a run at first, then twice as many each time, up
    /// to the most.
    pub(crate) fn new(range: KeyRange, reverse: bool, most_ahead: u64) -> Self {
        Self { range, reverse, children: Vec::new(), most_ahead, shared_buffer: false }
    }

    /// Reads as published: all tables into one buffer.
    pub(crate) fn share_buffer(&mut self, shared: bool) {
        self.shared_buffer = shared;
    }

    /// Adds a MemTable, of which so many versions are copied at first.
    pub(crate) fn add_memory(&mut self, table: Arc<MemTable>, first: usize) {
        let key = |key: &Option<Vec<u8>>, tag| key.clone().map(|key| (key, tag));
        let from = match self.reverse {
            false => key(&self.range.low, Tag::NEWEST).map_or(Bound::Unbounded, Bound::Included),
            true => key(&self.range.high, Tag::NEWEST).map_or(Bound::Unbounded, Bound::Excluded),
        };
        let source = Source::Memory { table, from, ahead: first.clamp(1, COPIED) };
        self.children.push(Child { source, buffer: VecDeque::new(), ended: false, ahead: 0 });
    }

    /// Adds a run of tables, which ascend and do not overlap.
    pub(crate) fn add_tables(&mut self, tables: &[Opened], first: u64) {
        let inside = tables.iter().filter(|opened| opened.table.overlaps(&self.range));
        let units = |opened: &Opened| (opened.clone(), units_of(opened, &self.range));
        let mut waiting: VecDeque<_> =
            inside.map(units).filter(|(_, units)| !units.is_empty()).collect();
        if self.reverse {
            waiting = waiting.into_iter().rev().collect();
        }
        if !waiting.is_empty() {
            let (source, ahead) = (Source::Tables { waiting }, first.min(self.most_ahead));
            self.children.push(Child { source, buffer: VecDeque::new(), ended: false, ahead });
        }
    }

    /// Takes the versions of the next key, the newest first; `None` behind the last one.
    ///
    /// # Errors
    /// `Corrupt`; those of the fabric.
    pub(crate) async fn next(&mut self, fetch: &impl Fetch) -> Result<Option<Vec<Pair>>> {
        self.refill(fetch).await?;
        let heads = self.children.iter().filter_map(|child| child.head(self.reverse));
        let next = if self.reverse { heads.max() } else { heads.min() };
        let Some(user) = next.map(<[u8]>::to_vec) else { return Ok(None) };
        let mut all = Vec::new();
        loop {
            let mut more = false;
            for child in &mut self.children {
                while child.head(self.reverse) == Some(&user[..]) {
                    let ended = &mut child.buffer;
                    all.extend(if self.reverse { ended.pop_back() } else { ended.pop_front() });
                    more |= child.buffer.is_empty() && child.may_go_on(&user, self.reverse);
                }
            }
            if !more {
                break;
            }
            // Further versions of the key may follow.
            self.refill(fetch).await?;
        }
        all.sort_by_key(|pair| std::cmp::Reverse(pair.tag));
        Ok(Some(all))
    }

    /// Fills the empty buffers.
    async fn refill(&mut self, fetch: &impl Fetch) -> Result<()> {
        loop {
            let mut wants: Vec<(usize, Range<usize>)> = Vec::new();
            let mut ranges: Vec<(GlobalAddr, u32)> = Vec::new();
            for (i, child) in self.children.iter_mut().enumerate() {
                child.copy(&self.range, self.reverse);
                if let Some((units, range)) = child.wanted(self.reverse) {
                    wants.push((i, units));
                    ranges.push(range);
                }
            }
            if wants.is_empty() {
                return Ok(());
            }
            let read = fetch.fetch(&ranges).await?;
            let last = read.last().cloned().filter(|_| self.shared_buffer && read.len() > 1);
            for ((i, units), bytes) in wants.into_iter().zip(&read) {
                let bytes = last.as_ref().unwrap_or(bytes);
                let most = self.most_ahead;
                self.children[i].accept((units, bytes), (&self.range, self.reverse), most)?;
            }
        }
    }
}

impl Child {
    fn head(&self, reverse: bool) -> Option<&[u8]> {
        let pair = if reverse { self.buffer.back() } else { self.buffer.front() };
        pair.map(|pair| &pair.user[..])
    }

    /// Whether versions of a key may come behind the buffer, which is empty: indexes say so, as far
    /// as they have the version that is next.
    fn may_go_on(&self, user: &[u8], reverse: bool) -> bool {
        let Source::Tables { waiting } = &self.source else { return !self.ended };
        let Some((table, units)) = waiting.front() else { return false };
        let exact = table.table.meta.format == Format::Dense(1);
        match reverse {
            false => table.index.first(units.start).0 == user,
            true => !exact || table.index.first(units.end - 1).0 == user,
        }
    }

    /// Copies the next versions of a MemTable.
    fn copy(&mut self, range: &KeyRange, reverse: bool) {
        let Source::Memory { table, from, ahead } = &mut self.source else { return };
        if self.ended || !self.buffer.is_empty() {
            return;
        }
        let at = from.as_ref().map(|(user, tag)| (&user[..], *tag));
        let page = table.page(at, reverse, *ahead);
        self.ended = page.len() < *ahead;
        *ahead = (2 * *ahead).min(COPIED);
        if let Some(last) = page.last() {
            *from = Bound::Excluded((last.user.clone(), last.tag));
        }
        for pair in page {
            match range.contains(&pair.user) {
                true if reverse => self.buffer.push_front(pair),
                true => self.buffer.push_back(pair),
                false => {
                    self.ended = true;
                    break;
                }
            }
        }
    }

    /// What to read next.
    fn wanted(&mut self, reverse: bool) -> Option<(Range<usize>, (GlobalAddr, u32))> {
        let Source::Tables { waiting } = &mut self.source else { return None };
        if !self.buffer.is_empty() {
            return None;
        }
        let Some((table, units)) = waiting.front() else {
            self.ended = true;
            return None;
        };
        let n = table.stretch(units.clone(), reverse, self.ahead);
        let some = if reverse { units.end - n..units.end } else { units.start..units.start + n };
        let (at, _) = table.unit(some.start);
        let bytes = some.clone().map(|unit| table.unit(unit).1).sum();
        Some((some, (at, bytes)))
    }

    /// Takes over what was read.
    fn accept(
        &mut self,
        (units, bytes): (Range<usize>, &[u8]),
        (range, reverse): (&KeyRange, bool),
        most_ahead: u64,
    ) -> Result<()> {
        self.ahead = (2 * self.ahead).min(most_ahead);
        let Source::Tables { waiting } = &mut self.source else { return Ok(()) };
        let Some((table, rest)) = waiting.front_mut() else { return Ok(()) };
        let buffer = &mut self.buffer;
        table.decode(units.clone(), bytes, &mut |user, tag, value| {
            if range.contains(user) {
                buffer.push_back(Pair { user: user.to_vec(), tag, value: value.to_vec() });
            }
        })?;
        if reverse {
            rest.end = units.start
        } else {
            rest.start = units.end
        }
        if rest.start >= rest.end {
            waiting.pop_front();
        }
        self.ended = waiting.is_empty();
        Ok(())
    }
}
