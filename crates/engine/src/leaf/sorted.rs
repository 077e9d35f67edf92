//! The keys of a whole leaf in their order, for a split.
//!
//! Keys stay where they are. What is sorted is a word for each: the head of the key, its 8 bytes
//! behind the prefix that both fences share, with the key's number behind it. Keys are compared
//! only where heads are equal.

use std::borrow::Cow;

use dmtree_parts::keys::{common, head};

use crate::format::{Header, Stored};

/// Bits of a key's number.
const NUMBER_BITS: u32 = 8;

/// The keys of a leaf's live slots, and their order.
pub(crate) struct SortedKeys<'l> {
    /// In the order of their slots, with the slots.
    keys: Vec<(Cow<'l, [u8]>, usize)>,
    /// Head and number of each key, in the order of the keys.
    order: Vec<u128>,
}

impl<'l> SortedKeys<'l> {
    /// Of a leaf with this header.
    pub fn of(keys: Vec<(Cow<'l, [u8]>, usize)>, header: &Header<'_>) -> Self {
        let skip = match (header.lo, header.hi) {
            (Stored::Inline(lo), Stored::Inline(hi)) => common(lo, hi),
            _ => 0,
        };
        let word = |(number, (key, _)): (usize, &(Cow<'_, [u8]>, usize))| {
            u128::from(head(key, skip)) << NUMBER_BITS | number as u128
        };
        let order = keys.iter().enumerate().map(word).collect();
        let mut sorted = Self { keys, order };
        if !sorted.order.is_sorted() {
            sorted.order.sort_unstable();
        }
        let is_equal = |pair: &[u128]| pair[0] >> NUMBER_BITS == pair[1] >> NUMBER_BITS;
        if sorted.order.windows(2).any(is_equal) {
            let Self { keys, order } = &mut sorted;
            order.sort_unstable_by(|a, b| keys[number(*a)].0.cmp(&keys[number(*b)].0));
        }
        debug_assert!(
            (1..sorted.len()).all(|i| sorted.key(i - 1) < sorted.key(i)),
            "a shared prefix"
        );
        sorted
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Key number `i` in their order.
    pub fn key(&self, i: usize) -> &[u8] {
        &self.keys[number(self.order[i])].0
    }

    /// The slots of the keys from number `from` on, in the order of the keys.
    pub fn slots_from(&self, from: usize) -> impl Iterator<Item = usize> {
        self.order[from..].iter().map(|word| self.keys[number(*word)].1)
    }

    /// How many keys are below this one.
    pub fn count_below(&self, key: &[u8]) -> usize {
        self.order.partition_point(|word| *self.keys[number(*word)].0 < *key)
    }

    /// Whether the slots are in the order of their keys.
    pub fn is_in_order(&self) -> bool {
        self.order.iter().map(|word| number(*word)).is_sorted()
    }
}

fn number(word: u128) -> usize {
    word as usize & ((1 << NUMBER_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Ver;
    use dmtree_fabric::GlobalAddr;
    use dmtree_pool::TableId;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_are_sorted_whatever_their_heads(set in proptest::collection::hash_set(proptest::collection::vec(0u8..3, 1..14), 0..40), probe in proptest::collection::vec(0u8..3, 1..14)) {
            let keys: Vec<_> = set.iter().enumerate().map(|(i, k)| (Cow::Borrowed(&k[..]), 2 * i)).collect();
            let slot_of = |key: &[u8]| keys.iter().find(|(k, _)| **k == *key).map(|(_, slot)| *slot);
            let null = GlobalAddr::NULL;
            let header = Header {
                ver: Ver { generation: 1, range: 0 },
                table: TableId::from_bits(0),
                slots: 64,
                level: 0,
                lo: Stored::Inline(&[]),
                hi: Stored::Infinite,
                next: null,
                forward: null,
                tombstone: false,
            };
            let sorted = SortedKeys::of(keys.clone(), &header);
            let mut wanted: Vec<&[u8]> = set.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(sorted.is_in_order(), wanted.is_sorted());
            wanted.sort_unstable();
            let found: Vec<&[u8]> = (0..sorted.len()).map(|i| sorted.key(i)).collect();
            prop_assert_eq!(&found, &wanted);
            let below = wanted.partition_point(|k| **k < *probe);
            prop_assert_eq!(sorted.count_below(&probe), below);
            let slots: Vec<_> = sorted.slots_from(below).map(Some).collect();
            prop_assert_eq!(slots, wanted[below..].iter().map(|k| slot_of(k)).collect::<Vec<_>>());
        }
    }
}
