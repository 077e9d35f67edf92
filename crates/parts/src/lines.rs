//! Versions in the lines of a node, as CHIME (SOSP'24, section 4.1) has them and others after it: a
//! reader of any part of a node sees from the bytes alone that a WRITE has crossed its READ.
//!
//! A node is groups of one head and some entries; heads and entries are *objects*, and an object
//! begins with its version. The *plain* bytes of a node have nothing else. The *raw* bytes, which
//! memory nodes have, begin with 64 plain bytes; every later line of 64 bytes has a version and
//! then plain bytes. The version of a line is that of the object that the line's first plain byte
//! belongs to.
//!
//! A version has two halves. The *node half* is raised in all objects when a node is written whole,
//! the *entry half* in an object that is written by itself. So an image of some objects is accepted
//! when every line's version is that of its object, and all objects have one node half. What lies
//! in one line needs no check where lines are atomic.
//!
//! As published a version is one byte, with four bits for each half: after 16 WRITEs of an object
//! its version is the old one. With two bytes each half has eight bits.
//!
//! The module posts no verbs.

use std::ops::Range;

/// Bytes of a line.
const LINE: usize = 64;

/// The layout of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// Bytes of a version: 1 as published, or 2.
    pub version: usize,
    /// Bytes of a head, its version included.
    pub head: usize,
    /// Bytes of an entry, its version included.
    pub entry: usize,
    /// Entries of a group; the last group may have fewer.
    pub group: usize,
    /// Entries of the node.
    pub entries: usize,
}

impl Lines {
    fn group_bytes(&self) -> usize {
        self.head + self.group * self.entry
    }

    /// Groups of the node.
    pub fn groups(&self) -> usize {
        self.entries.div_ceil(self.group)
    }

    /// Plain bytes of the node.
    pub fn bytes(&self) -> usize {
        self.groups() * self.head + self.entries * self.entry
    }

    /// Raw bytes of the node.
    pub fn raw_bytes(&self) -> usize {
        self.raw(0..self.bytes()).end
    }

    /// Where the head of a group begins.
    pub fn head_at(&self, group: usize) -> usize {
        group * self.group_bytes()
    }

    /// Where an entry begins.
    pub fn entry_at(&self, i: usize) -> usize {
        self.head_at(i / self.group) + self.head + i % self.group * self.entry
    }

    /// Where the object begins that a plain byte belongs to.
    fn object_at(&self, at: usize) -> usize {
        let (group, inside) = (at / self.group_bytes(), at % self.group_bytes());
        let entry = inside.checked_sub(self.head).map(|i| i / self.entry * self.entry + self.head);
        self.head_at(group) + entry.unwrap_or(0)
    }

    /// Where the objects begin that lie in a part of the node.
    fn objects(&self, part: Range<usize>) -> impl Iterator<Item = usize> {
        let next = move |at: &usize| {
            let head = at.is_multiple_of(self.group_bytes());
            Some(at + if head { self.head } else { self.entry })
        };
        std::iter::successors(Some(part.start), next).take_while(move |at| *at < part.end)
    }

    fn raw_at(&self, at: usize) -> usize {
        match at.checked_sub(LINE) {
            None => at,
            Some(behind) => at + (behind / (LINE - self.version) + 1) * self.version,
        }
    }

    /// The raw bytes of a part of the node, without the version of a line that the part begins
    /// with: that is the version of its first object.
    pub fn raw(&self, part: Range<usize>) -> Range<usize> {
        match part.is_empty() {
            true => self.raw_at(part.start)..self.raw_at(part.start),
            false => self.raw_at(part.start)..self.raw_at(part.end - 1) + 1,
        }
    }

    /// The pieces of a part that are contiguous in raw bytes: plain from, and to.
    fn pieces(&self, part: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let step = LINE - self.version;
        let end = move |at: usize| match at.checked_sub(LINE) {
            None => LINE,
            Some(behind) => LINE + (behind / step + 1) * step,
        };
        let first = part.start..end(part.start).min(part.end);
        let next = move |p: &Range<usize>| Some(p.end..end(p.end).min(part.end));
        std::iter::successors(Some(first), next).take_while(|p| !p.is_empty())
    }

    /// Takes the plain bytes out of the raw bytes of a part, which begins and ends with objects.
    /// `None` for a mix of several WRITEs; otherwise the node half of its versions.
    pub fn decode(&self, part: Range<usize>, raw: &[u8], plain: &mut [u8]) -> Option<u8> {
        let from = self.raw_at(part.start);
        if raw.len() < self.raw(part.clone()).len() {
            return None;
        }
        let mut whole = true;
        for p in self.pieces(part.clone()) {
            let at = self.raw_at(p.start) - from;
            plain[p.clone()].copy_from_slice(&raw[at..at + p.len()]);
            // A part that begins with a line begins with an object, which has the line's version.
            if p.start >= LINE && p.start > part.start {
                let object = self.object_at(p.start);
                let same = &raw[at - self.version..at];
                // The object's version may end in this line, behind the line's own version.
                let ends = (object + self.version).min(part.end);
                whole &= ends <= p.end && same == &plain[object..ends];
            }
        }
        let half = self.node_half(plain[part.start]);
        let one = whole && self.objects(part).all(|at| self.node_half(plain[at]) == half);
        one.then_some(half)
    }

    /// The raw bytes that a WRITE of a part changes: also the version of the line that it begins
    /// with.
    pub fn written(&self, part: Range<usize>) -> Range<usize> {
        let raw = self.raw(part.clone());
        let begins = part.start >= LINE && raw.start % LINE == self.version;
        raw.start - if begins { self.version } else { 0 }..raw.end
    }

    /// Makes the raw bytes of a WRITE of a part.
    pub fn encode(&self, part: Range<usize>, plain: &[u8], raw: &mut [u8]) {
        let from = self.written(part.clone()).start;
        for p in self.pieces(part.clone()) {
            let at = self.raw_at(p.start) - from;
            raw[at..at + p.len()].copy_from_slice(&plain[p.clone()]);
            if p.start >= LINE && at >= self.version {
                let object = self.object_at(p.start);
                raw[at - self.version..at].copy_from_slice(&plain[object..object + self.version]);
            }
        }
    }

    fn node_half(&self, first: u8) -> u8 {
        if self.version == 1 { first & 0x0f } else { first }
    }

    /// An entry is written by itself: raises its entry half.
    pub fn raise_entry(&self, plain: &mut [u8], i: usize) {
        let at = self.entry_at(i);
        match self.version {
            1 => plain[at] = plain[at].wrapping_add(0x10),
            _ => plain[at + 1] = plain[at + 1].wrapping_add(1),
        }
    }

    /// The node is written whole: raises the node half of every object.
    pub fn raise_node(&self, plain: &mut [u8]) {
        for at in self.objects(0..self.bytes()) {
            let raised = plain[at].wrapping_add(1);
            plain[at] = match self.version {
                1 => plain[at] & 0xf0 | raised & 0x0f,
                _ => raised,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// CHIME's leaf in the artifact of the FAST'26 paper, and the original.
    const ARTIFACT: Lines = Lines { version: 1, head: 10, entry: 35, group: 8, entries: 32 };
    const ORIGINAL: Lines = Lines { version: 1, head: 10, entry: 19, group: 8, entries: 64 };

    #[test]
    fn sizes_are_the_published_ones() {
        assert_eq!((ARTIFACT.bytes(), ARTIFACT.raw_bytes()), (1160, 1178));
        assert_eq!((ORIGINAL.bytes(), ORIGINAL.raw_bytes()), (1296, 1316));
        let inner = Lines { version: 1, head: 43, entry: 17, group: 64, entries: 64 };
        assert_eq!((inner.bytes(), inner.raw_bytes()), (1131, 1148));
        let sorted = Lines { version: 1, head: 27, entry: 17, group: 64, entries: 64 };
        assert_eq!(sorted.raw_bytes(), 1132);
        let fences = Lines { head: 26, ..ORIGINAL };
        assert_eq!(fences.raw_bytes(), 1446);
        // A single slot, with the head of its group if it is the first one.
        let slot = |i: usize| {
            let head = if i.is_multiple_of(8) { ARTIFACT.head } else { 0 };
            ARTIFACT.raw(ARTIFACT.entry_at(i) - head..ARTIFACT.entry_at(i) + 35).len()
        };
        let (all, least) = ((0..32).map(slot).sum::<usize>(), (0..32).map(slot).min());
        assert_eq!((all, least, (0..32).map(slot).max()), (32 * 368 / 10 + 1, Some(35), Some(46)));
    }

    fn layouts() -> impl Strategy<Value = Lines> {
        (1usize..3, 0usize..60, 1usize..300, 1usize..17, 1usize..70).prop_map(
            |(version, head, entry, group, entries)| Lines {
                version,
                head: head + version,
                entry: entry + version,
                group,
                entries,
            },
        )
    }

    /// A part that begins and ends with objects.
    fn part(l: &Lines, from: usize, to: usize) -> Range<usize> {
        let (from, to) = (from % l.entries, to % l.entries);
        let first = l.entry_at(from.min(to));
        let head = if from.min(to).is_multiple_of(l.group) { l.head } else { 0 };
        first - head..l.entry_at(from.max(to)) + l.entry
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(l in layouts(), from: usize, to: usize, seed: u8) {
            let mut plain: Vec<u8> = (0..l.bytes()).map(|i| (i as u8).wrapping_mul(seed)).collect();
            for at in l.objects(0..l.bytes()).collect::<Vec<_>>() {
                // One node half, and entry halves that differ.
                plain[at] = if l.version == 1 { (at as u8) << 4 | 3 } else { 3 };
            }
            let part = part(&l, from, to);
            let written = l.written(part.clone());
            let mut raw = vec![0; written.len()];
            l.encode(part.clone(), &plain, &mut raw);
            // A part of the whole image is the image of the part.
            let mut whole = vec![0; l.raw_bytes()];
            l.encode(0..l.bytes(), &plain, &mut whole);
            prop_assert_eq!(&whole[written], &raw[..]);
            let mut back = vec![0; l.bytes()];
            let read = &whole[l.raw(part.clone())];
            prop_assert_eq!(l.decode(part.clone(), read, &mut back), Some(3));
            prop_assert_eq!(&back[part.clone()], &plain[part]);
        }

        /// Lines of two WRITEs, in any mix: what is accepted of an entry is one of the two.
        #[test]
        fn a_mix_of_two_entries_is_refused(
            l in layouts(), i: usize, lines: u64, whole: bool,
        ) {
            let i = i % l.entries;
            let old = vec![0u8; l.bytes()];
            let mut new = vec![0xee; l.bytes()];
            for at in l.objects(0..l.bytes()).collect::<Vec<_>>() {
                new[at..at + l.version].fill(0);
            }
            if whole { l.raise_node(&mut new) } else { l.raise_entry(&mut new, i) }
            let part = l.entry_at(i)..l.entry_at(i) + l.entry;
            let span = l.written(part.clone());
            let (mut raw, mut late) = (vec![0; span.len()], vec![0; span.len()]);
            l.encode(part.clone(), &old, &mut raw);
            l.encode(part.clone(), &new, &mut late);
            for (at, byte) in raw.iter_mut().enumerate() {
                let line = (span.start + at) / LINE - span.start / LINE;
                if lines >> (line % 64) & 1 == 1 {
                    *byte = late[at];
                }
            }
            let mut back = vec![0; l.bytes()];
            let read = &raw[l.raw(part.clone()).start - span.start..];
            if l.decode(part.clone(), read, &mut back).is_some() {
                let (back, data) = (&back[part.clone()], part.start + l.version..part.end);
                prop_assert!(back[l.version..] == old[data.clone()] || back[l.version..] == new[data]);
            }
        }

        #[test]
        fn garbage_is_refused_or_harmless(l in layouts(), from: usize, to: usize, raw: Vec<u8>) {
            let mut plain = vec![0; l.bytes()];
            let _ = l.decode(part(&l, from, to), &raw, &mut plain);
        }
    }

    #[test]
    fn four_bits_wrap_and_eight_do_not_so_soon() {
        for (version, same) in [(1, true), (2, false)] {
            let l = Lines { version, ..ORIGINAL };
            let mut plain = vec![0; l.bytes()];
            (0..16).for_each(|_| l.raise_entry(&mut plain, 5));
            assert_eq!(plain.iter().all(|b| *b == 0), same);
            (0..16).for_each(|_| l.raise_node(&mut plain));
            assert_eq!(plain.iter().all(|b| *b == 0), same);
        }
    }
}
