//! The fingerprint table of a leaf: version, a fingerprint per slot, checksum, lock.
//!
//! One WRITE of the whole image publishes the fingerprints and, with its last word, releases the
//! lock (with `Locks::Leaf` that word is always 0). The checksum covers the version and the
//! fingerprints, and not the lock, so a reader accepts a locked table. A torn image fails the
//! checksum, and is READ again. Used slots are a prefix: the first free slot is also the number of
//! used ones.

use dmtree_parts::bytes::{get_u64, put_u64};
use dmtree_parts::hash::check64;
use dmtree_parts::slots::Slots;

use super::MAX_CAPACITY;

const SEED: u64 = 0x66_70_74;

/// Bytes of a table of a leaf with `capacity` slots.
pub const fn bytes(capacity: usize) -> usize {
    24 + capacity
}

/// Offset of the lock: the last word.
pub const fn lock_at(capacity: usize) -> usize {
    16 + capacity
}

/// A table that has passed its checksum, or that is under construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The leaf's version.
    pub version: u64,
    capacity: u8,
    fps: [u8; MAX_CAPACITY],
}

impl Table {
    /// An empty table.
    pub fn new(version: u64, capacity: usize) -> Self {
        Self { version, capacity: capacity as u8, fps: [0; MAX_CAPACITY] }
    }

    /// Accepts an image with a correct checksum. The checksum does not cover the lock.
    pub fn parse(capacity: usize, image: &[u8]) -> Option<Self> {
        let sum_at = 8 + capacity;
        let sum = check64(&image[..sum_at], SEED) & 0xffff_ffff;
        if get_u64(image, sum_at) != sum {
            return None;
        }
        let mut t = Self::new(get_u64(image, 0), capacity);
        t.fps[..capacity].copy_from_slice(&image[8..sum_at]);
        Some(t)
    }

    /// Builds the image, unlocked.
    pub fn encode(&self, image: &mut [u8]) {
        let capacity = self.fps().len();
        put_u64(image, 0, self.version);
        image[8..8 + capacity].copy_from_slice(self.fps());
        let sum = check64(&image[..8 + capacity], SEED) & 0xffff_ffff;
        put_u64(image, 8 + capacity, sum);
        put_u64(image, lock_at(capacity), 0);
    }

    /// The fingerprints; 0 is a free slot.
    pub fn fps(&self) -> &[u8] {
        &self.fps[..usize::from(self.capacity)]
    }

    /// Sets the fingerprint of a slot.
    pub fn set(&mut self, slot: usize, fp: u8) {
        self.fps[slot] = fp;
    }

    /// The slots that have a fingerprint.
    pub fn slots(&self, fp: u8) -> Slots {
        Slots::with(self.fps(), fp)
    }

    /// The first free slot.
    pub fn free_slot(&self) -> Option<usize> {
        self.fps().iter().position(|fp| *fp == 0)
    }

    /// Number of used slots. They are the first ones.
    pub fn used(&self) -> usize {
        self.fps().iter().filter(|fp| **fp != 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn comes_back_or_is_refused(version in 0u64..1 << 56, fps in proptest::collection::vec(any::<u8>(), 64), flip in 0usize..72 * 8) {
            let mut t = Table::new(version, 64);
            fps.iter().enumerate().for_each(|(i, fp)| t.set(i, *fp));
            let mut image = [0xaa; bytes(64)];
            t.encode(&mut image);
            prop_assert_eq!(Table::parse(64, &image), Some(t));
            image[flip / 8] ^= 1 << (flip % 8);
            prop_assert_eq!(Table::parse(64, &image), None);
        }
    }

    #[test]
    fn zeroes_are_no_table_and_slots_are_found() {
        assert_eq!(Table::parse(32, &[0; bytes(32)]), None);
        let mut t = Table::new(0, 128);
        [5, 64, 127].iter().for_each(|i| t.set(*i, 9));
        assert_eq!(t.slots(9).collect::<Vec<_>>(), [5, 64, 127]);
        assert_eq!((t.used(), t.free_slot()), (3, Some(0)));
    }
}
