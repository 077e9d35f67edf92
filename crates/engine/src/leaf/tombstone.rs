//! Tombstones: leaves that forward to their successors.

use dmtree_fabric::{GlobalAddr, Result, Step};

use crate::client::Client;
use crate::format::Ver;
use crate::format::leaf::{FenceArea, HeaderParts, put_free, put_header};
use crate::format::table::Table;
use crate::leaf::{LeafCopy, Unvalidated};

/// Turns leaves into tombstones.
#[derive(Clone, Copy)]
pub(crate) struct Tombstones<'c>(pub &'c Client);

impl Tombstones<'_> {
    /// Frees all slots of a tombstone, torn or not.
    pub(crate) async fn blank_unvalidated(self, addr: GlobalAddr, h: &Unvalidated) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        let len = g.leaf_image(h.slots) as u32;
        let bytes = c.ep.read(addr, len).await?;
        let old = bytes.extract(<[u8]>::to_vec);
        let now = Unvalidated::of(&g, addr, &old);
        // A client that repairs a parent blanks its tombstones, too: two that do it at once write
        // the same.
        let ver = Ver { generation: h.ver.generation, range: u8::MAX };
        let mut image = c.ep.buf(len).await?;
        image.copy_from_slice(&old);
        let parts = HeaderParts {
            ver,
            table: now.table,
            slots: now.slots,
            level: 0,
            lo: &now.lo,
            hi: &now.hi,
            next: now.next,
            forward: now.forward,
        };
        put_header(&g, addr, &mut image, &parts);
        (0..h.slots).for_each(|i| put_free(&g, addr, &mut image, i, ver));
        c.ep.step(Step::Structure);
        c.ep.write(addr, image).await.map(|_| ())
    }

    /// Commits: the leaf's range goes to the leaf at `forward`.
    pub(crate) async fn forward(self, leaf: GlobalAddr, forward: GlobalAddr) -> Result<()> {
        let c = self.0;
        c.check_lease()?;
        c.ep.write_word(leaf.plus(c.node.g.forward_at() as u64), forward.bits()).await
    }

    /// Frees the slots of a tombstone, under the next range.
    pub(crate) async fn blank(
        self,
        leaf: &LeafCopy,
        table: &Table,
        forward: GlobalAddr,
    ) -> Result<()> {
        let c = self.0;
        let g = &c.node.g;
        let (header, ver) = (leaf.header(c), table.ver.bumped());
        let mut image = c.ep.buf(g.leaf_image(leaf.capacity) as u32).await?;
        image.copy_from_slice(&leaf.bytes);
        let parts = HeaderParts {
            ver,
            table: header.table,
            slots: leaf.capacity,
            level: 0,
            lo: &FenceArea::lo_of(g, &leaf.bytes),
            hi: &FenceArea::hi_of(g, &leaf.bytes),
            next: header.next,
            forward,
        };
        put_header(g, leaf.addr, &mut image, &parts);
        (0..leaf.capacity).for_each(|i| put_free(g, leaf.addr, &mut image, i, ver));
        c.ep.write(leaf.addr, image).await.map(|_| ())
    }
}
