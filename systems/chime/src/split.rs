//! Divides a leaf that has no room for a new key.
//!
//! Verbs in order, under the lock of the leaf:
//! 1. READ what is missing of the leaf.
//! 2. WRITE right half as a new leaf, with its vacancy word, awaited.
//! 3. WRITE left half, vacancy word and release. This is the linearization point.
//! 4. The separator is added to the node above (`parts::blink`).
//!
//! Invariants: nothing names the right half before step 3, and its sibling is the old one. Keys
//! that move keep their slots; the slots that they leave are erased, so that a reader that guesses
//! one finds another key. The separator is the key behind the last one that stays. So the largest
//! key of a divided leaf tells an insert whether to go right, until the node above knows.
//!
//! A crash before 3 loses the new leaf, and leaves the lock held. A crash after 3 leaves a missing
//! separator, and so a longer chain.

use dmtree_fabric::{Divided, Error, GlobalAddr, Result, Stage, Step};
use dmtree_parts::blink::{PageTree, Separators};
use dmtree_parts::bytes::put_u64;
use dmtree_parts::held::Unlock;
use dmtree_parts::op::{SPLIT, Written};
use dmtree_parts::sharing::SharedWrite;

use crate::format::Leaf;
use crate::index::Chime;
use crate::lock::Held;
use crate::lock::Locks;
use crate::read::Leaves;

/// Spare nodes: one for the leaf, the others for the levels above.
const SPARE: usize = 5;

/// Splits of leaves.
pub(crate) struct Splits<'c>(pub(crate) &'c Chime);

impl Splits<'_> {
    pub(crate) async fn split(
        &self,
        held: Held,
        at: GlobalAddr,
        leaf: Leaf<'_>,
        job: &mut SharedWrite<'_>,
    ) -> Result<Written> {
        let g = &self.0.node.g;
        let (held, ()) = self.0.under(held, self.0.reserve(SPARE).await).await?;
        let (held, leaf) = self.0.under(held, Leaves(self.0).complete(leaf, at).await).await?;
        let (held, new) = self.0.under(held, self.0.new_page().await).await?;
        self.0.ep.stage_cost(Stage::NodeImage, 2 * g.span as u32);
        let key = job.key;
        let (low, high) = match g.fences {
            true => leaf.fences(),
            false => (&[][..], &[][..]),
        };
        let (old, low, high) = (leaf.sibling(), low.to_vec(), high.to_vec());
        let full = Divided { keys: leaf.used().count() as u64, slots: g.span as u64 };
        let (held, mut d) = self.0.under(held, leaf.divide(key, job.value())).await?;
        d.right.set_metadata(old, &d.separator, &high);
        d.left.set_metadata(new, &low, &d.separator);
        d.left.raise();
        let written = async {
            self.write_new_leaf(new, &d.right).await?;
            let word = Some(g.word(&d.left)).filter(|_| g.has_vacancy);
            Locks(self.0).release(held, at, &d.left, &[g.whole()], word).await?;
            self.0.add_separator(1, &d.separator, new).await
        };
        written.await.map_err(Error::effect_unknown)?;
        self.0.ep.count_divided(full);
        let (slot, is_right) = d.slot;
        Leaves(self.0).note_slot(if is_right { new } else { at }, slot, key);
        Ok(SPLIT)
    }

    /// WRITEs a leaf that no client knows, with its vacancy word and a free lock.
    pub(crate) async fn write_new_leaf(&self, at: GlobalAddr, leaf: &Leaf<'_>) -> Result<()> {
        let g = &self.0.node.g;
        let mut image = self.0.blank(g.leaf_lock_at() as usize + 8).await?;
        g.leaf.encode(0..g.leaf.bytes(), &leaf.bytes, &mut image);
        if g.has_vacancy {
            put_u64(&mut image, g.words_at() as usize, g.word(leaf));
        }
        self.0.ep.step(Step::Structure);
        self.0.ep.write(at, image).await.map(drop)
    }
}
