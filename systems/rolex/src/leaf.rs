//! A leaf of either kind: sorted, or a hopscotch table.

use dmtree_fabric::GlobalAddr;
use dmtree_parts::hopscotch::{self, Part};

use crate::format::{FLAGS, Geometry, Leaf, MOVED};

/// A leaf of either kind.
#[derive(Clone, Debug)]
pub enum Node<'g> {
    /// Sorted, and READ whole.
    Sorted(Leaf<'g>),
    /// A hopscotch table, of which a part may have been READ.
    Hopscotch(hopscotch::Leaf<'g>),
}

impl Node<'_> {
    /// Takes the raw bytes of a part; false while it is being written.
    pub fn take(&mut self, part: Part, raw: &[u8]) -> bool {
        match self {
            Self::Sorted(leaf) => leaf.take(part, raw),
            Self::Hopscotch(leaf) => leaf.take(part, raw),
        }
    }

    /// Whether no key that a reader looks for moves within the leaf: of all keys without one.
    pub fn is_still(&self, g: &Geometry, key: Option<&[u8]>) -> bool {
        match (self, &g.table, key) {
            (Self::Hopscotch(leaf), Some(table), Some(key)) => leaf.agrees(table.home(key)),
            (Self::Hopscotch(leaf), ..) => (0..g.span).all(|home| leaf.agrees(home)),
            (Self::Sorted(_), ..) => true,
        }
    }

    fn link(&self) -> u64 {
        match self {
            Self::Sorted(leaf) => leaf.link(),
            Self::Hopscotch(leaf) => leaf.sibling().bits(),
        }
    }

    /// Where its synonym is; null without one.
    pub fn synonym(&self) -> GlobalAddr {
        GlobalAddr::from_bits(self.link() & !FLAGS)
    }

    /// Whether its keys are in another directory.
    pub fn has_moved(&self) -> bool {
        self.link() & MOVED != 0
    }

    /// Its keys are in another directory from now on.
    pub fn set_moved(&mut self) {
        let word = self.link() | MOVED;
        match self {
            Self::Sorted(leaf) => leaf.set_link(word),
            Self::Hopscotch(leaf) => leaf.set_metadata(GlobalAddr::from_bits(word), &[], &[]),
        }
    }

    /// The value of a key, as far as it was READ.
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Sorted(leaf) => leaf.find(key).ok().map(|slot| leaf.value(slot)),
            Self::Hopscotch(leaf) => leaf.find(key).map(|slot| leaf.value(slot)),
        }
    }

    /// Its pairs, in any order.
    pub fn pairs(&self) -> Vec<(&[u8], &[u8])> {
        match self {
            Self::Sorted(leaf) => leaf.pairs().collect(),
            Self::Hopscotch(leaf) => {
                leaf.used().map(|slot| (leaf.key(slot), leaf.value(slot))).collect()
            }
        }
    }

    /// The raw bytes of the whole leaf, in its next version.
    pub fn seal(&mut self, g: &Geometry, raw: &mut [u8]) {
        match self {
            Self::Sorted(leaf) => leaf.seal(raw),
            Self::Hopscotch(leaf) => {
                leaf.raise();
                g.lines.encode(0..leaf.bytes.len(), &leaf.bytes, raw);
            }
        }
    }
}
