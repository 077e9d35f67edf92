//! Leaves. A leaf is `span` slots; its metadata (valid, sibling, perhaps fence keys) stands before
//! all of them, or before every `near` slots. In a hopscotch leaf the slot of a key is one of the
//! `near` slots from its home on, past the last slot if need be; the bitmap of its home says which.
//! Sorted leaves have their keys in the first slots, and their number in the metadata.
//!
//! A free slot of a hopscotch leaf has a key that cannot be there. (As published it has the key
//! zero, which no client may use then.)

use std::ops::Range;

use dmtree_fabric::GlobalAddr;

use super::Table;
use crate::bytes::{get_addr, put_u64};

/// In the byte behind the first version of a leaf: it is a leaf.
pub const LEAF: u8 = 0x80;

/// A part of a leaf, in plain bytes.
pub type Part = Range<usize>;

/// The plain bytes of a leaf, as far as they were READ.
#[derive(Clone, Debug)]
pub struct Leaf<'g> {
    pub(super) g: &'g Table,
    /// The plain bytes; zeros where none were READ.
    pub bytes: Vec<u8>,
    parts: Vec<Part>,
    /// The half of all versions that WRITEs of the whole leaf raise.
    version: Option<u8>,
}

impl Table {
    /// The whole leaf.
    pub fn whole(&self) -> Part {
        0..self.leaf.bytes()
    }

    /// The parts of a leaf with `count` slots from a slot on, and with metadata.
    pub fn parts(&self, from: usize, count: usize) -> Vec<Part> {
        if !self.hopscotch || count >= self.span {
            return vec![self.whole()];
        }
        let (from, count, replica) = self.with_replica(from, count);
        let mut part = self.slot_part(from..(from + count).min(self.span), true);
        part.end += replica;
        let mut parts = vec![part];
        if from + count > self.span {
            parts.insert(0, self.slot_part(0..from + count - self.span, true));
        } else if !self.replicas && parts[0].start > 0 {
            parts.insert(0, 0..self.leaf.head);
        }
        if let [a, b] = &parts[..]
            && a.end >= b.start
        {
            let both = a.start..b.end;
            parts = vec![both];
        }
        parts
    }

    /// The slots, and if need be more, so that a replica is there: from the one before them, or up
    /// to the one behind them, whichever is nearer. Also the bytes of a replica behind them.
    fn with_replica(&self, from: usize, count: usize) -> (usize, usize, usize) {
        let group = self.leaf.group;
        let (inside, is_last) = (from % group, from / group + 1 == self.leaf.groups());
        if !self.replicas || inside == 0 || inside + count > group || from + count > self.span {
            return (from, count, 0);
        }
        match is_last || inside + count <= group - inside {
            true => (from - inside, count + inside, 0),
            false => (from, group - inside, self.leaf.head),
        }
    }

    /// The parts of a WRITE of `count` slots from a slot on; the part with the last slot comes
    /// last.
    pub fn touched(&self, from: usize, count: usize) -> Vec<Part> {
        let last = self.slot_part(from..(from + count).min(self.span), self.replicas);
        match (from + count).checked_sub(self.span) {
            None | Some(0) => vec![last],
            Some(rest) => vec![self.slot_part(0..rest, self.replicas), last],
        }
    }

    /// A slot by itself, with the replica before it if there is one.
    pub fn single(&self, slot: usize) -> Part {
        self.slot_part(slot..slot + 1, self.replicas)
    }

    /// An empty leaf.
    pub fn empty_leaf(&self) -> Leaf<'_> {
        let all = self.whole();
        let bytes = vec![0; all.end];
        let mut leaf = Leaf { g: self, bytes, parts: vec![all], version: Some(0) };
        (0..self.span).for_each(|i| leaf.set_free(i));
        leaf.set_count(0);
        leaf
    }

    /// A leaf of which nothing was READ.
    pub fn unread(&self) -> Leaf<'_> {
        Leaf { g: self, bytes: vec![0; self.leaf.bytes()], parts: Vec::new(), version: None }
    }
}

impl<'g> Leaf<'g> {
    /// Takes the raw bytes of a part. False while it is being written, and for bytes that are no
    /// leaf's: then nothing of the leaf may be used.
    pub fn take(&mut self, part: Part, raw: &[u8]) -> bool {
        let Some(half) = self.g.leaf.decode(part.clone(), raw, &mut self.bytes) else {
            return false;
        };
        self.parts.push(part);
        self.parts.sort_by_key(|p| p.start);
        *self.version.get_or_insert(half) == half && self.heads().all(|at| self.is_valid(at))
    }

    /// Whether a slot is free from a home on, as far as slots were READ without a gap. (Of slots
    /// that were READ for their metadata, a free one before the home says nothing.)
    pub fn has_free_from(&self, home: usize) -> bool {
        let from_home = (0..self.g.span).map(|d| self.g.slot(home, d));
        from_home.take_while(|i| self.has(*i)).any(|i| !self.is_used(i))
    }

    /// Where the heads are that were READ.
    fn heads(&self) -> impl Iterator<Item = usize> {
        let all = (0..self.g.leaf.groups()).map(|group| self.g.leaf.head_at(group));
        all.filter(|at| self.has_byte(*at))
    }

    fn has_byte(&self, at: usize) -> bool {
        self.parts.iter().any(|p| p.contains(&at))
    }

    /// Whether a slot was READ.
    pub fn has(&self, slot: usize) -> bool {
        self.has_byte(self.g.leaf.entry_at(slot))
    }

    /// The parts that were not READ.
    pub fn rest(&self) -> Vec<Part> {
        let starts = self.parts.iter().map(|p| p.start).chain([self.bytes.len()]);
        let ends = [0].into_iter().chain(self.parts.iter().map(|p| p.end));
        ends.zip(starts).map(|(from, to)| from..to).filter(|p| p.start < p.end).collect()
    }

    fn field(&self, head: usize, field: usize) -> usize {
        head + self.g.leaf.version + if self.g.replicas { 1 } else { 2 } + field
    }

    fn is_valid(&self, head: usize) -> bool {
        let flags = &self.bytes[head + self.g.leaf.version..];
        match self.g.replicas {
            true => flags[0] == LEAF | 1,
            false => flags[0] & LEAF != 0 && self.count_at(head) <= self.g.span,
        }
    }

    fn count_at(&self, head: usize) -> usize {
        let flags = &self.bytes[head + self.g.leaf.version..];
        usize::from(flags[0] & !LEAF) << 8 | usize::from(flags[1])
    }

    /// Says that the node is a leaf, and in sorted leaves how many keys it has.
    fn set_count(&mut self, count: usize) {
        for head in self.heads().collect::<Vec<_>>() {
            let at = head + self.g.leaf.version;
            match self.g.replicas {
                true => self.bytes[at] = LEAF | 1,
                false => {
                    self.bytes[at] = LEAF | (count >> 8) as u8;
                    self.bytes[at + 1] = count as u8;
                }
            }
        }
    }

    /// The right sibling, by the first metadata that was READ.
    pub fn sibling(&self) -> GlobalAddr {
        let head = self.heads().next();
        head.map_or(GlobalAddr::NULL, |head| get_addr(&self.bytes, self.field(head, 0)))
    }

    /// The fence keys, in layouts that have them.
    pub fn fences(&self) -> (&[u8], &[u8]) {
        let at = self.heads().next().map_or(0, |head| self.field(head, 8));
        self.bytes[at..at + 2 * self.g.key].split_at(self.g.key)
    }

    /// Sets the metadata.
    pub fn set_metadata(&mut self, sibling: GlobalAddr, low: &[u8], high: &[u8]) {
        for head in self.heads().collect::<Vec<_>>() {
            let (at, fences) = (self.field(head, 0), self.field(head, 8));
            put_u64(&mut self.bytes, at, sibling.bits());
            if self.g.fences {
                self.bytes[fences..fences + self.g.key].copy_from_slice(low);
                self.bytes[fences + self.g.key..][..self.g.key].copy_from_slice(high);
            }
        }
    }

    fn key_at(&self, slot: usize) -> usize {
        let bitmap = if self.g.hopscotch { 2 } else { 0 };
        self.g.leaf.entry_at(slot) + self.g.leaf.version + bitmap
    }

    /// The key in a slot.
    pub fn key(&self, slot: usize) -> &[u8] {
        let at = self.key_at(slot);
        &self.bytes[at..at + self.g.key]
    }

    /// The value in a slot.
    pub fn value(&self, slot: usize) -> &[u8] {
        let at = self.key_at(slot) + self.g.key;
        &self.bytes[at..at + self.g.value]
    }

    /// Whether a slot that was READ has a key.
    pub fn is_used(&self, slot: usize) -> bool {
        match self.g.hopscotch {
            true => self.offset(slot) < self.g.near,
            false => slot < self.count_at(0),
        }
    }

    /// How many slots behind the home of its key a slot is.
    pub fn offset(&self, slot: usize) -> usize {
        self.g.distance(self.g.home(self.key(slot)), slot)
    }

    /// The slots that were READ and have keys.
    pub fn used(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.g.span).filter(|i| self.has(*i) && self.is_used(*i))
    }

    /// The slot of a key, as far as slots were READ.
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        let home = self.g.home(key);
        let near = (0..self.g.near).map(|d| self.g.slot(home, d));
        near.into_iter().find(|i| self.has(*i) && self.key(*i) == key && self.is_used(*i))
    }

    /// The bitmap of a home: bit `near - 1 - i` says that its neighbour `i` has a key of it.
    fn bitmap(&self, home: usize) -> u16 {
        let at = self.g.leaf.entry_at(home) + self.g.leaf.version;
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn bit(&self, slot: usize) -> (usize, u16) {
        let home = self.g.home(self.key(slot));
        (home, 1 << (self.g.near - 1).saturating_sub(self.g.distance(home, slot)))
    }

    fn set_bitmap(&mut self, home: usize, bitmap: u16) {
        let at = self.g.leaf.entry_at(home) + self.g.leaf.version;
        self.bytes[at..at + 2].copy_from_slice(&bitmap.to_le_bytes());
    }

    /// Whether the bitmap of a home is that of the keys in its neighbourhood, all of which was
    /// READ. It is not while a key of that home moves.
    pub fn agrees(&self, home: usize) -> bool {
        let near = (0..self.g.near).map(|d| self.g.slot(home, d));
        let of = |i: usize| Some(self.bit(i)).filter(|(h, _)| *h == home && self.is_used(i));
        !self.g.hopscotch
            || near.filter_map(of).fold(0, |all, (_, bit)| all | bit) == self.bitmap(home)
    }

    fn set_free(&mut self, slot: usize) {
        let at = self.key_at(slot);
        let end = at + self.g.key + self.g.value;
        self.bytes[at..end].fill(0);
        if let Some(key) = self.g.free_keys.get(slot) {
            self.bytes[at..at + self.g.key].copy_from_slice(key);
        }
    }

    fn put(&mut self, slot: usize, key: &[u8], value: &[u8]) {
        let at = self.key_at(slot);
        self.bytes[at..at + self.g.key].copy_from_slice(key);
        self.set_value(slot, value);
    }

    /// Sets the value in a slot, in its next version.
    pub fn set_value(&mut self, slot: usize, value: &[u8]) {
        let at = self.key_at(slot) + self.g.key;
        self.bytes[at..at + self.g.value].copy_from_slice(value);
        self.g.leaf.raise_entry(&mut self.bytes, slot);
    }

    /// Puts a key into a free slot of its neighbourhood.
    pub fn fill(&mut self, slot: usize, key: &[u8], value: &[u8]) {
        self.put(slot, key, value);
        let (home, bit) = self.bit(slot);
        self.set_bitmap(home, self.bitmap(home) | bit);
    }

    /// Frees a slot, which is filled again, or written with the whole leaf.
    pub fn clear(&mut self, slot: usize) {
        let (home, bit) = self.bit(slot);
        self.set_bitmap(home, self.bitmap(home) & !bit);
        self.set_free(slot);
    }

    /// Deletes the key in a slot, which is written by itself.
    pub fn remove(&mut self, slot: usize) {
        self.clear(slot);
        self.g.leaf.raise_entry(&mut self.bytes, slot);
    }

    /// Moves a key into a free slot of its neighbourhood; the slot that it leaves is filled next.
    pub fn relocate(&mut self, from: usize, to: usize) {
        let (key, value) = (self.key(from).to_vec(), self.value(from).to_vec());
        self.clear(from);
        self.fill(to, &key, &value);
    }

    /// Replaces the contents of a sorted leaf.
    pub fn set_sorted<'p>(&mut self, pairs: impl ExactSizeIterator<Item = (&'p [u8], &'p [u8])>) {
        self.set_count(pairs.len());
        let mut rest = 0;
        for (i, (key, value)) in pairs.enumerate() {
            self.put(i, key, value);
            rest = i + 1;
        }
        (rest..self.g.span).for_each(|i| self.set_free(i));
    }

    /// Raises the versions for a WRITE of the whole leaf.
    pub fn raise(&mut self) {
        self.g.leaf.raise_node(&mut self.bytes);
    }
}
