//! An accepted inner node: its image, and its records in the order of their keys.
//!
//! Records lie unsorted in the image and are not copied out of it: one is the number of its place,
//! the place of its key and the head of its key, the 8 bytes behind the prefix that the fences
//! share. The sort compares words, and keys only where heads are equal. Long keys are READ from
//! their blocks and held beside the image.

use std::ops::{Deref, DerefMut};

use dmtree_fabric::{GlobalAddr, Result};
use dmtree_parts::keys::{common, head};

use crate::Client;
use crate::format::{Child, Geometry, Record, Stored, inner, put_u64, unchecked_header};
use crate::leaf::Blocks;

pub(crate) struct InnerNode<B> {
    g: Geometry,
    pub bytes: B,
    /// Bytes of the prefix in front of the heads.
    skip: usize,
    order: Vec<RecordAt>,
    /// The keys that are in blocks.
    long: Vec<Vec<u8>>,
}

#[derive(Clone, Copy)]
struct RecordAt {
    /// Head of the key.
    head: u64,
    /// Offset of the key in the image; or [`LONG`] with its number among the long keys.
    key_at: u32,
    /// Length of the key, if it is in the image.
    len: u16,
    /// Place of the record.
    index: u16,
}

/// The key is not in the image, which is shorter than that.
const LONG: u32 = 1 << 31;

impl<B: Deref<Target = [u8]>> InnerNode<B> {
    /// The node of an accepted image. Keys that are in blocks are READ.
    pub async fn of(c: &Client, bytes: B) -> Result<Self> {
        let g = c.node.g;
        let order = Vec::with_capacity(g.fanout + 1);
        let mut node = Self { g, bytes, skip: 0, order, long: Vec::new() };
        for r in inner::records(&g, &node.bytes) {
            let (key_at, len) = match r.key {
                Stored::Inline(key) => (g.record_at(r.index) as u32 + 8, key.len() as u16),
                other => {
                    node.long.push(Blocks(c).fence(other).await?.unwrap_or_default());
                    (LONG | (node.long.len() - 1) as u32, 0)
                }
            };
            node.order.push(RecordAt { head: 0, key_at, len, index: r.index as u16 });
        }
        node.sort();
        Ok(node)
    }

    fn sort(&mut self) {
        self.skip = self.shared_prefix();
        let mut order = std::mem::take(&mut self.order);
        for r in &mut order {
            r.head = head(self.key_of(r), self.skip);
        }
        order.sort_unstable_by(|a, b| {
            a.head.cmp(&b.head).then_with(|| self.key_of(a).cmp(self.key_of(b)))
        });
        self.order = order;
    }

    /// Bytes of the prefix of the fences, if all keys have it.
    fn shared_prefix(&self) -> usize {
        let header = unchecked_header(&self.g, &self.bytes).expect("accepted");
        let (Stored::Inline(lo), Stored::Inline(hi)) = (header.lo, header.hi) else { return 0 };
        let prefix = &lo[..common(lo, hi)];
        let is_shared = self.keys().all(|key| key.starts_with(prefix));
        if is_shared { prefix.len() } else { 0 }
    }

    #[inline]
    fn key_of(&self, r: &RecordAt) -> &[u8] {
        match r.key_at & LONG {
            0 => &self.bytes[r.key_at as usize..][..usize::from(r.len)],
            _ => &self.long[(r.key_at ^ LONG) as usize],
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
        let index = usize::from(self.order[i].index);
        inner::record(&self.g, &self.bytes, index).expect("live")
    }

    /// The child of key number `i`.
    #[inline]
    pub fn child(&self, i: usize) -> Child {
        let at = self.g.record_at(usize::from(self.order[i].index));
        inner::child_of(&self.g, &self.bytes[at..at + self.g.record()])
    }

    /// Whether a record has this key.
    pub fn has(&self, key: &[u8]) -> bool {
        let at = self.order.partition_point(|r| self.key_of(r) < key);
        self.order.get(at).is_some_and(|r| self.key_of(r) == key)
    }

    /// Whether two records have one key.
    pub fn has_double(&self) -> bool {
        let is_double = |pair: &[RecordAt]| {
            pair[0].head == pair[1].head && self.key_of(&pair[0]) == self.key_of(&pair[1])
        };
        self.order.windows(2).any(is_double)
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
        debug_assert!(self.order.iter().all(|r| usize::from(r.index) != index), "a free place");
        let at = self.g.record_at(index);
        self.bytes[at..][..record.len()].copy_from_slice(record);
        let (key_at, len) = match inner::record(&self.g, &self.bytes, index).expect("live").key {
            Stored::Inline(key) => (at as u32 + 8, key.len() as u16),
            _ => {
                self.long.push(key.to_vec());
                (LONG | (self.long.len() - 1) as u32, 0)
            }
        };
        let head = head(key, self.skip);
        let at = self.order.partition_point(|r| self.key_of(r) < key);
        self.order.insert(at, RecordAt { head, key_at, len, index: index as u16 });
    }

    /// Frees the place of a record.
    pub fn remove(&mut self, index: usize, free_word: u64)
    where
        B: DerefMut,
    {
        put_u64(&mut self.bytes, self.g.record_at(index), free_word);
        self.order.retain(|r| usize::from(r.index) != index);
    }

    /// A place without a record.
    pub fn free_place(&self) -> Option<usize> {
        (0..self.g.fanout).find(|i| inner::is_free(&self.bytes[self.g.record_at(*i)..]))
    }
}
