//! The node directory: the nodes of a pool, their addresses, and the sizes of their regions.

use serde::{Deserialize, Serialize};

use crate::addr::{NodeId, Role};
use crate::membership::Member;

/// A node in its newest incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The member.
    pub member: Member,
    /// Where it listens: host and port. Empty for the first memory node, which every process
    /// reaches by the address that it was configured with.
    pub address: String,
    /// Bytes of its region.
    pub region_bytes: u64,
    /// Bytes of on-chip memory that it exposes for locks.
    pub on_chip_bytes: u32,
}

/// All nodes, in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDirectory {
    places: Vec<Place>,
}

impl NodeDirectory {
    /// All of them.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Where a node is.
    pub fn find(&self, node: NodeId) -> Option<&Place> {
        let i = self.places.binary_search_by_key(&node, |p| p.member.node).ok()?;
        self.places.get(i)
    }

    /// On-chip memory that every memory node has, bytes: locks are spread over all of them.
    pub(super) fn on_chip_bytes(&self) -> u32 {
        let memory = self.places.iter().filter(|p| p.member.node.role() == Role::Memory);
        memory.map(|p| p.on_chip_bytes).min().unwrap_or(0)
    }

    /// Records how much on-chip memory a node has.
    pub(super) fn set_on_chip(&mut self, member: Member, bytes: u32) {
        for place in self.places.iter_mut().filter(|p| p.member == member) {
            place.on_chip_bytes = bytes;
        }
    }

    /// Adds a node, or replaces its former incarnation.
    pub(super) fn put(&mut self, place: Place) {
        match self.places.binary_search_by_key(&place.member.node, |p| p.member.node) {
            Ok(i) => self.places[i] = place,
            Err(i) => self.places.insert(i, place),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_on_chip_when_every_memory_node_has_room() {
        let mut node_directory = NodeDirectory::default();
        assert_eq!(node_directory.on_chip_bytes(), 0);
        let member = |node| Member { node, incarnation: 1 };
        for node in [NodeId::memory(0), NodeId::memory(1), NodeId::compute(0)] {
            let (member, address) = (member(node), String::new());
            node_directory.put(Place { member, address, region_bytes: 4096, on_chip_bytes: 0 });
        }
        node_directory.set_on_chip(member(NodeId::memory(1)), 512);
        assert_eq!(node_directory.on_chip_bytes(), 0, "mn0 has none");
        node_directory.set_on_chip(member(NodeId::memory(0)), 4096);
        assert_eq!(node_directory.on_chip_bytes(), 512, "the least");
        let stale = Member { node: NodeId::memory(1), incarnation: 2 };
        node_directory.set_on_chip(stale, 0);
        assert_eq!(node_directory.on_chip_bytes(), 512, "another incarnation's");
    }
}
