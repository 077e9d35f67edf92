//! The vacancy word of a leaf: the vacancy map, and the slot of the largest key.

use super::{Geometry, Leaf};

impl Geometry {
    /// The slot of the largest key.
    pub fn largest(&self, word: u64) -> usize {
        (word >> self.buckets) as usize % self.span
    }

    fn with_largest(&self, word: u64, slot: usize) -> u64 {
        word & ((1 << self.buckets) - 1) | (slot as u64) << self.buckets
    }

    /// The word of a leaf that was READ whole.
    pub fn word(&self, leaf: &Leaf<'_>) -> u64 {
        let map = leaf.mapped(0, 0..self.span);
        let largest = leaf.used().max_by_key(|i| leaf.key(*i)).unwrap_or(0);
        self.with_largest(map, largest)
    }

    /// The word after these slots of a leaf have changed, and keys have moved. As published the
    /// slot of the largest key changes only if that key moves: a new key does not become the
    /// largest one.
    pub fn noted(
        &self,
        leaf: &Leaf<'_>,
        word: u64,
        slots: impl Iterator<Item = usize> + Clone,
        moves: &[(usize, usize)],
    ) -> u64 {
        let word = leaf.mapped(word, slots);
        let moved = |at, (from, to): &(usize, usize)| if *from == at { *to } else { at };
        self.with_largest(word, moves.iter().fold(self.largest(word), moved))
    }
}
