//! Free space for blocks of one memory node: extents by address, merged with their neighbours
//! inside a chunk, and by length. Blocks hold no lock words, so their memory is cut anew without
//! further ado.
//!
//! Invariants: extents do not overlap, no extent crosses a chunk border (so a chunk that is free as
//! a whole is one extent of its length), and both orders hold the same extents. An allocation takes
//! the shortest extent that fits, lowest address first; what is left of it stays behind it.

use std::collections::{BTreeMap, BTreeSet};

/// Free extents of one memory node; offsets and lengths in bytes.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    by_offset: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    bytes: u64,
}

impl Extents {
    fn insert(&mut self, offset: u64, length: u64) {
        self.by_offset.insert(offset, length);
        self.by_length.insert((length, offset));
        self.bytes += length;
    }

    fn remove(&mut self, offset: u64, length: u64) {
        self.by_offset.remove(&offset);
        self.by_length.remove(&(length, offset));
        self.bytes -= length;
    }

    /// The shortest extent that fits, lowest address first.
    pub(crate) fn take(&mut self, length: u64) -> Option<u64> {
        let (found, offset) = *self.by_length.range((length, 0)..).next()?;
        self.remove(offset, found);
        if found > length {
            self.insert(offset + length, found - length);
        }
        Some(offset)
    }

    /// Adds free space; false (and nothing changes) when part of it is free already. `chunk0` and
    /// `chunk_bytes` say where merging stops.
    pub(crate) fn put(
        &mut self,
        mut offset: u64,
        mut length: u64,
        chunk0: u64,
        chunk_bytes: u64,
    ) -> bool {
        let before = self.by_offset.range(..offset).next_back().map(|(o, l)| (*o, *l));
        let after = self.by_offset.range(offset..).next().map(|(o, l)| (*o, *l));
        if before.is_some_and(|(o, l)| o + l > offset)
            || after.is_some_and(|(o, _)| o < offset + length)
        {
            return false;
        }
        let chunk = |at: u64| (at - chunk0) / chunk_bytes;
        if let Some((o, l)) = before
            && o + l == offset
            && chunk(o) == chunk(offset)
        {
            self.remove(o, l);
            (offset, length) = (o, length + l);
        }
        if let Some((o, l)) = after
            && offset + length == o
            && chunk(o) == chunk(offset)
        {
            self.remove(o, l);
            length += l;
        }
        self.insert(offset, length);
        debug_assert!(self.by_offset.len() > 64 || self.is_sound(), "extents at {offset:#x}");
        true
    }

    /// Takes out whole free chunks, all but `keep` of them.
    pub(crate) fn take_whole(&mut self, chunk_bytes: u64, keep: usize) -> Vec<u64> {
        let whole: Vec<_> = self
            .by_length
            .range((chunk_bytes, 0)..)
            .map(|(_, offset)| *offset)
            .skip(keep)
            .collect();
        for offset in &whole {
            self.remove(*offset, chunk_bytes);
        }
        whole
    }

    /// Takes out all that is free in one chunk, which has an extent of `length` at least.
    pub(crate) fn take_chunk(
        &mut self,
        length: u64,
        chunk0: u64,
        chunk_bytes: u64,
    ) -> Vec<(u64, u64)> {
        let Some((_, found)) = self.by_length.range((length, 0)..).next().copied() else {
            return Vec::new();
        };
        let first = chunk0 + (found - chunk0) / chunk_bytes * chunk_bytes;
        let inside = self.by_offset.range(first..first + chunk_bytes);
        let out: Vec<_> = inside.map(|(at, len)| (*at, *len)).collect();
        out.iter().for_each(|(at, len)| self.remove(*at, *len));
        out
    }

    /// Whether two pieces of this length can be taken.
    pub(crate) fn fits_twice(&self, length: u64) -> bool {
        let longest = self.by_length.last().map_or(0, |(len, _)| *len);
        longest >= 2 * length || self.by_length.range((length, 0)..).nth(1).is_some()
    }

    /// Both orders hold the same extents, and their sum is known.
    fn is_sound(&self) -> bool {
        let both = self.by_offset.iter().all(|(at, len)| self.by_length.contains(&(*len, *at)));
        both && self.by_offset.len() == self.by_length.len()
            && self.by_offset.values().sum::<u64>() == self.bytes
    }

    /// Offsets and lengths.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        self.by_offset.iter().map(|(at, len)| (*at, *len))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: u64 = 4096;

    #[test]
    fn chunks_do_not_merge_with_each_other() {
        let mut e = Extents::default();
        assert!(e.put(64, CHUNK, 64, CHUNK) && e.put(64 + CHUNK, CHUNK, 64, CHUNK));
        assert_eq!(e.take(2 * CHUNK), None);
        assert_eq!(e.take_whole(CHUNK, 1), [64 + CHUNK]);
        assert_eq!((e.bytes(), e.take(CHUNK)), (CHUNK, Some(64)));
    }

    #[test]
    fn freeing_twice_is_noticed() {
        let mut e = Extents::default();
        assert!(e.put(128, 128, 0, CHUNK));
        assert!(
            !e.put(128, 64, 0, CHUNK) && !e.put(192, 128, 0, CHUNK) && !e.put(64, 128, 0, CHUNK)
        );
        assert_eq!(e.bytes(), 128);
    }

    proptest! {
        #[test]
        fn everything_comes_back(sizes in proptest::collection::vec(1u64..20, 1..60), order: u64) {
            let mut e = Extents::default();
            for c in 0..4 {
                e.put(c * CHUNK, CHUNK, 0, CHUNK);
            }
            let mut out: Vec<(u64, u64)> = Vec::new();
            for s in sizes {
                if let Some(at) = e.take(s * 64) {
                    prop_assert!(out.iter().all(|(o, l)| at + s * 64 <= *o || o + l <= at));
                    prop_assert_eq!(at / CHUNK, (at + s * 64 - 1) / CHUNK, "inside one chunk");
                    out.push((at, s * 64));
                }
            }
            let live: u64 = out.iter().map(|(_, l)| l).sum();
            prop_assert_eq!(e.bytes() + live, 4 * CHUNK);
            out.sort_by_key(|(o, _)| dmtree_fabric::golden_hash(o ^ order));
            for (o, l) in out {
                prop_assert!(e.put(o, l, 0, CHUNK));
            }
            prop_assert_eq!(e.take_whole(CHUNK, 0).len(), 4, "all merged again");
        }
    }
}
