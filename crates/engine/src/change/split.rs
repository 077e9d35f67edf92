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

use std::cmp::Ordering;
use std::sync::atomic;

use dmtree_fabric::verb::{write as write_verb, write_word};
use dmtree_fabric::{Buf, Error, NodeId, OpOutcome, Result, Stage, Step};
use dmtree_parts::Outcome;
use dmtree_parts::keys::common;

use crate::format::{MAX_RANGE, Place, Stored, Table, set_bound};
use crate::hop::Places;
use crate::inner::{InnerNodes, Records};
use crate::invariants::LeafState;
use crate::journal::{Journaled, effect};
use crate::leaf::{
    Blocks, CellKind, Entries, Images, LeafCopy, LeafImage, LeafMemory, Leaves, NewLeaf,
    NodeHeader, SortedKeys, Unwritten,
};
use crate::lock::{LeafLocks, Locked, is_memory};
use crate::log::Cut;
use crate::point::Written;
use crate::router::Router;
use crate::{Client, DmNode, KeyValue, Mark, Mutant, Unlock, fence_tag, invariants, is_away};

/// Bound for successive owners of the new leaf's table that die or do not answer.
const MAX_SIBLINGS: usize = 8;

/// The shortest string that is above `low` and at most `high`.
pub(crate) fn separator<'a>(low: &[u8], high: &'a [u8]) -> &'a [u8] {
    &high[..(common(low, high) + 1).min(high.len())]
}

/// The capacity that a full leaf must be relocated to instead of being split: its range is worn
/// out, or the cache is so short that fewer, larger leaves are better.
pub(crate) fn must_relocate(c: &Client, l: &Locked) -> Option<usize> {
    let capacity = l.route.capacity;
    let least = DmNode::least_cache_bytes(&c.node.g);
    let adapts = c.node.o.techniques.adaptive_capacity;
    if adapts && capacity < 128 && c.node.cache.is_short_of(least) {
        Mark::RelocateTight.hit();
        return Some(capacity * 2);
    }
    let worn = l.table.ver.range >= MAX_RANGE;
    if worn {
        Mark::RelocateWorn.hit();
    }
    worn.then_some(capacity)
}

/// What a split moves.
struct Plan {
    separator: Vec<u8>,
    /// Slots that move to the new leaf, in key order.
    moved: Vec<usize>,
    pending_moves: bool,
}

impl Plan {
    async fn of(c: &Client, leaf: &LeafCopy, key: &[u8]) -> Result<Self> {
        let keys = SortedKeys::of(Leaves(c), leaf).await?;
        let at = keys.count_below(key);
        let last = leaf.header(c).hi == Stored::Infinite;
        // A free slot is the lowest one: slots in the order of their keys were filled by ascending
        // inserts, also in a leaf that a neighbour bounds (a range that was emptied fills again).
        let ascends = last || keys.is_in_order();
        // Ascending inserts leave full leaves behind; otherwise half stays. Position `kept` in the
        // order that includes the new key.
        let appends = ascends && at == keys.len();
        let kept = if appends { keys.len() } else { keys.len().div_ceil(2) };
        let in_order = |i: usize| match i.cmp(&at) {
            Ordering::Less => keys.key(i),
            Ordering::Equal => key,
            Ordering::Greater => keys.key(i - 1),
        };
        let separator = separator(in_order(kept - 1), in_order(kept)).to_vec();
        if kept == keys.len() {
            Mark::SplitRightEnd.hit();
        }
        let pending_moves = at >= kept;
        let moved = keys.slots_from(kept - usize::from(!pending_moves)).collect();
        Ok(Self { pending_moves, separator, moved })
    }
}

/// The images of both leaves.
struct Halves {
    upper: LeafImage,
    upper_table: Box<Table>,
    lower: LeafImage,
    lower_table: Box<Table>,
    /// The new pair when it stays: its slot and entry. Its WRITE is behind the image's.
    pending: Option<(usize, Buf)>,
    /// The new pair has found a place.
    has_pair: bool,
}

impl Halves {
    /// Both halves of a locked leaf, with the new pair in one of them.
    async fn of(
        (c, l): (&Client, &Locked),
        leaf: &LeafCopy,
        plan: &Plan,
        new: &NewLeaf,
        pair: KeyValue<'_>,
        later: &mut Unwritten,
    ) -> Result<Self> {
        let fence = Blocks(c).area(&plan.separator, later).await?;
        let hi = Blocks(c).fence(leaf.header(c).hi).await?;
        c.ep.stage_cost(Stage::NodeImage, 2 * leaf.capacity as u32);
        let mut header = NodeHeader::of(&c.node.g, leaf.addr, &leaf.bytes);
        let (old_ver, old_table) = (header.ver, header.table);
        let old_lo = std::mem::replace(&mut header.lo, fence);
        let ver = new.ver();
        (header.ver, header.table) = (ver, new.table);
        let fence_of_upper = fence_tag(hi.as_deref());
        let mut upper = LeafImage::new(c, new, (&header, fence_of_upper)).await?;
        let mut upper_table = c.spare_table();
        *upper_table = Table::new(new.grant.addr, ver, fence_of_upper, new.capacity);
        let (places, g, fps) = (c.node.places, c.node.g, l.table.fps());
        for (n, from) in plan.moved.iter().enumerate() {
            let to = places.copied(n, *from);
            upper.copy(to, leaf.entry(&g, *from));
            upper_table.set(to, fps[*from]);
        }
        upper.stamp(new.capacity);
        // The lower half ends where the upper one begins.
        let ver = old_ver.bumped();
        (header.ver, header.table, header.next) = (ver, old_table, new.grant.addr);
        header.hi = std::mem::replace(&mut header.lo, old_lo);
        let fence_of_lower = fence_tag(Some(&plan.separator));
        let mut lower = LeafImage::of(c, leaf, (&header, fence_of_lower)).await?;
        let mut lower_table = l.table.clone();
        (lower_table.ver, lower_table.fence) = (ver, fence_of_lower);
        for i in &plan.moved {
            lower.clear(*i);
            lower_table.set(*i, 0);
        }
        lower.stamp(leaf.capacity);
        let (pending, has_pair) = (None, false);
        let mut halves = Self { upper, upper_table, lower, lower_table, pending, has_pair };
        halves.place(c, plan, (leaf, new), pair, later).await?;
        debug_assert!(halves.are_sound(c, leaf, new), "split of {} breaks an invariant", leaf.addr);
        Ok(halves)
    }

    /// The new pair, if its half has a place for it.
    async fn place(
        &mut self,
        c: &Client,
        plan: &Plan,
        (leaf, new): (&LeafCopy, &NewLeaf),
        pair: KeyValue<'_>,
        later: &mut Unwritten,
    ) -> Result<()> {
        let fp = pair.1.fingerprint();
        let table = if plan.pending_moves { &self.upper_table } else { &self.lower_table };
        let places = match c.node.has(Mutant::HopSplitAnywhere) {
            false => c.node.places,
            true => Places::Any,
        };
        let Some(slot) = places.free_slot(table, pair.1) else {
            Mark::HopSplitFirst.hit();
            return Ok(());
        };
        self.has_pair = true;
        if plan.pending_moves {
            Mark::SplitPairMoves.hit();
            let place = Place { leaf: new.grant.addr, slot };
            let entry = self.upper.entry(slot);
            later.extend(Entries(c).encode(place, new.ver(), pair, entry).await?);
            self.upper_table.set(slot, fp);
        } else {
            Mark::SplitPairStays.hit();
            let place = Place { leaf: leaf.addr, slot };
            let mut entry = c.ep.buf(c.node.g.entry() as u32).await?;
            later.extend(Entries(c).encode(place, self.lower_table.ver, pair, &mut entry).await?);
            self.lower_table.set(slot, fp);
            self.pending = Some((slot, entry));
        }
        Ok(())
    }

    /// The invariants P, F, B, R and S of the images, with the pending entry where its WRITE will
    /// put it.
    fn are_sound(&self, c: &Client, leaf: &LeafCopy, new: &NewLeaf) -> bool {
        let g = &c.node.g;
        let mut lower = self.lower.bytes.to_vec();
        if let Some((slot, entry)) = &self.pending {
            lower[g.slot_at(*slot)..][..entry.len()].copy_from_slice(entry);
        }
        let left = LeafState { addr: leaf.addr, image: &lower, table: &self.lower_table };
        let (addr, image) = (new.grant.addr, &self.upper.bytes[..]);
        let right = LeafState { addr, image, table: &self.upper_table };
        let pairs = leaf.live(c).count() + usize::from(self.has_pair);
        invariants::is_split(g, (&leaf.bytes, pairs), &left, &right)
    }
}

/// A split in progress, under the lock of its leaf. The new leaf has landed.
pub(crate) struct Split<'c> {
    c: &'c Client,
    leaf: LeafCopy,
    separator: Vec<u8>,
    new: NewLeaf,
    new_table: Box<Table>,
    has_pair: bool,
}

/// The old leaf as the commit makes it.
type Lower = (Buf, Option<(usize, Buf)>, Box<Table>);

impl<'c> Split<'c> {
    /// Splits the locked, full leaf and stores the pair in its half; `None` when there is no place
    /// for it yet.
    pub(crate) async fn run(
        c: &'c Client,
        mut l: Locked,
        pair: KeyValue<'_>,
    ) -> Result<Option<Written>> {
        let prepared = Self::prepare(c, &mut l, pair).await;
        if let Err(e) = &prepared
            && is_away(e)
            && Images(c).is_away(&l).await
        {
            // Nothing has been committed: the write starts over, and waits for the next owner
            // without a lock.
            c.op.give_up(l.tag);
            return Ok(None);
        }
        // Matched in place: a future that passes both on would copy them.
        let (split, lower) = match prepared {
            Ok(prepared) => prepared,
            Err(e) => return c.fail(l, e).await,
        };
        let has_pair = split.has_pair;
        if has_pair && let Err(e) = Journaled(c).append(&[effect(pair.0, Some(pair.2))]).await {
            LeafMemory(c).give_back(&split.new);
            Images(c).reopen(&l, &split.leaf).await?;
            return c.fail(l, e).await;
        }
        // From here on an error leaves the lock held: the fabric failed, not the allocation, and
        // the pair may be there.
        split.finish(l, lower).await.map_err(Error::effect_unknown)?;
        Ok(has_pair.then_some((Outcome::Done, OpOutcome::InsertSplit)))
    }

    /// Steps 1 and 2: the new leaf, complete but for the old one's commit word. When the owner of
    /// its table dies or restarts meanwhile another cell is taken: nothing has been changed yet,
    /// and no client waits for an owner while it holds a lock.
    pub(crate) async fn prepare(
        c: &'c Client,
        l: &mut Locked,
        pair: KeyValue<'_>,
    ) -> Result<(Self, Lower)> {
        let leaf = Leaves(c).image_of(l).await?;
        // Leaves without parent records are found by walking from one to the next: there must not
        // be many of them.
        if c.node.starved.load(atomic::Ordering::Relaxed) {
            InnerNodes(c).give_back_unwritten(InnerNodes(c).take().await?);
        }
        Mark::Split.hit();
        let plan = Plan::of(c, &leaf, pair.0).await?;
        let mut silent = Vec::new();
        for tries in 0.. {
            let new = LeafMemory(c).take(leaf.capacity, CellKind::Any(&silent)).await?;
            let mut later = Unwritten::new();
            let halves = match Halves::of((c, l), &leaf, &plan, &new, pair, &mut later).await {
                Ok(halves) => halves,
                Err(e) => {
                    LeafMemory(c).give_back_unwritten(&new);
                    Blocks(c).give_back(later);
                    return Err(e);
                }
            };
            let taken: Vec<_> = later.iter().map(|(at, _)| *at).collect();
            Blocks(c).write(&mut later).await?;
            c.check_lease()?;
            let Halves { upper, upper_table: mut table, lower, lower_table, pending, has_pair } =
                halves;
            let early = (Mutant::SplitBeforeSibling, Some(Mutant::SplitBeforeTable));
            match LeafMemory(c).write((l, &new), upper.bytes, &mut table, early).await {
                Ok(()) => {
                    let separator = plan.separator;
                    let split = Self { c, leaf, separator, new, new_table: table, has_pair };
                    return Ok((split, (lower.bytes, pending, lower_table)));
                }
                Err(e) => {
                    silent.extend(Self::avoid_owner(c, &new, tries < MAX_SIBLINGS, e).await?);
                }
            }
            taken.into_iter().for_each(|at| Blocks(c).give_back_one(at));
        }
        unreachable!("bounded")
    }

    /// Where the new leaf is.
    #[cfg(test)]
    pub(crate) fn new_leaf(&self) -> dmtree_fabric::GlobalAddr {
        self.new.grant.addr
    }

    /// A new leaf and its table could not be written. When the owner of the table is away another
    /// one is taken; the silent one is named.
    async fn avoid_owner(
        c: &Client,
        new: &NewLeaf,
        may_go_on: bool,
        e: Error,
    ) -> Result<Option<NodeId>> {
        if !c.node.has_tables() {
            return Err(e);
        }
        let owner_is_away = c.ep.cas(new.table_at, 0, 0).await.is_err_and(|e| is_away(&e));
        let is_compute = !is_memory(new.table_at);
        if !may_go_on || !(owner_is_away || is_away(&e) && is_compute) {
            return Err(e);
        }
        Mark::SplitOwnerAway.hit();
        // An owner that answers again may still execute the failed WRITE. The leaf and the cell
        // then stay out of use until garbage collection finds them.
        if owner_is_away {
            LeafMemory(c).give_back(new);
        }
        Ok(is_compute.then(|| new.table_at.node()))
    }

    /// From the commit on.
    async fn finish(self, mut l: Locked, (image, pending, table): Lower) -> Result<()> {
        let (c, low, child) = (self.c, &self.separator, self.new.child());
        if c.node.has(Mutant::PublishBeforeImage) {
            Records(c).publish(low, &child).await?;
        }
        let shown = match l.route.is_imaged() {
            false => None,
            true => Some(self.shown(&image, &pending).await?),
        };
        self.commit(&l, image, pending).await?;
        if let Some(shown) = shown {
            // Readers wait for it, since the image was closed.
            Images(c).show(&l, shown).await?;
        }
        l.table = table;
        l.route.fence = l.table.fence;
        if c.node.has(Mutant::UnlockBeforePublish) {
            LeafLocks(c).unlock_with_table(l).await?;
            return Records(c).publish(low, &child).await;
        }
        Records(c).publish(low, &child).await?;
        let route = self.new.route(self.new_table.fence);
        let (upper, lower) = ((&route, self.new_table.fps()), (&l.route, l.table.fps()));
        Router(c).fill_mirrors(low, upper, lower);
        LeafLocks(c).unlock_with_table(l).await
    }

    /// The old leaf's image as the commit makes it.
    async fn shown(&self, image: &[u8], pending: &Option<(usize, Buf)>) -> Result<Buf> {
        let (c, g) = (self.c, &self.c.node.g);
        let mut shown = Images(c).copy_of(&image[..g.leaf_image(self.leaf.capacity)]).await?;
        if let Some((slot, entry)) = pending {
            shown[g.slot_at(*slot)..][..entry.len()].copy_from_slice(entry);
        }
        set_bound(g, &mut shown, self.leaf.capacity);
        Ok(shown)
    }

    /// Step 3. Where the leaf may have records in logs, its own count follows: they do not count
    /// for what it becomes.
    async fn commit(
        &self,
        l: &Locked,
        mut image: Buf,
        pending: Option<(usize, Buf)>,
    ) -> Result<()> {
        let (c, g, addr) = (self.c, &self.c.node.g, l.route.leaf);
        c.ep.step(Step::Structure);
        c.check_lease()?;
        let count = Cut(c).count(&l.route, &l.table).map(|(at, count)| write_word(at, count));
        if c.ep.caps().whole_write_bytes as usize >= image.len() {
            // The image lands wholly or not at all: it carries the commit word and the new pair
            // with it.
            if let Some((slot, entry)) = pending {
                image[g.slot_at(slot)..][..entry.len()].copy_from_slice(&entry);
            }
            return c.ep.chain((write_verb(addr, image), count)).await.map(|_| ());
        }
        let mut next = c.ep.buf(8).await?;
        next.copy_from_slice(&self.new.grant.addr.bits().to_le_bytes());
        let next = write_verb(addr.plus(g.next_at() as u64), next);
        let image = write_verb(addr, image);
        let entry =
            pending.map(|(slot, entry)| write_verb(addr.plus(g.slot_at(slot) as u64), entry));
        if entry.is_none() && c.node.has(Mutant::ImageBeforeNext) {
            return c.ep.chain((image, next, count)).await.map(|_| ());
        }
        if c.node.has(Mutant::PairBeforeImage) {
            return c.ep.chain((next, entry, image, count)).await.map(|_| ());
        }
        c.ep.chain((next, image, entry, count)).await.map(|_| ())
    }
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
