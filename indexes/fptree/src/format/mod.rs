//! Byte layouts, little endian; DESIGN.md has the tables. Bytes that come from a READ are garbage
//! until a check here has accepted them.

pub mod inner;
pub mod leaf;
pub mod table;

use dmtree_fabric::GlobalAddr;

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

    /// The lowest lower fence key.
    pub fn lowest(&self) -> Vec<u8> {
        vec![0; self.key]
    }

    /// An upper fence key as stored: all ones are the right end. No separator has this value,
    /// because the keys behind a separator are above it.
    pub fn highest(&self) -> Vec<u8> {
        vec![0xff; self.key]
    }
}

/// An upper fence key as stored; `None` for the right end.
pub fn upper(fence: &[u8]) -> Option<&[u8]> {
    if fence.iter().all(|b| *b == 0xff) { None } else { Some(fence) }
}

/// Whether a leaf can have this capacity.
pub fn is_capacity(n: u64) -> bool {
    matches!(n, 32 | 64 | 128)
}

/// A word of an image.
pub fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// A half word of an image.
pub fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// An address in an image.
pub fn get_addr(bytes: &[u8], at: usize) -> GlobalAddr {
    GlobalAddr::from_bits(get_u64(bytes, at))
}

/// Sets a word of an image.
pub fn put_u64(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// Sets a half word of an image.
pub fn put_u32(bytes: &mut [u8], at: usize, half: u32) {
    bytes[at..at + 4].copy_from_slice(&half.to_le_bytes());
}

/// The state and version word of entries and records: 8 bits and 56 bits.
pub fn state_word(valid: bool, version: u32) -> u64 {
    u64::from(valid) | u64::from(version) << 8
}

/// Decodes the word of [`state_word`].
pub fn state_of(word: u64) -> (bool, u64) {
    (word as u8 != 0, word >> 8)
}
