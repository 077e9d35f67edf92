//! Byte layouts of nodes, little endian; DESIGN.md has the tables. Leaves and inner nodes have
//! versions in their lines (`parts::lines`); everything here works on plain images.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::{Deref, Range};

use dmtree_fabric::GlobalAddr;
use dmtree_parts::blink::{Format, Header, upper};
use dmtree_parts::bytes::{get_addr, put_u64};
use dmtree_parts::hopscotch::{LEAF, Layout, Table};
use dmtree_parts::lines::Lines;

pub use dmtree_parts::hopscotch::{Leaf, Part, Room, next};

use crate::options::{Options, Vacancy};

/// No tree has more levels.
const LEVELS: u8 = 24;

/// Sizes that the options determine.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// The leaves.
    table: Table,
    /// Leaves have a vacancy word before the lock.
    pub has_vacancy: bool,
    /// The layout of an inner node.
    pub inner: Lines,
    carried_unlock: bool,
    /// Records of inner nodes stand in the order in which they came.
    unsorted: bool,
}

impl Deref for Geometry {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

impl Geometry {
    /// Of an index with these options.
    pub fn new(o: &Options) -> Self {
        let (key, value) = (o.key_bytes as usize, o.value_bytes as usize);
        let (span, version) = (o.span as usize, o.version_bytes as usize);
        let (near, entries) = (o.neighbourhood as usize, o.inner_span as usize);
        let largest = span.max(entries);
        let bits = 63 - largest.next_power_of_two().ilog2() as usize;
        let layout = Layout {
            key,
            value,
            span,
            neighbourhood: o.hopscotch.then_some(near),
            replicas: o.replicas.then_some(near),
            fences: !o.sibling,
            version,
            buckets: bits.min(entries),
        };
        Self {
            table: Table::new(&layout),
            has_vacancy: o.vacancy != Vacancy::None,
            inner: Lines {
                version,
                head: version + 26 + 2 * key,
                entry: version + key + 8,
                group: entries,
                entries,
            },
            carried_unlock: o.carried_unlock,
            unsorted: o.unsorted_inner,
        }
    }

    /// The slot of the largest key.
    pub fn largest(&self, word: u64) -> usize {
        (word >> self.buckets) as usize % self.span
    }

    fn with_largest(&self, word: u64, slot: usize) -> u64 {
        word & ((1 << self.buckets) - 1) | (slot as u64) << self.buckets
    }

    /// The word of a leaf that was READ whole.
    pub fn word(&self, leaf: &Leaf<'_>) -> u64 {
        let map = leaf.mapped(0, 0..self.span);
        let largest = leaf.used().max_by_key(|i| leaf.key(*i)).unwrap_or(0);
        self.with_largest(map, largest)
    }

    /// The word after these slots of a leaf have changed, and keys have moved. As published the
    /// slot of the largest key changes only if that key moves: a new key does not become the
    /// largest one.
    pub fn noted(
        &self,
        leaf: &Leaf<'_>,
        word: u64,
        slots: impl Iterator<Item = usize> + Clone,
        moves: &[(usize, usize)],
    ) -> u64 {
        let word = leaf.mapped(word, slots);
        let moved = |at, (from, to): &(usize, usize)| if *from == at { *to } else { at };
        self.with_largest(word, moves.iter().fold(self.largest(word), moved))
    }

    /// Where the vacancy word is, and behind it the lock; or the lock alone.
    pub fn words_at(&self) -> u64 {
        self.leaf.raw_bytes().next_multiple_of(8) as u64
    }

    /// Where the lock of a leaf is.
    pub fn leaf_lock_at(&self) -> u64 {
        self.words_at() + if self.has_vacancy { 8 } else { 0 }
    }

    /// Where the lock of an inner node is.
    pub fn inner_lock_at(&self) -> u64 {
        self.inner.raw_bytes().next_multiple_of(8) as u64
    }

    /// Sorts the records of an inner node by key. Versions stay where they are: records of a node
    /// that was READ whole have one node half, and what is written next begins behind them.
    fn sort_records(&self, plain: &mut [u8]) {
        let used = (0..self.inner.entries).take_while(|i| !self.child(plain, *i).is_null());
        let mut records: Vec<_> =
            used.map(|i| (self.key(plain, i).to_vec(), self.child(plain, i))).collect();
        if !records.is_sorted() {
            records.sort_unstable();
            let sorted = records.iter().enumerate();
            sorted.for_each(|(i, (key, child))| self.put_record(plain, i, key, *child));
        }
    }

    /// Puts the raw bytes of an inner node in the place of its plain ones.
    fn encode_inner(&self, image: &mut [u8]) {
        let plain = image[..self.inner.bytes()].to_vec();
        image.fill(0);
        self.inner.encode(0..plain.len(), &plain, image);
    }

    fn inner_offset(&self, field: usize) -> usize {
        self.inner.version + field
    }
}

/// The fields of an inner node's metadata behind its version; fence keys follow.
const LEVEL: usize = 0;
const VALID: usize = 1;
const SIBLING: usize = 2;
const LEFTMOST: usize = 10;
const BEYOND: usize = 18;
const FENCES: usize = 26;

impl Format for Geometry {
    fn key_bytes(&self) -> usize {
        self.key
    }

    fn inner_slots(&self) -> usize {
        self.inner.entries
    }

    fn inner_bytes(&self) -> usize {
        match self.carried_unlock {
            true => self.inner_lock_at() as usize + 8,
            false => self.inner.raw_bytes(),
        }
    }

    fn page_bytes(&self) -> usize {
        self.inner.raw_bytes()
    }

    fn footprint(&self) -> usize {
        let end = (self.leaf_lock_at() + 8).max(self.inner_lock_at() + 8);
        end.next_multiple_of(64) as usize
    }

    fn plain<'a>(&self, read: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let mut plain = vec![0; self.inner.bytes()];
        self.inner.decode(0..plain.len(), read, &mut plain)?;
        if self.unsorted {
            self.sort_records(&mut plain);
        }
        Some(Cow::Owned(plain))
    }

    fn is_leaf(&self, read: &[u8]) -> Option<bool> {
        Some(read.get(self.leaf.version)? & LEAF != 0)
    }

    fn header<'a>(&self, image: &'a [u8]) -> Option<Header<'a>> {
        let h = self.accepted(image)?;
        let valid = image[self.inner_offset(VALID)] == 1 && (1..=LEVELS).contains(&h.level);
        (valid && upper(h.high).is_none_or(|high| h.low < high)).then_some(h)
    }

    fn accepted<'a>(&self, image: &'a [u8]) -> Option<Header<'a>> {
        if image.len() < self.inner.bytes() {
            return None;
        }
        let fences = &image[self.inner_offset(FENCES)..self.inner.head];
        let (low, high) = fences.split_at(self.key);
        let used = |i: &usize| !self.child(image, *i).is_null();
        Some(Header {
            leftmost: get_addr(image, self.inner_offset(LEFTMOST)),
            sibling: get_addr(image, self.inner_offset(SIBLING)),
            level: image[self.inner_offset(LEVEL)],
            records: (0..self.inner.entries).take_while(used).count(),
            low,
            high,
            beyond: get_addr(image, self.inner_offset(BEYOND)),
        })
    }

    fn key<'a>(&self, image: &'a [u8], i: usize) -> &'a [u8] {
        let at = self.inner.entry_at(i) + self.inner.version;
        &image[at..at + self.key]
    }

    fn child(&self, image: &[u8], i: usize) -> GlobalAddr {
        get_addr(image, self.inner.entry_at(i) + self.inner.version + self.key)
    }

    fn put_header(&self, image: &mut [u8], h: &Header<'_>) {
        image[self.inner_offset(LEVEL)] = h.level;
        image[self.inner_offset(VALID)] = 1;
        put_u64(image, self.inner_offset(SIBLING), h.sibling.bits());
        put_u64(image, self.inner_offset(LEFTMOST), h.leftmost.bits());
        put_u64(image, self.inner_offset(BEYOND), h.beyond.bits());
        let (low, high) = image[self.inner_offset(FENCES)..self.inner.head].split_at_mut(self.key);
        low.copy_from_slice(h.low);
        high.copy_from_slice(h.high);
    }

    fn put_record(&self, image: &mut [u8], i: usize, key: &[u8], child: GlobalAddr) {
        let at = self.inner.entry_at(i) + self.inner.version;
        image[at..at + self.key].copy_from_slice(key);
        put_u64(image, at + self.key, child.bits());
    }

    fn insert_record(
        &self,
        image: &mut [u8],
        (i, count): (usize, usize),
        key: &[u8],
        child: GlobalAddr,
    ) {
        if self.unsorted && count + 1 < self.inner.entries {
            return self.put_record(image, count, key, child);
        }
        // With their versions: all are raised when the node is written.
        let (from, entry) = (self.inner.entry_at(i), self.inner.entry);
        image.copy_within(from..from + (count - i) * entry, from + entry);
        self.put_record(image, i, key, child);
    }

    /// The image ends with a free lock if it reaches so far.
    fn seal(&self, image: &mut [u8]) {
        self.inner.raise_node(image);
        self.encode_inner(image);
    }

    /// A record that stands behind the others is written by itself.
    fn seal_added(&self, image: &mut [u8], count: usize) -> Range<usize> {
        if !self.unsorted {
            self.seal(image);
            return 0..image.len();
        }
        self.inner.raise_entry(image, count);
        self.encode_inner(image);
        let at = self.inner.entry_at(count);
        self.inner.written(at..at + self.inner.entry)
    }
}
