//! Byte layouts of nodes, little endian; DESIGN.md has the tables. Leaves and inner nodes have
//! versions in their lines (`parts::lines`); everything here works on plain images.

mod hop;
mod leaf;
#[cfg(test)]
mod tests;
mod words;

use std::borrow::Cow;

use dmtree_fabric::GlobalAddr;
use dmtree_parts::blink::{Format, Header, upper};
use dmtree_parts::bytes::{get_addr, put_u64};
use dmtree_parts::hash::KeyHash;
use dmtree_parts::lines::Lines;

pub use hop::{Room, next};
pub use leaf::{Leaf, Part};

use crate::options::{Options, Vacancy};

/// In the byte behind the first version of a leaf; there an inner node has its level.
const LEAF: u8 = 0x80;
/// No tree has more levels.
const LEVELS: u8 = 24;

/// Sizes that the options determine.
#[derive(Clone, Debug)]
pub struct Geometry {
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
    /// Leaves have a vacancy word before the lock.
    pub has_vacancy: bool,
    /// The metadata of a leaf stands before every neighbourhood.
    pub replicas: bool,
    /// The metadata of a leaf has fence keys.
    pub fences: bool,
    /// The layout of a leaf.
    pub leaf: Lines,
    /// The layout of an inner node.
    pub inner: Lines,
    carried_unlock: bool,
    /// By slot, what its key is while it is free: a key that cannot be there.
    free_keys: Vec<Box<[u8]>>,
}

impl Geometry {
    /// Of an index with these options.
    pub fn new(o: &Options) -> Self {
        let (key, value) = (o.key_bytes as usize, o.value_bytes as usize);
        let (span, version) = (o.span as usize, o.version_bytes as usize);
        let fences = if o.sibling { 0 } else { 2 * key };
        let head = version + if o.replicas { 1 } else { 2 } + 8 + fences;
        let bitmap = if o.hopscotch { 2 } else { 0 };
        let entry = version + bitmap + key + value;
        let group = if o.replicas { o.neighbourhood as usize } else { span };
        let entries = o.inner_span as usize;
        let inner_head = version + 26 + 2 * key;
        let mut g = Self {
            key,
            value,
            span,
            near: if o.hopscotch { o.neighbourhood as usize } else { span },
            hopscotch: o.hopscotch,
            has_vacancy: o.vacancy != Vacancy::None,
            replicas: o.replicas,
            fences: !o.sibling,
            leaf: Lines { version, head, entry, group, entries: span },
            inner: Lines {
                version,
                head: inner_head,
                entry: version + key + 8,
                group: entries,
                entries,
            },
            carried_unlock: o.carried_unlock,
            free_keys: Vec::new(),
        };
        if g.hopscotch {
            g.free_keys = (0..span).map(|i| g.free_key_of(i)).collect();
        }
        g
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
        // With their versions: all are raised when the node is written.
        let (from, entry) = (self.inner.entry_at(i), self.inner.entry);
        image.copy_within(from..from + (count - i) * entry, from + entry);
        self.put_record(image, i, key, child);
    }

    fn divide(
        &self,
        left: &mut [u8],
        right: &mut [u8],
        middle: usize,
        at: GlobalAddr,
    ) -> Option<Vec<u8>> {
        let old = self.accepted(left)?;
        let count = old.records;
        let (separator, leftmost) = (self.key(left, middle).to_vec(), self.child(left, middle));
        let (low, high) = (old.low.to_vec(), old.high.to_vec());
        let old = Header { low: &low, high: &high, ..old };
        for i in middle + 1..count {
            let (key, child) = (self.key(left, i).to_vec(), self.child(left, i));
            self.put_record(right, i - middle - 1, &key, child);
        }
        let key = vec![0; self.key];
        (middle..count).for_each(|i| self.put_record(left, i, &key, GlobalAddr::NULL));
        self.put_header(right, &Header { leftmost, low: &separator, ..old });
        let of_left = Header { sibling: at, beyond: leftmost, high: &separator, ..old };
        self.put_header(left, &of_left);
        Some(separator)
    }

    /// The image ends with a free lock if it reaches so far.
    fn seal(&self, image: &mut [u8]) {
        let mut plain = image[..self.inner.bytes()].to_vec();
        self.inner.raise_node(&mut plain);
        image.fill(0);
        self.inner.encode(0..plain.len(), &plain, image);
    }
}
