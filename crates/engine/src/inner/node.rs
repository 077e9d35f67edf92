//! An accepted inner node: its image, and its records in the order of their keys.
//!
//! Records lie unsorted in the image and are not copied out of it: one is the number of its place.
//! Long keys are READ from their blocks and held beside the image. Where a cached copy of the node
//! has the same records, that copy tells keys and places, and nothing is sorted.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use dmtree_fabric::{GlobalAddr, Result};
use dmtree_parts::cache::CachedNode;
use dmtree_parts::keys::{common, head, prefix_mask};

use crate::Client;
use crate::format::{Child, Geometry, Record, Stored, inner, put_u64, unchecked_header};
use crate::key_order::KeyOrder;
use crate::leaf::Blocks;

pub(crate) struct InnerNode<B> {
    g: Geometry,
    pub bytes: B,
    /// A copy with the same records. Without one their keys are sorted.
    cached: Option<Arc<CachedNode>>,
    /// The places of the records.
    order: KeyOrder,
    /// The lengths of the keys by the places of their records; [`LONG`] for one in a block, and
    /// [`FREE`] without a record.
    lens: Vec<u16>,
    /// The keys that are in blocks, with the places of their records.
    long: Vec<(usize, Vec<u8>)>,
}

/// No key in an image is that long.
const LONG: u16 = u16::MAX;
const FREE: u16 = u16::MAX - 1;

/// The bytes of a record.
#[inline]
fn raw<'n>(g: &Geometry, bytes: &'n [u8], index: usize) -> &'n [u8] {
    &bytes[g.record_at(index)..][..g.record()]
}

impl<B: Deref<Target = [u8]>> InnerNode<B> {
    /// The node of an accepted image, of which there may be a copy. Keys that are in blocks are
    /// READ.
    pub async fn of(c: &Client, bytes: B, copy: Option<&Arc<CachedNode>>) -> Result<Self> {
        let g = c.node.g;
        let (order, lens) = (KeyOrder::new(0, 0), Vec::new());
        let mut node = Self { g, bytes, cached: None, order, lens, long: Vec::new() };
        node.cached = copy.filter(|copy| node.is_in(copy)).cloned();
        if node.cached.is_some() {
            return Ok(node);
        }
        let mut order = node.inline_keys();
        for n in 0..node.long.len() {
            let (i, _) = node.long[n];
            let key = inner::key_of(&g, raw(&g, &node.bytes, i));
            let key = Blocks(c).fence(key.unwrap_or(Stored::Infinite)).await?;
            let key = key.unwrap_or_default().into_owned();
            order = order.filter(|_| key.starts_with(node.prefix()));
            order.iter_mut().for_each(|order| order.push(&key, i));
            node.long[n].1 = key;
        }
        let mut order = order.unwrap_or_else(|| node.any_keys());
        order.sort(|i| node.key_at(i));
        node.order = order;
        Ok(node)
    }

    /// What the fences share, and so the keys between them.
    fn prefix(&self) -> &[u8] {
        let header = unchecked_header(&self.g, &self.bytes).expect("accepted");
        match (header.lo, header.hi) {
            (Stored::Inline(lo), Stored::Inline(hi)) => &lo[..common(lo, hi)],
            _ => &[],
        }
    }

    /// The keys that are in the image, to be sorted behind the prefix; their lengths, and the
    /// places of the other keys, are noted. A node that is read in the middle of a change, or is
    /// corrupt, may have keys outside of its fences: `None` when one does not have the prefix.
    fn inline_keys(&mut self) -> Option<KeyOrder> {
        let prefix = self.prefix();
        let mut order = KeyOrder::new(prefix.len(), self.g.fanout + 1);
        let (mut lens, mut long, mut have_prefix) = (vec![FREE; self.g.fanout], Vec::new(), true);
        let (first, mask) = (head(prefix, 0), prefix_mask(prefix.len()));
        // A call to compare a few bytes takes longer than they do.
        let has_prefix = |key: &[u8]| match prefix.len() {
            ..=8 => key.len() >= prefix.len() && (head(key, 0) ^ first) & mask == 0,
            _ => key.starts_with(prefix),
        };
        let places = self.raw_records().chunks_exact(self.g.record()).zip(&mut lens).enumerate();
        for (i, (raw, len)) in places {
            if inner::is_free(raw) {
                continue;
            }
            if let Some(Stored::Inline(key)) = inner::key_of(&self.g, raw) {
                *len = key.len() as u16;
                have_prefix &= has_prefix(key);
                order.push(key, i);
            } else {
                *len = LONG;
                long.push((i, Vec::new()));
            }
        }
        (self.lens, self.long) = (lens, long);
        have_prefix.then_some(order)
    }

    /// All keys, to be sorted.
    fn any_keys(&self) -> KeyOrder {
        let mut order = KeyOrder::new(0, self.g.fanout + 1);
        let places = self.lens.iter().enumerate().filter(|(_, len)| **len != FREE);
        places.for_each(|(i, _)| order.push(self.key_at(i), i));
        order
    }

    /// The key of the record at a place.
    #[inline]
    fn key_at(&self, index: usize) -> &[u8] {
        match self.lens[index] {
            LONG => self.long_key_at(index),
            len => &self.bytes[self.g.record_at(index) + 8..][..usize::from(len)],
        }
    }

    fn long_key_at(&self, index: usize) -> &[u8] {
        self.long.iter().find(|(i, _)| *i == index).map_or(&[], |(_, key)| key)
    }

    /// Whether a cached copy has the records of this node at their places, and no others. A child
    /// in its generation always begins at the same key.
    fn is_in(&self, copy: &CachedNode) -> bool {
        let (g, records, len) = (self.g, self.raw_records(), self.g.record());
        let is_there = |place: Option<u8>, child, generation| {
            let at = place.map_or(usize::MAX, |place| usize::from(place) * len);
            let raw = records.get(at..).and_then(|rest| rest.get(..len));
            raw.is_some_and(|raw| inner::is_short_of(&g, raw, child, generation))
        };
        let used = records.chunks_exact(len).filter(|raw| !inner::is_free(raw)).count();
        self.has_range_of(copy) && used == copy.len() && copy.all_children(is_there)
    }

    /// The bytes of all places.
    fn raw_records(&self) -> &[u8] {
        &self.bytes[self.g.record_at(0)..self.g.inner_image()]
    }

    fn has_range_of(&self, copy: &CachedNode) -> bool {
        let header = unchecked_header(&self.g, &self.bytes).expect("accepted");
        let has_end = match header.hi {
            Stored::Inline(hi) => copy.hi() == Some(hi),
            Stored::Infinite => copy.hi().is_none(),
            Stored::Block(_) => false,
        };
        has_end && header.ver.generation == copy.generation
    }

    /// The cached copy that has the same records, if there is one: without it they are in no order.
    pub fn take_cached(&mut self) -> Option<Arc<CachedNode>> {
        self.cached.take()
    }

    /// How many records.
    pub fn len(&self) -> usize {
        self.cached.as_ref().map_or(self.order.len(), |copy| copy.len())
    }

    /// The place of the record of key number `i`.
    #[inline]
    pub fn place(&self, i: usize) -> usize {
        match &self.cached {
            Some(copy) => copy.record(i).place.map_or(0, usize::from),
            None => self.order.number(i),
        }
    }

    /// Key number `i`.
    pub fn key(&self, i: usize) -> &[u8] {
        match &self.cached {
            Some(copy) => copy.keys().get(i),
            None => self.key_at(self.order.number(i)),
        }
    }

    /// The keys in their order.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> + Clone {
        (0..self.len()).map(|i| self.key(i))
    }

    /// The record of key number `i`.
    pub fn record(&self, i: usize) -> Record<'_> {
        inner::record(&self.g, &self.bytes, self.place(i)).expect("live")
    }

    /// The child of key number `i`.
    #[inline]
    pub fn child(&self, i: usize) -> Child {
        inner::child_of(&self.g, raw(&self.g, &self.bytes, self.place(i)))
    }

    /// Whether a record has this key.
    pub fn has(&self, key: &[u8]) -> bool {
        self.count_at_most(key).checked_sub(1).is_some_and(|i| self.key(i) == key)
    }

    fn count_at_most(&self, key: &[u8]) -> usize {
        match &self.cached {
            Some(copy) => copy.keys().floor(key).map_or(0, |i| i + 1),
            None => self.order.count_at_most(key, |i| self.key_at(i)),
        }
    }

    /// Whether it has the records of a cached node, in their order, and one more, which is number
    /// `added`. A child in its generation always begins at the same key.
    pub fn is_more_than(&self, cached: &CachedNode, added: usize) -> bool {
        let is_same = |n: usize| {
            let child = self.child(n + usize::from(n >= added));
            cached.has_child(n, child.addr, child.generation)
        };
        self.has_range_of(cached)
            && cached.len() + 1 == self.len()
            && (0..cached.len()).all(is_same)
    }

    /// Whether two records have one key.
    pub fn has_double(&self) -> bool {
        self.cached.is_none() && self.order.has_double(|i| self.key_at(i))
    }

    /// The records in the order of their keys.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        (0..self.len()).map(|i| self.record(i))
    }

    /// The number of the record of a child.
    pub fn position(&self, child: GlobalAddr) -> Option<usize> {
        self.records().position(|r| r.child.addr == child)
    }

    /// The same, of the record with this key.
    pub fn position_of(&self, child: GlobalAddr, key: &[u8]) -> Option<usize> {
        (0..self.len()).find(|i| self.record(*i).child.addr == child && self.key(*i) == key)
    }

    /// The number of the record that covers a key, in a node that covers it.
    pub fn floor(&self, key: &[u8]) -> usize {
        self.count_at_most(key) - 1
    }

    /// Adds a record inside the fences at a free place.
    pub fn add(&mut self, index: usize, record: &[u8], key: &[u8])
    where
        B: DerefMut,
    {
        debug_assert!(inner::is_free(raw(&self.g, &self.bytes, index)), "a free place");
        self.forget_cached();
        self.put(index, record);
        self.lens[index] = match inner::key_of(&self.g, record) {
            Some(Stored::Inline(key)) => key.len() as u16,
            _ => {
                self.long.push((index, key.to_vec()));
                LONG
            }
        };
        let at = self.order.count_below(key, |i| self.key_at(i));
        self.order.insert(at, key, index);
    }

    /// Writes a record at a free place of a node in no order.
    pub fn put(&mut self, index: usize, record: &[u8])
    where
        B: DerefMut,
    {
        self.bytes[self.g.record_at(index)..][..record.len()].copy_from_slice(record);
    }

    /// Frees the place of a record.
    pub fn remove(&mut self, index: usize, free_word: u64)
    where
        B: DerefMut,
    {
        self.forget_cached();
        put_u64(&mut self.bytes, self.g.record_at(index), free_word);
        self.order.remove(index);
        self.lens[index] = FREE;
        self.long.retain(|(i, _)| *i != index);
    }

    /// Its records are about to differ from those of a copy: their keys, none of which is in a
    /// block, are sorted.
    fn forget_cached(&mut self) {
        if self.cached.take().is_some() {
            let mut order = self.inline_keys().unwrap_or_else(|| self.any_keys());
            order.sort(|i| self.key_at(i));
            self.order = order;
        }
    }

    /// A place without a record.
    pub fn free_place(&self) -> Option<usize> {
        self.raw_records().chunks_exact(self.g.record()).position(inner::is_free)
    }
}
