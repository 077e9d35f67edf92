//! Leaves that are hopscotch tables, or sorted, with versions in their lines (CHIME, SOSP'24): what
//! CHIME has, and the steps from ROLEX towards it. The metadata of a leaf is a link and perhaps
//! fence keys. All but the READs of parts (`read.rs`) works on plain images, and posts no verbs.

mod leaf;
mod read;
mod room;

use std::ops::Range;

use crate::hash::KeyHash;
use crate::lines::Lines;

pub use leaf::{LEAF, Leaf, Part};
pub use room::{Division, Room, next};

/// What determines a table.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Bytes of a key.
    pub key: usize,
    /// Bytes of a value.
    pub value: usize,
    /// Slots of a leaf.
    pub span: usize,
    /// Slots in which a key can be; `None` for sorted leaves.
    pub neighbourhood: Option<usize>,
    /// The metadata stands before so many slots each time; `None`: once, before all.
    pub replicas: Option<usize>,
    /// The metadata has fence keys.
    pub fences: bool,
    /// Bytes of a version.
    pub version: usize,
    /// Bits of a vacancy map: as many as there are slots, or fewer.
    pub buckets: usize,
}

/// Sizes of a leaf.
#[derive(Clone, Debug)]
pub struct Table {
    /// Bytes of a key.
    pub key: usize,
    /// Bytes of a value.
    pub value: usize,
    /// Slots of a leaf.
    pub span: usize,
    /// Slots in which a key can be; all of them in sorted leaves.
    pub near: usize,
    /// Leaves are hopscotch tables.
    pub hopscotch: bool,
    /// The metadata of a leaf stands before every group of slots.
    pub replicas: bool,
    /// The metadata of a leaf has fence keys.
    pub fences: bool,
    /// The layout of a leaf.
    pub leaf: Lines,
    /// Bits of a vacancy map.
    pub buckets: usize,
    /// By slot, what its key is while it is free: a key that cannot be there.
    pub free_keys: Vec<Box<[u8]>>,
}

impl Table {
    /// Of this layout.
    pub fn new(l: &Layout) -> Self {
        let fences = if l.fences { 2 * l.key } else { 0 };
        let head = l.version + if l.replicas.is_some() { 1 } else { 2 } + 8 + fences;
        let bitmap = if l.neighbourhood.is_some() { 2 } else { 0 };
        let entry = l.version + bitmap + l.key + l.value;
        let group = l.replicas.unwrap_or(l.span);
        let mut table = Self {
            key: l.key,
            value: l.value,
            span: l.span,
            near: l.neighbourhood.unwrap_or(l.span),
            hopscotch: l.neighbourhood.is_some(),
            replicas: l.replicas.is_some(),
            fences: l.fences,
            leaf: Lines { version: l.version, head, entry, group, entries: l.span },
            buckets: l.buckets.min(l.span),
            free_keys: Vec::new(),
        };
        if table.hopscotch {
            table.free_keys = (0..l.span).map(|i| table.free_key_of(i)).collect();
        }
        table
    }

    /// The first key, counted up from zero, with a neighbourhood without slot `i`. There is one:
    /// half of all slots at least lie outside of any neighbourhood.
    fn free_key_of(&self, i: usize) -> Box<[u8]> {
        let of = |n: u64| {
            let mut key = vec![0; self.key];
            let bytes = n.to_be_bytes();
            let tail = self.key.min(8);
            key[self.key - tail..].copy_from_slice(&bytes[8 - tail..]);
            key
        };
        let keys = (0..1 << 20).map(of);
        let far = |key: &Vec<u8>| self.distance(self.home(key), i) >= self.near;
        keys.into_iter().find(far).unwrap_or_default().into()
    }

    /// The slot where the neighbourhood of a key begins.
    pub fn home(&self, key: &[u8]) -> usize {
        if self.hopscotch { (KeyHash::of(key).0 % self.span as u64) as usize } else { 0 }
    }

    /// How many slots lie from one to another, past the last one if need be.
    pub fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.span - from }
    }

    /// The slot so many slots behind another.
    pub fn slot(&self, from: usize, distance: usize) -> usize {
        (from + distance) % self.span
    }

    /// The bit of a slot in a vacancy map: one for every slot, or for every few slots. It is set
    /// where no slot is known to be free.
    pub fn bucket(&self, slot: usize) -> usize {
        slot * self.buckets / self.span
    }

    /// How many slots from `home` on reach to the end of the first bucket with a free slot; all if
    /// there is none.
    pub fn reach(&self, map: u64, home: usize) -> usize {
        let vacant = |d: &usize| map >> self.bucket(self.slot(home, *d)) & 1 == 0;
        let Some(first) = (0..self.span).find(vacant) else { return self.span };
        let bucket = self.bucket(self.slot(home, first));
        let rest = (first..self.span).take_while(|d| self.bucket(self.slot(home, *d)) == bucket);
        first + rest.count()
    }

    /// The slots of a range, as a part of a leaf; with the metadata before them, if it is there.
    fn slot_part(&self, slots: Range<usize>, with_head: bool) -> Part {
        let head = with_head && slots.start.is_multiple_of(self.leaf.group);
        let head = if head { self.leaf.head } else { 0 };
        self.leaf.entry_at(slots.start) - head..self.leaf.entry_at(slots.end - 1) + self.leaf.entry
    }
}

impl Leaf<'_> {
    /// A vacancy map after these slots have changed. The bits err towards "full": only a slot that
    /// was seen free clears the bit of its bucket.
    pub fn mapped(&self, map: u64, slots: impl Iterator<Item = usize> + Clone) -> u64 {
        let full = slots.clone().fold(map, |map, i| map | 1 << self.g.bucket(i));
        let free = (0..self.g.span).filter(|i| self.has(*i) && !self.is_used(*i));
        let touched: Vec<usize> = slots.map(|i| self.g.bucket(i)).collect();
        let free = free.map(|i| self.g.bucket(i)).filter(|bucket| touched.contains(bucket));
        free.fold(full, |map, bucket| map & !(1 << bucket))
    }

    /// Whether a map names a free slot where there is one, and none where there is none.
    pub fn fits(&self, map: u64) -> bool {
        let free = |bucket: usize| {
            (0..self.g.span).any(|i| self.g.bucket(i) == bucket && !self.is_used(i))
        };
        (0..self.g.buckets).all(|bucket| map >> bucket & 1 == 1 || free(bucket))
    }
}
