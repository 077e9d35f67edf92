//! The vacancy word of a leaf: a bit for every slot, or for every few slots, that is set where no
//! slot is known to be free; and the slot of the largest key.
//!
//! The bits err towards "full": only a slot that was seen free clears the bit of its bucket.

use super::{Geometry, Leaf};

impl Geometry {
    /// Bits of the vacancy map.
    fn buckets(&self) -> usize {
        let largest = self.span.max(self.inner.entries);
        (63 - largest.next_power_of_two().ilog2() as usize).min(self.span).min(self.inner.entries)
    }

    fn bucket(&self, slot: usize) -> usize {
        slot * self.buckets() / self.span
    }

    /// How many slots from `home` on reach to the end of the first bucket with a free slot; all if
    /// there is none.
    pub fn reach(&self, word: u64, home: usize) -> usize {
        let vacant = |d: &usize| word >> self.bucket(self.slot(home, *d)) & 1 == 0;
        let Some(first) = (0..self.span).find(vacant) else { return self.span };
        let bucket = self.bucket(self.slot(home, first));
        let rest = (first..self.span).take_while(|d| self.bucket(self.slot(home, *d)) == bucket);
        first + rest.count()
    }

    /// The slot of the largest key.
    pub fn largest(&self, word: u64) -> usize {
        (word >> self.buckets()) as usize % self.span
    }

    fn with_largest(&self, word: u64, slot: usize) -> u64 {
        word & ((1 << self.buckets()) - 1) | (slot as u64) << self.buckets()
    }
}

impl Leaf<'_> {
    /// The word of a leaf that was READ whole.
    pub fn word(&self) -> u64 {
        let word = self.noted(0, 0..self.g.span, &[]);
        let largest = self.used().max_by_key(|i| self.key(*i)).unwrap_or(0);
        self.g.with_largest(word, largest)
    }

    /// The word after these slots have changed, and keys have moved. As published the slot of the
    /// largest key changes only if that key moves: a new key does not become the largest one.
    pub fn noted(
        &self,
        word: u64,
        slots: impl Iterator<Item = usize> + Clone,
        moves: &[(usize, usize)],
    ) -> u64 {
        let full = slots.clone().fold(word, |word, i| word | 1 << self.g.bucket(i));
        let free = (0..self.g.span).filter(|i| self.has(*i) && !self.is_used(*i));
        let touched: Vec<usize> = slots.map(|i| self.g.bucket(i)).collect();
        let free = free.map(|i| self.g.bucket(i)).filter(|bucket| touched.contains(bucket));
        let word = free.fold(full, |word, bucket| word & !(1 << bucket));
        let last = self.g.largest(word);
        let moved = |at, (from, to): &(usize, usize)| if *from == at { *to } else { at };
        self.g.with_largest(word, moves.iter().fold(last, moved))
    }

    /// Whether the word names a free slot where there is one, and none where there is none.
    pub fn fits(&self, word: u64) -> bool {
        let free = |bucket: usize| {
            (0..self.g.span).any(|i| self.g.bucket(i) == bucket && !self.is_used(i))
        };
        (0..self.g.buckets()).all(|bucket| word >> bucket & 1 == 1 || free(bucket))
    }
}
