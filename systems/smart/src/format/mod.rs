//! Byte layouts, little endian; DESIGN.md has the tables. Bytes that come from a READ are garbage
//! until a check here has accepted them.
//!
//! *Positions*: position i, from 1, is byte i - 1 of a key. Position 0 is a byte that no key has;
//! the root slot stands for it. No key may be a prefix of another.

pub mod fork;
pub mod header;
pub mod leaf;
pub mod node;
pub mod slot;

use dmtree_parts::keys::common;

use crate::options::Options;
use slot::NodeTypes;

/// Sizes that the options determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a key.
    pub key: usize,
    /// Bytes of a value.
    pub value: usize,
    /// Bytes that the lock takes at the end of a leaf; the last one counts.
    pub lock: usize,
    /// 32 bits of checksum instead of 64.
    pub short_checksum: bool,
    /// Leaves take a multiple of this many bytes.
    pub leaf_step: usize,
    /// Nodes take a multiple of this many bytes.
    pub node_step: usize,
    /// Node types in use.
    pub types: NodeTypes,
}

impl Geometry {
    /// Of an index with these options.
    pub fn new(o: &Options) -> Self {
        Self {
            key: o.key_bytes as usize,
            value: o.value_bytes as usize,
            lock: o.lock_bytes as usize,
            short_checksum: o.short_checksum,
            leaf_step: o.leaf_step as usize,
            node_step: o.node_step as usize,
            types: NodeTypes { fine: o.homogeneous, largest: o.largest_node as usize },
        }
    }

    /// Bytes of a leaf as it is read and written.
    pub fn leaf_bytes(&self) -> usize {
        17 + self.key + self.value + self.lock
    }

    /// Bytes that a leaf takes.
    pub fn leaf_footprint(&self) -> usize {
        self.leaf_bytes().next_multiple_of(self.leaf_step)
    }

    /// Bytes that a node takes: room for the largest type.
    pub fn node_footprint(&self) -> usize {
        node::bytes(self.types.largest).next_multiple_of(self.node_step)
    }

    /// Offset of the word of a leaf that contains its lock.
    pub fn lock_word_at(&self) -> usize {
        (self.leaf_bytes() - 1) / 8 * 8
    }
}

/// The byte of a key at a position; 0 outside of the key.
pub fn byte_at(key: &[u8], position: usize) -> u8 {
    position.checked_sub(1).and_then(|i| key.get(i)).copied().unwrap_or(0)
}

/// How many bytes two keys share, from a position on.
pub fn shared_from(a: &[u8], b: &[u8], position: usize) -> usize {
    let from = position.saturating_sub(1);
    common(a.get(from..).unwrap_or(&[]), b.get(from..).unwrap_or(&[]))
}
