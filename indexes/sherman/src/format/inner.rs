//! Inner pages: a leftmost child and sorted records of a key and a child.

use dmtree_fabric::GlobalAddr;

use super::{Geometry, Header, get_addr, header, parse, put_header, put_u64};

/// An accepted image of an inner page.
#[derive(Clone, Copy, Debug)]
pub struct Inner<'a> {
    g: &'a Geometry,
    image: &'a [u8],
    /// Its header.
    pub h: Header<'a>,
}

impl<'a> Inner<'a> {
    /// Accepts a page that passes its check if its keys ascend between its fence keys.
    pub fn check(g: &'a Geometry, image: &'a [u8]) -> Option<Self> {
        let h = header(g, image).filter(|h| h.level > 0)?;
        let n = Self { g, image, h };
        let mut last = h.low;
        for i in 0..h.records {
            let key = n.key(i);
            if key <= last {
                return None;
            }
            last = key;
        }
        (h.records == 0 || !h.ends_before(last)).then_some(n)
    }

    /// Takes an image that was accepted before.
    pub fn of(g: &'a Geometry, image: &'a [u8]) -> Option<Self> {
        Some(Self { g, image, h: parse(g, image)? })
    }

    /// Key of record `i`.
    pub fn key(&self, i: usize) -> &'a [u8] {
        let at = self.g.record_at(i);
        &self.image[at..at + self.g.key]
    }

    /// Child of record `i`.
    pub fn child(&self, i: usize) -> GlobalAddr {
        get_addr(self.image, self.g.record_at(i) + self.g.key)
    }

    /// The child that covers a key.
    pub fn child_of(&self, key: &[u8]) -> GlobalAddr {
        match self.rank(key) {
            0 => self.h.leftmost,
            n => self.child(n - 1),
        }
    }

    /// How many records have keys that are at most `key`.
    pub fn rank(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.h.records);
        while low < high {
            let mid = (low + high) / 2;
            if self.key(mid) <= key { low = mid + 1 } else { high = mid }
        }
        low
    }
}

/// Writes record `i`.
pub fn put_record(g: &Geometry, image: &mut [u8], i: usize, key: &[u8], child: GlobalAddr) {
    let at = g.record_at(i);
    image[at..at + g.key].copy_from_slice(key);
    put_u64(image, at + g.key, child.bits());
}

/// Adds a record at position `i` of a page with `count` records; there is room.
pub fn insert_record(
    g: &Geometry,
    image: &mut [u8],
    (i, count): (usize, usize),
    key: &[u8],
    child: GlobalAddr,
) {
    image.copy_within(g.record_at(i)..g.record_at(count), g.record_at(i + 1));
    put_record(g, image, i, key, child);
    image[super::LAST_AT..super::LAST_AT + 2].copy_from_slice(&(count as i16).to_le_bytes());
}

/// Divides a full page: the records behind `middle` move to an empty image under their own header,
/// and record `middle` becomes the separator, which is returned.
pub fn divide(
    g: &Geometry,
    left: &mut [u8],
    right: &mut [u8],
    middle: usize,
    at: GlobalAddr,
) -> Option<Vec<u8>> {
    let (h, separator, child, low, high) = {
        let n = Inner::of(g, left)?;
        let key = n.key(middle).to_vec();
        (n.h.records, key, n.child(middle), n.h.low.to_vec(), n.h.high.to_vec())
    };
    let (level, sibling, leftmost) = {
        let n = Inner::of(g, left)?;
        (n.h.level, n.h.sibling, n.h.leftmost)
    };
    let moved = h - middle - 1;
    right[g.record_at(0)..g.record_at(moved)]
        .copy_from_slice(&left[g.record_at(middle + 1)..g.record_at(h)]);
    let header =
        Header { leftmost: child, sibling, level, records: moved, low: &separator, high: &high };
    put_header(g, right, &header);
    left[g.record_at(middle)..g.record_at(h)].fill(0);
    let header =
        Header { leftmost, sibling: at, level, records: middle, low: &low, high: &separator };
    put_header(g, left, &header);
    Some(separator)
}
