//! Splits a leaf: the write that fills its last slot divides it.
//!
//! Verbs in order, under the lock of the leaf:
//! 1. The entries are sorted in the image, as published.
//! 2. WRITE right half as a new page, awaited.
//! 3. WRITE left half and release. This is the linearization point. As published (`lazy_splits`), a
//!    split with combined verbs does not await it.
//! 4. The separator is added to the page above (`parts::blink`).
//!
//! Invariants: nothing names the right half before step 3, and its right link has the old sibling
//! of the left half. The left half has the right half as its sibling, so all keys stay reachable
//! without step 4.
//!
//! A crash before 3 loses the new page, and leaves the lock held. A crash after 3 leaves a missing
//! separator, and so a longer chain.

use dmtree_fabric::{Buf, Divided, Error, GlobalAddr, Result, Stage, Step};
use dmtree_parts::blink::{Format, Header, PageTree, Separators};
use dmtree_parts::held::Unlock;
use dmtree_parts::op::{SPLIT, Written};

use crate::format::leaf;
use crate::index::Sherman;
use crate::lock::Held;

/// Spare pages: one for the leaf, the others for the levels above.
const SPARE: usize = 5;

/// Splits of leaves.
pub(crate) struct Splits<'c>(pub(crate) &'c Sherman);

impl Splits<'_> {
    pub(crate) async fn split(&self, held: Held, at: GlobalAddr, mut left: Buf) -> Result<Written> {
        let g = &self.0.node.g;
        let (held, ()) = self.0.under(held, self.0.reserve(SPARE).await).await?;
        let (held, sibling) = self.0.under(held, self.0.new_page().await).await?;
        let (held, mut right) = self.0.under(held, self.0.blank(g.leaf_bytes()).await).await?;
        self.0.ep.stage_cost(Stage::NodeImage, 2 * g.leaf_slots as u32);
        let separator = self.divide(&mut left, &mut right, sibling)?;
        let written = async {
            self.0.ep.step(Step::Structure);
            self.0.ep.write(sibling, right).await?;
            self.0.write_back(held, at, left, true).await?;
            self.0.add_separator(1, &separator, sibling).await
        };
        written.await.map_err(Error::effect_unknown)?;
        let slots = g.leaf_slots as u64;
        self.0.ep.count_divided(Divided { keys: slots, slots });
        Ok(SPLIT)
    }

    /// Divides the image of a full leaf; returns the separator.
    fn divide(&self, left: &mut [u8], right: &mut [u8], sibling: GlobalAddr) -> Result<Vec<u8>> {
        let g = &self.0.node.g;
        let stay = g.leaf_slots / 2;
        leaf::sort(g, left);
        let separator = leaf::entry(g, left, stay).key.to_vec();
        let old = g.accepted(left).ok_or_else(|| Error::corrupt("a page without a header"))?;
        let (low, high) = (old.low.to_vec(), old.high.to_vec());
        let (next, old) = (old.sibling, Header { low: &low, high: &high, ..old });
        let of_right = Header { low: &separator, sibling: next, ..old };
        let of_left = Header { high: &separator, sibling, ..old };
        g.put_header(right, &of_right);
        g.put_header(left, &of_left);
        leaf::move_upper(g, left, right, stay);
        g.seal(right);
        g.seal(left);
        Ok(separator)
    }
}
