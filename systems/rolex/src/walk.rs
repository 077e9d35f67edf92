//! Checks all leaves and their locks. No client may write meanwhile.
//!
//! The walk READs all leaves in order. A leaf has keys of its part of the order, ascending over the
//! leaf and its synonym; a leaf with a synonym is full; no lock is held. A violation is a `Corrupt`
//! error. A leaf without a place in any window is the defect that `whole_window` repairs.

use dmtree_fabric::Result;
use dmtree_parts::Shape;
use dmtree_parts::published::must;

use crate::format::MAP_BITS;
use crate::index::Rolex;
use crate::leaf::Node;
use crate::read::Reads;

/// A look at the whole tree.
pub(crate) struct Walks<'c>(pub(crate) &'c Rolex);

impl Walks<'_> {
    pub(crate) async fn walk_leaves(&self, shape: &mut Shape) -> Result<()> {
        let (g, d) = (&self.0.node.g, Reads(self.0).directory().await?);
        for ordinal in 0..d.models.leaves() {
            self.0.ep.renew_deadline();
            let at = d.leaf(ordinal);
            let leaf = Reads(self.0).read_leaf(at, None).await?;
            must(!leaf.has_moved(), "a leaf that has moved", at)?;
            let synonym = match leaf.synonym() {
                at if at.is_null() => None,
                at => Some(Reads(self.0).read_leaf(at, None).await?),
            };
            let parts = [Some(&leaf), synonym.as_ref()].into_iter().flatten();
            let mut keys: Vec<&[u8]> = parts.flat_map(Node::pairs).map(|(key, _)| key).collect();
            match (&leaf, &g.table) {
                (Node::Sorted(leaf), _) => {
                    let is_full = synonym.is_none() || leaf.is_full();
                    must(is_full, "a synonym of a leaf with room", at)?;
                }
                // Hopscotch leaves have no order.
                (Node::Hopscotch(_), _) => keys.sort_unstable(),
            }
            if g.has_vacancy {
                let word = self.0.ep.read(at.plus(g.lock_at() - 8), 8).await?.word(0);
                let maps = [(Some(&leaf), word), (synonym.as_ref(), word >> MAP_BITS)];
                let fits = |(node, map): &(Option<&Node<'_>>, u64)| match node {
                    Some(Node::Hopscotch(leaf)) => leaf.fits(*map),
                    _ => true,
                };
                must(maps.iter().all(fits), "a vacancy word that is wrong", at)?;
            }
            must(keys.windows(2).all(|w| w[0] < w[1]), "keys out of order", at)?;
            let is_home = |key: &&[u8]| d.models.home(d.number(key)) == ordinal;
            must(keys.iter().all(is_home), "a key of another leaf", at)?;
            let lock = self.0.ep.read(at.plus(g.lock_at()), 8).await?.word(0);
            must(lock == 0, "a lock that is held", at)?;
            let slots = if synonym.is_some() { 2 * g.span } else { g.span };
            shape.add_leaf(slots, keys.len(), g.stride() * (slots / g.span) as u64);
        }
        shape.inner_nodes = d.models.size().0;
        Ok(())
    }
}
