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

use dmtree_fabric::{Buf, Error, OpKind, OpOutcome, Result, Stage, Verified};
use dmtree_parts::{Outcome, Write};

use crate::client::Sherman;
use crate::format::{self, leaf};
use crate::lock::Held;
use crate::route::Route;

/// The change of an entry.
enum Change<'v> {
    Set(&'v [u8]),
    Remove,
}

/// A locked leaf, as it was READ under the lock.
struct Locked {
    held: Held,
    route: Route,
    image: Verified,
}

impl Sherman {
    pub(crate) async fn write_op(&self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        self.check_key(key)?;
        self.check_write(&w)?;
        let kind = match w {
            Write::Update(_) => OpKind::Update,
            Write::Insert(_) => OpKind::Insert,
            Write::Put(_) => OpKind::Put,
            Write::Delete => OpKind::Delete,
            Write::CompareAndSet { .. } => OpKind::CompareAndSet,
        };
        let scope = self.ep.begin(kind);
        self.retried.set(false);
        let l = self.lock_leaf(key).await?;
        let (outcome, counted) = self.write_locked(l, key, w).await?;
        scope.end(counted);
        Ok(outcome)
    }

    /// Locks and READs the leaf that covers a key.
    async fn lock_leaf(&self, key: &[u8]) -> Result<Locked> {
        let mut route = self.route(key).await?;
        loop {
            let held = self.lock(route.leaf).await?;
            let image = match self.read_leaf(route.leaf).await {
                Ok(image) => image,
                Err(e) => return self.fail(held, e).await,
            };
            let h = match self.header_of(&image) {
                Ok(h) => h,
                Err(e) => return self.fail(held, e).await,
            };
            if h.covers(key) {
                return Ok(Locked { held, route, image });
            }
            self.unlock(held).await?;
            self.ep.check_deadline("the leaf of a key", route.leaf.bits())?;
            route = self.elsewhere(key, &route, &h).await?;
        }
    }

    async fn write_locked(
        &self,
        l: Locked,
        key: &[u8],
        w: Write<'_>,
    ) -> Result<(Outcome, OpOutcome)> {
        let g = &self.node.g;
        let Locked { held, route, image } = l;
        let slot = leaf::find(g, &image, key);
        let value = slot.map(|i| leaf::entry(g, &image, i).value);
        let change = match (w, value) {
            (Write::Insert(_), Some(_)) => Err((Outcome::Exists, OpOutcome::Hit)),
            (Write::Put(v) | Write::Insert(v), _) | (Write::Update(v), Some(_)) => {
                Ok(Change::Set(v))
            }
            (Write::Delete, Some(_)) => Ok(Change::Remove),
            (Write::CompareAndSet { expected, .. }, Some(old)) if old != expected => {
                Err((Outcome::Mismatch, OpOutcome::Hit))
            }
            (Write::CompareAndSet { new: Some(v), .. }, Some(_)) => Ok(Change::Set(v)),
            (Write::CompareAndSet { new: None, .. }, Some(_)) => Ok(Change::Remove),
            (_, None) => Err((Outcome::NotFound, OpOutcome::Absent)),
        };
        let change = match change {
            Ok(change) => change,
            Err((outcome, counted)) => {
                self.unlock(held).await?;
                return Ok((outcome, self.outcome(counted)));
            }
        };
        self.ep.stage_cost(Stage::EntryCheck, 1);
        let at = slot.or_else(|| leaf::free_slot(g, &image));
        let Some(at) = at else {
            let e = Error::corrupt(format!("leaf {} was left full", route.leaf));
            return self.fail(held, e).await;
        };
        let mut image = image.into_buf();
        let counted = match change {
            Change::Set(v) if g.two_level || slot.is_some() => {
                leaf::put_entry(g, &mut image, at, Some((key, v)));
                if slot.is_some() { OpOutcome::Hit } else { OpOutcome::InsertPlain }
            }
            Change::Set(v) => {
                leaf::insert_sorted(g, &mut image, key, v);
                OpOutcome::InsertPlain
            }
            Change::Remove if g.two_level => {
                leaf::put_entry(g, &mut image, at, None);
                OpOutcome::Hit
            }
            Change::Remove => {
                leaf::remove_sorted(g, &mut image, at);
                OpOutcome::Hit
            }
        };
        if counted == OpOutcome::InsertPlain && leaf::free_slot(g, &image).is_none() {
            // Boxed because it is rare and large.
            return Box::pin(self.split(held, route.leaf, image)).await;
        }
        self.write_changed(held, &route, at, image).await.map_err(Error::effect_unknown)?;
        Ok((Outcome::Done, self.outcome(counted)))
    }

    /// WRITEs the changed entry, or the whole leaf.
    async fn write_changed(
        &self,
        held: Held,
        r: &Route,
        slot: usize,
        mut image: Buf,
    ) -> Result<()> {
        let g = &self.node.g;
        if !g.two_level {
            self.ep.stage_cost(Stage::NodeImage, g.leaf_slots as u32);
            format::seal(g, &mut image);
            return self.write_and_unlock(held, r.leaf, image, false).await;
        }
        let bytes = g.entry_at(slot)..g.entry_at(slot + 1);
        let mut entry = match self.ep.buf(g.entry() as u32).await {
            Ok(buf) => buf,
            Err(e) => return self.fail(held, e).await,
        };
        entry.copy_from_slice(&image[bytes]);
        let at = r.leaf.plus(g.entry_at(slot) as u64);
        self.write_and_unlock(held, at, entry, false).await
    }
}
