//! Byte layouts, little endian; DESIGN.md has the tables. Bytes that come from a READ are garbage
//! until a check here has accepted them.

pub(crate) mod inner;
pub(crate) mod leaf;
pub mod table;

use crate::options::Options;

/// Slots of the largest leaf.
pub const MAX_CAPACITY: usize = 128;

/// Sizes that the options determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a key.
    pub key: usize,
    /// Bytes of a value.
    pub value: usize,
    /// Records of an inner node.
    pub fanout: usize,
}

impl Geometry {
    /// Of an index with these options.
    pub fn new(o: &Options) -> Self {
        Self { key: o.key_bytes as usize, value: o.value_bytes as usize, fanout: o.fanout as usize }
    }

    /// Bytes of an entry: state and version, key, value, rounded up to whole words.
    pub fn entry(&self) -> usize {
        (8 + self.key + self.value).next_multiple_of(8)
    }

    /// Bytes of a leaf's header.
    pub fn header(&self) -> usize {
        (2 * self.key + 32).next_multiple_of(8)
    }

    /// Offset of entry `i` in a leaf.
    pub fn entry_at(&self, i: usize) -> usize {
        self.header() + self.entry() * i
    }

    /// Bytes of a leaf with `capacity` slots.
    pub fn leaf_bytes(&self, capacity: usize) -> usize {
        self.entry_at(capacity)
    }

    /// Bytes of a record of an inner node.
    pub fn record(&self) -> usize {
        self.key + 28
    }

    /// Offset of record `i` in an inner node.
    pub fn record_at(&self, i: usize) -> usize {
        2 * self.key + 12 + self.record() * i
    }

    /// Offset of an inner node's checksum.
    pub fn inner_sum_at(&self) -> usize {
        self.record_at(self.fanout).next_multiple_of(8) + 8
    }

    /// Offset of an inner node's lock: its last word.
    pub fn inner_lock_at(&self) -> usize {
        self.inner_sum_at() + 8
    }

    /// Bytes of an inner node.
    pub fn inner_bytes(&self) -> usize {
        self.inner_lock_at() + 8
    }
}

/// Whether a leaf can have this capacity.
pub fn is_capacity(n: u64) -> bool {
    matches!(n, 32 | 64 | 128)
}

/// The state and version word of entries and records: 8 bits and 56 bits.
pub fn state_word(valid: bool, version: u32) -> u64 {
    u64::from(valid) | u64::from(version) << 8
}

/// Decodes the word of [`state_word`].
pub fn state_of(word: u64) -> (bool, u64) {
    (word as u8 != 0, word >> 8)
}
