//! Leaves. With two-level versions entries are unsorted, and each stands between two versions (4
//! bits as published). Otherwise they are a sorted prefix of the slots. (As published a value of 0
//! marks a free slot. Here a bit of the front version does, so that zero is a value.)

use super::Geometry;

const USED: u8 = 0x80;

/// An entry as it is in the image.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Whether the slot is used.
    pub used: bool,
    /// Whether the two versions agree.
    pub whole: bool,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// Entry `i` of a leaf.
pub fn entry<'a>(g: &Geometry, image: &'a [u8], i: usize) -> Entry<'a> {
    let bytes = &image[g.entry_at(i)..g.entry_at(i + 1)];
    let (front, rear) = (bytes[0], bytes[bytes.len() - 1]);
    Entry {
        used: front & USED != 0,
        whole: (front ^ rear) & g.version_mask == 0,
        key: &bytes[1..1 + g.key],
        value: &bytes[1 + g.key..1 + g.key + g.value],
    }
}

/// Sets or clears entry `i`, in its next version.
pub fn put_entry(g: &Geometry, image: &mut [u8], i: usize, pair: Option<(&[u8], &[u8])>) {
    let bytes = &mut image[g.entry_at(i)..g.entry_at(i + 1)];
    let version = (bytes[0] & g.version_mask).wrapping_add(1) & g.version_mask;
    let rear = bytes.len() - 1;
    bytes[0] = version | if pair.is_some() { USED } else { 0 };
    if let Some((key, value)) = pair {
        bytes[1..1 + g.key].copy_from_slice(key);
        bytes[1 + g.key..rear].copy_from_slice(value);
    }
    bytes[rear] = version;
}

/// Whether two images of one leaf show the same versions.
pub fn same_versions(g: &Geometry, a: &[u8], b: &[u8]) -> bool {
    let of = |image: &[u8], i: usize| image[g.entry_at(i)] & g.version_mask;
    super::version(a) == super::version(b) && (0..g.leaf_slots).all(|i| of(a, i) == of(b, i))
}

/// The slots in use.
pub fn used<'a>(g: &'a Geometry, image: &'a [u8]) -> impl Iterator<Item = (usize, Entry<'a>)> {
    (0..g.leaf_slots).map(|i| (i, entry(g, image, i))).filter(|(_, e)| e.used)
}

/// The slot of a key, for a writer: it ignores versions.
pub fn find(g: &Geometry, image: &[u8], key: &[u8]) -> Option<usize> {
    used(g, image).find(|(_, e)| e.key == key).map(|(i, _)| i)
}

/// The first free slot.
pub fn free_slot(g: &Geometry, image: &[u8]) -> Option<usize> {
    (0..g.leaf_slots).find(|i| !entry(g, image, *i).used)
}

/// In a sorted leaf: the slot where a key is or belongs.
pub fn rank(g: &Geometry, image: &[u8], key: &[u8]) -> usize {
    (0..g.leaf_slots)
        .find(|i| {
            let e = entry(g, image, *i);
            !e.used || e.key >= key
        })
        .unwrap_or(g.leaf_slots)
}

/// In a sorted leaf with a free slot: adds a pair.
pub fn insert_sorted(g: &Geometry, image: &mut [u8], key: &[u8], value: &[u8]) {
    let (i, last) = (rank(g, image, key), g.leaf_slots - 1);
    image.copy_within(g.entry_at(i)..g.entry_at(last), g.entry_at(i + 1));
    put_entry(g, image, i, Some((key, value)));
}

/// In a sorted leaf: removes the pair in a slot.
pub fn remove_sorted(g: &Geometry, image: &mut [u8], i: usize) {
    let last = g.leaf_slots - 1;
    image.copy_within(g.entry_at(i + 1)..g.entry_at(last + 1), g.entry_at(i));
    image[g.entry_at(last)..g.entry_at(last + 1)].fill(0);
}

/// Sorts the entries in place, with their versions.
pub fn sort(g: &Geometry, image: &mut [u8]) {
    let mut entries: Vec<Vec<u8>> =
        used(g, image).map(|(i, _)| image[g.entry_at(i)..g.entry_at(i + 1)].to_vec()).collect();
    entries.sort_by(|a, b| a[1..1 + g.key].cmp(&b[1..1 + g.key]));
    image[g.entry_at(0)..g.entry_at(g.leaf_slots)].fill(0);
    for (i, e) in entries.iter().enumerate() {
        image[g.entry_at(i)..g.entry_at(i + 1)].copy_from_slice(e);
    }
}

/// Moves the entries of a sorted leaf from slot `from` on to an empty image, where versions start
/// anew.
pub fn move_upper(g: &Geometry, left: &mut [u8], right: &mut [u8], from: usize) {
    for i in from..g.leaf_slots {
        let e = entry(g, left, i);
        if e.used {
            put_entry(g, right, i - from, Some((e.key, e.value)));
        }
    }
    left[g.entry_at(from)..g.entry_at(g.leaf_slots)].fill(0);
}
