//! Names of nodes and of words in their memory.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The role of a node. It is part of the node's id, so that no table is needed to look it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Much memory, next to no CPU.
    Memory,
    /// Many cores, little memory.
    Compute,
    /// A part of the pool's journal, on a device; no memory.
    Journal,
}

/// A node of the cluster: 16 bits, of which the highest is set for compute nodes, and the second
/// for journal nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(u16);

impl NodeId {
    const COMPUTE: u16 = 0x8000;
    const JOURNAL: u16 = 0x4000;

    /// The `n`-th memory node.
    pub const fn memory(n: u16) -> Self {
        assert!(n < Self::JOURNAL, "at most 16384 memory nodes");
        Self(n)
    }

    /// The `n`-th journal node.
    pub const fn journal(n: u16) -> Self {
        assert!(n < Self::JOURNAL, "at most 16384 journal nodes");
        Self(n | Self::JOURNAL)
    }

    /// The `n`-th compute node.
    pub const fn compute(n: u16) -> Self {
        assert!(n < Self::COMPUTE, "at most 32768 compute nodes");
        Self(n | Self::COMPUTE)
    }

    /// The node with these raw 16 bits, as they stand in a [`GlobalAddr`].
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The raw 16 bits.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The node's role.
    pub const fn role(self) -> Role {
        match self.0 & (Self::COMPUTE | Self::JOURNAL) {
            0 => Role::Memory,
            Self::JOURNAL => Role::Journal,
            _ => Role::Compute,
        }
    }

    /// Whether it is a compute node.
    #[inline]
    pub const fn is_compute(self) -> bool {
        self.0 & Self::COMPUTE != 0
    }

    /// Its number among the nodes of its role.
    pub const fn index(self) -> usize {
        match self.is_compute() {
            true => (self.0 & !Self::COMPUTE) as usize,
            false => (self.0 & !Self::JOURNAL) as usize,
        }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role() {
            Role::Memory => write!(f, "mn{}", self.index()),
            Role::Compute => write!(f, "cn{}", self.index()),
            Role::Journal => write!(f, "jn{}", self.index()),
        }
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A value for each node, in tables by the highest two bits of its number: those tell the role, and
/// halve the compute nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByNode<T>([Vec<T>; 4]);

/// The bits of a node's number that are its place in one of the tables.
const PLACE_BITS: u32 = 14;

impl<T: Clone + Default> ByNode<T> {
    #[inline]
    fn place(node: NodeId) -> (usize, usize) {
        (usize::from(node.0 >> PLACE_BITS), usize::from(node.0) & ((1 << PLACE_BITS) - 1))
    }

    /// The value of a node; `None` beyond the last one that was asked for with [`ByNode::at`].
    #[inline]
    pub(crate) fn get(&self, node: NodeId) -> Option<&T> {
        let (table, place) = Self::place(node);
        self.0[table].get(place)
    }

    /// The value of a node, for changes.
    #[inline]
    pub(crate) fn at(&mut self, node: NodeId) -> &mut T {
        let (table, place) = Self::place(node);
        let table = &mut self.0[table];
        if table.len() <= place {
            table.resize(place + 1, T::default());
        }
        &mut table[place]
    }

    /// All values: memory nodes first, then compute nodes, each in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, &T)> {
        // The second table is that of the journal nodes.
        [0, 2, 3, 1].into_iter().flat_map(|table| {
            let nodes = (table as u16) << PLACE_BITS..;
            nodes.map(NodeId::from_bits).zip(&self.0[table])
        })
    }
}

/// An address in the memory of some node: node 16 bits, space 4 bits, byte offset 44 bits; packed
/// into the 8 bytes that a compare-and-swap can exchange. The first line of every region is
/// reserved, so 0 is null.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GlobalAddr(u64);

impl GlobalAddr {
    /// No address.
    pub const NULL: Self = Self(0);
    const OFFSET_BITS: u32 = 44;
    const OFFSET_MASK: u64 = (1 << Self::OFFSET_BITS) - 1;
    /// The largest offset plus one.
    pub const MAX_OFFSET: u64 = 1 << Self::OFFSET_BITS;

    /// Byte `offset` of `node`'s main memory.
    ///
    /// # Panics
    /// When the offset does not fit 44 bits; offsets come from allocators, never from remote bytes.
    pub const fn new(node: NodeId, offset: u64) -> Self {
        assert!(offset < Self::MAX_OFFSET, "an offset has 44 bits");
        Self((node.bits() as u64) << 48 | offset)
    }

    /// Byte `offset` of `node`'s on-chip (device) memory.
    pub const fn on_chip(node: NodeId, offset: u64) -> Self {
        Self(Self::new(node, offset).0 | 1 << Self::OFFSET_BITS)
    }

    /// The address with these bits, which may come from remote memory: using it can fail, never
    /// panic.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The packed form.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether this is [`GlobalAddr::NULL`].
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The node that owns the memory.
    pub const fn node(self) -> NodeId {
        NodeId::from_bits((self.0 >> 48) as u16)
    }

    /// Whether the address lies in on-chip memory.
    pub const fn is_on_chip(self) -> bool {
        (self.0 >> Self::OFFSET_BITS) & 0xf == 1
    }

    /// The 4 bits that name the kind of memory: 0 main, 1 on-chip.
    pub const fn space(self) -> u8 {
        ((self.0 >> Self::OFFSET_BITS) & 0xf) as u8
    }

    /// Byte offset in the node's region.
    pub const fn offset(self) -> u64 {
        self.0 & Self::OFFSET_MASK
    }

    /// The address `bytes` further on. Wraps inside the 44 bits, so that an address made of garbage
    /// stays harmless.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0 & !Self::OFFSET_MASK | self.offset().wrapping_add(bytes) & Self::OFFSET_MASK)
    }
}

impl fmt::Display for GlobalAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chip = if self.is_on_chip() { "!" } else { "" };
        write!(f, "{}{}+{:#x}", self.node(), chip, self.offset())
    }
}

impl fmt::Debug for GlobalAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_and_unpacks() {
        let a = GlobalAddr::new(NodeId::compute(7), 0x1234);
        assert_eq!((a.node(), a.offset(), a.is_on_chip()), (NodeId::compute(7), 0x1234, false));
        assert_eq!(GlobalAddr::from_bits(a.bits()), a);
        let chip = GlobalAddr::on_chip(NodeId::memory(1), 64);
        assert!(chip.is_on_chip() && chip.plus(8).is_on_chip() && chip.plus(8).offset() == 72);
        assert_eq!(format!("{a} {chip}"), "cn7+0x1234 mn1!+0x40");
    }

    #[test]
    fn each_node_has_a_place_of_its_own() {
        let (memory, journal) = (NodeId::memory, NodeId::journal);
        let nodes = [memory(0), memory(3), NodeId::compute(0), NodeId::compute(20_000), journal(2)];
        let mut all = ByNode::default();
        for (i, node) in nodes.into_iter().enumerate() {
            assert_eq!(all.get(node).copied().unwrap_or(0), 0);
            *all.at(node) = i + 1;
        }
        let found: Vec<_> = all.iter().filter(|(_, v)| **v > 0).map(|(n, v)| (n, *v)).collect();
        assert_eq!(found, nodes.into_iter().zip(1..).collect::<Vec<_>>());
    }

    #[test]
    fn garbage_wraps_inside_its_node() {
        let a = GlobalAddr::from_bits(u64::MAX).plus(8);
        assert_eq!((a.node().bits(), a.offset()), (0xffff, 7));
    }
}
