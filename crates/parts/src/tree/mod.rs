//! The tree that DMTree and the sound Sherman have in common, as bytes on memory nodes: leaves with
//! slots that are each valid alone, inner nodes, blocks; the byte maps are in DMTree's DESIGN.md.
//! Everything is little endian. Bytes from remote memory pass a validator here before any other
//! use.

pub use crate::bytes::{get_u64 as u64_at, put_u64};

pub mod area;
pub mod block;
pub mod inner;
pub mod leaf;
pub mod slot;

/// A node's version: its generation, the number of uses of the address (16 bits), and the number of
/// range changes in this generation (8 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ver {
    /// Grows each time the address is allocated; never 0 in a published node.
    pub generation: u16,
    /// Grows with each change of the range.
    pub range: u8,
}

/// A leaf is relocated instead of changed again after so many changes of its range.
pub const MAX_RANGE: u8 = 254;

impl Ver {
    /// The 24 bits stored.
    #[inline]
    pub fn bits(self) -> u32 {
        u32::from(self.generation) << 8 | u32::from(self.range)
    }

    /// From 24 bits.
    #[inline]
    pub fn from_bits(bits: u32) -> Self {
        Self { generation: (bits >> 8) as u16, range: bits as u8 }
    }

    /// The next range of this generation. Leaves are relocated before it wraps. Inner nodes wrap:
    /// 256 changes of one node's range take thousands of leaf splits, several round trips each, and
    /// no READ lasts that long.
    #[must_use]
    pub fn bumped(self) -> Self {
        Self { generation: self.generation, range: self.range.wrapping_add(1) }
    }
}

/// Sizes and offsets that follow from the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Inline key bytes.
    pub k: usize,
    /// Inline value bytes.
    pub v: usize,
    /// Records of an inner node.
    pub fanout: usize,
}

impl Geometry {
    /// Bytes of an entry: word0, key, value, and for values over 8 bytes a tail with 64 more check
    /// bits.
    #[inline]
    pub fn entry(&self) -> usize {
        8 + self.k + self.v + if self.v > 8 { 8 } else { 0 }
    }

    /// Bytes of a node's header: h0, id, lo, hi, next, forward.
    #[inline]
    pub fn header(&self) -> usize {
        32 + 2 * self.k
    }

    /// Offset of `lo`.
    pub fn lo_at(&self) -> usize {
        16
    }
    /// Offset of `hi`.
    pub fn hi_at(&self) -> usize {
        16 + self.k
    }
    /// Offset of `next`.
    pub fn next_at(&self) -> usize {
        16 + 2 * self.k
    }
    /// Offset of `forward`.
    pub fn forward_at(&self) -> usize {
        24 + 2 * self.k
    }

    /// Offset of slot `i` of a leaf.
    #[inline]
    pub fn slot_at(&self, i: usize) -> usize {
        self.header() + i * self.entry()
    }

    /// Bytes of header and the first `n` slots of a leaf.
    #[inline]
    pub fn leaf_part(&self, n: usize) -> usize {
        self.slot_at(n)
    }

    /// Bytes of a leaf's image, without its shadow.
    pub fn leaf_image(&self, capacity: usize) -> usize {
        self.slot_at(capacity)
    }

    /// Offset of the shadow: 8 bytes of tag, then an entry.
    pub fn shadow_at(&self, capacity: usize) -> usize {
        self.leaf_image(capacity)
    }

    /// Bytes a leaf takes, its shadow included, in whole lines.
    pub fn leaf_bytes(&self, capacity: usize) -> usize {
        (self.shadow_at(capacity) + 8 + self.entry()).next_multiple_of(64)
    }

    /// Offset of an inner node's lock word.
    pub fn inner_lock_at(&self) -> usize {
        self.header()
    }

    /// Bytes of a record: word0, key, child, table and capacity.
    pub fn record(&self) -> usize {
        8 + self.k + 16
    }

    /// Offset of record `i` of an inner node.
    pub fn record_at(&self, i: usize) -> usize {
        (self.header() + 8).next_multiple_of(16) + i * self.record()
    }

    /// Bytes of an inner node's image.
    pub fn inner_image(&self) -> usize {
        self.record_at(self.fanout)
    }

    /// Bytes an inner node takes, in whole lines.
    pub fn inner_bytes(&self) -> usize {
        self.inner_image().next_multiple_of(64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sizes_give_the_published_nodes() {
        let g = Geometry { k: 24, v: 8, fanout: 32 };
        assert_eq!(
            (g.entry(), g.header(), g.leaf_image(32), g.leaf_bytes(32)),
            (40, 80, 1360, 1408)
        );
        assert_eq!(
            (g.record(), g.record_at(0), g.inner_image(), g.inner_bytes()),
            (48, 96, 1632, 1664)
        );
    }

    #[test]
    fn versions_pack_into_24_bits() {
        let v = Ver { generation: 0xabcd, range: 0xef };
        assert_eq!((v.bits(), Ver::from_bits(v.bits())), (0xab_cdef, v));
    }
}
