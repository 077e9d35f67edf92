//! Sorted keys in one piece of memory, searched by their first differing bytes.

use dmtree_fabric::cpu::{lower_bound, prefetch};

/// Strictly ascending keys of any length, immutable. A search touches one piece of memory: the
/// shared prefix and the heads.
#[derive(Debug, Clone, Default)]
pub struct KeyArray {
    /// Length of the prefix that all keys share, bytes.
    shared: u32,
    /// Words of the prefix at the beginning of `words`.
    prefix_words: u32,
    /// The prefix, big endian, padded with zeros; then for each key the 8 bytes after the prefix,
    /// likewise.
    words: Box<[u64]>,
    ends: Box<[u32]>,
    bytes: Box<[u8]>,
}

/// The 8 bytes of a key behind its first `skip`, big endian, padded with zeros.
#[inline]
pub fn head(key: &[u8], skip: usize) -> u64 {
    let rest = key.get(skip..).unwrap_or(&[]);
    if let Some(head) = rest.first_chunk() {
        return u64::from_be_bytes(*head);
    }
    let mut out = [0; 8];
    let n = rest.len().min(8);
    out[..n].copy_from_slice(&rest[..n]);
    u64::from_be_bytes(out)
}

/// Words that are prefetched: those of a usual node.
const PREFETCHED: usize = 72;
/// Bytes of the prefix that two keys share.
pub fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

impl KeyArray {
    /// Copies keys, which ascend strictly.
    pub fn new<'a>(keys: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let mut first: Option<&[u8]> = None;
        let mut last: &[u8] = &[];
        let (mut count, mut total) = (0, 0);
        for key in keys.clone() {
            first.get_or_insert(key);
            debug_assert!(count == 0 || last < key, "keys ascend strictly");
            last = key;
            count += 1;
            total += key.len();
        }
        // The prefix that the first and the last of sorted keys share is shared by all.
        let shared = if count > 1 { common(first.unwrap_or(&[]), last) } else { 0 };
        let prefix_words = shared.div_ceil(8);
        let mut words = Vec::with_capacity(prefix_words + count);
        let prefix = &first.unwrap_or(&[])[..shared];
        words.extend((0..prefix_words).map(|i| head(prefix, i * 8)));
        let mut ends = Vec::with_capacity(count);
        let mut bytes = Vec::with_capacity(total);
        for key in keys {
            words.push(head(key, shared));
            bytes.extend_from_slice(key);
            ends.push(bytes.len() as u32);
        }
        Self {
            shared: shared as u32,
            prefix_words: prefix_words as u32,
            words: words.into(),
            ends: ends.into(),
            bytes: bytes.into(),
        }
    }

    /// How many keys.
    #[inline]
    pub fn len(&self) -> usize {
        self.words.len() - self.prefix_words as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Key number `i`.
    pub fn get(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.bytes[start..self.ends[i] as usize]
    }

    /// All keys in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Bytes of memory it takes.
    pub fn memory_bytes(&self) -> usize {
        self.words.len() * 8 + self.ends.len() * 4 + self.bytes.len()
    }

    /// Prefetches what a search touches first.
    pub fn prefetch(&self) {
        prefetch(&self.words[..self.words.len().min(PREFETCHED)]);
    }

    /// How many keys are at most `key`.
    #[inline]
    pub fn rank(&self, key: &[u8]) -> usize {
        let shared = self.shared as usize;
        let (prefix, heads) = self.words.split_at(self.prefix_words as usize);
        let (chunks, rest) = (key.as_chunks::<8>().0, key.get(shared..).unwrap_or(&[]));
        let (Some(h), true) = (rest.first_chunk(), chunks.len() >= prefix.len()) else {
            return self.rank_of_short(key);
        };
        for (i, (word, part)) in prefix.iter().zip(chunks).enumerate() {
            let (part, unused) = (u64::from_be_bytes(*part), self.unused_bits(i));
            if (part ^ word) >> unused != 0 {
                return if part < *word { 0 } else { heads.len() };
            }
        }
        self.rank_of_head(u64::from_be_bytes(*h), key)
    }

    /// Bits of word `i` of the prefix that do not belong to it.
    #[inline]
    fn unused_bits(&self, i: usize) -> usize {
        ((i + 1) * 8).saturating_sub(self.shared as usize) * 8
    }

    /// [`KeyArray::rank`] of a key that may end inside the prefix, or inside the head.
    #[cold]
    fn rank_of_short(&self, key: &[u8]) -> usize {
        let shared = self.shared as usize;
        let (prefix, heads) = self.words.split_at(self.prefix_words as usize);
        for (i, word) in prefix.iter().enumerate() {
            let part = head(key, i * 8);
            if (part ^ word) >> self.unused_bits(i) != 0 {
                return if part < *word { 0 } else { heads.len() };
            }
        }
        // A key that ends inside the prefix precedes all.
        if key.len() < shared { 0 } else { self.rank_of_head(head(key, shared), key) }
    }

    /// [`KeyArray::rank`] of a key that has the prefix, by its head.
    #[inline(always)]
    fn rank_of_head(&self, h: u64, key: &[u8]) -> usize {
        let heads = &self.words[self.prefix_words as usize..];
        let at = lower_bound(heads, h);
        if heads.get(at) == Some(&h) { self.rank_of_equals(at, h, key) } else { at }
    }

    /// [`KeyArray::rank`] behind the keys with smaller heads, where one has the same head.
    #[cold]
    #[inline(never)]
    fn rank_of_equals(&self, at: usize, h: u64, key: &[u8]) -> usize {
        let heads = &self.words[self.prefix_words as usize..];
        let equals = heads[at..].iter().take_while(|head| **head == h);
        at + equals.zip(at..).take_while(|(_, i)| self.get(*i) <= key).count()
    }

    /// The last key that is at most `key`.
    #[inline]
    pub fn floor(&self, key: &[u8]) -> Option<usize> {
        self.rank(key).checked_sub(1)
    }

    /// The last key below `key`; below the end when `None`.
    pub fn below(&self, key: Option<&[u8]>) -> Option<usize> {
        let Some(key) = key else { return self.len().checked_sub(1) };
        let rank = self.rank(key);
        let equal = rank > 0 && self.get(rank - 1) == key;
        rank.checked_sub(1 + usize::from(equal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn word() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            proptest::collection::vec(0u8..3, 0..12),
            proptest::collection::vec(0u8..2, 0..4).prop_map(|mut v| {
                let mut p = vec![7; 20];
                p.append(&mut v);
                p
            }),
            proptest::collection::vec(any::<u8>(), 0..20),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_set(set in proptest::collection::btree_set(word(), 0..40), probe in word()) {
            let set: BTreeSet<Vec<u8>> = set;
            let array = KeyArray::new(set.iter().map(Vec::as_slice));
            prop_assert_eq!(array.iter().map(<[u8]>::to_vec).collect::<BTreeSet<_>>(), set.clone());
            prop_assert_eq!(array.rank(&probe), set.range(..=probe.clone()).count());
            prop_assert_eq!(array.below(Some(&probe)), set.range(..probe.clone()).count().checked_sub(1));
            for key in &set {
                prop_assert_eq!(array.get(array.floor(key).unwrap()), key.as_slice());
            }
        }
    }
}
