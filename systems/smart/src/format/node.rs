//! An inner node: reverse pointer, header, slots. All types share this layout; a larger type has
//! more slots.

use dmtree_fabric::GlobalAddr;

use super::header::Header;
use super::slot::{NodeType, Slot};
use dmtree_parts::bytes::get_u64;

const HEADER_AT: usize = 8;
const SLOTS_AT: usize = 16;

/// Offset of the header in a node.
pub const HEADER_OFFSET: u64 = HEADER_AT as u64;

/// Bytes of a node with this many slots.
pub const fn bytes(slots: usize) -> usize {
    SLOTS_AT + 8 * slots
}

/// Address of slot `i` of a node.
pub const fn slot_at(node: GlobalAddr, i: usize) -> GlobalAddr {
    node.plus((SLOTS_AT + 8 * i) as u64)
}

/// A node as it was READ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its address.
    pub at: GlobalAddr,
    /// The slot that names it, as the node has it; it may be old.
    pub rev: GlobalAddr,
    /// Its header.
    pub header: Header,
    /// The slots that were READ, at most as many as the header's type has.
    pub slots: Vec<Slot>,
}

impl Node {
    /// Parses an image; `None` when the node is deleted, or when there is no node.
    pub fn parse(at: GlobalAddr, image: &[u8]) -> Option<Self> {
        let header = Header::parse(get_u64(image, HEADER_AT))?;
        let rev = GlobalAddr::from_bits(get_u64(image, 0));
        let words = image[SLOTS_AT..].chunks_exact(8).take(header.kind.capacity());
        let slot = |w: &[u8]| Slot::from_bits(get_u64(w, 0));
        Some(Self { at, rev, header, slots: words.map(slot).collect() })
    }

    /// Adds slots of a second READ.
    pub fn extend(&mut self, image: &[u8]) {
        let room = self.header.kind.capacity().saturating_sub(self.slots.len());
        let words = image.chunks_exact(8).take(room);
        self.slots.extend(words.map(|w| Slot::from_bits(get_u64(w, 0))));
    }

    /// The slot of a byte, with its number.
    pub fn find(&self, byte: u8) -> Option<(usize, Slot)> {
        let mut all = self.slots.iter().copied().enumerate();
        all.find(|(_, s)| !s.is_empty() && s.partial() == byte)
    }

    /// The number of taken slots: those before the first empty one.
    pub fn taken(&self) -> usize {
        self.slots.iter().position(|s| s.is_empty()).unwrap_or(self.slots.len())
    }
}

/// A node that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Its address.
    pub at: GlobalAddr,
    /// The slot that will name it.
    pub rev: GlobalAddr,
    /// Its header.
    pub header: Header,
    /// Its first slots.
    pub slots: Vec<Slot>,
}

impl NewNode {
    /// Bytes of its image; the image has as many slots as its type.
    pub fn bytes(&self) -> usize {
        bytes(self.header.kind.capacity())
    }

    /// Writes its image into `image`.
    pub fn put(&self, image: &mut [u8]) {
        image.fill(0);
        image[..8].copy_from_slice(&self.rev.bits().to_le_bytes());
        image[HEADER_AT..SLOTS_AT].copy_from_slice(&self.header.bits().to_le_bytes());
        for (word, slot) in image[SLOTS_AT..].chunks_exact_mut(8).zip(&self.slots) {
            word.copy_from_slice(&slot.bits().to_le_bytes());
        }
    }

    /// The node as a READ would return it.
    pub fn as_read(&self) -> Node {
        let mut slots = self.slots.clone();
        slots.resize(self.header.kind.capacity(), Slot::EMPTY);
        Node { at: self.at, rev: self.rev, header: self.header, slots }
    }

    /// Its type.
    pub fn kind(&self) -> NodeType {
        self.header.kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmtree_fabric::NodeId;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_put_is_read(count in 0usize..17, depth in 1u8..100, shared in proptest::collection::vec(any::<u8>(), 0..7)) {
            let at = GlobalAddr::new(NodeId::memory(0), 1 << 20);
            let kind = NodeType::of_code(3).unwrap();
            let slots: Vec<_> = (0..count).map(|i| Slot::leaf(i as u8, 57, at.plus(64 * i as u64)).unwrap()).collect();
            let new = NewNode { at, rev: slot_at(at, 3), header: Header::new(depth, kind, &shared), slots };
            let mut image = vec![7; new.bytes()];
            new.put(&mut image);
            prop_assert_eq!(image.len(), 144);
            let node = Node::parse(at, &image).unwrap();
            prop_assert_eq!(&node, &new.as_read());
            prop_assert_eq!(node.taken(), count);
            for i in 0..count {
                prop_assert_eq!(node.find(i as u8), Some((i, new.slots[i])));
            }
            prop_assert_eq!(node.find(200), None);
            // Parses the image in two parts, as two READs return it.
            let mut parts = Node::parse(at, &image[..48]).unwrap();
            parts.extend(&image[48..]);
            prop_assert_eq!(parts, node);
        }
    }
}
