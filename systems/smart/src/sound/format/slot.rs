//! A slot of a node: one word that names a child, with the symbol that leads to it. It changes by
//! compare-and-swap only.
//!
//! Bits 0-8 symbol, 9-11 kind, 12-17 lines of the leaf or type of the node, 18-27 memory node,
//! 28-63 offset / 64. A slot of 0 was never used. A frozen slot has the number of the closing in
//! bits 18-33.
//!
//! A slot belongs to one symbol for the generation of its node. Its states: never used -> child ->
//! vacant (`HOLE`) -> child; a closing freezes it from any of these, and an insertion reuses a
//! frozen slot only after that closing was cancelled.

use dmtree_fabric::{Error, GlobalAddr, NodeId, Result, Role};

use super::head::NodeType;

const KIND_AT: u32 = 9;
const SIZE_AT: u32 = 12;
const MN_AT: u32 = 18;
const OFFSET_AT: u32 = 28;
const LEAF: u64 = 1;
const NODE: u64 = 2;
const HOLE: u64 = 3;
const FROZEN: u64 = 4;
/// The symbol of a slot that was frozen before its first use.
const UNUSED: u64 = 0x1ff;
/// Bytes of a line.
pub const LINE: u64 = 64;
/// Most lines of a leaf.
pub const MAX_LINES: usize = 63;

/// The part of a key that follows a prefix: a byte, or the end of the key. The end sorts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symbol(u16);

impl Symbol {
    /// The end of the key.
    pub const END: Self = Self(0);
    /// The number of symbols.
    pub const COUNT: usize = 257;

    /// The symbol behind the first `n` bytes of a key; the key has at least `n` bytes.
    pub fn of(key: &[u8], n: usize) -> Self {
        key.get(n).map_or(Self::END, |b| Self(1 + u16::from(*b)))
    }
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// A leaf.
    Leaf {
        /// Its address.
        at: GlobalAddr,
        /// Its length in lines.
        lines: usize,
    },
    /// An inner node.
    Node {
        /// Its address.
        at: GlobalAddr,
        /// Slots it has at least: its type as the writer of the slot knew it, a hint.
        kind: NodeType,
    },
    /// No child now; the slot still belongs to its symbol.
    Hole,
    /// No child, and none will come, unless the closing with this number was cancelled.
    Frozen(u16),
}

/// A slot word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot(pub u64);

impl Slot {
    /// Never used.
    pub const EMPTY: Self = Self(0);

    /// A slot that names a leaf.
    pub fn leaf(symbol: Symbol, at: GlobalAddr, lines: usize) -> Self {
        Self::with(symbol.0.into(), LEAF, lines as u64, packed(at))
    }

    /// A slot that names a node.
    pub fn node(symbol: Symbol, at: GlobalAddr, kind: NodeType) -> Self {
        Self::with(symbol.0.into(), NODE, kind.code().into(), packed(at))
    }

    /// The same symbol without a child.
    #[must_use]
    pub fn hole(self) -> Self {
        Self::with(self.0 & 0x1ff, HOLE, 0, 0)
    }

    /// The same symbol, frozen by a closing.
    #[must_use]
    pub fn frozen(self, closing: u16) -> Self {
        let symbol = if self == Self::EMPTY { UNUSED } else { self.0 & 0x1ff };
        Self::with(symbol, FROZEN, 0, u64::from(closing) << MN_AT)
    }

    /// The same child under another symbol.
    #[must_use]
    pub fn under(self, symbol: Symbol) -> Self {
        Self(self.0 & !0x1ff | u64::from(symbol.0))
    }

    fn with(symbol: u64, kind: u64, size: u64, place: u64) -> Self {
        Self(symbol | kind << KIND_AT | size << SIZE_AT | place)
    }

    fn kind(self) -> u64 {
        self.0 >> KIND_AT & 7
    }

    /// Whether the slot belongs to the symbol.
    pub fn is(self, symbol: Symbol) -> bool {
        self != Self::EMPTY && self.0 & 0x1ff == u64::from(symbol.0)
    }

    /// Its symbol; `None` for a slot that was never used.
    pub fn symbol(self) -> Option<Symbol> {
        let bits = self.0 & 0x1ff;
        (self != Self::EMPTY && bits < Symbol::COUNT as u64).then_some(Symbol(bits as u16))
    }

    /// Whether it was frozen before its first use. No slot behind it is used.
    pub fn is_end_mark(self) -> bool {
        self.kind() == FROZEN && self.0 & 0x1ff == UNUSED
    }

    /// Whether it names a child.
    pub fn has_child(self) -> bool {
        matches!(self.kind(), LEAF | NODE)
    }

    /// Its content; `None` for a slot that was never used.
    ///
    /// # Errors
    /// `Corrupt` for bits that no writer writes.
    pub fn child(self) -> Result<Option<Child>> {
        let size = (self.0 >> SIZE_AT & 0x3f) as usize;
        let at = GlobalAddr::new(
            NodeId::memory((self.0 >> MN_AT & 0x3ff) as u16),
            (self.0 >> OFFSET_AT) * LINE,
        );
        let sane = self.is_end_mark() || self.0 & 0x1ff < Symbol::COUNT as u64;
        let child = match self.kind() {
            _ if self == Self::EMPTY => return Ok(None),
            LEAF if size > 0 => Some(Child::Leaf { at, lines: size }),
            NODE => NodeType::of_code(size as u8).map(|kind| Child::Node { at, kind }),
            HOLE => Some(Child::Hole),
            FROZEN => Some(Child::Frozen((self.0 >> MN_AT) as u16)),
            _ => None,
        };
        child
            .filter(|_| sane)
            .map(Some)
            .ok_or_else(|| Error::corrupt(format!("{:#x} is no valid slot word", self.0)))
    }
}

fn packed(at: GlobalAddr) -> u64 {
    debug_assert!(fits(at), "{at}");
    (at.node().index() as u64) << MN_AT | (at.offset() / LINE) << OFFSET_AT
}

/// Whether a slot can name an address: the first 1024 memory nodes, and their first 4 TiB.
pub fn fits(at: GlobalAddr) -> bool {
    at.node().role() == Role::Memory
        && at.node().index() < 1 << 10
        && at.offset().is_multiple_of(LINE)
        && at.offset() / LINE < 1 << 36
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addr(line: u64, mn: u16) -> GlobalAddr {
        GlobalAddr::new(NodeId::memory(mn), line * LINE)
    }

    proptest! {
        #[test]
        fn children_come_back(byte: u8, line in 0u64..1 << 36, mn in 0u16..1024, lines in 1usize..=MAX_LINES, closing: u16) {
            let s = Symbol::of(&[byte], 0);
            let at = addr(line, mn);
            prop_assert!(fits(at));
            let leaf = Slot::leaf(s, at, lines);
            prop_assert_eq!(leaf.child().unwrap(), Some(Child::Leaf { at, lines }));
            prop_assert!(leaf.is(s) && leaf.has_child());
            let other = leaf.under(Symbol::END);
            prop_assert!(other.is(Symbol::END));
            prop_assert_eq!(other.child().unwrap(), leaf.child().unwrap());
            let hole = leaf.hole();
            prop_assert!(hole.is(s) && !hole.has_child());
            prop_assert_eq!(hole.child().unwrap(), Some(Child::Hole));
            let frozen = hole.frozen(closing);
            prop_assert_eq!(frozen.child().unwrap(), Some(Child::Frozen(closing)));
            prop_assert!(frozen.is(s) && !frozen.is_end_mark());
            prop_assert!(Slot::EMPTY.frozen(closing).is_end_mark());
        }

        #[test]
        fn garbage_is_no_panic(bits: u64) {
            let _ = Slot(bits).child();
        }
    }

    #[test]
    fn the_end_sorts_first() {
        assert!(Symbol::END < Symbol::of(&[0], 0));
        assert!(Symbol::of(&[1], 0) < Symbol::of(&[255], 0));
        assert_eq!(Symbol::of(&[7], 1), Symbol::END);
    }
}
