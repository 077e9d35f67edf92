//! New nodes between a slot and its child, where two subtrees part after shared bytes.
//!
//! A header holds 6 bytes and a slot one more. Longer shared bytes take a chain of nodes with one
//! child each: every node but the last covers 7 positions.

use dmtree_fabric::{Error, GlobalAddr, Result};

use super::header::{Header, MOST_BYTES};
use super::node::{NewNode, slot_at};
use super::slot::{NodeType, Slot};

/// Positions of a node with one child.
const SPAN: usize = MOST_BYTES + 1;

/// How many nodes it takes to part after `shared` equal bytes.
pub const fn nodes_for(shared: usize) -> usize {
    shared / SPAN + 1
}

/// The point where subtrees part.
#[derive(Clone, Copy, Debug)]
pub struct Fork<'a> {
    /// The slot that will name the first node.
    pub above: GlobalAddr,
    /// The position behind the byte of that slot.
    pub depth: usize,
    /// The bytes that all keys share from that position on.
    pub shared: &'a [u8],
    /// The type of the last node.
    pub kind: NodeType,
}

impl Fork<'_> {
    /// Builds the nodes at `places`; the slots of the last one are `children`.
    ///
    /// # Errors
    /// `Corrupt` for positions beyond a header's range, and if the number of places is not
    /// [`nodes_for`].
    pub fn build(&self, places: &[GlobalAddr], children: Vec<Slot>) -> Result<Vec<NewNode>> {
        let (mut rest, mut depth, mut rev) = (self.shared, self.depth, self.above);
        if places.len() != nodes_for(rest.len()) {
            return Err(Error::corrupt(format!("{} places for a fork", places.len())));
        }
        let mut nodes = Vec::with_capacity(places.len());
        for pair in places.windows(2) {
            let (at, next) = (pair[0], pair[1]);
            let header = Header::new(position(depth)?, NodeType::N4, &rest[..MOST_BYTES]);
            let slots = vec![Slot::node(rest[MOST_BYTES], NodeType::N4, next)?];
            nodes.push(NewNode { at, rev, header, slots });
            (rest, depth, rev) = (&rest[SPAN..], depth + SPAN, slot_at(at, 0));
        }
        if let Some(last) = nodes.last_mut() {
            last.slots[0] = last.slots[0].with_kind(self.kind);
        }
        let header = Header::new(position(depth)?, self.kind, rest);
        let at = places[places.len() - 1];
        nodes.push(NewNode { at, rev, header, slots: children });
        Ok(nodes)
    }
}

/// A position as a header holds it.
fn position(depth: usize) -> Result<u8> {
    u8::try_from(depth).map_err(|_| Error::corrupt(format!("a node at position {depth}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmtree_fabric::NodeId;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_fork_covers_every_position_once(depth in 1usize..40, shared in proptest::collection::vec(any::<u8>(), 0..60)) {
            let at = |i: usize| GlobalAddr::new(NodeId::memory(0), (1 << 20) + i as u64 * 64);
            let count = nodes_for(shared.len());
            let places: Vec<_> = (0..count).map(at).collect();
            let children = vec![Slot::leaf(1, 57, at(900)).unwrap(), Slot::leaf(2, 57, at(901)).unwrap()];
            let kind = NodeType::of_code(2).unwrap();
            let fork = Fork { above: at(999), depth, shared: &shared, kind };
            prop_assert!(fork.build(&places[1..], vec![]).is_err());
            let nodes = fork.build(&places, children.clone()).unwrap();
            // Follows the nodes as a search does.
            let (mut position, mut rev, mut seen) = (depth, at(999), Vec::new());
            for (i, n) in nodes.iter().enumerate() {
                prop_assert_eq!((n.at, n.rev, usize::from(n.header.depth)), (places[i], rev, position));
                seen.extend_from_slice(n.header.shared());
                position = n.header.discriminates() + 1;
                if let Some(next) = nodes.get(i + 1) {
                    prop_assert_eq!((n.slots.len(), n.kind(), n.slots[0].child()), (1, NodeType::N4, next.at));
                    prop_assert_eq!(n.slots[0].kind(), Some(next.kind()));
                    seen.push(n.slots[0].partial());
                    rev = slot_at(n.at, 0);
                } else {
                    prop_assert_eq!((&n.slots, n.kind()), (&children, kind));
                }
            }
            prop_assert_eq!(seen, shared);
        }
    }
}
