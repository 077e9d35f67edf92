//! Sorted keys in one piece of memory, searched by their first differing bytes.

/// Strictly ascending keys of any length, immutable.
#[derive(Debug, Clone, Default)]
pub struct KeyArray {
    /// Length of the prefix that all keys share.
    shared: usize,
    /// The 8 bytes after the shared prefix, big endian, padded with zeros.
    heads: Box<[u64]>,
    ends: Box<[u32]>,
    bytes: Box<[u8]>,
}

fn head(key: &[u8], skip: usize) -> u64 {
    let rest = key.get(skip..).unwrap_or(&[]);
    let mut out = [0; 8];
    let n = rest.len().min(8);
    out[..n].copy_from_slice(&rest[..n]);
    u64::from_be_bytes(out)
}

fn common(a: &[u8], b: &[u8]) -> usize {
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
        // Of sorted keys, what the first and the last share all share.
        let shared = if count > 1 { common(first.unwrap_or(&[]), last) } else { 0 };
        let mut heads = Vec::with_capacity(count);
        let mut ends = Vec::with_capacity(count);
        let mut bytes = Vec::with_capacity(total);
        for key in keys {
            heads.push(head(key, shared));
            bytes.extend_from_slice(key);
            ends.push(bytes.len() as u32);
        }
        Self { shared, heads: heads.into(), ends: ends.into(), bytes: bytes.into() }
    }

    /// How many keys.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
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
        self.heads.len() * 12 + self.bytes.len()
    }

    /// How many keys are at most `key`.
    pub fn rank(&self, key: &[u8]) -> usize {
        if self.is_empty() {
            return 0;
        }
        let prefix = &self.bytes[..self.shared];
        let n = key.len().min(self.shared);
        match key[..n].cmp(&prefix[..n]) {
            std::cmp::Ordering::Less => return 0,
            std::cmp::Ordering::Greater => return self.len(),
            // A key that ends inside the shared prefix precedes all but one that equals it.
            std::cmp::Ordering::Equal if key.len() < self.shared => return 0,
            std::cmp::Ordering::Equal => {}
        }
        let h = head(key, self.shared);
        let mut at = self.heads.partition_point(|x| *x < h);
        while at < self.len() && self.heads[at] == h && self.get(at) <= key {
            at += 1;
        }
        at
    }

    /// The last key that is at most `key`.
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
