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
//! Inner nodes merge likewise: parent first, then A and B by try; `B.forward = A`, A's image, B's
//! image, `A.next`, the record. Records that A has already stay at their places, so that a torn
//! WRITE of A loses none.
//!
//! A merge is maintenance work. One that finds a neighbour busy or too large gives up, and the next
//! delete queues it again.

use dmtree_fabric::verb::{VerbVec, write as write_verb, write_word};
use dmtree_fabric::{GlobalAddr, Result, Step};
use dmtree_parts::hash::fence_tag;
use dmtree_parts::held::Unlock;
use dmtree_pool::Grant;

use crate::client::{Client, Route};
use crate::format::MAX_RANGE;
use crate::format::leaf::{FenceArea, HeaderParts, put_free, put_header, put_slot};
use crate::format::slot::SlotState;
use crate::inner::{InnerLocks, LockedInner, Records};
use crate::invariants::{self, LeafState};
use crate::leaf::{Blocks, LeafCopy, LeafMemory, Leaves, Tombstones};
use crate::lock::{LeafLocks, Locked, WordLocks};
use crate::marks::Mark;
use crate::mutants::Mutant;
use crate::node::Chore;
use crate::route::route_of;

/// Merges leaves.
#[derive(Clone, Copy)]
pub(crate) struct Merges<'c>(pub &'c Client);

impl Merges<'_> {
    /// Merges the leaf of a key with a neighbour, if both are small enough and no other client
    /// works there: with the right one, or else with the left one, which deletes in ascending order
    /// leave small.
    pub(crate) async fn merge(self, key: &[u8]) -> Result<()> {
        self.0.route(key).await?;
        let pairs = self.0.node.cache.lookup(1, key, |n, i| {
            let pair = |a: usize| {
                let (ra, rb) = (n.records().get(a)?, n.records().get(a + 1)?);
                Some((route_of(ra), route_of(rb), n.keys().get(a + 1).to_vec()))
            };
            [pair(i), i.checked_sub(1).and_then(pair)]
        });
        for (ra, rb, low_b) in pairs.into_iter().flatten().flatten() {
            if self.pair(key, (ra, rb), low_b).await? {
                break;
            }
        }
        Ok(())
    }

    /// False: the two leaves are too large together.
    pub(crate) async fn pair(
        self,
        key: &[u8],
        (ra, rb): (Route, Route),
        low_b: Vec<u8>,
    ) -> Result<bool> {
        let c = self.0;
        let Some(a) = LeafLocks(c).lock(&ra).await? else {
            c.fresh_route(key).await?;
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
            c.unlock(b).await?;
            return c.unlock(a).await.map(|()| false);
        }
        let copies = async {
            let copy_a = Leaves(c).read(ra.leaf, ra.capacity).await?;
            let copy_b = Leaves(c).read(rb.leaf, rb.capacity).await?;
            let parent = InnerLocks(c).lock(1, &low_b).await?;
            Ok::<_, dmtree_fabric::Error>((copy_a, copy_b, parent))
        };
        let (copy_a, copy_b, parent) = match copies.await {
            Ok((a, b, Some(parent))) => (a, b, parent),
            Ok((_, _, None)) => {
                c.unlock(b).await?;
                return c.unlock(a).await.map(|()| true);
            }
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
            c.unlock(parent).await?;
            c.unlock(b).await?;
            return c.unlock(a).await.map(|()| true);
        };
        self.locked(a, b, (&copy_a, &copy_b), parent, at).await.map(|()| true)
    }

    async fn locked(
        self,
        a: Locked,
        b: Locked,
        copies: (&LeafCopy, &LeafCopy),
        parent: LockedInner,
        at: usize,
    ) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        Mark::Merge.hit();
        let (mut a, mut b) = (a, b);
        let (copy_a, copy_b) = copies;
        if !c.node.has_tables() {
            c.check_lease()?;
            WordLocks(c).begin_change(&mut [&mut a, &mut b], None).await?;
        }
        let ver = a.table.ver;
        let new_ver = ver.bumped();
        let live = a.table.live() + b.table.live();
        let mut image = c.ep.buf(g.leaf_image(copy_a.capacity) as u32).await?;
        image.copy_from_slice(&copy_a.bytes);
        let mut staged = VerbVec::new();
        let mut taken = Vec::new();
        for (from, slot) in copy_b.live(c) {
            let to = a.table.free_slot().expect("both are small");
            let mut entry = c.ep.buf(g.leaf_image(copy_a.capacity) as u32).await?;
            let live = c.node.has(Mutant::MergeLive);
            let state = if live { SlotState::Live } else { SlotState::Staged };
            put_slot(&g, copy_a.addr, &mut entry, to, &slot, state, ver);
            let range = g.slot_at(to)..g.slot_at(to) + g.entry();
            entry.copy_within(range, 0);
            entry.truncate(g.entry() as u32);
            let at = copy_a.addr.plus(g.slot_at(to) as u64);
            match c.node.has(Mutant::MergeCommitEarly) {
                false => _ = staged.write(at, entry),
                true => c.ep.detach(write_verb(at, entry), None),
            }
            a.table.set(to, b.table.fps()[from]);
            taken.push((from, to));
        }
        if staged.is_empty() {
            Mark::MergeEmpty.hit();
        } else {
            c.ep.step(Step::Structure);
            c.ep.batch(staged).await?; // m1
        }
        for (i, slot) in copy_a.live(c) {
            put_slot(&g, copy_a.addr, &mut image, i, &slot, SlotState::Live, new_ver);
        }
        for i in (0..copy_a.capacity).filter(|i| a.table.fps()[*i] == 0) {
            put_free(&g, copy_a.addr, &mut image, i, new_ver);
        }
        for (from, to) in &taken {
            let slot = copy_b.slot(c, *from);
            put_slot(&g, copy_a.addr, &mut image, *to, &slot, SlotState::Live, new_ver);
        }
        let (header_a, header_b) = (copy_a.header(c), copy_b.header(c));
        let parts = HeaderParts {
            ver: new_ver,
            table: a.route.table,
            slots: copy_a.capacity,
            level: 0,
            lo: &FenceArea::lo_of(&g, &copy_a.bytes),
            hi: &FenceArea::hi_of(&g, &copy_b.bytes),
            next: copy_b.addr,
            forward: GlobalAddr::NULL,
        };
        put_header(&g, copy_a.addr, &mut image, &parts);
        a.table.ver = new_ver;
        let merged = LeafState { addr: copy_a.addr, image: &image, table: &a.table };
        debug_assert!(
            invariants::is_merge(&g, (&copy_a.bytes, &copy_b.bytes), live, &merged),
            "merge of {} into {} breaks P, F, B, R or S",
            copy_b.addr,
            copy_a.addr
        );
        if c.node.has(Mutant::MergeNextEarly) {
            let next = copy_a.addr.plus(g.next_at() as u64);
            c.ep.write_word(next, header_b.next.bits()).await?;
        }
        if c.node.has(Mutant::RetireMergedEarly) {
            let arena = c.node.leaf_arena(b.route.capacity);
            c.node
                .pool
                .give_back(arena, Grant { addr: b.route.leaf, generation: b.route.generation });
        }
        if c.node.has(Mutant::MergeImageEarly) {
            let early = image.to_vec();
            let mut copy = c.ep.buf(early.len() as u32).await?;
            copy.copy_from_slice(&early);
            c.ep.write(copy_a.addr, copy).await?;
        }
        Tombstones(c).forward(copy_b.addr, copy_a.addr).await?; // m2
        c.ep.write(copy_a.addr, image).await?; // m3
        if !c.node.has(Mutant::MergeNoBlank) {
            Tombstones(c).blank(copy_b, &b.table, copy_a.addr).await?; // m4
        }
        let next = copy_a.addr.plus(g.next_at() as u64);
        match c.node.has(Mutant::MergeNextDetached) {
            false => c.ep.write_word(next, header_b.next.bits()).await?, // m5
            true => c.ep.detach(write_word(next, header_b.next.bits()), None),
        }
        let (record, few) = (parent.node.record(at), parent.node.len() * 4 <= g.fanout);
        let (index, record_key) = (record.index, FenceArea::of_record(&record));
        let low_b = parent.node.key(at).to_vec();
        let low_a = Blocks(c).fence(header_a.lo).await?.unwrap_or_default();
        Records(c).remove(parent, index).await?; // m6
        let hi = Blocks(c).fence(header_b.hi).await?;
        a.table.fence = fence_tag(hi.as_deref());
        let route_a = Route { fence: a.table.fence, ..a.route };
        c.fill_mirror(&low_a, &route_a, a.table.fps());
        let tombstone = b.route;
        LeafLocks(c).unlock_with_table(a).await?; // m7
        if !LeafLocks(c).close(b).await? {
            return Ok(());
        }
        let arena = c.node.leaf_arena(tombstone.capacity);
        if !c.node.has(Mutant::RetireMergedEarly) {
            c.node
                .pool
                .retire(arena, Grant { addr: tombstone.leaf, generation: tombstone.generation });
        }
        LeafMemory(c).retire_table(tombstone.table);
        Blocks(c).retire_fence(&FenceArea::lo_of(&g, &copy_b.bytes));
        Blocks(c).retire_fence(&record_key);
        if few {
            c.node.push_chore(Chore::MergeInner(low_b, 1));
        }
        Ok(())
    }
}
