//! The order of keys that stay where they are.
//!
//! What is sorted is a word for each key: its head, which is the 7 bytes behind a prefix that all
//! keys share, and a number that leads to the key itself. Keys are compared only where heads are
//! equal.

use std::ops::Range;

use dmtree_parts::keys::head;

/// The bits of a word that are the key's number.
const NUMBER: u64 = 0xff;

/// Keys in their order, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct KeyOrder {
    /// Bytes of the prefix.
    skip: usize,
    words: Vec<u64>,
}

#[inline]
fn number(word: u64) -> usize {
    (word & NUMBER) as usize
}

#[inline]
fn word_of(head: u64, number: usize) -> u64 {
    debug_assert!(number as u64 <= NUMBER, "a number of 8 bits");
    head & !NUMBER | number as u64
}

impl KeyOrder {
    /// Of no keys yet; `skip` bytes of all that come are the same.
    pub fn new(skip: usize, keys: usize) -> Self {
        Self { skip, words: Vec::with_capacity(keys) }
    }

    /// Of no keys yet, in the memory of the former ones.
    pub fn restart(&mut self, skip: usize) {
        self.skip = skip;
        self.words.clear();
    }

    #[inline]
    fn word(&self, key: &[u8], number: usize) -> u64 {
        word_of(head(key, self.skip), number)
    }

    /// Adds a key behind the others, to be sorted.
    #[inline]
    pub fn push(&mut self, key: &[u8], number: usize) {
        let word = self.word(key, number);
        self.words.push(word);
    }

    /// Adds keys with successive numbers, by the 8 bytes of each behind the prefix.
    #[inline]
    pub fn extend(&mut self, heads: impl Iterator<Item = u64>, first: usize) {
        self.words.extend(heads.enumerate().map(|(i, head)| word_of(head, first + i)));
    }

    /// Sorts the keys, of which each has its number. Whether any have the same head.
    #[inline]
    pub fn sort<'k>(&mut self, key_of: impl Fn(usize) -> &'k [u8]) -> bool {
        self.words.sort_unstable();
        let has_equals = self.words.windows(2).any(|pair| pair[0] ^ pair[1] <= NUMBER);
        if has_equals {
            self.words.sort_unstable_by(|a, b| {
                let by_head = (a & !NUMBER).cmp(&(b & !NUMBER));
                by_head.then_with(|| key_of(number(*a)).cmp(key_of(number(*b))))
            });
        }
        has_equals
    }

    /// Of equal keys the first one stays.
    pub fn dedup<'k>(&mut self, key_of: impl Fn(usize) -> &'k [u8]) {
        self.words.dedup_by(|a, b| {
            *a | NUMBER == *b | NUMBER && key_of(number(*a)) == key_of(number(*b))
        });
    }

    /// How many.
    #[inline]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// The number of the key at a place of the order.
    #[inline]
    pub fn number(&self, i: usize) -> usize {
        number(self.words[i])
    }

    /// The numbers of the keys in their order.
    #[inline]
    pub fn numbers(&self) -> impl ExactSizeIterator<Item = usize> + Clone {
        self.words.iter().map(|word| number(*word))
    }

    /// The numbers of the keys at these places of the order.
    #[inline]
    pub fn numbers_in(
        &self,
        places: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
        self.words[places].iter().map(|word| number(*word))
    }

    /// How many keys come before one of which this is true for the first time.
    fn count<'k>(
        &self,
        probe: &[u8],
        key_of: impl Fn(usize) -> &'k [u8],
        is_before: impl Fn(&[u8]) -> bool,
    ) -> usize {
        let is_key_before = |word: &u64| is_before(key_of(number(*word)));
        let first = self.words.first().map(|word| key_of(number(*word)));
        if first.is_some_and(|first| first.get(..self.skip) != probe.get(..self.skip)) {
            return self.words.partition_point(is_key_before);
        }
        let head = self.word(probe, 0);
        let from = self.words.partition_point(|word| *word < head);
        let equals = self.words[from..].partition_point(|word| *word <= head | NUMBER);
        from + self.words[from..from + equals].partition_point(is_key_before)
    }

    /// How many keys are below this one.
    pub fn count_below<'k>(&self, key: &[u8], key_of: impl Fn(usize) -> &'k [u8]) -> usize {
        self.count(key, key_of, |k| k < key)
    }

    /// How many keys are at most this one.
    pub fn count_at_most<'k>(&self, key: &[u8], key_of: impl Fn(usize) -> &'k [u8]) -> usize {
        self.count(key, key_of, |k| k <= key)
    }

    /// Whether two keys are equal.
    pub fn has_double<'k>(&self, key_of: impl Fn(usize) -> &'k [u8]) -> bool {
        let is_double = |pair: &[u64]| {
            let [a, b] = [pair[0], pair[1]];
            a | NUMBER == b | NUMBER && key_of(number(a)) == key_of(number(b))
        };
        self.words.windows(2).any(is_double)
    }

    /// Adds a key at its place in the order.
    pub fn insert(&mut self, at: usize, key: &[u8], number: usize) {
        let word = self.word(key, number);
        self.words.insert(at, word);
    }

    /// Removes the key with a number.
    pub fn remove(&mut self, gone: usize) {
        self.words.retain(|word| number(*word) != gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0u8..3, 1..14)
    }

    proptest! {
        #[test]
        fn keys_are_sorted_whatever_their_heads(set in proptest::collection::hash_set(key(), 0..40), prefix in proptest::collection::vec(0u8..3, 0..12), probe in key(), has_prefix: bool, double: bool) {
            let with_prefix = |key: &[u8]| [&prefix[..], key].concat();
            let mut keys: Vec<_> = set.iter().map(|key| with_prefix(key)).collect();
            let key_of = |number: usize| &keys[number / 2][..];
            let mut order = KeyOrder::new(prefix.len(), keys.len());
            keys.iter().enumerate().for_each(|(i, key)| order.push(key, 2 * i));
            order.sort(key_of);
            let mut wanted: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            wanted.sort_unstable();
            let found: Vec<&[u8]> = order.numbers().map(key_of).collect();
            prop_assert_eq!(&found, &wanted);
            let probe = if has_prefix { with_prefix(&probe) } else { probe };
            let below = wanted.partition_point(|k| **k < *probe);
            prop_assert_eq!(order.count_below(&probe, key_of), below);
            let at_most = wanted.partition_point(|k| **k <= *probe);
            prop_assert_eq!(order.count_at_most(&probe, key_of), at_most);
            prop_assert!(!order.has_double(key_of));
            if double && let Some(first) = keys.first().cloned() {
                keys.push(first);
                let key_of = |number: usize| &keys[number / 2][..];
                let (last, number) = (&keys[keys.len() - 1], 2 * keys.len() - 2);
                order.insert(order.count_below(last, key_of), last, number);
                prop_assert!(order.has_double(key_of));
                order.dedup(key_of);
                prop_assert!(!order.has_double(key_of));
                prop_assert_eq!(order.len(), keys.len() - 1);
                order.restart(prefix.len());
                keys.iter().enumerate().for_each(|(i, key)| order.push(key, 2 * i));
                prop_assert!(order.sort(key_of));
                order.remove(number);
                prop_assert!(!order.has_double(key_of));
            }
        }
    }
}
