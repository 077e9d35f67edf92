//! Tombstones: leaves that forward to the successors that took over their ranges.

use dmtree_fabric::{GlobalAddr, Result, Step};

use crate::format::{Slot, SlotState, Table, Ver, check_leaf};
use crate::hop::NO_FENCE;
use crate::leaf::{LeafCopy, LeafImage, NodeHeader};
use crate::{Client, Route};

/// Turns leaves into tombstones.
#[derive(Clone, Copy)]
pub(crate) struct Tombstones<'c>(pub &'c Client);

impl Tombstones<'_> {
    /// Commits: the leaf's range goes to the leaf at `forward`.
    pub(crate) async fn forward(self, leaf: &Route, forward: GlobalAddr) -> Result<()> {
        let node = &self.0.node;
        let bytes = node.leaf_bytes(leaf.capacity);
        let table = node.has_tables().then_some(leaf.table);
        node.pool.collection().log_leaving((leaf.leaf, bytes), table);
        self.forward_to(leaf.leaf, forward).await
    }

    /// The same for an inner node.
    pub(crate) async fn forward_inner(self, inner: GlobalAddr, forward: GlobalAddr) -> Result<()> {
        let node = &self.0.node;
        let bytes = u64::from(node.inner_arena.key().object_bytes);
        node.pool.collection().log_leaving((inner, bytes), None);
        self.forward_to(inner, forward).await
    }

    async fn forward_to(self, at: GlobalAddr, forward: GlobalAddr) -> Result<()> {
        self.0.check_lease()?;
        self.0.ep.write_word(at.plus(self.0.node.g.forward_at() as u64), forward.bits()).await
    }

    /// Frees the slots of a tombstone, under the next range.
    pub(crate) async fn blank(
        self,
        leaf: &LeafCopy,
        table: &Table,
        forward: GlobalAddr,
    ) -> Result<()> {
        let old = NodeHeader::of(&self.0.node.g, leaf.addr, &leaf.bytes);
        let header = NodeHeader { ver: table.ver.bumped(), forward, ..old };
        self.write(leaf.addr, &leaf.bytes, &header).await
    }

    /// Whether a leaf is whole, and none of its slots is in use.
    pub(crate) async fn is_blank(self, route: &Route) -> Result<bool> {
        let (g, capacity) = (&self.0.node.g, route.capacity);
        let bytes = self.0.ep.read(route.leaf, g.leaf_image(capacity) as u32).await?;
        let mut is_free = true;
        let mut see = |_, slot: Slot<'_>| is_free &= slot.state == SlotState::Free;
        let whole = |b: &[u8]| check_leaf(g, route.leaf, b, capacity, &mut see).is_some();
        Ok(bytes.extract(whole) && is_free)
    }

    /// Frees all slots of a tombstone, torn or not.
    pub(crate) async fn blank_unvalidated(self, addr: GlobalAddr, h: &NodeHeader) -> Result<()> {
        let bytes = self.0.ep.read(addr, self.0.node.g.leaf_image(h.slots) as u32).await?;
        let old = bytes.extract(<[u8]>::to_vec);
        // A client that repairs a parent blanks its tombstones, too: two that do it at once write
        // the same.
        let ver = Ver { generation: h.ver.generation, range: u8::MAX };
        let header = NodeHeader { ver, ..NodeHeader::of(&self.0.node.g, addr, &old) };
        self.0.ep.step(Step::Structure);
        self.write(addr, &old, &header).await
    }

    async fn write(self, addr: GlobalAddr, old: &[u8], header: &NodeHeader) -> Result<()> {
        let mut image = LeafImage::copied(self.0, addr, old, (header, NO_FENCE)).await?;
        (0..header.slots).for_each(|i| image.free(i));
        self.0.ep.write(addr, image.bytes).await.map(|_| ())
    }
}
