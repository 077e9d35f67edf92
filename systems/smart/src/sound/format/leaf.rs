//! A leaf: one key, and two areas for values, of which one counts.
//!
//! | offset | field |
//! |---|---|
//! | 0 | word: state 2, active area 1, version 19, generation 16, holder 26 |
//! | 8 | length of the key 16, check of the key 48; constant |
//! | 16 | the key, padded to whole words |
//! | | area 0: length of the value 16, check 48; the value or a block's address, V bytes |
//! | | area 1: the same |
//!
//! The holder is a compute node's number (10 bits) and incarnation (16 bits); 0 is a free leaf. The
//! word changes by compare-and-swap only. A length of all ones in an area means that the value is
//! in a block. Checks are XXH3-64, cut to 48 bits, over the address, the generation, and for
//! areas the version under which they were written.
//!
//! Two areas keep the old value whole while a holder writes the other one: a crash, or a READ, in
//! the middle of that WRITE meets an area that does not count.

use dmtree_fabric::GlobalAddr;
use dmtree_fabric::NodeId;
use dmtree_parts::MAX_KEY_BYTES;
use dmtree_parts::hash::check64;
use dmtree_pool::BlockPtr;

use super::slot::LINE;

const KEY_AT: usize = 16;
const CUT: u64 = (1 << 48) - 1;
const IN_BLOCK: u64 = 0xffff;
/// Number of compute nodes that a lock word can identify.
pub const MAX_NODES: usize = 1 << 10;

/// LeafState of a leaf within its generation, by its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafState {
    /// Written; a slot may or may not name it.
    Pending = 1,
    /// A slot names it, and its key is present.
    Live = 2,
    /// Its key is absent.
    Tombstone = 3,
}

/// The lock holder of a leaf: a compute node and its incarnation, cut to 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The number of the compute node.
    pub node: u16,
    /// Its incarnation.
    pub incarnation: u16,
}

impl Holder {
    /// The compute node.
    pub fn id(self) -> NodeId {
        NodeId::compute(self.node)
    }
}

/// The lock word of a leaf, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// The state.
    pub state: LeafState,
    /// The area that counts: false for area 0.
    pub active: bool,
    /// Counts values, 19 bits.
    pub version: u32,
    /// The generation of its address.
    pub generation: u16,
    /// The holder, which may write the other area.
    pub holder: Option<Holder>,
}

impl Word {
    /// Encodes the word.
    pub fn bits(self) -> u64 {
        let holder = self.holder.map_or(0, |h| u64::from(h.node) << 16 | u64::from(h.incarnation));
        self.state as u64
            | u64::from(self.active) << 2
            | u64::from(self.version) << 3
            | u64::from(self.generation) << 22
            | holder << 38
    }

    /// Decodes a word; `None` when it is no leaf's word.
    pub fn of_bits(bits: u64) -> Option<Self> {
        let state = match bits & 3 {
            1 => LeafState::Pending,
            2 => LeafState::Live,
            3 => LeafState::Tombstone,
            _ => return None,
        };
        let (node, incarnation) = ((bits >> 54) as u16, (bits >> 38) as u16);
        let holder = (bits >> 38 != 0).then_some(Holder { node, incarnation });
        let (active, version) = (bits >> 2 & 1 == 1, (bits >> 3) as u32 & 0x7_ffff);
        Some(Self { state, active, version, generation: (bits >> 22) as u16, holder })
    }

    /// The same with a holder, or without.
    #[must_use]
    pub fn held_by(self, holder: Option<Holder>) -> Self {
        Self { holder, ..self }
    }

    /// The same in another state.
    #[must_use]
    pub fn in_state(self, state: LeafState) -> Self {
        Self { state, ..self }
    }

    /// The word after the other area was written: that area counts, and the leaf is free.
    #[must_use]
    pub fn flipped(self) -> Self {
        let version = (self.version + 1) & 0x7_ffff;
        Self { active: !self.active, version, holder: None, ..self }
    }
}

/// A value as it is stored in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored<'a> {
    /// In the leaf.
    Inline(&'a [u8]),
    /// In a block.
    Block(BlockPtr),
}

/// A checked leaf.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    /// Its word.
    pub word: Word,
    /// Its key.
    pub key: &'a [u8],
    /// The value that counts.
    pub value: Stored<'a>,
}

/// Sizes that follow from the bytes reserved for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafShape {
    /// Most bytes of a value that is stored inline.
    pub value: usize,
}

impl LeafShape {
    /// Bytes of an area.
    pub fn area(&self) -> usize {
        8 + self.value
    }

    /// Offset of an area in the leaf of a key of `key` bytes.
    pub fn area_at(&self, key: usize, second: bool) -> usize {
        KEY_AT + key.next_multiple_of(8) + usize::from(second) * self.area()
    }

    /// Bytes of the leaf of a key of `key` bytes.
    pub fn bytes(&self, key: usize) -> usize {
        self.area_at(key, true) + self.area()
    }

    /// Lines that this leaf takes.
    pub fn lines(&self, key: usize) -> usize {
        self.bytes(key).div_ceil(LINE as usize)
    }

    /// Fills an area of the leaf at `at`, for a generation and version.
    pub fn fill_area(
        &self,
        out: &mut [u8],
        at: GlobalAddr,
        (generation, version): (u16, u32),
        v: Stored<'_>,
    ) {
        out.fill(0);
        let len = match v {
            Stored::Inline(v) => {
                out[8..8 + v.len()].copy_from_slice(v);
                v.len() as u64
            }
            Stored::Block(b) => {
                out[8..16].copy_from_slice(&b.bits().to_le_bytes());
                IN_BLOCK
            }
        };
        let sum = area_sum(&out[8..self.area()], at, generation, version, len);
        out[..8].copy_from_slice(&(len | sum << 16).to_le_bytes());
    }

    /// Fills a whole leaf; its first area counts.
    pub fn fill(&self, out: &mut [u8], at: GlobalAddr, word: Word, key: &[u8], v: Stored<'_>) {
        out.fill(0);
        out[..8].copy_from_slice(&word.bits().to_le_bytes());
        let sum = key_sum(key, at, word.generation);
        out[8..16].copy_from_slice(&(key.len() as u64 | sum << 16).to_le_bytes());
        out[KEY_AT..KEY_AT + key.len()].copy_from_slice(key);
        let area = self.area_at(key.len(), false);
        self.fill_area(&mut out[area..area + self.area()], at, (word.generation, word.version), v);
    }

    /// Checks a leaf. `None` when it is torn, no leaf, or longer than these bytes.
    pub fn check<'a>(&self, at: GlobalAddr, bytes: &'a [u8]) -> Option<Leaf<'a>> {
        let word = Word::of_bits(u64_at(bytes, 0)?)?;
        let (len, sum) = split(u64_at(bytes, 8)?);
        let len = len as usize;
        if len == 0 || len > MAX_KEY_BYTES || self.bytes(len) > bytes.len() {
            return None;
        }
        let key = &bytes[KEY_AT..KEY_AT + len];
        if key_sum(key, at, word.generation) != sum {
            return None;
        }
        let area = self.area_at(len, word.active);
        let area = &bytes[area..area + self.area()];
        let (len, sum) = split(u64_at(area, 0)?);
        let value = &area[8..];
        if area_sum(value, at, word.generation, word.version, len) != sum {
            return None;
        }
        let value = match len {
            IN_BLOCK if self.value >= 8 => Stored::Block(BlockPtr::from_bits(u64_at(value, 0)?)),
            n => Stored::Inline(value.get(..n as usize)?),
        };
        Some(Leaf { word, key, value })
    }
}

fn split(word: u64) -> (u64, u64) {
    (word & 0xffff, word >> 16)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn key_sum(key: &[u8], at: GlobalAddr, generation: u16) -> u64 {
    check64(key, at.bits().rotate_left(11) ^ u64::from(generation) << 1) & CUT
}

fn area_sum(value: &[u8], at: GlobalAddr, generation: u16, version: u32, len: u64) -> u64 {
    let tag = u64::from(generation) << 40 | u64::from(version) << 17 | len << 1 | 1;
    check64(value, at.bits().rotate_left(29) ^ tag) & CUT
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at() -> GlobalAddr {
        GlobalAddr::new(NodeId::memory(3), 64 * 77)
    }

    proptest! {
        #[test]
        fn words_come_back(state in 0usize..3, active: bool, version in 0u32..1 << 19, generation: u16, node in 0u16..1024, incarnation in 1u16.., held: bool) {
            let state = [LeafState::Pending, LeafState::Live, LeafState::Tombstone][state];
            let holder = held.then_some(Holder { node, incarnation });
            let w = Word { state, active, version, generation, holder };
            prop_assert_eq!(Word::of_bits(w.bits()), Some(w));
            let f = w.flipped();
            prop_assert!(f.active != active && f.holder.is_none() && f.version != version);
        }

        #[test]
        fn leaves_come_back_and_a_flipped_byte_does_not(key in proptest::collection::vec(any::<u8>(), 1..40), value in proptest::collection::vec(any::<u8>(), 0..17), flip in 0usize..4096) {
            let g = LeafShape { value: 16 };
            let word = Word { state: LeafState::Live, active: false, version: 5, generation: 9, holder: None };
            let mut out = vec![0; g.bytes(key.len())];
            g.fill(&mut out, at(), word, &key, Stored::Inline(&value));
            let l = g.check(at(), &out).expect("whole");
            prop_assert_eq!((l.key, l.value, l.word), (&key[..], Stored::Inline(&value), word));
            prop_assert!(g.check(at().plus(64), &out).is_none(), "another place");
            let padding = 16 + key.len()..g.area_at(key.len(), false);
            let counts = 8..g.area_at(key.len(), true);
            let i = counts.start + flip % counts.len();
            out[i] ^= 1;
            prop_assert!(padding.contains(&i) || g.check(at(), &out).is_none());
        }

        #[test]
        fn garbage_is_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let g = LeafShape { value: 8 };
            let _ = g.check(at(), &bytes);
        }
    }

    #[test]
    fn an_area_of_another_version_does_not_count() {
        let g = LeafShape { value: 8 };
        let word =
            Word { state: LeafState::Live, active: false, version: 0, generation: 1, holder: None };
        let mut out = vec![0; g.bytes(24)];
        g.fill(&mut out, at(), word, &[7; 24], Stored::Inline(&[1; 8]));
        let area = g.area_at(24, true);
        let second = area..area + g.area();
        g.fill_area(&mut out[second], at(), (1, 1), Stored::Block(BlockPtr::from_bits(99)));
        assert_eq!(g.check(at(), &out).unwrap().value, Stored::Inline(&[1; 8]));
        out[..8].copy_from_slice(&word.flipped().bits().to_le_bytes());
        assert_eq!(g.check(at(), &out).unwrap().value, Stored::Block(BlockPtr::from_bits(99)));
        out[..8].copy_from_slice(&word.flipped().flipped().bits().to_le_bytes());
        assert!(g.check(at(), &out).is_none());
        assert_eq!(g.bytes(24), 72);
    }
}
