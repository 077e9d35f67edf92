//! Inner nodes: fence keys, right sibling, sorted records, checksum, lock. The lock holder changes
//! them in place.

use dmtree_fabric::GlobalAddr;
use dmtree_parts::blink::upper;
use dmtree_parts::bytes::{get_addr, get_u32, get_u64, put_u32, put_u64};
use dmtree_parts::hash::check64;

use super::{Geometry, is_capacity, state_of, state_word};

const SEED: u64 = 0x69_6e_6e_65_72;

/// A child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Child {
    /// Its address.
    pub addr: GlobalAddr,
    /// A leaf's table.
    pub table: GlobalAddr,
    /// A leaf's slots.
    pub capacity: usize,
    /// A leaf's version.
    pub version: u32,
}

/// An accepted image.
#[derive(Clone, Copy, Debug)]
pub struct Inner<'a> {
    g: &'a Geometry,
    image: &'a [u8],
}

/// The fields that are not records.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Lower fence key, inclusive.
    pub min: &'a [u8],
    /// Upper fence key, exclusive, as stored.
    pub max: &'a [u8],
    /// The right sibling; null at the right end.
    pub right: GlobalAddr,
    /// No node is above it.
    pub is_root: bool,
    /// Its children are leaves.
    pub next_is_leaf: bool,
}

impl<'a> Inner<'a> {
    /// Accepts a whole image: the checksum is correct, the records are sorted and a prefix, and the
    /// first one begins at the lower fence key.
    pub fn check(g: &'a Geometry, image: &'a [u8]) -> Option<Self> {
        let n = Self { g, image };
        let at = g.inner_sum_at();
        if get_u64(image, at) != check64(&image[..at], SEED) & 0xffff_ffff {
            return None;
        }
        let count = n.len();
        let prefix = (count..g.fanout).all(|i| !n.used(i));
        let sorted = (1..count).all(|i| n.key(i - 1) < n.key(i));
        let begins = count > 0 && n.key(0) == n.min();
        let ends = upper(n.max()).is_none_or(|max| count > 0 && n.key(count - 1) < max);
        let leaves = !n.next_is_leaf() || (0..count).all(|i| n.is_leaf_record(i));
        (prefix && sorted && begins && ends && leaves).then_some(n)
    }

    /// Takes an image that was accepted before.
    pub fn of(g: &'a Geometry, image: &'a [u8]) -> Self {
        Self { g, image }
    }

    fn used(&self, i: usize) -> bool {
        state_of(get_u64(self.image, self.g.record_at(i))).0
    }

    fn is_leaf_record(&self, i: usize) -> bool {
        let at = self.g.record_at(i);
        let version = state_of(get_u64(self.image, at)).1;
        let capacity = get_u32(self.image, at + self.g.key + 24);
        is_capacity(u64::from(capacity)) && version <= u64::from(u32::MAX)
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        (0..self.g.fanout).take_while(|i| self.used(*i)).count()
    }

    /// Lower fence key.
    pub fn min(&self) -> &'a [u8] {
        &self.image[self.g.key..2 * self.g.key]
    }

    /// Upper fence key, as stored.
    pub fn max(&self) -> &'a [u8] {
        &self.image[..self.g.key]
    }

    /// Whether a key lies right of the node.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        upper(self.max()).is_some_and(|max| key >= max)
    }

    /// The right sibling.
    pub fn right(&self) -> GlobalAddr {
        get_addr(self.image, 2 * self.g.key)
    }

    /// Whether it is the root.
    pub fn is_root(&self) -> bool {
        self.image[2 * self.g.key + 8] != 0
    }

    /// Whether its children are leaves.
    pub fn next_is_leaf(&self) -> bool {
        self.image[2 * self.g.key + 9] != 0
    }

    /// Lower fence key of child `i`.
    pub fn key(&self, i: usize) -> &'a [u8] {
        let at = self.g.record_at(i) + 8;
        &self.image[at..at + self.g.key]
    }

    /// Child `i`.
    pub fn child(&self, i: usize) -> Child {
        let at = self.g.record_at(i);
        let k = self.g.key;
        Child {
            addr: get_addr(self.image, at + 8 + k),
            table: get_addr(self.image, at + 16 + k),
            capacity: get_u32(self.image, at + 24 + k) as usize,
            version: state_of(get_u64(self.image, at)).1 as u32,
        }
    }

    /// The lock word, as sampled.
    pub fn lock(&self) -> u64 {
        get_u64(self.image, self.g.inner_lock_at())
    }

    /// The last record with a key that is at most `key`.
    pub fn floor(&self, key: &[u8]) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let mid = (low + high) / 2;
            if self.key(mid) <= key { low = mid + 1 } else { high = mid }
        }
        low.checked_sub(1)
    }
}

/// Writes the fields that are not records.
pub fn put_head(g: &Geometry, image: &mut [u8], h: &Head<'_>) {
    let k = g.key;
    image[..k].copy_from_slice(h.max);
    image[k..2 * k].copy_from_slice(h.min);
    put_u64(image, 2 * k, h.right.bits());
    image[2 * k + 8..2 * k + 12].copy_from_slice(&[h.is_root.into(), h.next_is_leaf.into(), 0, 0]);
}

/// Writes record `i`.
pub fn put_record(g: &Geometry, image: &mut [u8], i: usize, key: &[u8], child: &Child) {
    let (at, k) = (g.record_at(i), g.key);
    put_u64(image, at, state_word(true, child.version));
    image[at + 8..at + 8 + k].copy_from_slice(key);
    put_u64(image, at + 8 + k, child.addr.bits());
    put_u64(image, at + 16 + k, child.table.bits());
    put_u32(image, at + 24 + k, child.capacity as u32);
}

/// Adds a record at position `i`; there is room.
pub fn insert_record(g: &Geometry, image: &mut [u8], i: usize, key: &[u8], child: &Child) {
    let count = Inner { g, image }.len();
    image.copy_within(g.record_at(i)..g.record_at(count), g.record_at(i + 1));
    put_record(g, image, i, key, child);
}

/// Moves the records from `half` on to an empty image.
pub fn move_upper(g: &Geometry, from: &mut [u8], half: usize, to: &mut [u8]) {
    let (begin, end) = (g.record_at(half), g.record_at(g.fanout));
    to[g.record_at(0)..][..end - begin].copy_from_slice(&from[begin..end]);
    from[begin..end].fill(0);
}

/// Prepares an image to be written: sets the checksum, and the lock word to free.
pub fn seal(g: &Geometry, image: &mut [u8]) {
    image[g.record_at(g.fanout)..g.inner_sum_at()].fill(0);
    let at = g.inner_sum_at();
    let sum = check64(&image[..at], SEED) & 0xffff_ffff;
    put_u64(image, at, sum);
    put_u64(image, g.inner_lock_at(), 0);
}
