//! An inner node: a head with its state, and slots.
//!
//! | offset | field |
//! |---|---|
//! | 0 | head: bytes of prefix 16, type 3, state 2, closings 16, generation 16, mark 8 |
//! | 8 | XXH3-64 of the prefix: all bytes that its keys share; constant |
//! | 16 | slots; there is room for all of them |
//!
//! The head and the slots change by compare-and-swap only. The generation counts the uses of the
//! node's address.

use dmtree_fabric::GlobalAddr;
use dmtree_parts::hash::check64;

use super::slot::{Slot, Symbol};

const MARK: u64 = 0xa7;
const SEED: u64 = 0x7072_6566_6978;
/// Bytes before the slots.
pub const SLOTS_AT: usize = 16;

/// How many slots of a node can be in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeType(u8);

impl NodeType {
    /// The type of new nodes.
    pub const SMALLEST: Self = Self(0);
    /// A slot for every symbol.
    pub const LARGEST: Self = Self(6);

    /// The type with this code.
    pub fn of_code(code: u8) -> Option<Self> {
        (code <= Self::LARGEST.0).then_some(Self(code))
    }

    /// Its code, 0 to 6.
    pub fn code(self) -> u8 {
        self.0
    }

    /// Its slots: 4, 8, 16, 32, 64, 128 or 257.
    pub fn slots(self) -> usize {
        if self == Self::LARGEST { Symbol::COUNT } else { 4 << self.0 }
    }

    /// Bytes of a node up to its last slot.
    pub fn bytes(self) -> usize {
        SLOTS_AT + 8 * self.slots()
    }

    /// The next larger type; `None` after the largest.
    pub fn next(self) -> Option<Self> {
        Self::of_code(self.0 + 1)
    }

    /// The smallest type with this many slots, at most 257.
    pub fn fitting(slots: usize) -> Self {
        let all = (0..=Self::LARGEST.0).map(Self);
        all.into_iter().find(|t| t.slots() >= slots).unwrap_or(Self::LARGEST)
    }
}

/// NodeState of a node within its generation, by its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Written; a slot may or may not name it.
    Pending = 0,
    /// A slot names it.
    Linked = 1,
    /// A slot names it, and a client freezes its slots, because they have no children.
    Closing = 2,
    /// All slots are frozen for ever.
    Tombstone = 3,
}

/// The head word, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes of prefix.
    pub len: usize,
    /// Its type.
    pub kind: NodeType,
    /// Its state.
    pub state: NodeState,
    /// How often a closing was begun or cancelled.
    pub closings: u16,
    /// The generation of its address.
    pub generation: u16,
}

impl Head {
    /// The word.
    pub fn bits(self) -> u64 {
        self.len as u64
            | u64::from(self.kind.0) << 16
            | (self.state as u64) << 19
            | u64::from(self.closings) << 21
            | u64::from(self.generation) << 37
            | MARK << 53
    }

    /// Decodes a word; `None` when it is no head.
    pub fn of_bits(bits: u64) -> Option<Self> {
        let state = match bits >> 19 & 3 {
            0 => NodeState::Pending,
            1 => NodeState::Linked,
            2 => NodeState::Closing,
            _ => NodeState::Tombstone,
        };
        let kind = NodeType::of_code((bits >> 16 & 7) as u8)?;
        (bits >> 53 == MARK).then_some(Self {
            len: (bits & 0xffff) as usize,
            kind,
            state,
            closings: (bits >> 21) as u16,
            generation: (bits >> 37) as u16,
        })
    }

    /// Whether the head says that the node is in the tree.
    pub fn is_linked(&self) -> bool {
        matches!(self.state, NodeState::Linked | NodeState::Closing)
    }
}

/// The hash that a node has of its prefix.
pub fn prefix_hash(prefix: &[u8]) -> u64 {
    check64(prefix, SEED)
}

/// Address of slot `i` of a node.
pub fn slot_at(node: GlobalAddr, i: usize) -> GlobalAddr {
    node.plus((SLOTS_AT + 8 * i) as u64)
}

/// Fills an image with a node with these slots; clears the rest.
pub fn fill(out: &mut [u8], head: Head, prefix: &[u8], slots: &[Slot]) {
    out.fill(0);
    out[..8].copy_from_slice(&head.bits().to_le_bytes());
    out[8..16].copy_from_slice(&prefix_hash(prefix).to_le_bytes());
    for (i, s) in slots.iter().enumerate() {
        out[SLOTS_AT + 8 * i..SLOTS_AT + 8 * i + 8].copy_from_slice(&s.0.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn heads_come_back(len in 0usize..1025, code in 0u8..7, state in 0u64..4, closings: u16, generation: u16) {
            let state = [NodeState::Pending, NodeState::Linked, NodeState::Closing, NodeState::Tombstone][state as usize];
            let head = Head { len, kind: NodeType::of_code(code).unwrap(), state, closings, generation };
            prop_assert_eq!(Head::of_bits(head.bits()), Some(head));
        }
    }

    #[test]
    fn types_double_and_the_last_has_a_slot_for_every_symbol() {
        let all: Vec<usize> = (0..7).map(|c| NodeType::of_code(c).unwrap().slots()).collect();
        assert_eq!(all, [4, 8, 16, 32, 64, 128, 257]);
        assert_eq!(NodeType::of_code(7), None);
        assert_eq!([1, 4, 5, 129, 257].map(|n| NodeType::fitting(n).slots()), [4, 4, 8, 257, 257]);
        assert_eq!(Head::of_bits(0), None);
    }
}
