//! Unlinking the tombstone of a relocated leaf from the list of leaves: step 7 of a relocation.

use dmtree_fabric::{Error, GlobalAddr, Result};
use dmtree_parts::held::Unlock;

use crate::leaf::{Blocks, LeafMemory, Leaves};
use crate::lock::LeafLocks;
use crate::route::route_of;
use crate::{Client, Mark, Route};

/// Unlinks tombstones.
#[derive(Clone, Copy)]
pub(crate) struct Unlinking<'c>(pub &'c Client);

impl Unlinking<'_> {
    /// Makes the left sibling of a relocated tombstone name its successor, and retires the leaf.
    /// False when it has to be tried again.
    pub(crate) async fn unlink(self, lo: &[u8], tombstone: &Route) -> Result<bool> {
        let c = self.0;
        let leaf = Leaves(c).read(tombstone.leaf, tombstone.capacity).await?;
        let h = leaf.header(c);
        if h.ver.generation != tombstone.generation || h.forward.is_null() {
            return Err(Error::corrupt(format!("leaf {} is no tombstone", tombstone.leaf)));
        }
        if !lo.is_empty() {
            let parent = c.descend_below(Some(lo)).await?;
            let Some(i) = parent.keys().below(Some(lo)) else { return Ok(false) };
            let route = route_of(&parent.records()[i]);
            let Some(left) = LeafLocks(c).lock(&route).await? else {
                c.fresh_route(parent.keys().get(i)).await?;
                return Ok(false);
            };
            let copy = Leaves(c).read(route.leaf, route.capacity).await?;
            // The leaf that named the tombstone ended where the tombstone begins. A leaf that
            // reaches over that place has taken all of them in: the successor was merged away,
            // behind a chain that the unlinking of another leaf, or a repair, had bypassed.
            let hi = Blocks(c).fence(copy.header(c).hi).await?;
            let reaches = hi.is_none_or(|hi| &hi[..] >= lo);
            let next = copy.header(c).next;
            let (successor, through) = self.live_successor(next, tombstone).await?;
            if successor != next {
                let at = route.leaf.plus(c.node.g.next_at() as u64);
                c.ep.write_word(at, successor.bits()).await?;
            }
            c.unlock(left).await?;
            if !through && !reaches {
                Mark::UnlinkAgain.hit();
                return Ok(false);
            }
        }
        Mark::Unlinked.hit();
        c.node.pool.log_retired(tombstone.leaf);
        LeafMemory(c).retire(tombstone);
        Ok(true)
    }

    /// The live leaf at the end of a chain of tombstones, and whether the chain passes through
    /// `tombstone`. Leaves of one chain may be unlinked in any order: the first client makes the left
    /// sibling name the live end.
    async fn live_successor(
        self,
        first: GlobalAddr,
        tombstone: &Route,
    ) -> Result<(GlobalAddr, bool)> {
        let c = self.0;
        let (mut at, mut through) = (first, false);
        while !at.is_null() {
            through |= at == tombstone.leaf;
            let forward = Leaves(c).read(at, tombstone.capacity).await?.header(c).forward;
            if forward.is_null() {
                break;
            }
            at = forward;
            c.ep.check_deadline("the end of a chain of tombstones", at.bits())?;
        }
        Ok((at, through))
    }
}
