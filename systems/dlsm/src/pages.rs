//! Pages of the index of a table, where the budget of a node has no room for all of it.
//!
//! The index stays on the memory node as it lies there: a page is some of its records, about 4 KiB.
//! In the place of the index a node has its *top*: of each page the first version, the place in the
//! section, and a checksum, since that of the section needs all of it.

use std::ops::Range;

use dmtree_fabric::cpu::crc32c;
use dmtree_fabric::{Error, GlobalAddr, Result};

use crate::format::{Index, record_bytes};
use crate::key::{KeyRange, Tag, above, order};
use crate::table::Extent;

/// Bytes of a page at most, but for a record that is longer.
const PAGE_BYTES: u64 = 4096;
/// Pages that a scan READs of a table at once, at most.
const AT_ONCE: usize = 64;

#[derive(Debug)]
struct Page {
    user: Box<[u8]>,
    tag: Tag,
    at: u64,
    bytes: u64,
    sum: u32,
    /// Versions of its first key may be in the page before.
    goes_on: bool,
}

/// What a node has of an index that is elsewhere.
#[derive(Debug)]
pub(crate) struct Top(Box<[Page]>);

impl Top {
    /// Of an index with a record for each entry, or for several.
    pub(crate) fn of(index: &Index, exact: bool) -> Self {
        let encoded = index.encoded();
        let mut pages: Vec<Page> = Vec::new();
        let mut at = index.head_bytes();
        for i in 0..index.len() {
            let (user, tag) = index.first(i);
            let bytes = record_bytes(user);
            match pages.last_mut().filter(|page| page.bytes + bytes <= PAGE_BYTES) {
                Some(page) => page.bytes += bytes,
                None => {
                    let goes_on = i > 0 && (!exact || index.first(i - 1).0 == user);
                    pages.push(Page { user: user.into(), tag, at, bytes, sum: 0, goes_on });
                }
            }
            at += bytes;
        }
        for page in &mut pages {
            page.sum = sum(&encoded[page.at as usize..(page.at + page.bytes) as usize]);
        }
        Self(pages.into())
    }

    /// Bytes in the memory of a node.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|page| (page.user.len() + size_of::<Page>()) as u64).sum()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn user(&self, page: usize) -> &[u8] {
        &self.0[page].user
    }

    /// How many pages begin with a version up to this one.
    fn up_to(&self, version: (&[u8], Tag)) -> usize {
        self.0.partition_point(|page| order((&page.user, page.tag), version).is_le())
    }

    /// The pages that have the unit of the newest version of a key up to a tag: one, unless the
    /// versions of the key begin in one and end in the next.
    pub(crate) fn holding(&self, (user, newest): (&[u8], Tag)) -> Range<usize> {
        let behind = self.up_to((user, newest));
        match self.0.get(behind).filter(|page| *page.user == *user) {
            Some(page) if page.goes_on => behind.saturating_sub(1)..behind + 1,
            Some(_) => behind..behind + 1,
            None => behind.saturating_sub(1)..behind.max(1),
        }
    }

    /// Pages for about so many records at the begin of a range, in one direction. The range
    /// shrinks to the keys with all of their versions there.
    pub(crate) fn of_range(
        &self,
        range: &mut KeyRange,
        reverse: bool,
        records: usize,
    ) -> Range<usize> {
        let mean = self.0.iter().map(|page| page.bytes).sum::<u64>() / self.len().max(1) as u64;
        let (first, last) = (&self.0[0], self.len());
        let wanted = (records as u64).saturating_mul(record_bytes(&first.user)) / mean.max(1);
        let n = usize::try_from(wanted).unwrap_or(AT_ONCE).min(AT_ONCE) + 2;
        if reverse {
            let is_below =
                |page: &Page| range.high.as_ref().is_none_or(|high| *page.user < high[..]);
            let end = self.0.partition_point(is_below).max(1);
            let mut start = end.saturating_sub(n);
            // A key at least must be in the range then.
            let none = |start| range.high.as_ref().is_some_and(|h| above(self.user(start)) >= *h);
            while start > 0 && none(start) {
                start -= 1;
            }
            if start > 0 {
                // Newer versions of the first key may be in the page before.
                range.raise_low(above(self.user(start)));
            }
            return start..end;
        }
        let low = range.low.as_ref();
        let start = low.map_or(0, |low| self.up_to((low, Tag::NEWEST)).saturating_sub(1));
        let mut end = (start + n).min(last);
        while end < last && low.is_some_and(|low| self.user(end) <= &low[..]) {
            end += 1;
        }
        if end < last {
            range.lower_high(self.user(end).to_vec());
        }
        start..end
    }

    /// Where pages are.
    pub(crate) fn places(&self, pages: Range<usize>, section: &[Extent]) -> Vec<(GlobalAddr, u32)> {
        let (from, to) = (self.0[pages.start].at, self.end(pages.end));
        let (mut places, mut begin) = (Vec::new(), 0);
        for extent in section {
            let end = begin + u64::from(extent.bytes);
            let (low, high) = (from.max(begin), to.min(end));
            if low < high {
                places.push((extent.at().plus(low - begin), (high - low) as u32));
            }
            begin = end;
        }
        places
    }

    fn end(&self, pages: usize) -> u64 {
        let last = &self.0[pages - 1];
        last.at + last.bytes
    }

    /// Bytes of pages.
    pub(crate) fn bytes_of(&self, pages: Range<usize>) -> u64 {
        self.end(pages.end) - self.0[pages.start].at
    }

    /// The records of pages, from the bytes that were read.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn decode(&self, pages: Range<usize>, bytes: &[u8]) -> Result<Index> {
        let mut rest = bytes;
        for page in &self.0[pages] {
            let its = crate::format::take(&mut rest, page.bytes as usize)?;
            if sum(its) != page.sum {
                return Err(Error::corrupt("a page of a table's index: its checksum fails"));
            }
        }
        Index::of_records(&bytes[..bytes.len() - rest.len()])
    }
}

fn sum(bytes: &[u8]) -> u32 {
    crc32c([0; 2], bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 500 keys of 20 bytes with two versions each, in 7 pages or so.
    fn index() -> Index {
        let mut index = Index::default();
        for n in 0..1000u32 {
            let tag = Tag::new(u64::from(9 - n % 2), true);
            index.push((format!("{:020}", n / 2).as_bytes(), tag), (10 * n, 10));
        }
        index.largest = format!("{:020}", 499).into_bytes();
        index
    }

    fn read(top: &Top, encoded: &[u8], pages: Range<usize>) -> Index {
        let bytes = &encoded[top.0[pages.start].at as usize..top.end(pages.end) as usize];
        let damaged = [&bytes[..bytes.len() / 2], &[1], &bytes[bytes.len() / 2 + 1..]].concat();
        assert!(top.decode(pages.clone(), &damaged).is_err());
        top.decode(pages, bytes).expect("whole")
    }

    #[test]
    fn a_page_has_what_the_index_says_of_a_key() {
        let (index, top, encoded) = (index(), Top::of(&index(), true), index().encoded());
        assert!(top.len() > 5 && top.bytes() * 20 < index.bytes(), "{} pages", top.len());
        let mut in_two = 0;
        for n in 0..500 {
            let user = format!("{n:020}").into_bytes();
            for seq in [7, 8, 9, 100] {
                let newest = Tag::up_to(seq);
                let pages = top.holding((&user, newest));
                in_two += usize::from(pages.len() == 2);
                let part = read(&top, &encoded, pages);
                let find = |index: &Index| {
                    let at = index.partition(|u, t| order((u, t), (&user, newest)).is_lt());
                    (at < index.len()).then(|| (index.first(at).0.to_vec(), index.place(at)))
                };
                let of = |found: Option<(Vec<u8>, _)>| found.filter(|(its, _)| *its == user);
                assert_eq!(of(find(&part)), of(find(&index)), "key {n} up to {seq}");
            }
        }
        assert!(in_two < 30, "{in_two}");
    }

    /// The windows of a range have all of its versions, in either direction.
    #[test]
    fn pages_of_a_range_follow_each_other() {
        let (index, top, encoded) = (index(), Top::of(&index(), true), index().encoded());
        for reverse in [false, true] {
            let whole = KeyRange { low: Some(b"0".to_vec()), high: Some(index.largest.clone()) };
            let (mut left, mut seen, mut windows) = (whole.clone(), Vec::new(), 0);
            while !left.is_empty() {
                let mut range = left.clone();
                let pages = top.of_range(&mut range, reverse, 3);
                let part = read(&top, &encoded, pages);
                let inside = |i: &usize| range.contains(part.first(*i).0);
                let mut some: Vec<_> =
                    (0..part.len()).filter(inside).map(|i| part.place(i)).collect();
                if reverse {
                    some.reverse();
                    left.high = range.low.clone();
                } else {
                    left.low = range.high.clone();
                }
                seen.extend(some);
                windows += 1;
            }
            let inside = |i: &usize| whole.contains(index.first(*i).0);
            let mut all: Vec<_> = (0..index.len()).filter(inside).map(|i| index.place(i)).collect();
            if reverse {
                all.reverse();
            }
            assert!(
                windows > 3 && seen == all,
                "{windows} windows, {} of {}",
                seen.len(),
                all.len()
            );
        }
    }
}
