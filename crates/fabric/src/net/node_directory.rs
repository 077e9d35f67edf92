//! The node directory: the nodes of a pool, their addresses, and the sizes of their regions.

use serde::{Deserialize, Serialize};

use crate::addr::{NodeId, Role};
use crate::membership::Member;

/// A node in its newest incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEntry {
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
    entries: Vec<NodeEntry>,
}

impl NodeDirectory {
    /// All of them.
    pub fn entries(&self) -> &[NodeEntry] {
        &self.entries
    }

    /// Where a node is.
    pub fn find(&self, node: NodeId) -> Option<&NodeEntry> {
        let i = self.entries.binary_search_by_key(&node, |p| p.member.node).ok()?;
        self.entries.get(i)
    }

    /// On-chip memory that every memory node has, bytes: locks are spread over all of them.
    pub(super) fn on_chip_bytes(&self) -> u32 {
        let memory = self.entries.iter().filter(|p| p.member.node.role() == Role::Memory);
        memory.map(|p| p.on_chip_bytes).min().unwrap_or(0)
    }

    /// Records how much on-chip memory a node has.
    pub(super) fn set_on_chip(&mut self, member: Member, bytes: u32) {
        for entry in self.entries.iter_mut().filter(|p| p.member == member) {
            entry.on_chip_bytes = bytes;
        }
    }

    /// Adds a node, or replaces its former incarnation.
    pub(super) fn put(&mut self, entry: NodeEntry) {
        match self.entries.binary_search_by_key(&entry.member.node, |p| p.member.node) {
            Ok(i) => self.entries[i] = entry,
            Err(i) => self.entries.insert(i, entry),
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
            node_directory.put(NodeEntry { member, address, region_bytes: 4096, on_chip_bytes: 0 });
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
