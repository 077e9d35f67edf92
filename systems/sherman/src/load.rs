//! Bulk load: what `parts::blink` has to know of leaves.

use std::ops::Range;

use dmtree_fabric::{Buf, GlobalAddr, Result};
use dmtree_parts::blink::{BulkLoad, Format, Header, PageTree, upper};
use dmtree_parts::fill::{self, Fill, SplitRule};
use dmtree_parts::held::Unlock;
use dmtree_parts::pairs::Pairs;

use crate::format::leaf;
use crate::index::Sherman;
use crate::leaf::Leaves;
use crate::lock::Held;

impl BulkLoad for Sherman {
    type NewLeaf<'c> = Buf;

    async fn lock_first(&self, leaf: GlobalAddr) -> Result<(Held, bool)> {
        let held = self.lock(leaf).await?;
        let (held, image) = self.under(held, Leaves(self).read_leaf(leaf).await).await?;
        let h = Leaves(self).header_of(&image)?;
        let is_empty = leaf::used(&self.node.g, &image).next().is_none();
        Ok((held, is_empty && upper(h.high).is_none()))
    }

    fn leaf_sizes(&self, all: &Pairs, fill: Fill) -> Vec<usize> {
        let slots = self.node.g.leaf_slots as u32;
        let rule = SplitRule::new(slots - 1, slots / 2);
        let mut sizes: Vec<usize> = fill.sizes(rule, all.len() as u64, 0).collect();
        fill::give_company(&mut sizes, self.node.g.leaf_slots - 1);
        sizes
    }

    fn low_fence(&self, all: &Pairs, begin: usize) -> Vec<u8> {
        all.key(begin).to_vec()
    }

    async fn new_leaf(&self, h: &Header<'_>, all: &Pairs, range: Range<usize>) -> Result<Buf> {
        Loads(self).leaf_image(h, all, range).await
    }

    async fn write_new<'c>(&'c self, at: GlobalAddr, leaf: Self::NewLeaf<'c>) -> Result<()> {
        self.ep.write(at, leaf).await.map(drop)
    }

    async fn write_first<'c>(
        &'c self,
        held: Held,
        at: GlobalAddr,
        leaf: Self::NewLeaf<'c>,
    ) -> Result<()> {
        self.write_back(held, at, leaf, false).await
    }
}

/// The bulk load.
pub(crate) struct Loads<'c>(pub(crate) &'c Sherman);

impl Loads<'_> {
    /// A leaf's image from pairs in key order.
    pub(crate) async fn leaf_image(
        &self,
        h: &Header<'_>,
        all: &Pairs,
        range: Range<usize>,
    ) -> Result<Buf> {
        let g = &self.0.node.g;
        let mut image = self.0.blank(g.leaf_bytes()).await?;
        g.put_header(&mut image, h);
        for (slot, i) in range.enumerate() {
            leaf::put_entry(g, &mut image, slot, Some(all.get(i)));
        }
        g.seal(&mut image);
        Ok(image)
    }
}
