//! A slot: one word that names a child, with the byte that leads to it. Zero is empty.

use dmtree_fabric::{Error, GlobalAddr, NodeId, Result, Role};

/// Bits 0-7: the byte.
const LEAF: u64 = 1 << 15;
const SIZE_SHIFT: u32 = 8;
const KIND_SHIFT: u32 = 10;
const ADDR_SHIFT: u32 = 16;
/// Unit of offsets, bytes.
pub const UNIT: u64 = 16;
const OFFSET_BITS: u32 = 40;

/// The size of an inner node, as slots and headers encode it: 5 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeType(u8);

impl NodeType {
    /// The type of new nodes.
    pub const N4: Self = Self(1);
    /// Between N32 and N64; only coarse sets of types have it.
    const N48: Self = Self(8);

    /// The type with this code; `None` for 0 and unknown codes.
    pub fn of_code(code: u8) -> Option<Self> {
        matches!(code, 1..=8).then_some(Self(code))
    }

    /// Its code, 1 to 8.
    pub fn code(self) -> u8 {
        self.0
    }

    /// How many slots it has.
    pub fn capacity(self) -> usize {
        if self == Self::N48 { 48 } else { 2 << self.0 }
    }
}

/// The node types that an index uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTypes {
    /// Powers of two from 4 on; otherwise 4, 16, 48, 256.
    pub fine: bool,
    /// Slots of the largest type. Every node has room for so many.
    pub largest: usize,
}

impl NodeTypes {
    /// The smallest type with at least this many slots; `None` beyond the largest.
    pub fn fitting(&self, slots: usize) -> Option<NodeType> {
        let all: &[u8] = if self.fine { &[1, 2, 3, 4, 5, 6, 7] } else { &[1, 3, 8, 7] };
        let mut all = all.iter().map(|code| NodeType(*code));
        all.find(|t| t.capacity() >= slots).filter(|t| t.capacity() <= self.largest)
    }
}

/// A slot's word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot(u64);

impl Slot {
    /// No child.
    pub const EMPTY: Self = Self(0);

    /// From a word of remote memory.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The word.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// A slot that names an inner node.
    ///
    /// # Errors
    /// `Incompatible` for an address that a slot cannot encode.
    pub fn node(partial: u8, kind: NodeType, at: GlobalAddr) -> Result<Self> {
        Ok(Self(pack(at)? | u64::from(kind.0) << KIND_SHIFT | u64::from(partial)))
    }

    /// A slot that names a leaf of `bytes` bytes (encoded as 0 from 128 on).
    pub fn leaf(partial: u8, bytes: usize, at: GlobalAddr) -> Result<Self> {
        let size = if bytes < 128 { bytes as u64 } else { 0 };
        Ok(Self(pack(at)? | LEAF | size << SIZE_SHIFT | u64::from(partial)))
    }

    /// Whether it names nothing.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether it names a leaf.
    pub const fn is_leaf(self) -> bool {
        self.0 & LEAF != 0
    }

    /// The byte that leads to the child.
    pub const fn partial(self) -> u8 {
        self.0 as u8
    }

    /// The type of the node it names; `None` for leaves and for invalid bits.
    pub fn kind(self) -> Option<NodeType> {
        if self.is_leaf() { None } else { NodeType::of_code((self.0 >> KIND_SHIFT) as u8 & 0x1f) }
    }

    /// Bytes of the leaf it names, as the slot encodes them: 0 from 128 on.
    pub const fn leaf_bytes(self) -> usize {
        (self.0 >> SIZE_SHIFT) as usize & 0x7f
    }

    /// The address of the child.
    pub const fn child(self) -> GlobalAddr {
        let packed = self.0 >> ADDR_SHIFT;
        let node = NodeId::from_bits((packed & 0xff) as u16);
        GlobalAddr::new(node, (packed >> 8) * UNIT)
    }

    /// The same child under another byte.
    #[must_use]
    pub const fn with_partial(self, partial: u8) -> Self {
        Self(self.0 & !0xff | partial as u64)
    }

    /// The same node of another type.
    #[must_use]
    pub const fn with_kind(self, kind: NodeType) -> Self {
        Self(self.0 & !(0x1f << KIND_SHIFT) | (kind.0 as u64) << KIND_SHIFT)
    }

    /// Whether both name the same child; its type may differ.
    pub fn names_same(self, other: Self) -> bool {
        self.is_leaf() == other.is_leaf() && self.0 >> ADDR_SHIFT == other.0 >> ADDR_SHIFT
    }
}

fn pack(at: GlobalAddr) -> Result<u64> {
    let (node, units) = (u64::from(at.node().bits()), at.offset() / UNIT);
    let fits = at.node().role() == Role::Memory
        && node < 256
        && at.space() == 0
        && at.offset().is_multiple_of(UNIT)
        && units < 1 << OFFSET_BITS;
    if !fits {
        return Err(Error::incompatible(format!(
            "a slot cannot name {at}: 256 memory nodes at most, in steps of {UNIT} bytes"
        )));
    }
    Ok((node | units << 8) << ADDR_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn types_have_the_published_sizes() {
        let sizes: Vec<_> =
            (1..=8).map(|c| NodeType::of_code(c).expect("a code").capacity()).collect();
        assert_eq!(sizes, [4, 8, 16, 32, 64, 128, 256, 48]);
        let fitting = |fine, largest| {
            let types = NodeTypes { fine, largest };
            [1, 5, 17, 49, 257].map(|n| types.fitting(n).map(NodeType::capacity))
        };
        assert_eq!(fitting(true, 256), [Some(4), Some(8), Some(32), Some(64), None]);
        assert_eq!(fitting(false, 256), [Some(4), Some(16), Some(48), Some(256), None]);
        assert_eq!(fitting(true, 16), [Some(4), Some(8), None, None, None]);
    }

    proptest! {
        #[test]
        fn slots_keep_what_they_are_given(partial: u8, other: u8, code in 1u8..9, bytes in 1usize..300, m in 0u16..256, units in 1u64..1 << 40) {
            let at = GlobalAddr::new(NodeId::memory(m), units * UNIT);
            let kind = NodeType::of_code(code).unwrap();
            let node = Slot::node(partial, kind, at).unwrap();
            prop_assert!(!node.is_leaf() && !node.is_empty());
            prop_assert_eq!((node.partial(), node.kind(), node.child()), (partial, Some(kind), at));
            let moved = node.with_partial(other).with_kind(NodeType::N4);
            prop_assert_eq!((moved.partial(), moved.kind(), moved.child()), (other, Some(NodeType::N4), at));
            prop_assert!(moved.names_same(node));
            let leaf = Slot::leaf(partial, bytes, at).unwrap();
            prop_assert_eq!((leaf.partial(), leaf.kind(), leaf.child()), (partial, None, at));
            prop_assert_eq!(leaf.leaf_bytes(), if bytes < 128 { bytes } else { 0 });
            prop_assert!(leaf.is_leaf() && !leaf.names_same(node));
        }

        #[test]
        fn garbage_is_no_panic(bits: u64) {
            let s = Slot::from_bits(bits);
            let _ = (s.kind(), s.child(), s.partial(), s.leaf_bytes());
        }

        #[test]
        fn what_a_slot_cannot_hold_is_refused(m in 0u16..1000, offset in 0u64..1 << 30) {
            let at = GlobalAddr::new(NodeId::memory(m), offset);
            prop_assert_eq!(Slot::leaf(0, 8, at).is_ok(), m < 256 && offset % UNIT == 0);
        }
    }
}
