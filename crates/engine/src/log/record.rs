//! The byte maps of the log, all little endian.
//!
//! Each ring has a *head*, one line on the first memory node while that has room:
//!
//! | offset | head of a ring |
//! |---|---|
//! | 0 | the next head of the list; constant once the head is in it |
//! | 8 | compute node 16, group 16, CRC-32C with the head's address 32 |
//! | 16 | the ring |
//!
//! A ring is segments, each of a whole number of records. E = bytes of an entry.
//!
//! | offset | record |
//! |---|---|
//! | 0 | CRC-32C with the ring's address 32, count 32 |
//! | 8 | leaf address |
//! | 16 | generation 16, slot 8, zero 8, lap 32 |
//! | 24 | E bytes: the slot as the write leaves it. Of a free slot word0 counts alone |
//!
//! Behind the shadow of a leaf stands its *count word*: CRC-32C over address, generation and count
//! in the low half, the count in the high one. A word with another checksum is that of another
//! generation, or of none: count 0.

use dmtree_fabric::cpu::crc32c;
use dmtree_fabric::{GlobalAddr, NodeId};

use crate::format::{put_u64, u64_at};

/// Bytes of a record before the slot.
pub(super) const RECORD_HEAD: usize = 24;
/// Bytes of the head of a ring.
pub(super) const HEAD_BYTES: usize = 64;

const RECORD_SEED: u64 = 0x7265_636f_7264;
const RING_SEED: u64 = 0x7269_6e67;
const COUNT_SEED: u64 = 0x0063_6f75_6e74;

/// A record: the bytes that a write has given to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'e> {
    pub leaf: GlobalAddr,
    pub generation: u16,
    pub slot: usize,
    /// The write count of the leaf's table behind the write.
    pub count: u32,
    /// The turn of the ring in which it was written.
    pub lap: u32,
    pub entry: &'e [u8],
}

impl<'e> Record<'e> {
    /// Appends the bytes of the record.
    pub fn put(&self, ring: GlobalAddr, out: &mut Vec<u8>) {
        let at = out.len();
        out.reserve(RECORD_HEAD + self.entry.len());
        out.resize(at + RECORD_HEAD, 0);
        out.extend_from_slice(self.entry);
        let bytes = &mut out[at..];
        put_u64(bytes, 8, self.leaf.bits());
        let of = u64::from(self.generation) | (self.slot as u64 & 0xff) << 16;
        put_u64(bytes, 16, of | u64::from(self.lap) << 32);
        let sum = Self::sum(ring, self.count, bytes);
        put_u64(bytes, 0, u64::from(sum) | u64::from(self.count) << 32);
    }

    /// The record in these bytes; `None` when they are no whole record of this ring.
    pub fn read(ring: GlobalAddr, bytes: &'e [u8]) -> Option<Self> {
        let first = u64_at(bytes, 0);
        let count = (first >> 32) as u32;
        if Self::sum(ring, count, bytes) != first as u32 {
            return None;
        }
        let of = u64_at(bytes, 16);
        Some(Self {
            leaf: GlobalAddr::from_bits(u64_at(bytes, 8)),
            generation: of as u16,
            slot: (of >> 16 & 0xff) as usize,
            count,
            lap: (of >> 32) as u32,
            entry: &bytes[RECORD_HEAD..],
        })
    }

    fn sum(ring: GlobalAddr, count: u32, bytes: &[u8]) -> u32 {
        crc32c([ring.bits() ^ RECORD_SEED << 16, u64::from(count)], &bytes[8..])
    }
}

/// The head of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingHead {
    pub next: GlobalAddr,
    pub node: NodeId,
    pub group: u16,
    pub ring: GlobalAddr,
}

impl RingHead {
    /// The bytes of a head that is here.
    pub fn bytes(&self, at: GlobalAddr) -> [u8; HEAD_BYTES] {
        let mut out = [0; HEAD_BYTES];
        let of = u64::from(self.node.bits()) | u64::from(self.group) << 16;
        put_u64(&mut out, 0, self.next.bits());
        put_u64(&mut out, 8, of | u64::from(Self::sum(at, of, self.ring)) << 32);
        put_u64(&mut out, 16, self.ring.bits());
        out
    }

    /// The head in these bytes; `None` when they are none.
    pub fn read(at: GlobalAddr, bytes: &[u8]) -> Option<Self> {
        let [next, of, ring] = [0, 8, 16].map(|i| u64_at(bytes, i));
        let [next, ring] = [next, ring].map(GlobalAddr::from_bits);
        let is_whole = Self::sum(at, of & 0xffff_ffff, ring) == (of >> 32) as u32;
        let (node, group) = (NodeId::from_bits(of as u16), (of >> 16) as u16);
        is_whole.then_some(Self { next, node, group, ring })
    }

    fn sum(at: GlobalAddr, of: u64, ring: GlobalAddr) -> u32 {
        crc32c([at.bits() ^ RING_SEED << 16, of], &ring.bits().to_le_bytes())
    }
}

/// The count word of a leaf.
pub(super) fn count_word(leaf: GlobalAddr, generation: u16, count: u32) -> u64 {
    u64::from(count) << 32 | u64::from(count_sum(leaf, generation, count))
}

/// The count of a leaf, by its count word.
pub(super) fn count_of(leaf: GlobalAddr, generation: u16, word: u64) -> u32 {
    let count = (word >> 32) as u32;
    if count_sum(leaf, generation, count) == word as u32 { count } else { 0 }
}

fn count_sum(leaf: GlobalAddr, generation: u16, count: u32) -> u32 {
    let second = u64::from(generation) << 32 | u64::from(count);
    crc32c([leaf.bits() ^ COUNT_SEED << 16, second], &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_belong_to_their_ring() {
        let (ring, other) = (GlobalAddr::from_bits(0x4000), GlobalAddr::from_bits(0x8000));
        let entry = [7; 40];
        let leaf = GlobalAddr::from_bits(0x1_0040);
        let record = Record { leaf, generation: 9, slot: 127, count: 3, lap: 2, entry: &entry };
        let mut bytes = Vec::new();
        record.put(ring, &mut bytes);
        assert_eq!(Record::read(ring, &bytes), Some(record));
        assert_eq!(Record::read(other, &bytes), None);
        for i in 0..bytes.len() {
            bytes[i] ^= 1;
            assert_eq!(Record::read(ring, &bytes), None, "byte {i}");
            bytes[i] ^= 1;
        }
        assert_eq!(Record::read(ring, &[0; 64]), None);
    }

    #[test]
    fn heads_and_counts_come_back() {
        let [at, next, ring] = [0x4000, 0x40, 0x8000].map(GlobalAddr::from_bits);
        let head = RingHead { next, node: NodeId::compute(5), group: 3, ring };
        let bytes = head.bytes(at);
        assert_eq!(RingHead::read(at, &bytes), Some(head));
        assert_eq!([RingHead::read(next, &bytes), RingHead::read(at, &[0; 64])], [None, None]);
        let word = count_word(ring, 4, 77);
        assert_eq!([count_of(ring, 4, word), count_of(ring, 5, word)], [77, 0]);
        assert_eq!(count_of(ring, 4, 0), 0, "a leaf that was never written back");
    }
}
