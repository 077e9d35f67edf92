//! Byte layouts of pages, little endian; DESIGN.md has the tables. Bytes that come from a READ are
//! garbage until a check here has accepted them.

pub mod leaf;

use dmtree_fabric::GlobalAddr;
use dmtree_parts::blink::{Format, Header, upper};
use dmtree_parts::bytes::{get_addr, get_u64, put_u64};
use dmtree_parts::hash::check64;

use crate::options::Options;

/// Slots or records of the largest page.
const MAX_SLOTS: usize = 1024;
const SEED: u64 = 0x70_61_67_65;
/// The first byte of a page behind the checksum: its front version.
const FRONT_AT: usize = 8;
const LEFTMOST_AT: usize = 9;
const SIBLING_AT: usize = 17;
const LEVEL_AT: usize = 25;
const LAST_AT: usize = 26;
const FENCES_AT: usize = 28;

/// Sizes that the options determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a key.
    pub key: usize,
    /// Bytes of a value.
    pub value: usize,
    /// Slots of a leaf.
    pub leaf_slots: usize,
    /// Records of an inner page.
    pub inner_slots: usize,
    /// Whether versions show that a page is whole; otherwise a checksum does.
    pub two_level: bool,
    /// The bits of an entry's version.
    pub version_mask: u8,
    leaf_step: usize,
    inner_step: usize,
}

impl Geometry {
    /// Of an index with these options.
    pub fn new(o: &Options) -> Self {
        let (key, value, page) =
            (o.key_bytes as usize, o.value_bytes as usize, o.page_bytes as usize);
        let g = Self {
            key,
            value,
            leaf_slots: o.leaf_slots as usize,
            inner_slots: o.inner_slots as usize,
            two_level: o.two_level,
            version_mask: 0xff >> (8 - o.version_bits),
            leaf_step: o.leaf_step as usize,
            inner_step: o.inner_step as usize,
        };
        if page == 0 {
            return g;
        }
        // The header and the rear version are present in any case.
        let room = page.saturating_sub(g.records_at() + 1);
        Self {
            leaf_slots: (room / g.entry()).min(MAX_SLOTS),
            inner_slots: (room / (key + 8)).min(MAX_SLOTS),
            leaf_step: page,
            inner_step: page,
            ..g
        }
    }

    fn records_at(&self) -> usize {
        FENCES_AT + 2 * self.key
    }

    /// Bytes of a leaf's entry: key and value between two versions.
    pub fn entry(&self) -> usize {
        2 + self.key + self.value
    }

    /// Offset of entry `i` in a leaf.
    pub fn entry_at(&self, i: usize) -> usize {
        self.records_at() + self.entry() * i
    }

    /// Offset of record `i` in an inner page.
    pub fn record_at(&self, i: usize) -> usize {
        self.records_at() + (self.key + 8) * i
    }

    fn rear_at(&self, is_leaf: bool) -> usize {
        if is_leaf { self.entry_at(self.leaf_slots) } else { self.record_at(self.inner_slots) }
    }

    /// Bytes of a leaf as it is read and written.
    pub fn leaf_bytes(&self) -> usize {
        (self.rear_at(true) + 1).next_multiple_of(self.leaf_step)
    }
}

impl Format for Geometry {
    fn key_bytes(&self) -> usize {
        self.key
    }

    fn inner_slots(&self) -> usize {
        self.inner_slots
    }

    fn inner_bytes(&self) -> usize {
        (self.rear_at(false) + 1).next_multiple_of(self.inner_step)
    }

    // The published code READs the bytes of a leaf.
    fn page_bytes(&self) -> usize {
        self.leaf_bytes().max(self.rear_at(false) + 1)
    }

    fn footprint(&self) -> usize {
        self.leaf_bytes().max(self.inner_bytes())
    }

    /// It has the correct checksum, or two equal versions. As published, equal versions do not
    /// prove that a page is whole.
    fn header<'a>(&self, image: &'a [u8]) -> Option<Header<'a>> {
        let is_leaf = get_addr(image, LEFTMOST_AT).is_null();
        let rear = self.rear_at(is_leaf);
        if image.len() <= rear {
            return None;
        }
        let whole = match self.two_level {
            true => image[FRONT_AT] == image[rear],
            false => get_u64(image, 0) == check64(&image[FRONT_AT..=rear], SEED),
        };
        let h = self.accepted(image).filter(|_| whole)?;
        let sane = (h.level == 0) == is_leaf
            && upper(h.high).is_none_or(|high| h.low < high)
            && (is_leaf || h.records <= self.inner_slots);
        sane.then_some(h)
    }

    fn accepted<'a>(&self, image: &'a [u8]) -> Option<Header<'a>> {
        let k = self.key;
        let last = i16::from_le_bytes(image[LAST_AT..LAST_AT + 2].try_into().ok()?);
        Some(Header {
            leftmost: get_addr(image, LEFTMOST_AT),
            sibling: get_addr(image, SIBLING_AT),
            level: image[LEVEL_AT],
            records: usize::try_from(i32::from(last) + 1).ok()?,
            low: &image[FENCES_AT..FENCES_AT + k],
            high: &image[FENCES_AT + k..FENCES_AT + 2 * k],
            beyond: GlobalAddr::NULL,
        })
    }

    fn key<'a>(&self, image: &'a [u8], i: usize) -> &'a [u8] {
        let at = self.record_at(i);
        &image[at..at + self.key]
    }

    fn child(&self, image: &[u8], i: usize) -> GlobalAddr {
        get_addr(image, self.record_at(i) + self.key)
    }

    fn put_header(&self, image: &mut [u8], h: &Header<'_>) {
        let k = self.key;
        put_u64(image, LEFTMOST_AT, h.leftmost.bits());
        put_u64(image, SIBLING_AT, h.sibling.bits());
        image[LEVEL_AT] = h.level;
        let last = h.records as i16 - 1;
        image[LAST_AT..LAST_AT + 2].copy_from_slice(&last.to_le_bytes());
        image[FENCES_AT..FENCES_AT + k].copy_from_slice(h.low);
        image[FENCES_AT + k..FENCES_AT + 2 * k].copy_from_slice(h.high);
    }

    fn put_record(&self, image: &mut [u8], i: usize, key: &[u8], child: GlobalAddr) {
        let at = self.record_at(i);
        image[at..at + self.key].copy_from_slice(key);
        put_u64(image, at + self.key, child.bits());
    }

    fn insert_record(
        &self,
        image: &mut [u8],
        (i, count): (usize, usize),
        key: &[u8],
        child: GlobalAddr,
    ) {
        image.copy_within(self.record_at(i)..self.record_at(count), self.record_at(i + 1));
        self.put_record(image, i, key, child);
        image[LAST_AT..LAST_AT + 2].copy_from_slice(&(count as i16).to_le_bytes());
    }

    /// Sets the next version at both ends, or the checksum.
    fn seal(&self, image: &mut [u8]) {
        let rear = self.rear_at(get_addr(image, LEFTMOST_AT).is_null());
        let version = image[FRONT_AT].wrapping_add(1);
        (image[FRONT_AT], image[rear]) = (version, version);
        image[rear + 1..].fill(0);
        let sum = if self.two_level { 0 } else { check64(&image[FRONT_AT..=rear], SEED) };
        put_u64(image, 0, sum);
    }
}

/// The front version of an image.
pub fn version(image: &[u8]) -> u8 {
    image[FRONT_AT]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_the_published_ones() {
        let g = Geometry::new(&Options::published());
        assert_eq!((g.entry(), g.entry_at(0), g.rear_at(true)), (34, 76, 1164));
        assert_eq!((g.leaf_bytes(), g.inner_bytes(), g.rear_at(false)), (1166, 1120, 1100));
        let g = Geometry::new(&Options::published().in_pages_of_1k());
        assert_eq!((g.entry(), g.entry_at(0), g.rear_at(true)), (18, 44, 1016));
        assert_eq!((g.leaf_bytes(), g.inner_bytes(), g.rear_at(false)), (1024, 1024, 1020));
    }

    proptest! {
        #[test]
        fn garbage_is_no_page_or_a_sane_one(bytes in proptest::collection::vec(any::<u8>(), 1166), two_level: bool) {
            let g = Geometry { two_level, ..Geometry::new(&Options::published()) };
            if let Some(h) = g.header(&bytes) {
                prop_assert!(two_level && h.records <= 32 || h.level == 0);
            }
            let _ = dmtree_parts::blink::Inner::check(&g, &bytes);
        }
    }
}
