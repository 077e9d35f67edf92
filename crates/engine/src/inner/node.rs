//! An accepted inner node: its image, and its records in the order of their keys.
//!
//! Records lie unsorted in the image and are not copied out of it: one is the number of its place
//! and the head of its key, the 8 bytes behind the prefix that the fences share. The sort compares
//! words, and keys only where heads are equal. Long keys are READ from their blocks and held beside
//! the image.

use std::ops::{Deref, DerefMut};

use dmtree_fabric::{GlobalAddr, Result};
use dmtree_parts::keys::{common, head};

use crate::Client;
use crate::format::{Geometry, Record, Stored, inner, put_u64, unchecked_header};
use crate::leaf::Blocks;

pub(crate) struct InnerNode<B> {
    g: Geometry,
    pub bytes: B,
    /// Bytes of the prefix in front of the heads.
    skip: usize,
    order: Vec<RecordAt>,
}

struct RecordAt {
    /// Head of the key.
    head: u64,
    /// Place of the record.
    index: usize,
    /// Length of the key, if it is in the record.
    len: usize,
    /// The key, if it is in a block.
    long: Option<Vec<u8>>,
}

impl<B: Deref<Target = [u8]>> InnerNode<B> {
    /// The node of an accepted image. Keys that are in blocks are READ.
    pub async fn of(c: &Client, bytes: B) -> Result<Self> {
        let g = c.node.g;
        let mut order = Vec::with_capacity(g.fanout);
        for r in inner::records(&g, &bytes) {
            let (len, long) = match r.key {
                Stored::Inline(key) => (key.len(), None),
                other => (0, Some(Blocks(c).fence(other).await?.unwrap_or_default())),
            };
            order.push(RecordAt { head: 0, index: r.index, len, long });
        }
        let mut node = Self { g, bytes, skip: 0, order: Vec::new() };
        node.skip = node.shared_prefix(&order);
        for r in &mut order {
            r.head = head(node.key_of(r), node.skip);
        }
        order.sort_unstable_by(|a, b| {
            a.head.cmp(&b.head).then_with(|| node.key_of(a).cmp(node.key_of(b)))
        });
        node.order = order;
        Ok(node)
    }

    /// Bytes of the prefix of the fences, if all keys have it.
    fn shared_prefix(&self, order: &[RecordAt]) -> usize {
        let header = unchecked_header(&self.g, &self.bytes).expect("accepted");
        let (Stored::Inline(lo), Stored::Inline(hi)) = (header.lo, header.hi) else { return 0 };
        let prefix = &lo[..common(lo, hi)];
        let is_shared = order.iter().all(|r| self.key_of(r).starts_with(prefix));
        if is_shared { prefix.len() } else { 0 }
    }

    fn key_of<'n>(&'n self, r: &'n RecordAt) -> &'n [u8] {
        match &r.long {
            Some(key) => key,
            None => &self.bytes[self.g.record_at(r.index) + 8..][..r.len],
        }
    }

    /// How many records.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Key number `i`.
    pub fn key(&self, i: usize) -> &[u8] {
        self.key_of(&self.order[i])
    }

    /// The keys in their order.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.order.iter().map(|r| self.key_of(r))
    }

    /// The record of key number `i`.
    pub fn record(&self, i: usize) -> Record<'_> {
        inner::record(&self.g, &self.bytes, self.order[i].index).expect("live")
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
        self.order.partition_point(|r| self.key_of(r) <= key) - 1
    }

    /// Adds a record inside the fences at a free place.
    pub fn add(&mut self, index: usize, record: &[u8], key: &[u8])
    where
        B: DerefMut,
    {
        debug_assert!(self.order.iter().all(|r| r.index != index), "the place is free");
        self.bytes[self.g.record_at(index)..][..record.len()].copy_from_slice(record);
        let (len, long) = match inner::record(&self.g, &self.bytes, index).expect("live").key {
            Stored::Inline(key) => (key.len(), None),
            _ => (0, Some(key.to_vec())),
        };
        let at = self.order.partition_point(|r| self.key_of(r) < key);
        self.order.insert(at, RecordAt { head: head(key, self.skip), index, len, long });
    }

    /// Frees the place of a record.
    pub fn remove(&mut self, index: usize, free_word: u64)
    where
        B: DerefMut,
    {
        put_u64(&mut self.bytes, self.g.record_at(index), free_word);
        self.order.retain(|r| r.index != index);
    }

    /// A place without a record.
    pub fn free_place(&self) -> Option<usize> {
        let mut taken = vec![false; self.g.fanout];
        self.order.iter().for_each(|r| taken[r.index] = true);
        taken.iter().position(|taken| !taken)
    }
}
