//! Sorted keys in one piece of memory, searched by their first differing bytes.

use std::cmp::Ordering;

use dmtree_fabric::cpu::{lower_bound, prefetch};

/// Strictly ascending keys of any length, immutable. A search touches one piece of memory, unless
/// it meets a key that is close.
///
/// The keys' heads, the 8 bytes after the prefix that all share, are kept as 30 bits each: as their
/// distance from the first head, without its lowest bits. Processors compare many of those at once.
/// An empty key would share no prefix, but precedes all others: it has no distance.
#[derive(Debug, Clone, Default)]
pub struct KeyArray {
    /// The first 8 bytes of the shared prefix, big endian, padded with zeros.
    prefix: u64,
    /// The bits of `prefix` that belong to it.
    mask: u64,
    /// The last 8 bytes of a prefix that is longer.
    tail: u64,
    /// The first head.
    base: u64,
    /// Length of the prefix, bytes.
    shared: u16,
    /// The bits of a distance that are not kept.
    shift: u8,
    /// Whether the first key is empty.
    has_empty: bool,
    /// How many keys.
    count: u32,
    /// Distances, then [`BEHIND`] up to a whole number of lines.
    distances: Box<[[i32; LINE]]>,
    ends: Box<[u32]>,
    bytes: Box<[u8]>,
}

/// Distances are compared so many at a time.
const LINE: usize = 16;
/// More than the distance of any key of the array.
const BEHIND: i32 = i32::MAX;

/// The 8 bytes of a key behind its first `skip`, big endian, padded with zeros.
#[inline]
pub fn head(key: &[u8], skip: usize) -> u64 {
    let rest = key.get(skip..).unwrap_or(&[]);
    if let Some(head) = rest.first_chunk() {
        return u64::from_be_bytes(*head);
    }
    match key.last_chunk() {
        // The last 8 bytes, without those in front of the rest.
        Some(last) if !rest.is_empty() => u64::from_be_bytes(*last) << (64 - 8 * rest.len()),
        // A call to copy a few bytes takes longer than they do.
        _ => rest.iter().rev().fold(0, |word, byte| word >> 8 | u64::from(*byte) << 56),
    }
}

/// The bits of a head that a prefix of this length has at the beginning of a key.
pub fn prefix_mask(len: usize) -> u64 {
    u64::MAX.checked_shl(64 - 8 * len.min(8) as u32).unwrap_or(0)
}

/// Lines that are prefetched: those of a usual node.
const PREFETCHED: usize = 4;
/// Bytes of the prefix that two keys share.
pub fn common(a: &[u8], b: &[u8]) -> usize {
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let mut same = 0;
    for (x, y) in words {
        let differ = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differ != 0 {
            return same + differ.trailing_zeros() as usize / 8;
        }
        same += 8;
    }
    same + a[same..].iter().zip(&b[same..]).take_while(|(x, y)| x == y).count()
}

impl KeyArray {
    /// Copies keys, which ascend strictly.
    pub fn new<'a>(keys: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let (mut first, mut last): (&[u8], &[u8]) = (&[], &[]);
        let (mut count, mut total) = (0usize, 0);
        for key in keys.clone() {
            debug_assert!(count == 0 || last < key, "keys ascend strictly");
            if first.is_empty() {
                first = key;
            }
            last = key;
            count += 1;
            total += key.len();
        }
        // The prefix that the first and the last of sorted keys share is shared by all.
        let shared = if first == last { 0 } else { common(first, last) };
        let base = head(first, shared);
        let shift = 34u32.saturating_sub((head(last, shared) - base).leading_zeros());
        let mut distances = vec![[BEHIND; LINE]; count.div_ceil(LINE)];
        let mut places = distances.as_flattened_mut().iter_mut();
        let mut ends = Vec::with_capacity(count);
        let mut bytes = Vec::with_capacity(total);
        for key in keys {
            if !key.is_empty()
                && let Some(place) = places.next()
            {
                *place = ((head(key, shared) - base) >> shift) as i32;
            }
            bytes.extend_from_slice(key);
            ends.push(bytes.len() as u32);
        }
        Self {
            prefix: head(&first[..shared], 0),
            tail: head(&first[..shared], shared.saturating_sub(8)),
            mask: prefix_mask(shared),
            base,
            shared: shared as u16,
            shift: shift as u8,
            has_empty: count > 0 && ends[0] == 0,
            count: count as u32,
            distances: distances.into(),
            ends: ends.into(),
            bytes: bytes.into(),
        }
    }

    /// The same keys and one more, which becomes number `at`: behind the first that is not empty,
    /// and in front of the last, so that prefix and distances stay what they are. `None` for
    /// another place.
    pub fn with(&self, at: usize, key: &[u8]) -> Option<Self> {
        let first = usize::from(self.has_empty);
        if at <= first || at >= self.len() {
            return None;
        }
        debug_assert!(self.get(at - 1) < key && key < self.get(at), "keys ascend strictly");
        let shared = usize::from(self.shared);
        let distance = ((head(key, shared) - self.base) >> self.shift) as i32;
        let (old, kept) = (self.distances.as_flattened(), self.len() - first);
        let mut distances = vec![[BEHIND; LINE]; (self.len() + 1).div_ceil(LINE)];
        let new = distances.as_flattened_mut();
        let place = at - first;
        new[..place].copy_from_slice(&old[..place]);
        new[place] = distance;
        new[place + 1..kept + 1].copy_from_slice(&old[place..kept]);
        let start = self.ends[at - 1];
        let mut ends = Vec::with_capacity(self.len() + 1);
        ends.extend_from_slice(&self.ends[..at]);
        let len = key.len() as u32;
        ends.push(start + len);
        ends.extend(self.ends[at..].iter().map(|end| end + len));
        let (before, behind) = self.bytes.split_at(start as usize);
        let bytes = [before, key, behind].concat();
        Some(Self {
            count: self.count + 1,
            distances: distances.into(),
            ends: ends.into(),
            bytes: bytes.into(),
            ..*self
        })
    }

    /// How many keys.
    #[inline]
    pub fn len(&self) -> usize {
        self.count as usize
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
        size_of_val(&*self.distances) + self.ends.len() * 4 + self.bytes.len()
    }

    /// What so many keys of this length take at most.
    pub fn most_bytes(keys: usize, key_bytes: usize) -> usize {
        keys * (key_bytes + 8) + (LINE - 1) * 4
    }

    /// Prefetches what a search touches first.
    pub fn prefetch(&self) {
        prefetch(&self.distances[..self.distances.len().min(PREFETCHED)]);
    }

    /// How many keys are at most `key`.
    #[inline(always)]
    pub fn rank(&self, key: &[u8]) -> usize {
        let shared = usize::from(self.shared);
        if let Some(head) = key.get(shared..shared + 8).and_then(<[u8]>::first_chunk)
            && let Some(first) = key.first_chunk()
            && (u64::from_be_bytes(*first) ^ self.prefix) & self.mask == 0
            && (shared <= 8 || self.has_tail(key))
        {
            return self.rank_of_head(u64::from_be_bytes(*head), key);
        }
        self.rank_of_any(key)
    }

    /// Whether a key has the prefix, which has at most 16 bytes, behind its first 8 bytes.
    #[inline(never)]
    fn has_tail(&self, key: &[u8]) -> bool {
        self.shared <= 16 && head(key, usize::from(self.shared) - 8) == self.tail
    }

    /// [`KeyArray::rank`] of a key without the prefix, or that may end inside it or inside the
    /// head, or that has a long prefix.
    #[inline(never)]
    fn rank_of_any(&self, key: &[u8]) -> usize {
        let shared = usize::from(self.shared);
        let prefix = self.bytes.get(..shared).unwrap_or(&[]);
        match key.get(..shared).unwrap_or(key).cmp(prefix) {
            Ordering::Less => usize::from(self.has_empty),
            Ordering::Greater => self.len(),
            Ordering::Equal => self.rank_of_head(head(key, shared), key),
        }
    }

    /// [`KeyArray::rank`] of a key that has the prefix, by its head.
    #[inline(always)]
    fn rank_of_head(&self, head: u64, key: &[u8]) -> usize {
        let before = usize::from(self.has_empty);
        let Some(distance) = head.checked_sub(self.base) else { return before };
        let distance = distance >> self.shift;
        if distance >= BEHIND as u64 {
            return self.len();
        }
        let distance = distance as i32;
        let at = lower_bound(&self.distances, distance);
        let is_close = self.distances.as_flattened().get(at) == Some(&distance);
        before + if is_close { self.rank_of_close(at, key) } else { at }
    }

    /// [`KeyArray::rank`] behind the keys with smaller distances, where one has the same distance.
    #[cold]
    #[inline(never)]
    fn rank_of_close(&self, from: usize, key: &[u8]) -> usize {
        let distances = self.distances.as_flattened();
        let distance = distances[from];
        let equals = distances[from..].partition_point(|d| *d == distance);
        let (mut low, mut high) = (from, from + equals);
        while low < high {
            let middle = low.midpoint(high);
            let at_most = self.get(middle + usize::from(self.has_empty)) <= key;
            if at_most { low = middle + 1 } else { high = middle }
        }
        low
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
            proptest::collection::vec(prop_oneof![Just(0u8), Just(255), any::<u8>()], 7..11),
        ]
    }

    proptest! {
        #[test]
        fn heads_and_shared_bytes_are_those_byte_by_byte(key in word(), other in word(), skip in 0usize..24) {
            let mut padded = key.get(skip..).unwrap_or(&[]).to_vec();
            padded.resize(padded.len().max(8), 0);
            prop_assert_eq!(head(&key, skip).to_be_bytes().to_vec(), padded[..8].to_vec());
            let shared = key.iter().zip(&other).take_while(|(x, y)| x == y).count();
            prop_assert_eq!(common(&key, &other), shared);
        }

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

        #[test]
        fn one_more_key_is_as_if_it_had_been_there(set in proptest::collection::btree_set(word(), 0..40), more in word(), probe in word()) {
            let array = KeyArray::new(set.iter().map(Vec::as_slice));
            prop_assume!(!set.contains(&more));
            let at = array.rank(&more);
            let mut all: BTreeSet<Vec<u8>> = set;
            all.insert(more.clone());
            let Some(with) = array.with(at, &more) else {
                let is_empty = !array.is_empty() && array.get(0).is_empty();
                prop_assert!(at <= usize::from(is_empty) || at == array.len());
                return Ok(());
            };
            let whole = KeyArray::new(all.iter().map(Vec::as_slice));
            prop_assert_eq!(format!("{with:?}"), format!("{whole:?}"));
            prop_assert_eq!(with.rank(&probe), all.range(..=probe).count());
        }
    }
}
