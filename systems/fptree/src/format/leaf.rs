//! Leaves: a header and unsorted entries.

use dmtree_fabric::GlobalAddr;
use dmtree_parts::bytes::{get_addr, get_u32, get_u64, put_u32, put_u64};

use super::{Geometry, is_capacity, state_of, state_word};

/// A leaf's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Upper fence key, exclusive, as stored.
    pub max: &'a [u8],
    /// Lower fence key, inclusive.
    pub min: &'a [u8],
    /// Number of slots.
    pub capacity: usize,
    /// Raised whenever the key range changes.
    pub version: u32,
    /// The right sibling; null at the right end.
    pub right: Sibling,
}

/// A leaf as its left sibling names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sibling {
    /// The leaf.
    pub leaf: GlobalAddr,
    /// Its table.
    pub table: GlobalAddr,
    /// Its number of slots.
    pub capacity: usize,
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Whether the slot is in use.
    pub valid: bool,
    /// The leaf's version.
    pub version: u64,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// The header at the beginning of an image, if it can be a header.
pub fn header<'a>(g: &Geometry, image: &'a [u8]) -> Option<Header<'a>> {
    let k = g.key;
    let capacity = u64::from(get_u32(image, 2 * k));
    let right = Sibling {
        leaf: get_addr(image, 2 * k + 8),
        table: get_addr(image, 2 * k + 16),
        capacity: get_u64(image, 2 * k + 24) as usize,
    };
    let right_is = right == Sibling::default()
        || (!right.leaf.is_null() && !right.table.is_null() && is_capacity(right.capacity as u64));
    (is_capacity(capacity) && right_is).then(|| Header {
        max: &image[..k],
        min: &image[k..2 * k],
        capacity: capacity as usize,
        version: get_u32(image, 2 * k + 4),
        right,
    })
}

/// Writes a header.
pub fn put_header(g: &Geometry, image: &mut [u8], h: &Header<'_>) {
    let k = g.key;
    image[..k].copy_from_slice(h.max);
    image[k..2 * k].copy_from_slice(h.min);
    put_u32(image, 2 * k, h.capacity as u32);
    put_u32(image, 2 * k + 4, h.version);
    put_u64(image, 2 * k + 8, h.right.leaf.bits());
    put_u64(image, 2 * k + 16, h.right.table.bits());
    put_u64(image, 2 * k + 24, h.right.capacity as u64);
}

/// Decodes an entry. It has no checksum, because the layout has no room for one.
pub fn entry<'a>(g: &Geometry, image: &'a [u8]) -> Entry<'a> {
    let (valid, version) = state_of(get_u64(image, 0));
    let (key, value) = (&image[8..8 + g.key], &image[8 + g.key..8 + g.key + g.value]);
    Entry { valid, version, key, value }
}

/// Writes a used entry.
pub fn put_entry(g: &Geometry, image: &mut [u8], version: u32, key: &[u8], value: &[u8]) {
    put_u64(image, 0, state_word(true, version));
    image[8..8 + g.key].copy_from_slice(key);
    image[8 + g.key..8 + g.key + g.value].copy_from_slice(value);
    image[8 + g.key + g.value..].fill(0);
}

/// Writes a free entry.
pub fn put_free(image: &mut [u8], version: u32) {
    put_u64(image, 0, state_word(false, version));
    image[8..].fill(0);
}

/// Accepts the header and the first `slots` entries of a leaf, if all entries have the header's
/// version, and the header the expected capacity. This refuses an image that a split has changed
/// between two words of the READ, unless the change falls inside an entry.
pub fn check<'a>(
    g: &Geometry,
    image: &'a [u8],
    capacity: usize,
    slots: usize,
) -> Option<Header<'a>> {
    let h = header(g, image).filter(|h| h.capacity == capacity)?;
    let version = u64::from(h.version);
    let same = |i| state_of(get_u64(image, g.entry_at(i))).1 == version;
    (0..slots).all(same).then_some(h)
}

/// Entry `i` of a leaf's image.
pub fn entry_of<'a>(g: &Geometry, image: &'a [u8], i: usize) -> Entry<'a> {
    entry(g, &image[g.entry_at(i)..g.entry_at(i + 1)])
}
