//! Byte layouts of pages, little endian; DESIGN.md has the tables. Bytes that come from a READ are
//! garbage until a check here has accepted them.

pub mod inner;
pub mod leaf;

use dmtree_fabric::GlobalAddr;
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

    /// Bytes of an inner page as a writer reads and writes it.
    pub fn inner_bytes(&self) -> usize {
        (self.rear_at(false) + 1).next_multiple_of(self.inner_step)
    }

    /// Bytes that a descent READs of any page: enough for both kinds. (The published code READs
    /// those of a leaf.)
    pub fn page_bytes(&self) -> usize {
        self.leaf_bytes().max(self.rear_at(false) + 1)
    }

    /// Bytes that a page takes.
    pub fn footprint(&self) -> usize {
        self.leaf_bytes().max(self.inner_bytes())
    }

    /// The lowest lower fence key.
    pub fn lowest(&self) -> Vec<u8> {
        vec![0; self.key]
    }

    /// An upper fence key as stored: all ones are the right end. No separator has this value,
    /// because the keys behind a separator are above it.
    pub fn highest(&self) -> Vec<u8> {
        vec![0xff; self.key]
    }
}

/// An upper fence key as stored; `None` for the right end.
pub fn upper(fence: &[u8]) -> Option<&[u8]> {
    if fence.iter().all(|b| *b == 0xff) { None } else { Some(fence) }
}

/// The header of every page.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// The leftmost child; null in a leaf.
    pub leftmost: GlobalAddr,
    /// The right sibling; null at the right end.
    pub sibling: GlobalAddr,
    /// 0 for leaves.
    pub level: u8,
    /// Records of an inner page.
    pub records: usize,
    /// Lower fence key, inclusive.
    pub low: &'a [u8],
    /// Upper fence key, exclusive, as stored.
    pub high: &'a [u8],
}

impl<'a> Header<'a> {
    /// The header of a leaf.
    pub fn of_leaf(sibling: GlobalAddr, low: &'a [u8], high: &'a [u8]) -> Self {
        Self { leftmost: GlobalAddr::NULL, sibling, level: 0, records: 0, low, high }
    }
}

impl Header<'_> {
    /// Whether a key lies left of the page.
    pub fn begins_after(&self, key: &[u8]) -> bool {
        key < self.low
    }

    /// Whether a key lies right of the page.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        upper(self.high).is_some_and(|high| key >= high)
    }

    /// Whether the page covers a key.
    pub fn covers(&self, key: &[u8]) -> bool {
        !self.begins_after(key) && !self.ends_before(key)
    }
}

/// The header of an image, without any check.
fn parse<'a>(g: &Geometry, image: &'a [u8]) -> Option<Header<'a>> {
    let k = g.key;
    let last = i16::from_le_bytes(image[LAST_AT..LAST_AT + 2].try_into().ok()?);
    Some(Header {
        leftmost: get_addr(image, LEFTMOST_AT),
        sibling: get_addr(image, SIBLING_AT),
        level: image[LEVEL_AT],
        records: usize::try_from(i32::from(last) + 1).ok()?,
        low: &image[FENCES_AT..FENCES_AT + k],
        high: &image[FENCES_AT + k..FENCES_AT + 2 * k],
    })
}

/// The header of a page that passes its check: correct checksum, or two equal versions. As
/// published, equal versions do not prove that a page is whole.
pub fn header<'a>(g: &Geometry, image: &'a [u8]) -> Option<Header<'a>> {
    let is_leaf = get_addr(image, LEFTMOST_AT).is_null();
    let rear = g.rear_at(is_leaf);
    if image.len() <= rear {
        return None;
    }
    let whole = match g.two_level {
        true => image[FRONT_AT] == image[rear],
        false => get_u64(image, 0) == check64(&image[FRONT_AT..=rear], SEED),
    };
    let h = parse(g, image).filter(|_| whole)?;
    let sane = (h.level == 0) == is_leaf
        && upper(h.high).is_none_or(|high| h.low < high)
        && (is_leaf || h.records <= g.inner_slots);
    sane.then_some(h)
}

/// The header of an image that was accepted and then changed.
pub fn changed<'a>(g: &Geometry, image: &'a [u8]) -> Option<Header<'a>> {
    parse(g, image)
}

/// Writes a header.
pub fn put_header(g: &Geometry, image: &mut [u8], h: &Header<'_>) {
    let k = g.key;
    put_u64(image, LEFTMOST_AT, h.leftmost.bits());
    put_u64(image, SIBLING_AT, h.sibling.bits());
    image[LEVEL_AT] = h.level;
    let last = h.records as i16 - 1;
    image[LAST_AT..LAST_AT + 2].copy_from_slice(&last.to_le_bytes());
    image[FENCES_AT..FENCES_AT + k].copy_from_slice(h.low);
    image[FENCES_AT + k..FENCES_AT + 2 * k].copy_from_slice(h.high);
}

/// The front version of an image.
pub fn version(image: &[u8]) -> u8 {
    image[FRONT_AT]
}

/// Prepares a page to be written whole: sets the next version at both ends, or the checksum.
pub fn seal(g: &Geometry, image: &mut [u8]) {
    let rear = g.rear_at(get_addr(image, LEFTMOST_AT).is_null());
    let version = image[FRONT_AT].wrapping_add(1);
    (image[FRONT_AT], image[rear]) = (version, version);
    image[rear + 1..].fill(0);
    let sum = if g.two_level { 0 } else { check64(&image[FRONT_AT..=rear], SEED) };
    put_u64(image, 0, sum);
}

/// A word of an image.
pub fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// An address in an image.
pub fn get_addr(bytes: &[u8], at: usize) -> GlobalAddr {
    GlobalAddr::from_bits(get_u64(bytes, at))
}

/// Sets a word of an image.
pub fn put_u64(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
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
            if let Some(h) = header(&g, &bytes) {
                prop_assert!(two_level && h.records <= 32 || h.level == 0);
            }
            let _ = inner::Inner::check(&g, &bytes);
        }
    }
}
