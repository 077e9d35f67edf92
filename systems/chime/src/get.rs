//! Point reads: one READ of the neighbourhood, or of one slot.
//!
//! Order of a read:
//! 1. With delegation, the read joins the readers of its key on this compute node
//!    (`parts::sharing`).
//! 2. The route, from the cache or by a descent (`parts::blink`).
//! 3. With a hotspot buffer that knows a slot: READ slot. If the key is there, its value is the
//!    result. No check of the leaf is needed: a division erases the slots of the keys that move.
//! 4. READ neighbourhood (sorted leaves: the leaf), repeated while it fails its check.
//! 5. A stale route is replaced. The key, if it is there, is the result.
//! 6. Otherwise the bitmap of the home must be that of the keys there; else a key is moving, and
//!    step 4 is repeated. Then the walk goes right, if the key may be there.
//!
//! Invariants: the linearization point is the READ that has the key; of an absence the READ of the
//! leaf that covers the key. A key that moves is not replaced by one of the same home, so that
//! step 6 sees every mix of READs in which the key is missing, as long as no key is deleted.
//!
//! A read changes nothing but caches, so a crash leaves nothing behind.

use dmtree_fabric::{OpOutcome, Result};
use dmtree_parts::blink::Descent;

use crate::index::Chime;
use crate::read::Leaves;
use crate::read::Place;

/// Reads of a key.
pub(crate) struct Reads<'c>(pub(crate) &'c Chime);

impl Reads<'_> {
    /// A read that may share its READ, or that of another reader.
    pub(crate) async fn get_shared(
        &self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(bool, OpOutcome)> {
        let find = async |out: &mut Vec<u8>| self.find(key, out).await;
        self.0.node.sharers.read(&self.0.ep, key, out, find).await
    }

    pub(crate) async fn find(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let (g, home) = (&self.0.node.g, self.0.node.g.home(key));
        let near = g.parts(home, g.near);
        let mut r = self.0.route(key).await?;
        loop {
            if let Some((leaf, slot)) = Leaves(self.0).guess(r.leaf, key).await? {
                Leaves(self.0).note_slot(r.leaf, slot, key);
                out.extend_from_slice(leaf.value(slot));
                return Ok(true);
            }
            let mut backoff = self.0.ep.backoff("a key that moves", r.leaf);
            loop {
                let leaf = Leaves(self.0).read_parts(r.leaf, &near).await?;
                let place = Leaves(self.0).place(&leaf, &r, key);
                if place == Place::Stale {
                    self.0.ep.check_deadline("the leaf of a key", r.leaf.bits())?;
                    r = self.0.fresh_route(key).await?;
                    break;
                }
                if place != Place::Right {
                    if let Some(slot) = leaf.find(key) {
                        Leaves(self.0).note_slot(r.leaf, slot, key);
                        out.extend_from_slice(leaf.value(slot));
                        return Ok(true);
                    }
                    if !leaf.agrees(home) {
                        self.0.retried.set(true);
                        backoff.step().await?;
                        continue;
                    }
                    if place == Place::Here {
                        return Ok(false);
                    }
                }
                r = Leaves(self.0).right(&leaf, &r)?;
                break;
            }
        }
    }
}
