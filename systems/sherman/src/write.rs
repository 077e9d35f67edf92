//! Point writes: put, insert, update, delete, compare-and-set, all under the lock of the leaf.
//!
//! Verbs in order: CAS lock word (none after a hand-over); READ leaf; with two-level versions WRITE
//! of one entry, otherwise WRITE of the whole sorted leaf; release, in one chain with the WRITE
//! where verbs are combined. The WRITE is the linearization point. A write that fills the last slot
//! splits the leaf (`split.rs`).
//!
//! Invariants: the lock covers the leaf, so READ and WRITE are one atomic change for writers. A
//! leaf that does not cover the key is released, and the right one is locked. Readers take no lock,
//! and rely on the versions or the checksum.
//!
//! A crash between the CAS and the release leaves the lock held, and perhaps a torn entry or leaf.
//! As published no client recovers them.

use dmtree_fabric::{Buf, Error, OpOutcome, Result, Stage, Verified};
use dmtree_parts::blink::{Descent, Format, PageTree, Route};
use dmtree_parts::held::Unlock;
use dmtree_parts::op::Written;
use dmtree_parts::{Outcome, Write};

use crate::format::leaf;
use crate::index::Sherman;
use crate::leaf::Leaves;
use crate::lock::Held;
use crate::split::Splits;

/// Writes of a key.
pub(crate) struct Writes<'c>(pub(crate) &'c Sherman);

impl Writes<'_> {
    /// Locks and READs the leaf that covers a key.
    async fn lock_leaf(&self, key: &[u8]) -> Result<(Held, Route, Verified)> {
        let mut route = self.0.route(key).await?;
        loop {
            let held = self.0.lock(route.leaf).await?;
            let (held, image) =
                self.0.under(held, Leaves(self.0).read_leaf(route.leaf).await).await?;
            let (held, h) = self.0.under(held, Leaves(self.0).header_of(&image)).await?;
            if h.covers(key) {
                return Ok((held, route, image));
            }
            self.0.unlock(held).await?;
            self.0.ep.check_deadline("the leaf of a key", route.leaf.bits())?;
            route = self.0.elsewhere(key, &route, &h).await?;
        }
    }

    pub(crate) async fn change(&self, key: &[u8], w: Write<'_>) -> Result<Written> {
        let g = &self.0.node.g;
        let (held, route, image) = self.lock_leaf(key).await?;
        let slot = leaf::find(g, &image, key);
        let value = slot.map(|i| leaf::entry(g, &image, i).value);
        if let Some(refused) = w.refused(value) {
            self.0.unlock(held).await?;
            return Ok(refused);
        }
        self.0.ep.stage_cost(Stage::EntryCheck, 1);
        let at = slot.or_else(|| leaf::free_slot(g, &image));
        let Some(at) = at else {
            let e = Error::corrupt(format!("leaf {} was left full", route.leaf));
            return self.0.fail(held, e).await;
        };
        let mut image = image.into_buf();
        let counted = if slot.is_some() { OpOutcome::Hit } else { OpOutcome::InsertPlain };
        match w.value() {
            Some(v) if !g.two_level && slot.is_none() => {
                leaf::insert_sorted(g, &mut image, key, v);
            }
            None if !g.two_level => leaf::remove_sorted(g, &mut image, at),
            value => leaf::put_entry(g, &mut image, at, value.map(|v| (key, v))),
        }
        if counted == OpOutcome::InsertPlain && leaf::free_slot(g, &image).is_none() {
            // Boxed because it is rare and large.
            return Box::pin(Splits(self.0).split(held, route.leaf, image)).await;
        }
        self.write_changed(held, &route, at, image).await.map_err(Error::effect_unknown)?;
        Ok((Outcome::Done, counted))
    }

    /// WRITEs the changed entry, or the whole leaf.
    async fn write_changed(
        &self,
        held: Held,
        r: &Route,
        slot: usize,
        mut image: Buf,
    ) -> Result<()> {
        let g = &self.0.node.g;
        if !g.two_level {
            self.0.ep.stage_cost(Stage::NodeImage, g.leaf_slots as u32);
            g.seal(&mut image);
            return self.0.write_back(held, r.leaf, image, false).await;
        }
        let bytes = g.entry_at(slot)..g.entry_at(slot + 1);
        let (held, mut entry) = self.0.under(held, self.0.ep.buf(g.entry() as u32).await).await?;
        entry.copy_from_slice(&image[bytes]);
        let at = r.leaf.plus(g.entry_at(slot) as u64);
        self.0.write_back(held, at, entry, false).await
    }
}
