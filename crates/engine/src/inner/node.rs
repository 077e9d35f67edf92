//! An accepted inner node: its image, and its records in the order of their keys.
//!
//! Records lie unsorted in the image and are not copied out of it: one is the number of its place.
//! Long keys are READ from their blocks and held beside the image.

use std::ops::{Deref, DerefMut};

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
    /// The node of an accepted image. Keys that are in blocks are READ.
    pub async fn of(c: &Client, bytes: B) -> Result<Self> {
        let g = c.node.g;
        let (order, lens) = (KeyOrder::new(0, 0), Vec::new());
        let mut node = Self { g, bytes, order, lens, long: Vec::new() };
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
        let records = &self.bytes[self.g.record_at(0)..self.g.inner_image()];
        let places = records.chunks_exact(self.g.record()).zip(&mut lens).enumerate();
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

    /// How many records.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Key number `i`.
    pub fn key(&self, i: usize) -> &[u8] {
        self.key_at(self.order.number(i))
    }

    /// The keys in their order.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.order.numbers().map(|i| self.key_at(i))
    }

    /// The record of key number `i`.
    pub fn record(&self, i: usize) -> Record<'_> {
        let index = self.order.number(i);
        inner::record(&self.g, &self.bytes, index).expect("live")
    }

    /// The child of key number `i`.
    #[inline]
    pub fn child(&self, i: usize) -> Child {
        inner::child_of(&self.g, raw(&self.g, &self.bytes, self.order.number(i)))
    }

    /// Whether a record has this key.
    pub fn has(&self, key: &[u8]) -> bool {
        let at = self.order.count_below(key, |i| self.key_at(i));
        at < self.len() && self.key(at) == key
    }

    /// Whether it has the records of a cached node, in their order, and one more, which is number
    /// `added`. A child in its generation always begins at the same key.
    pub fn is_more_than(&self, cached: &CachedNode, added: usize) -> bool {
        let header = unchecked_header(&self.g, &self.bytes).expect("accepted");
        let is_same = |n: usize| {
            let child = self.child(n + usize::from(n >= added));
            cached.has_child(n, child.addr, child.generation)
        };
        let has_range = match header.hi {
            Stored::Inline(hi) => cached.hi() == Some(hi),
            Stored::Infinite => cached.hi().is_none(),
            Stored::Block(_) => false,
        };
        header.ver.generation == cached.generation
            && has_range
            && cached.len() + 1 == self.len()
            && (0..cached.len()).all(is_same)
    }

    /// Whether two records have one key.
    pub fn has_double(&self) -> bool {
        self.order.has_double(|i| self.key_at(i))
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
        self.order.count_at_most(key, |i| self.key_at(i)) - 1
    }

    /// Adds a record inside the fences at a free place.
    pub fn add(&mut self, index: usize, record: &[u8], key: &[u8])
    where
        B: DerefMut,
    {
        debug_assert!(self.order.numbers().all(|i| i != index), "a free place");
        let raw = &mut self.bytes[self.g.record_at(index)..][..record.len()];
        raw.copy_from_slice(record);
        self.lens[index] = match inner::key_of(&self.g, raw) {
            Some(Stored::Inline(key)) => key.len() as u16,
            _ => {
                self.long.push((index, key.to_vec()));
                LONG
            }
        };
        let at = self.order.count_below(key, |i| self.key_at(i));
        self.order.insert(at, key, index);
    }

    /// Frees the place of a record.
    pub fn remove(&mut self, index: usize, free_word: u64)
    where
        B: DerefMut,
    {
        put_u64(&mut self.bytes, self.g.record_at(index), free_word);
        self.order.remove(index);
        self.lens[index] = FREE;
        self.long.retain(|(i, _)| *i != index);
    }

    /// A place without a record.
    pub fn free_place(&self) -> Option<usize> {
        self.lens.iter().position(|len| *len == FREE)
    }
}
