//! Merging two small neighbours, A <- B, under one parent node.
//!
//! Locks: A, then B by try only, then the parent, so that no step after the commit can fail for
//! want of memory. Each step is awaited before the next:
//!
//! - m1: B's entries are written into free slots of A, staged. A reader ignores staged slots.
//! - m2: `B.forward = A` commits. From here on A answers for both ranges.
//! - m3: A's image: upper fence of B, range one on, staged entries live, `next` still B.
//! - m4: B's slots are freed, under the next range.
//! - m5: `A.next = B.next`.
//! - m6: B's record is removed from the parent, which is unlocked.
//! - m7: A's table and unlock; B's table is closed, awaited; B, its table and its fence blocks are
//!   retired.
//!
//! P holds because m1 is awaited before m2: at the commit A holds every entry of B, and until m4
//! both copies are frozen, since both leaves are locked. B must be A's `next` and not the first
//! child of its parent, because a parent's first record defines where the parent begins.
//!
//! A crash before m2 leaves staged slots in A and nothing else; recovery drops them (R: an unlocked
//! leaf has no staged slot). A crash after m2 leaves a tombstone that forwards to A while `A.next`
//! is still B: recovery of A redoes m3 to m7 from the memory nodes (`recovery/leaf.rs`,
//! `recovery/tombstone.rs`). Recovery of B first hands over to A's.
//!
//! A merge is maintenance work. One that finds a neighbour busy or too large gives up, and the next
//! delete queues it again.

use dmtree_fabric::verb::{VerbVec, write as write_verb, write_word};
use dmtree_fabric::{Buf, Effect, Error, Result, Step};
use dmtree_pool::Grant;

use crate::format::{FenceArea, MAX_RANGE, SlotState, put_slot};
use crate::hop::Places;
use crate::inner::{InnerLocks, LockedInner, Records};
use crate::invariants::LeafState;
use crate::leaf::{
    Blocks, Images, LeafCopy, LeafImage, LeafMemory, Leaves, NodeHeader, Tombstones,
};
use crate::lock::{LeafLocks, Locked};
use crate::log::Cut;
use crate::router::{Router, route_of};
use crate::{Chore, Client, KeyHash, Mark, Mutant, Route, Unlock, fence_tag, invariants};

/// A merge in progress, under the locks of both leaves and of their parent.
pub(crate) struct Merge<'c> {
    c: &'c Client,
    a: Locked,
    b: Locked,
    copy_a: LeafCopy,
    copy_b: LeafCopy,
    parent: LockedInner,
    /// The number of B's record.
    at: usize,
    /// B's slots, each with a free one of A that takes its entry.
    moves: Vec<(usize, usize)>,
}

impl<'c> Merge<'c> {
    /// Merges the leaf of a key with a neighbour, if both are small enough and no other client
    /// works there: with the right one, or else with the left one, which deletes in ascending order
    /// leave small.
    pub(crate) async fn of_key(c: &'c Client, key: &[u8]) -> Result<()> {
        Router(c).route(key).await?;
        let Some((n, i)) = c.node.cache.lookup(1, key) else { return Ok(()) };
        for a in [Some(i), i.checked_sub(1)].into_iter().flatten().filter(|a| a + 1 < n.len()) {
            let (ra, rb) = (route_of(&n.record(a)), route_of(&n.record(a + 1)));
            let low_b = n.keys().get(a + 1).to_vec();
            if Self::pair(c, key, (ra, rb), low_b).await? {
                break;
            }
        }
        Ok(())
    }

    /// False: the two leaves are too large together.
    pub(crate) async fn pair(
        c: &'c Client,
        key: &[u8],
        (ra, rb): (Route, Route),
        low_b: Vec<u8>,
    ) -> Result<bool> {
        let Some(a) = LeafLocks(c).lock(&ra).await? else {
            Router(c).fresh_route(key).await?;
            return Ok(true);
        };
        let Some(b) = LeafLocks(c).try_lock(&rb).await? else {
            Mark::MergeBusy.hit();
            return c.unlock(a).await.map(|()| true);
        };
        let (live_a, live_b) = (a.table.live(), b.table.live());
        let worn = a.table.ver.range.max(b.table.ver.range) >= MAX_RANGE;
        if worn || (live_a + live_b) * 2 > ra.capacity {
            Mark::MergeLarge.hit();
            return Self::part(c, (a, b), None).await.map(|()| false);
        }
        let (a, b) = Self::completed(c, (a, b)).await?;
        let copies = async {
            let copy_a = Leaves(c).read(ra.leaf, ra.capacity).await?;
            let copy_b = Leaves(c).read(rb.leaf, rb.capacity).await?;
            Ok::<_, Error>((copy_a, copy_b, InnerLocks(c).lock(1, &low_b).await?))
        };
        let (copy_a, copy_b, parent) = match copies.await {
            Ok((a, b, Some(parent))) => (a, b, parent),
            Ok((_, _, None)) => return Self::part(c, (a, b), None).await.map(|()| true),
            Err(e) => {
                c.unlock(b).await?;
                return c.fail(a, e).await;
            }
        };
        // B must be A's neighbour, and not the first child of its parent (the first record says
        // where the parent begins).
        let at = parent.node.position(rb.leaf);
        let neighbours = copy_a.header(c).next == rb.leaf;
        let Some(at) = at.filter(|at| *at > 0 && neighbours) else {
            Mark::MergeNoNeighbour.hit();
            return Self::part(c, (a, b), Some(parent)).await.map(|()| true);
        };
        let moves = match Self::places(c, &a, &copy_b).await {
            Ok(Some(moves)) => moves,
            placed => {
                Mark::HopMergeNot.hit();
                Self::part(c, (a, b), Some(parent)).await?;
                return placed.map(|_| false);
            }
        };
        Self { c, a, b, copy_a, copy_b, parent, at, moves }.run().await.map(|()| true)
    }

    /// The leaves are not merged: gives their locks back.
    async fn part(c: &Client, (a, b): (Locked, Locked), parent: Option<LockedInner>) -> Result<()> {
        if let Some(parent) = parent {
            c.unlock(parent).await?;
        }
        c.unlock(b).await?;
        c.unlock(a).await
    }

    /// Writes both leaves back: entries are staged where records may say something else.
    async fn completed(c: &Client, (a, b): (Locked, Locked)) -> Result<(Locked, Locked)> {
        let completed = async {
            Cut(c).complete(&a).await?;
            Cut(c).complete(&b).await
        };
        let Err(e) = completed.await else { return Ok((a, b)) };
        if e.effect() == Effect::None {
            c.unlock(b).await?;
        }
        c.fail(a, e).await
    }

    /// B's live slots, each with a free one of A; `None` when an entry finds no place there.
    async fn places(
        c: &Client,
        a: &Locked,
        copy_b: &LeafCopy,
    ) -> Result<Option<Vec<(usize, usize)>>> {
        let near = c.node.places != Places::Any && !c.node.has(Mutant::HopMergeAnywhere);
        let (mut table, mut moves) = (a.table.clone(), Vec::new());
        for (from, slot) in copy_b.live(c) {
            let to = match near {
                false => (0..a.route.capacity)
                    .find(|i| table.fps()[*i] == 0 && !c.node.places.is_replica(*i)),
                true => {
                    let key = Leaves(c).whole_key(&slot, copy_b.addr).await?;
                    c.node.places.free_slot(&table, KeyHash::of(&key))
                }
            };
            let Some(to) = to else { return Ok(None) };
            table.set(to, 1);
            moves.push((from, to));
        }
        Ok(Some(moves))
    }

    async fn run(mut self) -> Result<()> {
        let c = self.c;
        Mark::Merge.hit();
        LeafLocks(c).begin_change(&mut [&mut self.a, &mut self.b]).await?;
        let live = self.a.table.live() + self.b.table.live();
        self.stage().await?; // m1
        let image = self.image(live).await?;
        let a = self.copy_a.addr;
        self.begin_early(&image).await?;
        Tombstones(c).forward(&self.b.route, a).await?; // m2
        let shown = self.shown(&image).await?;
        c.ep.write(a, image).await?; // m3
        if !c.node.has(Mutant::MergeNoBlank) {
            Tombstones(c).blank(&self.copy_b, &self.b.table, a).await?; // m4
        }
        let next = self.copy_b.header(c).next.bits();
        let next_at = a.plus(c.node.g.next_at() as u64);
        match c.node.has(Mutant::MergeNextDetached) {
            false => c.ep.write_word(next_at, next).await?, // m5
            true => c.ep.detach(write_word(next_at, next), None),
        }
        if let Some(shown) = shown {
            Images(c).show(&self.a, shown).await?;
        }
        self.finish().await
    }

    /// m1: B's entries in free slots of A. Returns the slots from and to.
    async fn stage(&mut self) -> Result<()> {
        let Self { c, a, b, copy_a, copy_b, moves, .. } = self;
        let g = c.node.g;
        let mut staged = VerbVec::new();
        for (from, to) in moves.iter().copied() {
            let slot = copy_b.slot(c, from);
            let mut entry = c.ep.buf(g.leaf_image(copy_a.capacity) as u32).await?;
            let live = c.node.has(Mutant::MergeLive);
            let state = if live { SlotState::Live } else { SlotState::Staged };
            put_slot(&g, copy_a.addr, &mut entry, to, &slot, state, a.table.ver);
            let range = g.slot_at(to)..g.slot_at(to) + g.entry();
            entry.copy_within(range, 0);
            entry.truncate(g.entry() as u32);
            let at = copy_a.addr.plus(g.slot_at(to) as u64);
            match c.node.has(Mutant::MergeCommitEarly) {
                false => _ = staged.write(at, entry),
                true => c.ep.detach(write_verb(at, entry), None),
            }
            a.table.set(to, b.table.fps()[from]);
        }
        if moves.is_empty() {
            Mark::MergeEmpty.hit();
        }
        if b.route.is_imaged() && !c.node.has(Mutant::ImagedNotClosed) {
            // B's keys are A's from the commit on.
            let (at, zeros) = Images(c).closing(b).await?;
            staged.write(at, zeros);
        }
        if !staged.is_empty() {
            c.ep.step(Step::Structure);
            c.ep.batch(staged).await?;
        }
        Ok(())
    }

    /// A's image with `live` pairs, for m3; its `next` is still B.
    async fn image(&mut self, live: usize) -> Result<Buf> {
        let Self { c, a, b, copy_a, copy_b, moves, .. } = self;
        let g = &c.node.g;
        a.table.ver = a.table.ver.bumped();
        let hi = FenceArea::hi_of(g, &copy_b.bytes);
        let old = NodeHeader::of(g, copy_a.addr, &copy_a.bytes);
        let header = NodeHeader { ver: a.table.ver, hi, ..old };
        let mut image = LeafImage::of(c, copy_a, (&header, b.table.fence)).await?;
        a.table.slots(0).for_each(|i| image.clear(i));
        moves.iter().for_each(|(from, to)| image.copy(*to, copy_b.entry(g, *from)));
        image.stamp(copy_a.capacity);
        let merged = LeafState { addr: copy_a.addr, image: &image.bytes, table: &a.table };
        debug_assert!(
            invariants::is_merge(g, (&copy_a.bytes, &copy_b.bytes), live, &merged),
            "merge of {} into {} breaks P, F, B, R or S",
            copy_b.addr,
            copy_a.addr
        );
        Ok(image.bytes)
    }

    /// A's image as m5 leaves the leaf, if it has one.
    async fn shown(&self, image: &[u8]) -> Result<Option<Buf>> {
        let (c, g) = (self.c, &self.c.node.g);
        if !self.a.route.is_imaged() {
            return Ok(None);
        }
        let mut shown = Images(c).image_of(image, self.copy_a.capacity).await?;
        let next = self.copy_b.header(c).next.bits();
        shown[g.next_at()..][..8].copy_from_slice(&next.to_le_bytes());
        Ok(Some(shown))
    }

    /// With its mutants only: steps before the commit that belong behind it.
    async fn begin_early(&self, image: &[u8]) -> Result<()> {
        let Self { c, b, copy_a, copy_b, .. } = self;
        if c.node.has(Mutant::MergeNextEarly) {
            let next = copy_a.addr.plus(c.node.g.next_at() as u64);
            c.ep.write_word(next, copy_b.header(c).next.bits()).await?;
        }
        if c.node.has(Mutant::RetireMergedEarly) {
            let grant = Grant { addr: b.route.leaf, generation: b.route.generation };
            c.node.pool.give_back(c.node.leaf_arena(b.route.capacity), grant);
        }
        if c.node.has(Mutant::MergeImageEarly) {
            c.ep.write_bytes(copy_a.addr, image).await?;
        }
        Ok(())
    }

    /// m6 and m7.
    async fn finish(self) -> Result<()> {
        let Self { c, mut a, b, copy_a, copy_b, parent, at, .. } = self;
        let (record, few) = (parent.node.record(at), parent.node.len() * 4 <= c.node.g.fanout);
        let (index, record_key) = (record.index, FenceArea::of_record(&record));
        let low_b = parent.node.key(at).to_vec();
        let low_a = Leaves(c).low_of(&copy_a).await?;
        Records(c).remove(parent, index).await?;
        let hi = Blocks(c).fence(copy_b.header(c).hi).await?;
        a.table.fence = fence_tag(hi.as_deref());
        let route_a = Route { fence: a.table.fence, ..a.route };
        Router(c).fill_mirror(&low_a, &route_a, a.table.fps());
        let tombstone = b.route;
        LeafLocks(c).unlock_with_table(a).await?;
        if !LeafLocks(c).close(b).await? {
            return Ok(());
        }
        match c.node.has(Mutant::RetireMergedEarly) {
            false => LeafMemory(c).retire(&tombstone),
            true => LeafMemory(c).retire_table(tombstone.table),
        }
        Blocks(c).retire_fence(&FenceArea::lo_of(&c.node.g, &copy_b.bytes));
        Blocks(c).retire_fence(&record_key);
        if few {
            c.node.push_chore(Chore::MergeInner(low_b, 1));
        }
        Ok(())
    }
}
