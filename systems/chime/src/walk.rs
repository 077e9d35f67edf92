//! Checks the leaves and the locks; `parts::blink` checks the inner nodes before. No client may
//! write meanwhile.
//!
//! The walk READs all leaves along their siblings. A leaf has keys between its fence keys (those of
//! the nodes above), each key once and in a slot of its neighbourhood that the bitmap of its home
//! has, a vacancy word that promises no slot that is full (with `known_words`), and a free lock. A
//! violation is a `Corrupt` error.

use dmtree_fabric::Result;
use dmtree_parts::Shape;
use dmtree_parts::blink::{Chain, Header, Named, highest};
use dmtree_parts::published::must;

use crate::index::Chime;
use crate::read::Leaves;

/// A look at the whole tree.
pub(crate) struct Walks<'c>(pub(crate) &'c Chime);

impl Walks<'_> {
    pub(crate) async fn walk_leaves(&self, known: &[Named], shape: &mut Shape) -> Result<()> {
        let (g, highest) = (&self.0.node.g, highest(self.0.node.g.key));
        let mut chain = Chain::new(known);
        loop {
            self.0.ep.renew_deadline();
            let at = chain.at;
            let leaf = Leaves(self.0).read_parts(at, &[g.whole()]).await?;
            let bounds = match g.fences {
                true => leaf.fences(),
                // Without fence keys every leaf must have a name.
                false => {
                    let n = known.iter().position(|(_, named)| *named == at);
                    must(n.is_some(), "a leaf that no node above names", at)?;
                    let n = n.unwrap_or(0);
                    let high = known.get(n + 1).map_or(&highest, |(low, _)| low);
                    (&known[n].0[..], &high[..])
                }
            };
            let h = Header::of_leaf(leaf.sibling(), bounds.0, bounds.1);
            chain.enter(&h)?;
            let mut keys: Vec<&[u8]> = leaf.used().map(|i| leaf.key(i)).collect();
            must(keys.iter().all(|key| h.covers(key)), "a key outside", at)?;
            must(g.hopscotch || keys.is_sorted(), "keys out of order", at)?;
            keys.sort_unstable();
            must(keys.windows(2).all(|w| w[0] != w[1]), "a key occurs twice", at)?;
            must((0..g.span).all(|home| leaf.agrees(home)), "a bitmap that is wrong", at)?;
            if g.has_vacancy && self.0.node.o.known_words {
                let word = self.0.ep.read(at.plus(g.words_at()), 8).await?.word(0);
                must(leaf.fits(word), "a vacancy word that is wrong", at)?;
            }
            let lock = self.0.ep.read(at.plus(g.leaf_lock_at()), 8).await?.word(0);
            must(lock == 0, "a lock that is held", at)?;
            shape.add_leaf(g.span, keys.len(), g.leaf_lock_at() + 8);
            if !chain.leave(&h)? {
                return Ok(());
            }
        }
    }
}
