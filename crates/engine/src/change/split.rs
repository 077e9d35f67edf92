//! Splitting a full leaf L into L and a new right sibling S.
//!
//! 1. READ L.
//! 2. WRITE S and S's table, awaited: B demands that S is complete before any pointer leads to it.
//! 3. `L.next = S` (the commit word), then L's image in the same chain: upper fence = S.lo, range
//!    one on, moved slots free, kept slots where they are; then the pending entry, if it stays in
//!    L. Where `whole_write` covers a leaf, one WRITE does it all.
//! 4. Lock S's parent.
//! 5. WRITE the parent's record for S, and unlock the parent behind it.
//! 6. WRITE L's table, and unlock L behind it.
//!
//! L stays locked until the parent is published, so that R holds whenever L is unlocked: `hi` is
//! the sibling's `lo`, and the sibling has its record. All memory is taken before step 2, so a full
//! memory node changes nothing. The one exception is a parent that finds no memory for its own
//! split, or cannot be reached: readers then walk right, and a chore adds the record later. While
//! memory is that short no further leaf is split.
//!
//! P across the commit: until L's image has landed, moved entries are in both leaves, with equal
//! contents, and L is locked. Afterwards a reader of L finds the key above L's fence and hops
//! right. S: the new range refuses an image that mixes L before and after.
//!
//! The pending pair goes into S's image, or is written behind L's image into a slot that this image
//! frees.
//!
//! A crash before step 3 leaves S unreachable; the garbage collection finds it. A crash after the
//! commit word leaves L with `hi` above S's `lo`, or torn: recovery finishes the split from the
//! sibling's fence (`recovery/leaf.rs`), adds the record and builds the table. A commit that fails
//! without a crash keeps the lock, with the same effect.

use std::sync::atomic::Ordering;

use dmtree_fabric::verb::write as write_verb;
use dmtree_fabric::{Buf, GlobalAddr, OpOutcome, Result, Stage, Step};
use dmtree_parts::Outcome;
use dmtree_parts::hash::{KeyHash, fence_tag};
use dmtree_parts::held::Unlock;
use dmtree_parts::keys::common;
use dmtree_pool::BlockPtr;

use crate::client::{Client, is_away};
use crate::format::MAX_RANGE;
use crate::format::leaf::{FenceArea, HeaderParts, put_free, put_header, put_slot};
use crate::format::slot::{Place, SlotState};
use crate::format::table::{BODY_AT, MAX_SLOTS, Table};
use crate::inner::{InnerChange, Records};
use crate::invariants::{self, LeafState};
use crate::leaf::{Blocks, Entries, LeafCopy, LeafMemory, Leaves, NewLeaf};
use crate::lock::{LeafLocks, Locked, TableLocks, WordLocks, is_memory};
use crate::marks::Mark;
use crate::mutants::Mutant;
use crate::node::DmNode;
use crate::point::Written;

/// Bound for successive owners of the new leaf's table that die or do not answer.
const MAX_SIBLINGS: u32 = 8;

type Unwritten = Vec<(BlockPtr, Buf)>;

/// The shortest string that is above `low` and at most `high`.
pub(crate) fn separator<'a>(low: &[u8], high: &'a [u8]) -> &'a [u8] {
    &high[..(common(low, high) + 1).min(high.len())]
}

/// Splits leaves.
#[derive(Clone, Copy)]
pub(crate) struct Splits<'c>(pub &'c Client);

impl Splits<'_> {
    /// Splits the locked, full leaf and stores the pair in its half.
    pub(crate) async fn split(
        self,
        mut l: Locked,
        pair: (&[u8], KeyHash, &[u8]),
    ) -> Result<Written> {
        let prepared = async {
            let leaf = Leaves(self.0).image_of(&mut l).await?;
            self.check_parents().await?;
            Mark::Split.hit();
            let plan = self.plan_split(&leaf, pair.0).await?;
            let (s, images) = self.write_sibling(&mut l, &leaf, &plan, pair).await?;
            Ok((leaf, plan.separator, s, images))
        };
        let prepared = prepared.await;
        let (l, (leaf, separator, s, images)) = self.0.under(l, prepared).await?;
        // From here on an error leaves the lock held: the fabric failed, not the allocation, and
        // the pair may be there.
        let done = self.finish_split(l, &leaf, (&separator, s), images).await;
        done.map_err(dmtree_fabric::Error::effect_unknown)?;
        Ok((Outcome::Done, OpOutcome::InsertSplit))
    }

    /// Leaves without parent records are found by walking from one to the next: there must not be
    /// many of them.
    async fn check_parents(self) -> Result<()> {
        let c = self.0;
        if c.node.starved.load(Ordering::Relaxed) {
            let pool = &c.node.pool;
            let room = InnerChange(c).alloc().await?;
            pool.give_back(&c.node.inner_arena, room);
        }
        Ok(())
    }

    /// From the commit on.
    async fn finish_split(
        self,
        mut l: Locked,
        leaf: &LeafCopy,
        (low, s): (&[u8], NewLeaf),
        images: Images,
    ) -> Result<()> {
        let c = self.0;
        let (s_table, l_table) = (images.s_table.clone(), images.l_table.clone());
        if c.node.has(Mutant::PublishBeforeImage) {
            Records(c).publish(low, &s.child()).await?;
        }
        self.commit_split(&l, &s, images).await?;
        if c.node.has(Mutant::UnlockBeforePublish) {
            l.table = l_table;
            l.route.fence = l.table.fence;
            LeafLocks(c).unlock_with_table(l).await?;
            return Records(c).publish(low, &s.child()).await;
        }
        Records(c).publish(low, &s.child()).await?;
        let hi = Blocks(c).fence(leaf.header(c).hi).await?;
        c.fill_mirror(low, &s.route(fence_tag(hi.as_deref())), s_table.fps());
        l.table = l_table;
        l.route.fence = l.table.fence;
        c.fill_mirror(&Leaves(c).low_of(leaf).await?, &l.route, l.table.fps());
        LeafLocks(c).unlock_with_table(l).await
    }

    /// Step 2: the new leaf, complete but for the old one's commit word. When the owner of its
    /// table dies or restarts meanwhile another cell is taken: nothing has been changed yet, and no
    /// client waits for an owner while it holds a lock.
    async fn write_sibling(
        self,
        l: &mut Locked,
        leaf: &LeafCopy,
        plan: &Plan,
        pair: (&[u8], KeyHash, &[u8]),
    ) -> Result<(NewLeaf, Images)> {
        let c = self.0;
        let (mut tries, mut silent) = (0, Vec::new());
        loop {
            let s = LeafMemory(c).take_beside(leaf.capacity, &silent).await?;
            let mut blocks = Unwritten::new();
            let mut images = match self.split_images(l, leaf, plan, &s, pair, &mut blocks).await {
                Ok(images) => images,
                Err(e) => {
                    LeafMemory(c).give_back(&s);
                    Blocks(c).give_back(blocks);
                    return Err(e);
                }
            };
            let taken: Vec<BlockPtr> = blocks.iter().map(|(at, _)| *at).collect();
            Blocks(c).write(&mut blocks).await?;
            let Some(image) = images.s_image.take() else { return Ok((s, images)) };
            if !c.node.has_tables() {
                c.check_lease()?;
                WordLocks(c).begin_change(&mut [l], Some((s.grant, image))).await?;
                return Ok((s, images));
            }
            let body = TableLocks(c).body(&mut images.s_table, s.table).await?;
            let table_at = s.table_at.plus(BODY_AT as u64);
            c.ep.step(Step::Structure);
            c.check_lease()?;
            if c.node.has(Mutant::SplitBeforeSibling) {
                c.ep.detach(write_verb(s.grant.addr, image), None);
                c.ep.write(table_at, body).await?;
                return Ok((s, images));
            }
            if c.node.has(Mutant::SplitBeforeTable) {
                c.ep.detach(write_verb(table_at, body), None);
                c.ep.write(s.grant.addr, image).await?;
                return Ok((s, images));
            }
            let both = (write_verb(s.grant.addr, image), write_verb(table_at, body));
            match c.ep.batch(both).await {
                Ok(_) => return Ok((s, images)),
                Err(e) => {
                    let owner_is_away =
                        c.ep.cas(s.table_at, 0, 0).await.is_err_and(|e| is_away(&e));
                    if tries == MAX_SIBLINGS
                        || !(owner_is_away || is_away(&e) && !is_memory(s.table_at))
                    {
                        return Err(e);
                    }
                    tries += 1;
                    if !is_memory(s.table_at) {
                        silent.push(s.table_at.node());
                    }
                    Mark::SplitOwnerAway.hit();
                    // An owner that answers again may still execute the failed WRITE. The leaf and
                    // the cell then stay out of use until garbage collection finds them.
                    if owner_is_away {
                        LeafMemory(c).give_back(&s);
                    }
                    let index = c.node.root.index;
                    taken.iter().for_each(|at| c.node.pool.give_back_block(index, *at));
                }
            }
        }
    }

    async fn plan_split(self, leaf: &LeafCopy, key: &[u8]) -> Result<Plan> {
        let keys = Leaves(self.0).sorted_keys(leaf).await?;
        let at = keys.partition_point(|(k, _)| **k < *key);
        let last = leaf.header(self.0).hi == crate::format::area::Stored::Infinite;
        // A free slot is the lowest one: slots in the order of their keys were filled by ascending
        // inserts, also in a leaf that a neighbour bounds (a range that was emptied fills again).
        let ascends = last || keys.is_sorted_by(|a, b| a.1 < b.1);
        // Ascending inserts leave full leaves behind; otherwise half stays. Position `kept` in the
        // order that includes the new key.
        let appends = ascends && at == keys.len();
        let kept = if appends { keys.len() } else { keys.len().div_ceil(2) };
        let in_order = |i: usize| match i.cmp(&at) {
            std::cmp::Ordering::Less => &*keys[i].0,
            std::cmp::Ordering::Equal => key,
            std::cmp::Ordering::Greater => &*keys[i - 1].0,
        };
        let separator = separator(in_order(kept - 1), in_order(kept)).to_vec();
        if kept == keys.len() {
            Mark::SplitRightEnd.hit();
        }
        let moved = keys.iter().filter(|(k, _)| **k >= *separator).map(|(_, i)| *i).collect();
        Ok(Plan { pending_moves: key >= &separator[..], separator, moved })
    }

    async fn split_images(
        self,
        l: &Locked,
        leaf: &LeafCopy,
        plan: &Plan,
        s: &NewLeaf,
        pair: (&[u8], KeyHash, &[u8]),
        blocks: &mut Unwritten,
    ) -> Result<Images> {
        let c = self.0;
        let g = &c.node.g;
        let fence = Blocks(c).area(&plan.separator, blocks).await?;
        let header = leaf.header(c);
        let hi = Blocks(c).fence(header.hi).await?;
        c.ep.stage_cost(Stage::NodeImage, 2 * leaf.capacity as u32);

        let s_ver = s.ver();
        let mut s_image = c.ep.buf(g.leaf_bytes(s.capacity) as u32).await?;
        s_image.fill(0);
        put_header(
            g,
            s.grant.addr,
            &mut s_image,
            &HeaderParts {
                ver: s_ver,
                table: s.table,
                slots: s.capacity,
                level: 0,
                lo: &fence,
                hi: &FenceArea::hi_of(g, &leaf.bytes),
                next: header.next,
                forward: GlobalAddr::NULL,
            },
        );
        let mut s_table = Table::new(s.grant.addr, s_ver, fence_tag(hi.as_deref()), s.capacity);
        for (to, from) in plan.moved.iter().enumerate() {
            let slot = leaf.slot(c, *from);
            put_slot(g, s.grant.addr, &mut s_image, to, &slot, SlotState::Live, s_ver);
            s_table.set(to, l.table.fps()[*from]);
        }

        let l_ver = header.ver.bumped();
        let addr = leaf.addr;
        let mut l_image = c.ep.buf(g.leaf_image(leaf.capacity) as u32).await?;
        l_image.copy_from_slice(&leaf.bytes);
        put_header(
            g,
            addr,
            &mut l_image,
            &HeaderParts {
                ver: l_ver,
                table: l.route.table,
                slots: leaf.capacity,
                level: 0,
                lo: &FenceArea::lo_of(g, &leaf.bytes),
                hi: &fence,
                next: s.grant.addr,
                forward: GlobalAddr::NULL,
            },
        );
        let mut l_table = l.table.clone();
        l_table.ver = l_ver;
        l_table.fence = fence_tag(Some(&plan.separator));
        let mut moves = [false; MAX_SLOTS];
        plan.moved.iter().for_each(|i| moves[*i] = true);
        for (i, moves) in moves.into_iter().enumerate().take(leaf.capacity) {
            let slot = leaf.slot(c, i);
            if moves || slot.state != SlotState::Live {
                put_free(g, addr, &mut l_image, i, l_ver);
                l_table.set(i, 0);
            } else {
                put_slot(g, addr, &mut l_image, i, &slot, SlotState::Live, l_ver);
            }
        }

        let mut pending = None;
        let fp = pair.1.fingerprint();
        if plan.pending_moves {
            Mark::SplitPairMoves.hit();
            let to = plan.moved.len();
            let place = Place { leaf: s.grant.addr, slot: to };
            let at = g.slot_at(to);
            let entry = &mut s_image[at..at + g.entry()];
            blocks.extend(Entries(c).encode(place, s_ver, pair, entry).await?);
            s_table.set(to, fp);
        } else {
            Mark::SplitPairStays.hit();
            let to = l_table.free_slot().expect("some slots moved");
            let place = Place { leaf: addr, slot: to };
            let mut entry = c.ep.buf(g.entry() as u32).await?;
            blocks.extend(Entries(c).encode(place, l_ver, pair, &mut entry).await?);
            l_table.set(to, fp);
            pending = Some((to, entry));
        }
        for i in plan.moved.len() + usize::from(plan.pending_moves)..s.capacity {
            put_free(g, s.grant.addr, &mut s_image, i, s_ver);
        }
        let images = Images { s_image: Some(s_image), s_table, l_image, l_table, pending };
        debug_assert!(self.is_sound(leaf, s, &images), "split of {addr} breaks P, F, B, R or S");
        Ok(images)
    }

    /// The invariants of the images, with the pending entry where its WRITE will put it.
    fn is_sound(self, leaf: &LeafCopy, s: &NewLeaf, images: &Images) -> bool {
        let g = &self.0.node.g;
        let mut l_image = images.l_image.to_vec();
        if let Some((slot, entry)) = &images.pending {
            l_image[g.slot_at(*slot)..][..entry.len()].copy_from_slice(entry);
        }
        let left = LeafState { addr: leaf.addr, image: &l_image, table: &images.l_table };
        let image = images.s_image.as_ref().expect("just built");
        let right = LeafState { addr: s.grant.addr, image, table: &images.s_table };
        invariants::is_split(g, (&leaf.bytes, leaf.live(self.0).count()), &left, &right)
    }

    /// Step 3.
    async fn commit_split(self, l: &Locked, s: &NewLeaf, images: Images) -> Result<()> {
        let c = self.0;
        let g = &c.node.g;
        let Images { mut l_image, pending, .. } = images;
        let s_at = s.grant.addr;
        c.ep.step(Step::Structure);
        c.check_lease()?;
        let addr = l.route.leaf;
        if c.ep.caps().whole_write_bytes as usize >= l_image.len() {
            // The image lands wholly or not at all: it carries the commit word and the new pair
            // with it.
            if let Some((slot, entry)) = pending {
                l_image[g.slot_at(slot)..][..entry.len()].copy_from_slice(&entry);
            }
            c.ep.write(addr, l_image).await?;
            return Ok(());
        }
        let mut next = c.ep.buf(8).await?;
        next.copy_from_slice(&s_at.bits().to_le_bytes());
        let next = write_verb(addr.plus(g.next_at() as u64), next);
        let image = write_verb(addr, l_image);
        match pending {
            None if c.node.has(Mutant::ImageBeforeNext) => {
                c.ep.chain((image, next)).await.map(|_| ())
            }
            None => c.ep.chain((next, image)).await.map(|_| ()),
            Some((slot, entry)) => {
                let entry = write_verb(addr.plus(g.slot_at(slot) as u64), entry);
                if c.node.has(Mutant::PairBeforeImage) {
                    return c.ep.chain((next, entry, image)).await.map(|_| ());
                }
                c.ep.chain((next, image, entry)).await.map(|_| ())
            }
        }
    }

    /// The capacity that a full leaf must be relocated to instead of being split: its range is worn
    /// out, or the cache is so short that fewer, larger leaves are better.
    pub(crate) fn must_relocate(self, l: &Locked) -> Option<usize> {
        let c = self.0;
        let capacity = l.route.capacity;
        let least = DmNode::least_cache_bytes(&c.node.g);
        if c.node.o.techniques.adaptive_capacity
            && capacity < 128
            && c.node.cache.is_short_of(least)
        {
            Mark::RelocateTight.hit();
            return Some(capacity * 2);
        }
        let worn = l.table.ver.range >= MAX_RANGE;
        if worn {
            Mark::RelocateWorn.hit();
        }
        worn.then_some(capacity)
    }
}

struct Plan {
    separator: Vec<u8>,
    /// Slots that move to the new leaf, in key order.
    moved: Vec<usize>,
    pending_moves: bool,
}

struct Images {
    /// Until it has been written.
    s_image: Option<Buf>,
    s_table: Table,
    l_image: Buf,
    l_table: Box<Table>,
    /// The new pair when it stays: its slot and entry.
    pending: Option<(usize, Buf)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn separators_separate(mut a in proptest::collection::vec(0u8..3, 0..6), mut b in proptest::collection::vec(0u8..3, 1..6)) {
            prop_assume!(a != b);
            if a > b { std::mem::swap(&mut a, &mut b); }
            let s = separator(&a, &b);
            prop_assert!(&a[..] < s && s <= &b[..]);
            prop_assert!(s.len() == 1 || s[..s.len() - 1] <= a[..], "no shorter one would do");
        }
    }
}
