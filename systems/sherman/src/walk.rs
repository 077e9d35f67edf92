//! Checks the leaves and the locks; `parts::blink` checks the inner pages before. No client may
//! write meanwhile.
//!
//! The walk READs all leaves along the right links. Leaves have keys between their fence keys, each
//! key once and in order where leaves are sorted, equal versions, and a free slot. No lock is held.
//! A violation is a `Corrupt` error.

use dmtree_fabric::Result;
use dmtree_parts::Shape;
use dmtree_parts::blink::{Chain, Named};
use dmtree_parts::published::must;

use crate::format::leaf;
use crate::index::Sherman;
use crate::leaf::Leaves;

/// A look at the whole tree.
pub(crate) struct Walks<'c>(pub(crate) &'c Sherman);

impl Walks<'_> {
    pub(crate) async fn walk_leaves(&self, known: &[Named], shape: &mut Shape) -> Result<()> {
        let g = &self.0.node.g;
        let mut chain = Chain::new(known);
        loop {
            self.0.ep.renew_deadline();
            let at = chain.at;
            let image = Leaves(self.0).read_leaf(at).await?;
            let h = Leaves(self.0).header_of(&image)?;
            chain.enter(&h)?;
            let mut keys = Vec::new();
            for (_, e) in leaf::used(g, &image) {
                must(e.whole, "an entry of two versions", at)?;
                must(h.covers(e.key), "a key outside", at)?;
                keys.push(e.key);
            }
            if !g.two_level {
                must(keys.is_sorted(), "keys out of order", at)?;
            }
            keys.sort_unstable();
            must(keys.windows(2).all(|w| w[0] != w[1]), "a key occurs twice", at)?;
            must(keys.len() < g.leaf_slots, "left full", at)?;
            shape.add_leaf(g.leaf_slots, keys.len(), g.leaf_bytes() as u64);
            if !chain.leave(&h)? {
                return Ok(());
            }
        }
    }
}
