//! A leaf: one pair. It has a reverse pointer, a valid flag, a checksum over key and value, the
//! key, the value, and at the very end its lock.

use dmtree_fabric::GlobalAddr;
use dmtree_parts::bytes::{get_u64, put_u64};
use dmtree_parts::hash::check64;

use super::Geometry;

const VALID_AT: usize = 8;
const CHECKSUM_AT: usize = 9;
const KEY_AT: usize = 17;
const VALID: u8 = 0x80;
const LOCKED: u8 = 1;
const SEED: u64 = 0x6c_65_61_66;

/// Offset of the valid flag, for a WRITE of this byte alone.
pub const VALID_OFFSET: u64 = VALID_AT as u64;

/// A leaf as it was READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf<'a> {
    /// The slot that names it, as the leaf has it; it may be old.
    pub rev: GlobalAddr,
    /// Whether it is valid: not replaced by a newer leaf.
    pub valid: bool,
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

fn checksum(g: &Geometry, pair: &[u8]) -> u64 {
    let sum = check64(pair, SEED);
    if g.short_checksum { sum >> 32 } else { sum }
}

/// The leaf in an image, if its checksum proves that key and value are whole.
pub fn check<'a>(g: &Geometry, image: &'a [u8]) -> Option<Leaf<'a>> {
    if image.len() < g.leaf_bytes() {
        return None;
    }
    let pair = &image[KEY_AT..KEY_AT + g.key + g.value];
    (get_u64(image, CHECKSUM_AT) == checksum(g, pair)).then(|| Leaf {
        rev: GlobalAddr::from_bits(get_u64(image, 0)),
        valid: image[VALID_AT] & VALID != 0,
        key: &pair[..g.key],
        value: &pair[g.key..],
    })
}

/// Fills an image with a valid leaf.
pub fn put(g: &Geometry, image: &mut [u8], rev: GlobalAddr, key: &[u8], value: &[u8]) {
    image[..g.leaf_bytes()].fill(0);
    put_u64(image, 0, rev.bits());
    image[VALID_AT] = VALID;
    image[KEY_AT..KEY_AT + g.key].copy_from_slice(key);
    set_value(g, image, value);
}

/// Sets the value in a leaf's image.
pub fn set_value(g: &Geometry, image: &mut [u8], value: &[u8]) {
    let end = KEY_AT + g.key + g.value;
    image[KEY_AT + g.key..end].copy_from_slice(value);
    let sum = checksum(g, &image[KEY_AT..end]);
    put_u64(image, CHECKSUM_AT, sum);
}

/// Sets or clears the lock in an image.
pub fn set_locked(g: &Geometry, image: &mut [u8], locked: bool) {
    image[g.leaf_bytes() - 1] = if locked { LOCKED } else { 0 };
}

/// Whether a leaf's image is locked.
pub fn is_locked(g: &Geometry, image: &[u8]) -> bool {
    image[g.leaf_bytes() - 1] & LOCKED != 0
}

/// The word that contains the lock, as a compare-and-swap needs it: unlocked and locked. Its other
/// bytes belong to the leaf's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWord {
    /// The word while the lock is free.
    pub free: u64,
    /// The word while the lock is held.
    pub held: u64,
}

impl LockWord {
    /// From a word that a compare-and-swap returned.
    pub fn of(g: &Geometry, word: u64) -> Self {
        let bit = 1 << (8 * ((g.leaf_bytes() - 1) % 8));
        Self { free: word & !bit, held: word | bit }
    }

    /// From a leaf's image.
    pub fn of_image(g: &Geometry, image: &[u8]) -> Self {
        let mut word = [0; 8];
        let from = g.lock_word_at();
        let bytes = &image[from..g.leaf_bytes()];
        word[..bytes.len()].copy_from_slice(bytes);
        Self::of(g, u64::from_le_bytes(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use dmtree_fabric::NodeId;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_the_published_ones() {
        let g = Geometry::new(&Options::published());
        assert_eq!((g.leaf_bytes(), g.leaf_step, g.lock_word_at()), (57, 64, 56));
        let g = Geometry::new(&Options::published().original());
        assert_eq!((g.leaf_bytes(), g.leaf_step, g.lock_word_at()), (34, 256, 32));
        let g = Geometry::new(&Options { key_bytes: 32, ..Options::published().original() });
        assert_eq!(g.leaf_bytes(), 58);
    }

    proptest! {
        #[test]
        fn a_leaf_is_whole_or_nothing(key in proptest::collection::vec(any::<u8>(), 1..40), value in proptest::collection::vec(any::<u8>(), 0..70), short: bool, at: usize, flip in 1u8..=255) {
            let o = Options { key_bytes: key.len() as u32, value_bytes: value.len() as u32, short_checksum: short, ..Options::published() };
            let g = Geometry::new(&o);
            let mut image = vec![9; g.leaf_bytes()];
            let rev = GlobalAddr::new(NodeId::memory(1), 4096);
            put(&g, &mut image, rev, &key, &value);
            let leaf = check(&g, &image).unwrap();
            prop_assert_eq!(leaf, Leaf { rev, valid: true, key: &key, value: &value });
            let word = LockWord::of_image(&g, &image);
            set_locked(&g, &mut image, true);
            prop_assert_eq!(LockWord::of_image(&g, &image), word);
            prop_assert!(word.free != word.held && check(&g, &image).is_some());
            let at = KEY_AT + at % (key.len() + value.len());
            image[at] ^= flip;
            prop_assert_eq!(check(&g, &image), None);
        }
    }
}
