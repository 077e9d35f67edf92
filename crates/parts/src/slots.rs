//! Sets of slots of a leaf.

/// A set of slots, at most 128. Iterates from the lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots(u128);

impl Slots {
    /// The slots with this fingerprint; with 0 the free ones.
    #[inline]
    pub fn with(fps: &[u8], fp: u8) -> Self {
        let (words, rest) = fps.as_chunks::<8>();
        if let ([a, b, c, d], []) = (words, rest) {
            return Self::with_in_32([a, b, c, d].map(|w| u64::from_le_bytes(*w)), fp);
        }
        let of_words =
            Self::with_in_words(words.iter().map(|w| u64::from_le_bytes(*w)), fps.len(), fp);
        // Leaves with tables have a multiple of 8 slots.
        rest.iter()
            .enumerate()
            .filter(|(_, b)| **b == fp)
            .fold(of_words, |slots, (i, _)| Self(slots.0 | 1 << (words.len() * 8 + i)))
    }

    /// The same of fingerprints in words, little endian, the first `slots` of them.
    #[inline]
    pub fn with_in_words(words: impl Iterator<Item = u64>, slots: usize, fp: u8) -> Self {
        const LOW: u64 = 0x0101_0101_0101_0101;
        const REST: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        let mut halves = [0u64; 2];
        for (i, word) in words.enumerate() {
            let x = word ^ (LOW * u64::from(fp));
            // A byte has its highest bit set exactly where x has a zero byte (no carries cross
            // bytes); the product collects these bits.
            let hits = !(((x & REST) + REST) | x | REST) >> 7;
            let bits = hits.wrapping_mul(0x0102_0408_1020_4080) >> 56;
            halves[i / 8] |= bits << (i % 8 * 8);
        }
        let bits = u128::from(halves[0]) | u128::from(halves[1]) << 64;
        Self(bits & u128::MAX.checked_shr(128 - slots as u32).unwrap_or(0))
    }

    /// The same of 32 fingerprints.
    #[inline]
    pub fn with_in_32(words: [u64; 4], fp: u8) -> Self {
        Self(u128::from(dmtree_fabric::cpu::equal_bytes(words, fp)))
    }

    /// How many.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there are at most so many: in fewer instructions than their number, where there are
    /// few.
    #[inline]
    pub fn are_at_most(self, most: usize) -> bool {
        let mut rest = self;
        (0..=most).any(|_| rest.next().is_none())
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// One more than the last of the first `slots` slots that is not among them.
    pub fn end_of_others(&self, slots: usize) -> usize {
        let others = !self.0 & u128::MAX.checked_shr(128 - slots as u32).unwrap_or(0);
        (u128::BITS - others.leading_zeros()) as usize
    }

    /// Those from this slot on: none behind the last one.
    #[inline]
    #[must_use]
    pub fn from(self, slot: usize) -> Self {
        match slot {
            0 => self,
            _ => Self(self.0 & u128::MAX.checked_shl(slot as u32).unwrap_or(0)),
        }
    }
}

impl Iterator for Slots {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let slot = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_in_order() {
        let mut fps = [0; 128];
        for slot in [3, 64, 127] {
            fps[slot] = 9;
        }
        let slots = Slots::with(&fps, 9);
        assert_eq!((slots.len(), slots.collect::<Vec<_>>()), (3, vec![3, 64, 127]));
        assert_eq!(slots.from(4).collect::<Vec<_>>(), [64, 127]);
        assert_eq!(slots.from(127).collect::<Vec<_>>(), [127]);
        // Regression: a shift by 128 is one by 0, and a writer probed slot 127 for ever.
        assert!(slots.from(128).is_empty());
        assert_eq!(Slots::with(&fps, 0).len(), 125);
        assert!(Slots::with(&fps, 7).is_empty());
        assert_eq!([2, 3, 4].map(|most| slots.are_at_most(most)), [false, true, true]);
        assert!(Slots::with(&fps, 7).are_at_most(0) && !slots.are_at_most(0));
    }

    proptest::proptest! {
        #[test]
        fn every_slot_is_found(fps in proptest::collection::vec(0u8..4, 0..=128), fp in 0u8..4) {
            let wanted: Vec<_> = (0..fps.len()).filter(|i| fps[*i] == fp).collect();
            let slots = Slots::with(&fps, fp);
            let end = fps.iter().rposition(|other| *other != fp).map_or(0, |last| last + 1);
            proptest::prop_assert_eq!(slots.end_of_others(fps.len()), end);
            proptest::prop_assert_eq!(slots.collect::<Vec<_>>(), wanted);
        }
    }
}
